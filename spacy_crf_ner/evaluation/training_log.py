"""The log of `spacy train`: losses and scores by training step."""

import json
import math
import re
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

RULE = re.compile(r"-+(  -+)+\s*")  # below the header of the table
Row = Dict[str, Any]


def read_training_log(path: Path) -> List[Row]:
    """Read what `spacy train` has logged.

    path: JSON lines, as `spacy.ConsoleLogger.v3` writes them to its `output_file`, or what `spacy
        train` has printed, with its table. Around the rows of the table, which begin with a whole
        number, its messages are passed over. It has names in capitals, the last
        letters of long ones cut off: those of the rows are in small letters.

    Returns for each row its "step", "epoch", "losses" by component, and "scores" by name, in
    percent but for "speed"; None where a figure is not a number. "score" among them is the one that
    the best step is chosen by.
    Raises ValueError with the line that is neither.
    """
    # What was printed may have any encoding; its figures are ASCII.
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    first = next((line for line in lines if line.strip()), "")
    rows = _json_rows(path, lines) if first.startswith("{") else _table_rows(path, lines)
    if not rows:
        raise ValueError(
            f"{path}: expected the log of a training, got no row of one. Name a log of JSON lines, "
            "or a file with the table that spacy train prints."
        )
    return rows


def _json_rows(path: Path, lines: Sequence[str]) -> List[Row]:
    rows = []
    for i, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            logged = json.loads(line)
            row = _row(logged["epoch"], logged["step"], logged["losses"], logged["scores"])
            row["scores"]["score"] = _scaled(logged["score"])
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise _unread(
                path, i, line, "a JSON object with epoch, step, losses, scores and score"
            ) from error
        rows.append(row)
    return rows


def _table_rows(path: Path, lines: Sequence[str]) -> List[Row]:
    rules = [i for i, line in enumerate(lines) if RULE.fullmatch(line)]
    if len(rules) != 1 or rules[0] == 0:
        i = rules[1] if len(rules) > 1 else 0
        raise _unread(path, i + 1, lines[i] if lines else "", "one table of spacy train")
    (rule,) = rules
    columns = [
        lines[rule - 1][found.start() : found.end()].strip().lower()
        for found in re.finditer("-+", lines[rule])
    ]
    if columns[:2] != ["e", "#"] or len(set(columns)) < len(columns):
        raise _unread(path, rule, lines[rule - 1], "columns E, #, and others of different names")
    rows = []
    for i, line in enumerate(lines[rule + 1 :], rule + 2):
        fields = line.split()
        if not fields or not fields[0].isdecimal():
            continue
        if len(fields) != len(columns):
            raise _unread(path, i, line, f"{len(columns)} columns")
        try:
            rows.append(_table_row(columns, fields))
        except ValueError as error:
            raise _unread(path, i, line, "numbers") from error
    return rows


def _table_row(columns: Sequence[str], fields: Sequence[str]) -> Row:
    values = dict(zip(columns[2:], map(float, fields[2:])))
    losses = {
        name.removeprefix("loss "): values.pop(name)
        for name in columns[2:]
        if name.startswith("loss ")
    }
    if "score" in values:
        values["score"] = 100 * values["score"]
    return _row(int(fields[0]), int(fields[1]), losses, values)


def _row(epoch: Any, step: Any, losses: Dict[str, Any], scores: Dict[str, Any]) -> Row:
    for number in (epoch, step):
        if type(number) is not int:
            raise TypeError(number)
    return {
        "step": step,
        "epoch": epoch,
        "losses": _figures(losses),
        "scores": _figures(scores),
    }


def _figures(values: Dict[str, Any]) -> Dict[str, Optional[float]]:
    return {name: _number(value) for name, value in values.items()}


def _number(value: Any) -> Optional[float]:
    number = float(value) if value is not None else math.nan
    return number if math.isfinite(number) else None


def _scaled(value: Any) -> Optional[float]:
    number = _number(value)
    return None if number is None else 100 * number


def _unread(path: Path, line: int, text: str, expected: str) -> ValueError:
    return ValueError(
        f"{path}, line {line}: expected {expected}, got {text[:60]!r}. Name a log of JSON lines, "
        "or a file with the table that spacy train prints."
    )
