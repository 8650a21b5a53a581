"""Corpora: annotated text of many formats, read into Docs and written as spaCy's binary corpora.

Tags may be IOB1, IOB2 (BIO) or BILUO (BIOES). The first two need not be told apart: an I- that
follows no tag of its label begins an entity, as in conlleval, and a B- always does. A file that
has an L-, U-, E- or S- anywhere is BILUO, and there every entity must be closed.
"""

from ..syllables import SYLLABLES
from .conll import read_conll
from .conversion import CONVERTERS, convert, group_sentences, split
from .detection import detect_format
from .files import SPLITS
from .gmb import read_gmb
from .inline import read_inline
from .journal import CorpusError, Journal
from .tokenizer import blank_pipeline

__all__ = [
    "CONVERTERS",
    "SPLITS",
    "SYLLABLES",
    "CorpusError",
    "Journal",
    "blank_pipeline",
    "convert",
    "detect_format",
    "group_sentences",
    "read_conll",
    "read_gmb",
    "read_inline",
    "split",
]
