"""Python imports this when it starts with this folder in PYTHONPATH: it installs the stand-in."""

import importlib.util
import os

if "STANDIN_GUARD" in os.environ:
    spec = importlib.util.find_spec("torch")
    os.environ["STANDIN_TORCH"] = spec.submodule_search_locations[0]

    import cuda_tensors
    import cupy_arrays

    cuda_tensors.install()
    cupy_arrays.install()
