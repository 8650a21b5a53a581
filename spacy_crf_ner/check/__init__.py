"""Find mistakes in a corpus before training: Docs to findings."""

from .check_corpus import check
from .findings import SEVERITIES, Finding, Report
from .settings import CheckSettings, read_settings
from .statistics import MAX_LAYERS, Statistics
from .wordpieces import TransformerTokenizer

__all__ = [
    "MAX_LAYERS",
    "SEVERITIES",
    "CheckSettings",
    "Finding",
    "Report",
    "Statistics",
    "TransformerTokenizer",
    "check",
    "read_settings",
]
