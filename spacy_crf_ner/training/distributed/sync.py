"""Ranks that hold the same weights, and take the same decisions."""

import json
from pathlib import Path
from typing import Any, Callable, Dict, Optional

from spacy.language import Language
from spacy.training import loop
from thinc.api import fix_random_seed

from .checkpoint import read_checkpoint, write_checkpoints
from .parameters import tensors
from .process_group import TIMEOUT, ranks
from .state import begin, run

BeforeUpdate = Callable[[Language, Dict[str, Any]], None]


def keep_ranks_equal(
    resume: Optional[Path] = None,
    timeout: float = TIMEOUT,
    then: Optional[BeforeUpdate] = None,
) -> BeforeUpdate:
    """Make `spacy-crf-ner.keep_ranks_equal.v1`, for `[training.before_update]`.

    With it, the processes that torchrun has started join. Before the first update, all ranks get
    the weights of rank 0, bit for bit, and random numbers of their own for dropout and the order
    of examples. From then on rank 0 alone evaluates, and all learn its scores: which pipeline is
    the best, and when to stop, is one decision. model-last gets what is needed to resume from it.

    resume: Checkpoint, such as model-last of an earlier training, to go on from; rank 0 reads it.
        Weights, moments and schedules go on, but steps and epochs are counted anew.
    timeout: Minutes that a rank waits for another, more than rank 0 evaluates and saves for.
    then: Another such callback, called before; None for none.

    The callback raises ValueError where ranks have other weights, or the config lacks the logger
    of distributed training, and for a checkpoint that is not of this pipeline. Training raises it
    for one in the output folder.
    """
    # Now, before the output folder is looked at; not when a trained pipeline is loaded.
    ranks(timeout)
    if resume is not None:
        _keep_from_deletion(resume)

    def before_update(nlp: Language, info: Dict[str, Any]) -> None:
        if then is not None:
            then(nlp, info)
        if run().nlp is not nlp:
            _require_alone()
            begin(nlp)
        if not run().equal:
            _make_equal(nlp, resume)

    return before_update


def _make_equal(nlp: Language, resume: Optional[Path]) -> None:
    state = b""
    if resume is not None and ranks().rank == 0:
        state = read_checkpoint(nlp, Path(resume))
    _require_same_layout(nlp)
    for _, tensor in tensors(nlp):
        ranks().copy(tensor)
    if resume is not None:
        run().resumed = ranks().tell(state)
    if ranks().rank == 0:
        write_checkpoints(nlp)
    if not ranks().alone:
        nlp.evaluate = _by_rank_0(nlp.evaluate)  # type: ignore[method-assign]
    seed = nlp.config.interpolate()["training"]["seed"]
    if seed is not None and ranks().rank != 0:
        fix_random_seed(seed + ranks().rank)
    run().equal = True


def _by_rank_0(evaluate: Callable[..., Dict[str, Any]]) -> Callable[..., Dict[str, Any]]:
    """Let rank 0 evaluate, and tell the others the scores."""

    def told(*args: Any, **settings: Any) -> Dict[str, Any]:
        if ranks().rank != 0:
            scores: Dict[str, Any] = json.loads(ranks().tell())
            return scores
        scores = evaluate(*args, **settings)
        # Numbers are the same ones again; what else a scorer returns, only rank 0 logs.
        ranks().tell(json.dumps(scores, default=str).encode("utf-8"))
        return scores

    return told


def _require_same_layout(nlp: Language) -> None:
    """Refuse ranks whose weights differ in names or sizes, in all of them."""
    own = [[name, list(tensor.shape), str(tensor.dtype)] for name, tensor in tensors(nlp)]
    first = json.loads(ranks().tell(json.dumps(own).encode("utf-8")))
    if ranks().any(own != first):
        different = [f"{mine} for {his}" for mine, his in zip(own, first) if mine != his]
        raise ValueError(
            f"Rank {ranks().rank}: expected the {len(first)} weights of rank 0, got "
            f"{'; '.join([f'{len(own)} weights', *different[:1]])}. Give all ranks the same "
            "config and corpus, and a checkpoint of the same labels."
        )


def _require_alone() -> None:
    if not ranks().alone:
        raise ValueError(
            "[training.logger] expected spacy-crf-ner.RankZeroLogger.v1, got another one. A "
            "distributed config needs all blocks of configs/distributed.cfg."
        )


def _keep_from_deletion(checkpoint: Path) -> None:
    """Let the next training raise ValueError where it would delete what it is to resume from."""
    clean = loop.clean_output_dir

    def clean_output_dir(path: Optional[Path]) -> None:
        loop.clean_output_dir = clean
        if path is not None and path.resolve() in Path(checkpoint).resolve().parents:
            raise ValueError(
                f"resume: expected a checkpoint outside of the output folder, got {checkpoint}, "
                "which spaCy deletes when training begins. Give another --output."
            )
        clean(path)

    loop.clean_output_dir = clean_output_dir
