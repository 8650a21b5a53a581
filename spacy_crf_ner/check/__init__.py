"""Find mistakes in a corpus before training: Docs to findings."""

from .check_corpus import check
from .findings import MESSAGES, SEVERITIES, Finding, Place, Report
from .settings import CheckSettings, read_settings
from .statistics import Statistics
from .wordpieces import TransformerTokenizer

__all__ = [
    "MESSAGES",
    "SEVERITIES",
    "CheckSettings",
    "Finding",
    "Place",
    "Report",
    "Statistics",
    "TransformerTokenizer",
    "check",
    "read_settings",
]
