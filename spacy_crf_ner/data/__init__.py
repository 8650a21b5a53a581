"""Convert annotated corpora in many formats to Docs and to spaCy's binary files."""

from ..input_error import CorpusError
from .combination import combine
from .conll import read_conll
from .conversion import blank_pipeline, convert
from .files import SPLITS
from .format_detection import FORMATS, detect_format
from .gmb import read_gmb
from .hugging_face import download
from .inline import read_inline
from .repair_log import ALIGNMENTS, MAX_MESSAGES, ConversionLog
from .sentences import group_sentences
from .splits import split_indices
from .vietnamese import SYLLABLES

__all__ = [
    "ALIGNMENTS",
    "FORMATS",
    "MAX_MESSAGES",
    "SPLITS",
    "SYLLABLES",
    "ConversionLog",
    "CorpusError",
    "blank_pipeline",
    "combine",
    "convert",
    "detect_format",
    "download",
    "group_sentences",
    "read_conll",
    "read_gmb",
    "read_inline",
    "split_indices",
]
