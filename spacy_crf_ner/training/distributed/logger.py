"""A log that one rank writes for all."""

import sys
from pathlib import Path
from typing import IO, Any, Callable, Dict, Optional, Tuple

from spacy.language import Language
from spacy.training.loop import DIR_MODEL_BEST

from .checkpoint import OPTIMIZER
from .process_group import ranks
from .state import begin

LogStep = Callable[[Optional[Dict[str, Any]]], None]
Finalize = Callable[[], None]
Logger = Callable[[Language, IO[str], IO[str]], Tuple[LogStep, Finalize]]


def rank_zero_logger(logger: Logger) -> Logger:
    """Make `spacy-crf-ner.RankZeroLogger.v1`: only rank 0 logs.

    With it, training begins: a `spacy-crf-ner.RankCorpus.v1` yields shares from then on. Losses,
    and words per second where they are logged, are those of rank 0; scores are those of all.

    logger: What rank 0 logs with.
    """

    def setup(
        nlp: Language, stdout: IO[str] = sys.stdout, stderr: IO[str] = sys.stderr
    ) -> Tuple[LogStep, Finalize]:
        begin(nlp)
        if ranks().rank != 0:
            return lambda info: None, lambda: None
        log, finalize = logger(nlp, stdout, stderr)

        def log_step(info: Optional[Dict[str, Any]]) -> None:
            log(info)
            if info and "output_path" in info:
                # spaCy copies the last pipeline to the best, which is for use, not for training.
                best = Path(info["output_path"]).with_name(DIR_MODEL_BEST)
                (best / OPTIMIZER).unlink(missing_ok=True)

        return log_step, finalize

    return setup
