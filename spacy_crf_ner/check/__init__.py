"""What is wrong with a corpus, told before it is trained on."""

from .corpus import ENDING, open_corpus
from .finding import SEVERITIES, Finding, Place
from .report import Report
from .run import check
from .settings import Settings, read_settings
from .statistics import Statistics
from .subwords import Subwords
from .table import label_table, overview

__all__ = [
    "ENDING",
    "SEVERITIES",
    "Finding",
    "Place",
    "Report",
    "Settings",
    "Statistics",
    "Subwords",
    "check",
    "label_table",
    "open_corpus",
    "overview",
    "read_settings",
]
