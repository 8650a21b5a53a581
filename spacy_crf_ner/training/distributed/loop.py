"""The training loop of `spacy train`, synchronized across ranks."""

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from shutil import copytree
from timeit import default_timer
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
    subdivide_batch,
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
    gpu: bool = False,
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
        gpu: Whether each rank uses a GPU of its own.
        resume: Continue the training whose state is in the output folder, with the same config.
        timeout: Minutes that a rank waits for another one, which may evaluate or save.

    Returns:
        The folder model-last; None in ranks other than 0, and without an output folder.

    Raises:
        InputError: For fewer GPUs than processes, for fewer examples than ranks, and if there is
            nothing to resume from.
        RankError: If another rank ended or hangs.
    """
    group = join(gpu, timeout)
    folder = Path(output) if output is not None and group.rank == 0 else None
    state = group.broadcast(read_state(folder) if resume and group.rank == 0 else None)
    nlp = init_nlp(config, use_gpu=group.gpu_id)
    Trainer(nlp, group, folder, state).run()
    group.leave()
    return None if folder is None else folder / DIR_MODEL_LAST


class Trainer:
    """Train an initialized pipeline in one rank.

    Args:
        output: Folder of the checkpoints; None to write none.
        state: Training state to continue from; None to start.
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
        self._keys: list[KeyT] = []  # of the weights that are known to be equal in all ranks
        # Whether the weights are those after progress.steps complete steps of this run.
        self._can_save = False

    def run(self) -> None:
        """Train to the end; evaluate, log and save on the way."""
        T, progress, start = self.settings, self.progress, default_timer()
        if self._state is None and self.output is not None:
            self.output.mkdir(parents=True, exist_ok=True)
            clean_output_dir(self.output)
            (self.output / STATE).unlink(missing_ok=True)
        with self.nlp.select_pipes(disable=T["frozen_components"]):
            setup_logger = T["logger"] if self.group.rank == 0 else _log_nothing
            log_step, finalize_logger = setup_logger(self.nlp, sys.stdout, sys.stderr)
        losses: dict[str, float] = {}
        words = 0
        epoch = 0
        try:
            for step, (epoch, batch) in enumerate(self._batches(), progress.steps):
                self._resume({"step": step, "epoch": epoch})
                if progress.is_finished(T["patience"], T["max_steps"]):
                    break
                with self._random_numbers(step):
                    self._train_batch(batch, {"step": step, "epoch": epoch}, losses)
                words += sum(len(eg) for eg in batch)
                if step % T["eval_frequency"]:
                    log_step(None)  # as in spaCy, for a step without evaluation
                    continue
                info = {
                    "epoch": epoch,
                    "step": step,
                    "losses": losses,
                    "checkpoints": progress.results,
                    "seconds": int(default_timer() - start),
                    "words": words,
                }
                with self._random_numbers(step):
                    self._evaluate(info)
                log_step(info)
                losses = {}
            self._resume({"step": progress.steps, "epoch": epoch})  # if there is no batch left
            self._share_learned()
        finally:
            finalize_logger()
            if self._can_save:
                self._save(is_best=False)

    def _batches(self) -> Iterator[tuple[int, list[Example]]]:
        """Yield epoch and batch of each step; a resumed training skips those it has used."""
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
        skipped = progress.steps if progress.size == self.group.size else 0
        progress.size = self.group.size
        return islice(batches, skipped, None)

    def _remembered(self, nlp: Language) -> Iterator[Example]:
        """Read the training corpus. The recognizers keep hashes of the examples of all ranks."""
        for eg in self.train_corpus(nlp):
            for pipe in self._trained:
                pipe.seen_texts.remember("train", [eg.text])
            yield eg

    @property
    def _trained(self) -> list[CRFEntityRecognizer]:
        """The recognizers that are trained."""
        names = [
            n for n in recognizer_names(self.nlp) if n not in self.settings["frozen_components"]
        ]
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

    @contextmanager
    def _random_numbers(self, step: int) -> Iterator[None]:
        """Use random numbers of a step alone: the order of docs does not depend on how many.

        So it is the same in a resumed training, whatever components draw.
        """
        with kept_random_state():
            random.seed(None if self.seed is None else f"{self.seed} {self.group.rank} {step}")
            yield

    def _resume(self, place: Info) -> None:
        """Restore the training state, if there is one that is not restored yet.

        An evaluation that was interrupted is repeated.
        """
        if self._state is None:
            return
        T, nlp, own, last = self.settings, self.nlp, get_weights(self.nlp), self.progress.steps - 1
        state, self._state = self._state, None
        shapes = [{name: each.shape for name, each in of.items()} for of in (own, state["weights"])]
        with self._random_numbers(last):
            if T["before_update"] and shapes[0] != shapes[1]:
                T["before_update"](nlp, place)  # it may add the labels that the state has
                drop_gradients(nlp)
            restore(nlp, self.optimizer, state)
            evaluated = [step for _, step in self.progress.results]
            if last % T["eval_frequency"] == 0 and last not in evaluated:
                info = {"step": last, "epoch": place["epoch"], "losses": {}, "seconds": 0}
                self._evaluate({**info, "words": 0, "checkpoints": self.progress.results})

    def _train_batch(self, batch: list[Example], place: Info, losses: dict[str, float]) -> None:
        """Do one step on the batches of all ranks."""
        T, nlp = self.settings, self.nlp
        if T["before_update"]:
            T["before_update"](nlp, place)
        keys = [parameter.key for parameter in parameters(nlp)]
        if keys != self._keys:  # before the first step, and if a callback has added labels
            broadcast_weights(nlp, self.group)
            self._keys = keys
        settings: dict[str, Any] = {
            "drop": T["dropout"],
            "sgd": False,
            "exclude": T["frozen_components"],
            "annotates": T["annotating_components"],
        }
        for part in subdivide_batch(batch, T["accumulate_gradient"]):  # type: ignore[no-untyped-call]
            nlp.update(part, losses=losses, **settings)
        sum_gradients(nlp, self.group)
        self._can_save = False
        for name, pipe in nlp.pipeline:
            if name not in T["frozen_components"] and getattr(pipe, "is_trainable", False):
                pipe.finish_update(self.optimizer)  # type: ignore[attr-defined]
        self.optimizer.step_schedules()
        self.progress.steps = place["step"] + 1
        self._can_save = True

    def _evaluate(self, info: Info) -> None:
        """Evaluate, add the scores to the logged info, and save the pipeline."""
        score = 0.0
        self._share_learned()
        if self.group.rank == 0:
            with self.nlp.use_params(self.optimizer.averages):
                score, info["other_scores"] = self.evaluate()
        info["score"] = self.group.broadcast(float(score))
        self.progress.results.append((info["score"], info["step"]))
        if self.group.rank == 0:
            with self.nlp.select_pipes(disable=self.settings["frozen_components"]):
                update_meta(self.settings, self.nlp, info)
        if self.output is not None:
            self._save(is_best=info["score"] == max(self.progress.results)[0])
            info["output_path"] = str(self.output / DIR_MODEL_LAST)

    def _save(self, *, is_best: bool) -> None:
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
