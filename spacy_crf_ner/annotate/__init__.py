"""Annotate corpora of any size: a function over frames of documents, and engines that feed it."""

from .cluster import annotate_on_ray
from .frames import annotate_frames, require_annotate
from .local import Progress, Summary, annotate
from .settings import Settings
from .workers import WorkerError

ENGINES = ("local", "ray")

__all__ = [
    "ENGINES",
    "Progress",
    "Settings",
    "Summary",
    "WorkerError",
    "annotate",
    "annotate_frames",
    "annotate_on_ray",
    "require_annotate",
]
