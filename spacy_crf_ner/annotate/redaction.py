"""Remove entities from texts."""

from collections.abc import Collection
from typing import NamedTuple

from spacy.tokens import Doc


class Replacement(NamedTuple):
    """A part of a text and the label that replaces it; ends are the last character + 1."""

    original_start: int
    original_end: int
    start: int  # of the label with its brackets, in the new text
    end: int
    label: str


def redact(
    doc: Doc, spans_key: str, labels: Collection[str] | None
) -> tuple[str, list[Replacement]]:
    """Replace the spans of some labels by their label in brackets, such as "[PERSON]".

    Spans that overlap are replaced together, by the label of the one with the highest score.

    Args:
        spans_key: The spans, with `.attrs["scores"]`, are in `doc.spans[spans_key]`.
        labels: Labels to replace; None for all.

    Returns:
        The new text, and its replacements in order.
    """
    group = doc.spans[spans_key]
    scores = group.attrs["scores"].tolist()
    parts: list[tuple[int, int, float, str]] = []
    for score, span in sorted(zip(scores, group), key=lambda pair: pair[1].start_char):
        start, end, label = span.start_char, span.end_char, span.label_
        if labels is not None and label not in labels:
            continue
        if parts and start < parts[-1][1]:
            first, last, *best = parts.pop()
            start, end = first, max(last, end)
            score, label = max((score, label), (best[0], best[1]))
        parts.append((start, end, score, label))
    text, end = "", 0
    replaced = []
    for start, stop, _, label in parts:
        text += doc.text[end:start]
        replaced.append(Replacement(start, stop, len(text), len(text) + len(label) + 2, label))
        text += f"[{label}]"
        end = stop
    return text + doc.text[end:], replaced
