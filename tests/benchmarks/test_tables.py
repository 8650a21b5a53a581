"""Tables: their figures match those of pandas and of hand counts."""

import random
import re
from typing import Any

import pandas as pd
import pytest

from benchmarks import accuracy, active_learning


def test_accuracy_has_mean_and_deviation_of_the_last_rate(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rng = random.Random(0)
    rows = [
        {"system": system.name, "corpus": corpus, "seed": seed, "steps": steps, "device": device}
        | {"f": rng.random(), "rate": 2e-4, "evaluate_every": every}
        for system in accuracy.SYSTEMS[:3]
        for corpus in ("gmb", "wnut17", "re3d")
        for seed in range(3)
        for steps, every in ((200, 0), (2000, 0), (2000, 100))
        for device in ("cpu", "NVIDIA H100")
    ]
    accuracy.print_tables([{**rows[0], "rate": 1e-4, "f": 7.0}, *rows])
    written = capsys.readouterr().out
    frame = pd.DataFrame(rows)
    for budget, group in frame.groupby(["system", "steps", "evaluate_every", "device"]):
        system, steps, every, device = budget
        title = f"| {steps} steps{f', best on dev every {every}' if every else ''}, {device} |"
        of_budget = written[written.index(title) :]
        line = next(line for line in of_budget.splitlines() if line.startswith(f"| {system} |"))
        figures = [float(figure) for figure in re.findall(r"\d+\.\d", line)]
        by_corpus = 100 * group.groupby("corpus").f.agg(["mean", "std"])
        expected = [*by_corpus.loc[["wnut17", "gmb", "re3d"]].to_numpy().ravel()]
        assert figures == pytest.approx([*expected, by_corpus["mean"].mean()], abs=0.051)


def curve(strategy: str, tokens: int, f1: float, seed: int = 0) -> dict[str, Any]:
    return {"strategy": strategy, "seed": seed, "tokens": tokens, "decisions": None, "f1": f1}


def test_active_learning_has_the_first_round_that_reaches_each_share(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [curve("all", 900, 50.0), curve("all", 900, 60.0, 1)]
    rows += [curve("entropy", t, f) for t, f in ((100, 10.0), (200, 45.0), (300, 48.0))]
    rows += [curve("entropy", t, f, 1) for t, f in ((100, 10.0), (220, 54.0), (320, 56.0))]
    rows.append({**curve("spans", 100, 49.0), "decisions": 300})
    active_learning.print_table(rows)
    _, _, entropy, spans, *_ = capsys.readouterr().out.splitlines()
    assert entropy == "| entropy | 210 | 300 (1 never) | - (2 never) | - |"
    assert spans == "| spans | - | - | - | 300 |"
