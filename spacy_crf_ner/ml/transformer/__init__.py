"""spacy-transformers' model with faster batching, exact alignment and inference dtypes."""
