"""The spaCy component `crf_ner`."""
