"""The spaCy component `crf_ner`, and what belongs to it."""
