"""The statistics of a report as tables: rows of cells, to be printed."""

from collections import Counter
from typing import Dict, List

from .report import Report
from .statistics import Statistics

# Up to how many tokens the entities of a row have.
LENGTHS = {"  of 1 token": 1, "  of 2": 2, "  of 3": 3, "  of 4 to 10": 10}
LONGER = "  of more"
LABELS = 20  # rows; of more labels the rest is one

Row = List[str]


def overview(report: Report) -> List[Row]:
    """Lay out the counts, all but those of labels; the parts side by side, the header first."""
    columns = [_column(statistics) for statistics in report.statistics.values()]
    rows = [[name, *(column[name] for column in columns)] for name in columns[0]]
    return [["", *report.statistics], *rows]


def label_table(report: Report) -> List[Row]:
    """Lay out how many entities and tokens each label has, the most frequent first."""
    parts = report.statistics.values()
    total: Counter[str] = sum((s.labels for s in parts), Counter())
    labels = [label for label, _ in total.most_common()]
    shown, rest = labels[:LABELS], labels[LABELS:]
    rows = [[label, *_cells(report, [label])] for label in shown]
    if rest:
        rows.append([f"{len(rest)} more", *_cells(report, rest)])
    return [["", *(name for part in report.statistics for name in (part, "tokens"))], *rows]


def _column(s: Statistics) -> Dict[str, str]:
    column = {
        "docs": f"{s.docs:,}",
        "sentences": f"{s.sentences:,}",
        "  without entities": _part(s.empty_sentences, s.sentences),
        "tokens": f"{s.tokens:,}",
        "  not annotated": _part(s.missing, s.tokens),
        "entities": f"{s.entities:,}",
    }
    shorter = 0
    for name, most in LENGTHS.items():
        n = sum(n for length, n in s.lengths.items() if length <= most)
        column[name] = _part(n - shorter, s.entities)
        shorter = n
    return {**column, LONGER: _part(s.entities - shorter, s.entities)}


def _cells(report: Report, labels: List[str]) -> Row:
    return [
        f"{sum(counts[label] for label in labels):,}"
        for s in report.statistics.values()
        for counts in (s.labels, s.label_tokens)
    ]


def _part(n: int, of: int) -> str:
    return f"{n:,} ({n / of:.1%})" if n else "0"
