"""Knowledge distillation: a student pipeline learns from the distributions of teachers."""

from .run import DEFAULTS, Summary, distill

__all__ = ["DEFAULTS", "Summary", "distill"]
