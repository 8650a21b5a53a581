"""Corpora: annotated text of many formats, read into Docs and written as spaCy's binary corpora.

Tags may be IOB1, IOB2 (BIO), BILUO, BIOES or BMES. The first two need not be told apart: an I- that
follows no tag of its label begins an entity, as in conlleval, and a B- always does. A file that
has an L-, U-, E-, S- or M- anywhere is of the others, and there every entity must be closed.
"""

from .conll import read_conll
from .conversion import CONVERTERS, convert
from .files import SPLITS
from .format_detection import FORMATS, detect_format
from .gmb import read_gmb
from .grouping import group_sentences
from .inline import read_inline
from .repair_log import ALIGNMENTS, NOTED, CorpusError, Journal
from .splits import split
from .tokenizer import blank_pipeline
from .vietnamese import SYLLABLES

__all__ = [
    "ALIGNMENTS",
    "CONVERTERS",
    "FORMATS",
    "NOTED",
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
