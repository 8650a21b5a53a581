"""Networks: thinc architectures, the PyTorch modules in them, and the potentials they return."""
