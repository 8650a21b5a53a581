"""Token vectors of a transformer of Hugging Face."""
