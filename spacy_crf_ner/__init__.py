"""An entity recogniser for spaCy: BiLSTM-CRF over a transformer, or any other tok2vec."""

__version__ = "0.1.0"
