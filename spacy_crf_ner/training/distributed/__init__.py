"""Training of one pipeline by several processes, each on its share of the examples."""
