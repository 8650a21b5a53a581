"""The log of `spacy train`: losses and scores by training step."""

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..input_error import InputError

UNREADABLE = (ValueError, TypeError)
ADVICE = "Use a log of JSON lines, or a file with the table that spacy train prints."
RULE = re.compile(r"-+(  -+)+\s*")  # the line below the header of the table


def read_training_log(path: Path) -> list[dict[str, Any]]:
    """Read the log of `spacy train`; raise InputError for the first line in another format.

    Scores are in percent except "speed", and None if not a finite number; the score "score" selects
    the best model.

    Args:
        path: JSON lines from the `output_file` of `spacy.ConsoleLogger.v3`, or the printed output
            of `spacy train`, with one table among other messages. The table has upper-case,
            truncated names; the result has them in lower case.
    """
    # Printed output may have any encoding; its numbers are ASCII.
    lines = path.read_text(encoding="utf-8-sig", errors="replace").splitlines()
    first = next((line for line in lines if line.strip()), "")
    rows = _json_rows(path, lines) if first.startswith("{") else _table_rows(path, lines)
    if not rows:
        raise InputError(f"{path}: expected a training log, got no rows. {ADVICE}")
    return rows


def _json_rows(path: Path, lines: Sequence[str]) -> list[dict[str, Any]]:
    rows = []
    for i, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            logged = json.loads(line)
            score = None if logged["score"] is None else 100 * float(logged["score"])
            scores = {**logged["scores"], "score": score}
            rows.append(_row(logged["epoch"], logged["step"], logged["losses"], scores))
        except (*UNREADABLE, KeyError, AttributeError, ArithmeticError, RecursionError) as error:
            expected = "a JSON object with epoch, step, losses, scores and score"
            raise _unreadable(path, i, line, expected) from error
    return rows


def _table_rows(path: Path, lines: Sequence[str]) -> list[dict[str, Any]]:
    rules = [i for i, line in enumerate(lines) if RULE.fullmatch(line)]
    if len(rules) != 1 or rules[0] == 0:
        i = rules[1] if len(rules) > 1 else 0
        raise _unreadable(path, i + 1, lines[i] if lines else "", "one table of spacy train")
    (rule,) = rules
    header = lines[rule - 1]
    columns = [slice(*dashes.span()) for dashes in re.finditer("-+", lines[rule])]
    names = [header[column].strip().lower() for column in columns]
    if names[:2] != ["e", "#"] or len(set(names)) < len(names):
        raise _unreadable(path, rule, header, "columns E, #, and others with distinct names")
    rows = []
    for i, line in enumerate(lines[rule + 1 :], rule + 2):
        fields = line.split()
        if not fields or not fields[0].isdecimal():
            continue
        try:
            epoch, step = map(int, fields[:2])
            row = dict(zip(names[2:], map(float, fields[2:]), strict=True))
        except UNREADABLE as error:
            raise _unreadable(path, i, line, f"{len(names)} columns of numbers") from error
        losses = {name[5:]: row.pop(name) for name in names if name.startswith("loss ")}
        if "score" in row:
            row["score"] *= 100
        rows.append(_row(epoch, step, losses, row))
    return rows


def _row(epoch: Any, step: Any, losses: Any, scores: Any) -> dict[str, Any]:
    if type(epoch) is not int or type(step) is not int:
        raise TypeError(epoch, step)
    return {"step": step, "epoch": epoch, "losses": _finite(losses), "scores": _finite(scores)}


def _finite(values: Any) -> dict[str, float | None]:
    numbers = {name: math.nan if x is None else float(x) for name, x in values.items()}
    return {name: x if math.isfinite(x) else None for name, x in numbers.items()}


def _unreadable(path: Path, line: int, text: str, expected: str) -> InputError:
    return InputError(f"{path}, line {line}: expected {expected}, got {text[:60]!r}. {ADVICE}")
