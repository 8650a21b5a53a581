"""Find mistakes in a corpus before training: Docs to findings."""

from .check_corpus import check
from .findings import Finding, Report
from .settings import CheckSettings, read_settings
from .statistics import MAX_LEVELS, Statistics

__all__ = [
    "MAX_LEVELS",
    "CheckSettings",
    "Finding",
    "Report",
    "Statistics",
    "check",
    "read_settings",
]
