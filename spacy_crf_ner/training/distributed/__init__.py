"""Train one pipeline with several processes, each on its share of the examples."""
