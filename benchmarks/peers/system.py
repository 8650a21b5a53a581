"""One entity recognizer in its own process: JSON lines in, JSON lines out.

Needs nothing but the standard library, since each system has an environment of its own. A
request is a list: the name of a method of `System` and its arguments; the answer is what that
returns, or the error.
"""

import json
import os
import random
import shutil
import sys
from collections.abc import Iterator
from importlib.metadata import version
from resource import RUSAGE_SELF, getrusage
from time import perf_counter
from typing import Any

Entity = tuple[int, int, str]  # characters, label
Record = dict[str, Any]  # text; tokens as (start, end) and ents as Entity, in characters

WORDS = 1000  # padded, in a batch of training
BUFFER = 256  # sentences that batches of this size are made of
WARMUP = 50  # steps, as in the shipped configs
HEAD = 10  # times the transformer's learning rate


class System:
    """What the compared systems share.

    Each has `load(model, **settings)`, `annotate(texts, batch_size)`, which is timed and returns
    what a user gets, `entities(annotated)` in characters, and `find_in_tokens(path, batch_size)`
    for records whose tokens are given. One that `train` trains has `build(records, transformer,
    steps, rate, seed)`, `loss(batch)` and `save(out)`; one that predicts in several dtypes
    `use_dtype(dtype)`. What a system does not have is an error in its answer.
    """

    batch_sizes: tuple[int, ...] = (0,)  # candidates; 0 if it has no batch size
    packages: tuple[str, ...] = ()  # packages whose versions are reported
    device = "cpu"  # or "cuda:0" and so on, as torch names it
    head = HEAD  # times the transformer's learning rate, of the new layers
    clip = 1.0  # largest norm of the gradients
    network: Any  # the torch module, of systems that `train` trains
    records: list[Record]  # that `updates` trains on

    # Training. flair and spaCy have their own; the others are trained by `train`.

    def train(
        self,
        corpus: str,
        out: str,
        transformer: str,
        steps: int,
        rate: float,
        seed: int,
        evaluate_every: int = 0,
    ) -> None:
        """Train on the `train.jsonl` of a folder, and save to another folder.

        evaluate_every: Steps between evaluations on `dev.jsonl`, to save the best model there, and
            the last one as OUT.last. 0 saves the last one only.
        """
        records = read(f"{corpus}/train.jsonl")
        self.build(records, transformer, steps, rate, seed)
        best = -1.0
        for step, batch in enumerate(batches(records, steps, seed), 1):
            self.update(batch)
            if evaluate_every and (step % evaluate_every == 0 or step == steps):
                self.network.train(False)
                if (found := self.f1(f"{corpus}/dev.jsonl")) > best:
                    best = found
                    shutil.rmtree(out, ignore_errors=True)
                    self.save(out)
                self.network.train(True)
        self.network.train(False)
        self.save(f"{out}.last" if evaluate_every else out)

    def begin(self, corpus: str, transformer: str, **settings: Any) -> None:
        """Make a model with new layers, to train by `updates` on the `train.jsonl` of a folder."""
        self.records = read(f"{corpus}/train.jsonl")
        self.build(self.records, transformer, 1000, 1e-4, 0)

    def optimize(self, network: Any, transformer: Any, steps: int, rate: float) -> None:
        """Set the optimizer and its schedule for a network with new layers over a transformer."""
        import torch

        self.network = network
        body = set(transformer.parameters())
        new = [weight for weight in network.parameters() if weight not in body]
        groups = [{"params": list(body), "lr": rate}, {"params": new, "lr": self.head * rate}]
        self.optimizer = torch.optim.AdamW(groups, weight_decay=0.01)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda step: learning_rate(step, steps)
        )
        network.train(True)

    def update(self, batch: list[Record]) -> None:
        """Train the model of `build` on a batch."""
        import torch

        self.loss(batch).backward()
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), self.clip)
        self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad()

    def updates(self, size: int, number: int) -> dict[str, float]:
        """Train on batches; return the seconds, and the words without padding.

        size: Words of a batch, with padding.
        number: Of batches.
        """
        chosen = list(batches(at_least(self.records, 4 * size), number, 0, size))
        self.wait()
        start = perf_counter()
        for batch in chosen:
            self.update(batch)
        self.wait()
        seconds = perf_counter() - start
        return {"seconds": seconds, "words": sum(len(r["tokens"]) for b in chosen for r in b)}

    # Devices

    def use_gpu(self, gpu_id: int) -> None:
        """Train and annotate on a GPU from now on."""
        self.device = f"cuda:{gpu_id}"

    def wait(self) -> None:
        """Wait for the GPU, if one is in use."""
        if self.device != "cpu":
            import torch

            torch.cuda.synchronize()

    def peak_mb(self) -> float:
        """Return the peak of torch's memory on the GPU, or of the process on a CPU."""
        if self.device != "cpu":
            import torch

            return torch.cuda.max_memory_allocated() / 2**20
        return getrusage(RUSAGE_SELF).ru_maxrss / 2**10

    def sizes(self) -> tuple[int, ...]:
        """Return the candidate batch sizes."""
        return self.batch_sizes

    def versions(self) -> dict[str, str]:
        """Return the versions of its libraries."""
        return {name: version(name) for name in self.packages}

    def seconds(self, texts: list[str], batch_size: int) -> float:
        """Measure the seconds for the texts."""
        start = perf_counter()
        self.annotate(texts, batch_size)
        return perf_counter() - start

    def find(self, texts: list[str], batch_size: int) -> list[list[Entity]]:
        """Return the entities of each text."""
        return self.entities(self.annotate(texts, batch_size))

    def f1(self, path: str) -> float:
        """Return the F1 on the records of a file, strict in label and boundaries."""
        gold = [record["ents"] for record in read(path)]
        own, theirs = (
            {(i, *ent) for i, ents in enumerate(of) for ent in ents}
            for of in (self.find_in_tokens(path, 64), gold)
        )
        return 2 * len(own & theirs) / max(1, len(own) + len(theirs))


def serve(system: type[System], **variants: type[System]) -> None:
    """Answer requests until there are no more.

    variants: By the names of their models; the first argument of the process says which.
    """
    serving = variants.get(sys.argv[1], system)() if sys.argv[1:] else system()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        settings = arguments.pop() if arguments and isinstance(arguments[-1], dict) else {}
        try:
            answer = {"is": getattr(serving, name)(*arguments, **settings)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


def read(path: str) -> list[Record]:
    """Read a part of a corpus."""
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def at_least(records: list[Record], words: int) -> list[Record]:
    """Repeat records until they have so many words."""
    own = sum(len(record["tokens"]) for record in records)
    return records * -(-words // own)


def words(record: Record) -> list[str]:
    """Return the tokens of a record."""
    return [record["text"][start:end] for start, end in record["tokens"]]


def batches(
    records: list[Record], steps: int, seed: int, size: int = WORDS
) -> Iterator[list[Record]]:
    """Yield a number of training batches, each of sentences of similar length.

    size: Words of a batch, with padding.
    """
    rng = random.Random(seed)
    made = 0
    while True:
        for buffer in _shuffled(records, rng, BUFFER * max(1, size // WORDS)):
            filled: list[list[Record]] = [[]]
            for record in sorted(buffer, key=lambda record: len(record["tokens"])):
                if (len(filled[-1]) + 1) * len(record["tokens"]) > size and filled[-1]:
                    filled.append([])
                filled[-1].append(record)
            rng.shuffle(filled)
            for batch in filled:
                if made == steps:
                    return
                yield batch
                made += 1


def _shuffled(records: list[Record], rng: random.Random, buffer: int) -> Iterator[list[Record]]:
    order = rng.sample(records, len(records))
    for i in range(0, len(order), buffer):
        yield order[i : i + buffer]


def learning_rate(step: int, steps: int) -> float:
    """Return the factor on the learning rate at a step: linear warm-up, then linear decay."""
    warmup = min(WARMUP, steps)
    return min((step + 1) / warmup, (steps - step) / max(1, steps - warmup))


def from_bio(record: Record, tags: list[str]) -> list[Entity]:
    """Return the entities of the tags of its tokens; an I without its B begins an entity."""
    ents: list[Entity] = []
    before = "O"
    for (start, end), tag in zip(record["tokens"], tags):
        if tag[:1] == "I" and before[2:] == tag[2:] and ents:
            ents[-1] = (ents[-1][0], end, tag[2:])
        elif tag != "O":
            ents.append((start, end, tag[2:]))
        before = tag
    return ents


def bio(record: Record) -> list[str]:
    """Return the tag of each token; entities that begin or end inside a token are left out."""
    starts = {start: i for i, (start, _) in enumerate(record["tokens"])}
    ends = {end: i for i, (_, end) in enumerate(record["tokens"])}
    tags = ["O"] * len(record["tokens"])
    for start, end, label in record["ents"]:
        if start in starts and end in ends:
            first, last = starts[start], ends[end]
            tags[first : last + 1] = [f"B-{label}"] + [f"I-{label}"] * (last - first)
    return tags
