"""The training loop of `spacy train`, synchronized across ranks."""

import random
import sys
from collections.abc import Iterator
from itertools import chain, islice, repeat
from pathlib import Path
from shutil import copytree
from typing import Any

from spacy.language import Language
from spacy.schemas import ConfigSchemaTraining
from spacy.training import Example
from spacy.training.initialize import init_nlp
from spacy.training.loop import (
    DIR_MODEL_BEST,
    DIR_MODEL_LAST,
    clean_output_dir,
    create_before_to_disk_callback,
    create_evaluation_callback,
    create_train_batches,
    train_while_improving,
    update_meta,
)
from spacy.util import registry, resolve_dot_names
from thinc.api import Config, fix_random_seed
from thinc.optimizers import KeyT

from ...atomic import atomic_write
from ...ml.random_state import kept_random_state
from ...pipeline.crf_ner import CRFEntityRecognizer
from ...pipeline.lookup import recognizer, recognizer_names
from .checkpoint import STATE, Progress, read_state, restore, save_state
from .corpus import lockstep, shard
from .process_group import TIMEOUT, ProcessGroup, join
from .sync import broadcast_weights, drop_gradients, get_weights, parameters, sum_gradients

Info = dict[str, Any]


def train(
    config: Config,
    output: str | Path | None = None,
    *,
    gpu_id: int = -1,
    resume: bool = False,
    timeout: float = TIMEOUT,
) -> Path | None:
    """Train a pipeline, together with the other processes that torchrun started.

    Each rank trains on its share of the examples. Gradients are summed, and the weights stay equal
    in all ranks, bit for bit. Only rank 0 evaluates, logs and writes. A single process trains as
    `spacy train` does.

    Args:
        config: A config for `spacy train`, not interpolated.
        output: Folder for model-best and model-last, which are replaced; None to write nothing.
        gpu_id: The GPU of this rank, see `choose_gpu`; -1 for the CPU.
        resume: Continue the training whose state is in the output folder, with the same config.
        timeout: Minutes that a rank waits for another one, which may evaluate or save.

    Returns:
        The folder model-last; None in ranks other than 0, and without an output folder.

    Raises:
        InputError: For a GPU that cannot be used, for fewer examples than ranks, and if there is
            nothing to resume from.
        RankError: If another rank ended or hangs.
    """
    group = join(gpu_id, timeout)
    folder = Path(output) if output is not None and group.rank == 0 else None
    state = group.broadcast(read_state(folder) if resume and group.rank == 0 else None)
    nlp = init_nlp(config, use_gpu=group.gpu_id)
    Trainer(nlp, group, folder, state).run()
    group.leave()
    return None if folder is None else folder / DIR_MODEL_LAST


class Trainer:
    """Train an initialized pipeline in one rank, from a state or from the start.

    A training that resumes goes through the steps that are done again, with empty batches and the
    scores that are known: so schedules, patience and numbers of steps continue. Without an output
    folder, no checkpoints are written.
    """

    def __init__(
        self,
        nlp: Language,
        group: ProcessGroup,
        output: Path | None = None,
        state: dict[str, Any] | None = None,
    ) -> None:
        self.nlp, self.group, self.output, self._state = nlp, group, output, state
        config = nlp.config.interpolate()
        self.seed = config["training"]["seed"]
        if self.seed is not None:
            fix_random_seed(self.seed)
        T = self.settings = registry.resolve(config["training"], schema=ConfigSchemaTraining)
        corpora = resolve_dot_names(config, [T["train_corpus"], T["dev_corpus"]])
        self.train_corpus, dev_corpus = corpora
        self.evaluate = create_evaluation_callback(nlp, dev_corpus, T["score_weights"])
        self.optimizer = T["optimizer"]
        self.progress = Progress(**state["progress"]) if state else Progress(group.size)
        self._done = self.progress.steps  # before this run
        self._known = {step: score for score, step in self.progress.results}
        self._step = 0
        self._keys: list[KeyT] = []  # of the weights that are known to be equal in all ranks
        # Whether the weights are those after progress.steps complete steps of this run.
        self._can_save = False
        # What spaCy's loop needs of a pipeline, beside `pipeline`.
        self.update, self.use_params = nlp.update, nlp.use_params

    def run(self) -> None:
        """Train to the end; evaluate, log and save on the way."""
        T, own_nlp = self.settings, self.nlp
        if self._state is None and self.output is not None:
            self.output.mkdir(parents=True, exist_ok=True)
            clean_output_dir(self.output)
            (self.output / STATE).unlink(missing_ok=True)
        with own_nlp.select_pipes(disable=T["frozen_components"]):
            setup_logger = T["logger"] if self.group.rank == 0 else _log_nothing
            log_step, finalize_logger = setup_logger(own_nlp, sys.stdout, sys.stderr)
        synchronized: Any = self
        steps = train_while_improving(
            synchronized,
            self.optimizer,
            self._batches(),
            self._evaluate,
            exclude=T["frozen_components"],
            annotating_components=T["annotating_components"],
            before_update=self._begin_step,
            **{name: T[name] for name in ("dropout", "accumulate_gradient", "eval_frequency")},
            **{name: T[name] for name in ("patience", "max_steps")},
        )
        try:
            for _, info, is_best in steps:
                is_done = self._step < self._done
                if is_done and (is_best is None or self._is_replayed):
                    continue
                self._complete_step()
                if is_best is not None and self.group.rank == 0:
                    is_best = max(self.progress.results)[1] == self._step
                    with own_nlp.select_pipes(disable=T["frozen_components"]):
                        update_meta(T, own_nlp, info)
                    if self.output is not None:
                        self._save(is_best)
                        info["output_path"] = str(self.output / DIR_MODEL_LAST)
                # An evaluation that was interrupted and is repeated has no losses to log.
                log_step(None if is_best is None or is_done else info)
            self._share_learned()
        finally:
            finalize_logger()
            if self._can_save:
                self._save(is_best=False)

    def _batches(self) -> Iterator[tuple[int, list[Example]]]:
        """Yield epoch and batch of each step; those of steps that are done are empty.

        A step has random numbers of its own: the order of docs does not depend on how many are
        drawn. So it is the same in a resumed training, whatever components draw.
        """
        max_epochs, progress = self.settings["max_epochs"], self.progress
        corpus = shard(self._remembered, self.group)
        if max_epochs >= 0:
            # Read before the seeds differ: augmented examples must be the same in all ranks.
            examples = list(corpus(self.nlp))
            corpus = lambda nlp: examples  # noqa: E731
        if self.group.rank != 0 and self.seed is not None:
            # Ranks shuffle and drop out differently, but must augment a streamed corpus alike.
            fix_random_seed(self.seed + self.group.rank)
            if max_epochs < 0:
                random.seed(self.seed)
        batcher: Any = lockstep(self.settings["batcher"], self.group)
        batches = create_train_batches(self.nlp, corpus, batcher, max_epochs)
        # Another number of ranks gives other batches: start with the first one.
        is_same = progress.size == self.group.size
        done = islice(batches, self._done) if is_same else repeat((0, []), self._done)
        progress.size = self.group.size
        empty: Iterator[tuple[int, list[Example]]] = ((epoch, []) for epoch, _ in done)
        for step, each in enumerate(chain(empty, batches)):
            with kept_random_state():
                random.seed(None if self.seed is None else f"{self.seed} {self.group.rank} {step}")
                yield each

    def _remembered(self, nlp: Language) -> Iterator[Example]:
        """Read the training corpus. The recognizers keep hashes of the examples of all ranks."""
        for eg in self.train_corpus(nlp):
            for pipe in self._trained:
                pipe.seen_texts.remember("train", [eg.text])
            yield eg

    @property
    def _trained(self) -> list[CRFEntityRecognizer]:
        frozen = self.settings["frozen_components"]
        names = [name for name in recognizer_names(self.nlp) if name not in frozen]
        return [recognizer(self.nlp, name) for name in names]

    def _share_learned(self) -> None:
        """Let the recognizers of all ranks know what any rank has trained on: labels and texts."""
        own, is_stream = self._trained, self.settings["max_epochs"] < 0
        learned = [
            # Ranks read different parts of a streamed corpus, and all of another one.
            (pipe.cfg["untrained"], pipe.seen_texts.new["train"] if is_stream else set())
            for pipe in own
        ]
        for found in self.group.gather(learned):
            for pipe, (untrained, hashes) in zip(own, found):
                pipe.cfg["untrained"] = [x for x in pipe.cfg["untrained"] if x in untrained]
                pipe.seen_texts.new["train"] |= hashes

    def _begin_step(self, _: Any, place: Info) -> None:
        self._step, before_update = place["step"], self.settings["before_update"]
        if self._state is not None and self._step == self._done - 1:
            self._restore(self._state, place)
        if self._step < self._done:
            return
        if before_update:
            before_update(self.nlp, place)
        keys = [parameter.key for parameter in parameters(self.nlp)]
        if keys != self._keys:  # before the first step, and if a callback has added labels
            broadcast_weights(self.nlp, self.group)
            self._keys = keys

    def _restore(self, state: dict[str, Any], place: Info) -> None:
        own, before_update = get_weights(self.nlp), self.settings["before_update"]
        shapes = [{name: each.shape for name, each in of.items()} for of in (own, state["weights"])]
        if before_update and shapes[0] != shapes[1]:  # it may add the labels that the state has
            before_update(self.nlp, {**place, "step": self._done})
            drop_gradients(self.nlp)
        restore(self.nlp, self.optimizer, state)
        self._state = None

    @property
    def pipeline(self) -> list[tuple[str, Any]]:
        """What ends a step: the sum over ranks, and the components; nothing if it is done.

        Components must not learn from gradients of zero either, which keep Adam's momentum.
        """
        return [("", self), *self.nlp.pipeline] if self._step >= self._done else []

    is_trainable, model = True, "none"  # as a component whose `finish_update` spaCy's loop calls

    def finish_update(self, _: Any) -> None:
        """Sum the gradients of a step over ranks."""
        sum_gradients(self.nlp, self.group)
        self._can_save = False

    def _complete_step(self) -> None:
        self.progress.steps, self._can_save = self._step + 1, True

    @property
    def _is_replayed(self) -> bool:
        """Whether a step with an evaluation was complete before this run."""
        return self._step < self._done - 1 or self._step in self._known

    def _evaluate(self) -> tuple[float, dict[str, Any]]:
        """Return the score, which rank 0 computes, and what it consists of."""
        if self._is_replayed:
            # With another eval_frequency, another step was evaluated: the best one so far.
            known = {step: score for step, score in self._known.items() if step <= self._step}
            return known.get(self._step, max(known.values(), default=0.0)), {}
        self._complete_step()  # also if the evaluation fails
        self._share_learned()
        score, others = self.evaluate() if self.group.rank == 0 else (0.0, {})
        score = self.group.broadcast(float(score))
        self.progress.results.append((score, self._step))
        return score, others

    def _save(self, is_best: bool) -> None:
        if self.output is None:
            return
        before_to_disk = create_before_to_disk_callback(self.settings["before_to_disk"])
        last = self.output / DIR_MODEL_LAST
        with self.nlp.use_params(self.optimizer.averages), atomic_write(last) as part:
            before_to_disk(self.nlp).to_disk(part)
        if is_best:
            with atomic_write(self.output / DIR_MODEL_BEST) as part:
                copytree(last, part)
        # Save the state last: its best step must be in model-best.
        save_state(self.nlp, self.optimizer, self.progress, self.output)


def _log_nothing(*_: Any) -> tuple[Any, Any]:
    """Set up the logger of ranks other than 0."""
    return lambda info: None, lambda: None
