"""Annotate corpora of any size, on one machine, on Ray, or in data frames."""

from .dataframes import annotate_frames
from .multiprocess import annotate
from .ray_engine import annotate_on_ray
from .run import Progress, Summary, WorkerError
from .settings import Settings

__all__ = [
    "Progress",
    "Settings",
    "Summary",
    "WorkerError",
    "annotate",
    "annotate_frames",
    "annotate_on_ray",
]
