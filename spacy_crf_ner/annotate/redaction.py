"""Write the texts of files without their entities, with a guarantee of how many are missed."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from spacy.language import Language
from spacy.tokens import Doc

from ..atomic import atomic_write
from ..evaluation.guarantees import guarantees
from ..extras import require
from ..input_error import InputError
from ..pipeline.given_text import CHANGED, changes_text
from ..pipeline.load import load
from ..pipeline.lookup import later_names, recognizer, recognizer_name
from .readers import read_texts
from .runner import errors_raised
from .settings import Settings
from .writers import json_line


def redact_files(
    model: str,
    inputs: Sequence[str],
    output: Path,
    settings: Settings,
    *,
    labels: Sequence[str] | None = None,
    component: str | None = None,
    gpu_id: int = -1,
    progress: Callable[[Iterable[Any]], Iterable[Any]] = iter,
) -> tuple[int, Counter[str], dict[str, Any]]:
    """Write the texts of files to a new .jsonl file, each candidate replaced by its label.

    Args:
        inputs: Files and folders, in the formats of `predict`.
        labels: Labels to replace; None for all.
        component: The `crf_ner` component; None for the only one.
        progress: Passes the documents on.

    Returns:
        The number of documents, of replacements by label, and the guarantee. Without a guaranteed
        recall for these labels, and after a document that cannot be read, nothing is written.
    """
    require("annotate")
    if output.suffix != ".jsonl" or output.exists():
        raise InputError(f"{output}: expected the name of a new .jsonl file. Choose another one.")
    nlp = load(model, gpu_id, settings.dtype)
    name = recognizer_name(nlp, component)
    guarantee = _guaranteed_recall(nlp, name, labels)
    spans_key = recognizer(nlp, name).spans_key
    assert spans_key is not None  # the guarantee is about these spans
    documents, counts = 0, Counter[str]()
    with errors_raised(nlp), atomic_write(output) as unfinished, unfinished.open("wb") as file:
        texts = read_texts(inputs, settings, str(output), False, nlp.max_length)
        pairs = ((text, (text, key)) for text, key in texts)
        docs = nlp.pipe(pairs, as_tuples=True, disable=later_names(nlp, name))
        for doc, (given, key) in progress(docs):
            if isinstance(given, str) and changes_text(doc, given):
                raise InputError(f"{key}: {CHANGED}.")
            text, replaced = redact(doc, spans_key, labels)
            record = {"id": key, "text": text, "replaced": [each._asdict() for each in replaced]}
            file.write(json_line(record))
            counts.update(each.label for each in replaced)
            documents += 1
    return documents, counts, guarantee


def _guaranteed_recall(nlp: Language, name: str, labels: Sequence[str] | None) -> dict[str, Any]:
    pipe = recognizer(nlp, name)
    if pipe.entities_key is not None:
        raise InputError(
            f"[{name}] expected a pipeline with flat entities, got one with overlapping ones, "
            "which cannot guarantee a recall. Train one with overlap = false."
        )
    guarantee: dict[str, Any] | None = guarantees(nlp, name).get("recall")
    if guarantee is None:
        raise InputError(
            f"[{name}] The pipeline has no promise of a recall, which redaction needs. Fit one: "
            "spacy-crf-ner promise fit --recall 0.98."
        )
    # Preset entities of other labels are candidates too: without a choice, they are removed.
    known = pipe.enabled_labels
    if labels and not guarantee["by_label"] and not {*known} <= {*labels}:
        raise InputError(
            f"--labels {','.join(labels)}: expected all labels, or a promise for each label, got "
            "one for all together. Use spacy-crf-ner promise fit --by-label."
        )
    if unknown := [label for label in labels or () if label not in known]:
        raise InputError(
            f"--labels: expected some of {', '.join(known)}, got {', '.join(unknown)}."
        )
    return guarantee


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
    """Replace spans of some labels, or all, by their label in brackets, such as "[PERSON]".

    Spans that overlap are replaced together, by the label of the one with the highest score.
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
