"""Knowledge distillation: a student pipeline learns from the distributions of teachers."""

from ..annotate import Summary
from .run import DEFAULTS, distill

__all__ = ["DEFAULTS", "Summary", "distill"]
