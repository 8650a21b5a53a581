"""Convert annotated corpora in many formats to Docs and to spaCy's binary files."""

from .combination import combine
from .conversion import ConvertOptions, blank_pipeline, convert, read_gold
from .files import SPLITS, find_parts
from .format_detection import FORMATS, detect_format
from .hugging_face import download
from .inline import read_inline
from .merging import merge
from .repair_log import ALIGNMENTS, DISCONTINUOUS, MAX_LOSS, ConversionLog, describe_kind
from .splits import WAYS, Split
from .vietnamese import SYLLABLES

__all__ = [
    "ALIGNMENTS",
    "DISCONTINUOUS",
    "FORMATS",
    "MAX_LOSS",
    "SPLITS",
    "SYLLABLES",
    "WAYS",
    "ConversionLog",
    "ConvertOptions",
    "Split",
    "blank_pipeline",
    "combine",
    "convert",
    "describe_kind",
    "detect_format",
    "download",
    "find_parts",
    "merge",
    "read_gold",
    "read_inline",
]
