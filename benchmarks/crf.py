"""Time and memory of the CRF beside pytorch-crf: docs/benchmarks.md, "CRF arithmetic"."""

import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torchcrf

from benchmarks import common
from spacy_crf_ner import crf

SHAPES = [
    (32, 32, 9),
    (32, 128, 9),
    (32, 128, 17),
    (128, 64, 17),
    (256, 40, 9),
    (32, 128, 73),
]


def main(rounds: common.Rounds = 9) -> None:
    """Compare time and memory of the CRF with pytorch-crf on the CPU.

    Numbers are medians; ratios are pytorch-crf's time over ours.
    """
    common.print_machine()
    columns = [
        f"{of}: {by}"
        for of in ("decode", "loss + backward")
        for by in ("ours", "torchcrf", "ratio")
    ]
    common.print_header("threads", "B, T, C", *columns, "posteriors / decode")
    for threads in (1, 2):
        torch.set_num_threads(threads)
        ratios: dict[str, list[float]] = {"decode": [], "loss": []}
        for shape in SHAPES:
            times = {
                name: statistics.median(taken)
                for name, taken in common.alternate(acts(*shape), rounds).items()
            }
            cells: list[Any] = [threads, ", ".join(map(str, shape))]
            for what, of in ratios.items():
                ours, theirs = times[what], times[f"torchcrf {what}"]
                of.append(theirs / ours)
                cells += [f"{1000 * ours:.2f} ms", f"{1000 * theirs:.2f} ms", f"{of[-1]:.1f}"]
            common.print_row(*cells, f"{times['posteriors'] / times['decode']:.1f}")
        means = {what: round(statistics.geometric_mean(of), 1) for what, of in ratios.items()}
        print(f"Geometric means, {threads} threads: {means}", flush=True)
    for name in ("loss", "torchcrf loss"):
        used = common.in_new_process(_memory_of, name)
        print(f"Memory of {name} + backward at 32, 512, 73: {used:,.0f} MB", flush=True)


def acts(B: int, T: int, C: int) -> dict[str, Callable[[], Any]]:
    """Return the timed functions, on random scores of docs of T/4 to T tokens."""
    torch.manual_seed(0)
    oracle = torchcrf.CRF(C, batch_first=True)
    emissions = torch.randn(B, T, C, requires_grad=True)
    lengths = torch.randint(T // 4, T + 1, (B,))
    lengths[0] = T
    mask = torch.arange(T)[None, :] < lengths[:, None]
    gold = torch.randint(0, C, (B, T))
    scores = (oracle.transitions, oracle.start_transitions, oracle.end_transitions)
    E, n, *own = (x.detach().numpy() for x in (emissions[mask], lengths, *scores))
    chain, tags = crf.Chain(E, n, *own), gold[mask].numpy()
    # A segment of two tokens at every fourth token: about as many as a text has entities.
    docs, at = torch.nonzero(mask[:, 1::4], as_tuple=True)
    starts = chain.begins[docs.numpy()] + 4 * at.numpy()
    pairs = np.stack([tags[starts], tags[starts + 1]], axis=1)
    return {
        "decode": lambda: crf.viterbi(chain),
        "torchcrf decode": torch.no_grad()(lambda: oracle.decode(emissions, mask)),
        "loss": lambda: crf.nll_with_gradient(chain, tags),
        "torchcrf loss": lambda: oracle(emissions, gold, mask).neg().backward(),
        "posteriors": lambda: crf.forward_backward(chain).log_segments(starts, pairs),
    }


def _memory_of(name: str) -> float:
    """Return the MB that one act adds to the memory of this process."""
    acts(2, 3, 73)[name]()  # what is loaded once, code and all, is not counted
    act = acts(32, 512, 73)[name]
    common.reset_peak()
    before = common.memory_mb("VmRSS")
    act()
    return common.memory_mb("VmHWM") - before
