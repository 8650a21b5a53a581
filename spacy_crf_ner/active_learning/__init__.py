"""Choose what to annotate next, and find gold annotation that is probably wrong."""

from .label_errors import Review, review
from .ranking import STRATEGIES, UNITS, Options, rank_texts
from .selection import Unit
from .suggestion import suggest
from .tasks import TOOLS

__all__ = [
    "STRATEGIES",
    "TOOLS",
    "UNITS",
    "Options",
    "Review",
    "Unit",
    "rank_texts",
    "review",
    "suggest",
]
