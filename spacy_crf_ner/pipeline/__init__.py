"""The spaCy component `crf_ner`."""

from ..docbin import find_encoders_once

find_encoders_once()  # spaCy imports this package before it reads a corpus to train on
