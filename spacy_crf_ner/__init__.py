"""Entity recogniser for spaCy that knows how sure it is: a BiLSTM-CRF over any tok2vec."""

__version__ = "0.1.0"
