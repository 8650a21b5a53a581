"""Choose the texts of a corpus of any size that are most worth annotating, and write tasks."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import srsly
from spacy.language import Language
from spacy.tokens import Doc, Span

from ..annotate.dataframes import load
from ..annotate.inputs import find_sources
from ..annotate.multiprocess import processes
from ..annotate.readers import require_text_column
from ..annotate.run import Progress, WorkerError, require_packages
from ..annotate.runner import AnnotatedText
from ..annotate.settings import Settings
from ..annotate.shards import Shard, cut_shards, error_record
from ..annotate.storage import locate
from ..annotate.writers import json_line
from ..atomic import atomic_write
from ..data.offsets import INCORRECT
from ..docbin import read_docbin
from ..input_error import InputError
from ..pipeline.label_sets import KEY, annotated_labels
from ..pipeline.lookup import recognizer
from .ranking import Options, divide, identify, rank_texts, require_options, sentences
from .selection import Selection, Unit, until_enough, within_budget
from .tasks import require_tool, write_tasks

TASKS, SAMPLE, ERRORS, SUMMARY = "tasks", "sample", "errors.jsonl", "summary.json"


class ShardUnits(NamedTuple):
    """The units of a shard that are among its best, and what it adds to the summary.

    labels: Those of the model. size: Bytes of the input.
    """

    units: list[Unit]
    counts: "Counter[str]"
    errors: list[dict[str, Any]]
    labels: tuple[str, ...]
    size: int


def suggest(
    model: str,
    inputs: Sequence[str | Path],
    output: Path,
    options: Options = Options(),  # noqa: B008
    settings: Settings = Settings(),  # noqa: B008
    *,
    tool: str = "jsonl",
    workers: int = 0,
    gpu_ids: Sequence[int] = (),
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> dict[str, Any]:
    """Choose the texts, or spans of them, that are most worth annotating, and write tasks.

    model: Folder or package of a pipeline.
    inputs, settings, workers, gpu_ids: As for `annotate`.
    output: New folder for "tasks", the most valuable first; "sample", the random ones;
        errors.jsonl, the documents that could not be read or scored; and summary.json.
    tool: The format of the tasks, one of `TOOLS`.
    on_progress: Called after each shard; its words are the tokens of the units.

    Returns the content of summary.json: the numbers of "documents", "errors" and "blank" lines; of
    "units", which are "tasks", "sample", "duplicates" of these, "over_budget", or "not_chosen"; of
    "excluded" ones; and of "empty" documents, which have none.
    Raises InputError for invalid options, inputs and outputs, OSError if a file cannot be read or
    written, and WorkerError if a worker dies.
    """
    require_packages("annotate", "pandas", "pyarrow")
    require_options(options)
    require_tool(tool, options.unit == "spans")
    if output.exists():
        raise InputError(f"{output}: expected the name of a new folder. Choose another one.")
    sources = find_sources(inputs, locate(str(output))).sources
    require_text_column(sources[0], settings.text_column)
    selection, counts = options.selection(), Counter[str]()
    work = partial(_rank_shard, model=model, settings=settings, options=options)
    total, began = sum(source.size for source in sources), monotonic()
    size = 0
    labels: tuple[str, ...] = ()
    with atomic_write(output) as folder:
        folder.mkdir()
        with (
            (folder / ERRORS).open("wb") as errors,
            _dead_workers(),
            processes(workers, gpu_ids) as engine,
        ):
            for found in engine.map(work, cut_shards(sources, settings)):
                selection.add(found.units)
                counts += found.counts
                errors.writelines(map(json_line, found.errors))
                size, labels = size + found.size, found.labels
                done = counts["documents"], counts["tokens"], monotonic() - began
                on_progress(Progress(size, total, *done))
        selection.balance(options.sample)
        chosen = choose(selection, options)
        used = {span[2] for units in chosen for unit in units for span, _ in unit.entities}
        labels = (*labels, *sorted(used.difference(labels)))  # also of earlier components
        for name, units in zip((TASKS, SAMPLE), chosen):
            write_tasks(folder, name, units, tool, labels, options.unit == "spans")
        summary = _summarize(counts, selection, *chosen)
        srsly.write_json(folder / SUMMARY, summary)
    return summary


def choose(selection: Selection, options: Options) -> tuple[list[Unit], list[Unit]]:
    """Return the tasks and the random sample, within the budget, which both share."""
    if options.budget is None:
        return selection.ranked, selection.sample
    share = round(options.budget * options.sample)
    sample = until_enough(selection.sample, share, options.budget)
    left = options.budget - sum(len(unit.tokens) for unit in sample)
    return within_budget(selection.ranked, left), sample


def annotated_ids(
    path: Path, unit: str, nlp: Language, component: str | None = None
) -> Iterator[str]:
    """Yield the ids of what a corpus answers, for `Options.exclude`.

    path: A .spacy file or a folder of them.
    unit: "docs", or another of `UNITS` to compare the sentences of docs too.
    nlp, component: The pipeline that asks, and the name of its `crf_ner` component.

    Yields the id of each text that is annotated, for all labels of the component: all of its
    tokens; if none is, spans under any key in `doc.spans`, or an empty group under the component's
    key. Of other texts, for questions: the ids of the first characters of annotated tokens, with
    each annotated label if these are not all and the token is outside; and of spans that are known
    to be incorrect. Texts have no whitespace at their ends.

    Raises InputError if the pipeline has no such component.
    """
    pipe = recognizer(nlp, component)
    _, docs = read_docbin(path, nlp.vocab)
    for doc in docs:
        tokens = [token for token in doc if not token.is_space]
        groups = doc.spans.items()
        keys = {key for key, spans in groups if spans or key == pipe.entities_key}
        in_spans = bool(keys - {KEY, INCORRECT}) and not any(token.ent_iob for token in tokens)
        incorrect = doc.spans.get(INCORRECT, ())
        some = annotated_labels(doc)
        if some is not None and some.issuperset(pipe.labels):
            some = None
        whole = (doc[tokens[0].i : tokens[-1].i + 1] for _ in tokens[:1])
        for part in chain(whole, () if unit == "docs" else _all_sentences(doc, nlp)):
            text, at = part.text, part.start_char
            is_whole = in_spans or all(token.ent_iob or token.is_space for token in part)
            if is_whole and some is None:
                yield identify(text)
            elif unit == "spans":
                for token in (token for token in part if token.ent_iob):
                    if some is None or token.ent_type:
                        yield identify(text, [token.idx - at])
                    else:
                        yield from (identify(text, [token.idx - at, label]) for label in some)
                for span in incorrect:
                    yield identify(text, (span.start_char - at, span.end_char - at, span.label_))


def _all_sentences(doc: Doc, nlp: Language) -> Iterator[Span]:
    """Yield the sentences of a doc, and those that its text has in the input of the pipeline."""
    yield from sentences(doc)
    for start, text in divide(nlp, AnnotatedText(doc.text), "sentences"):
        if span := doc.char_span(start, start + len(text)):
            yield span


def _is_excluded(unit: Unit, known: frozenset[str]) -> bool:
    if not known:
        return False
    ids = [identify(unit.text.strip())]
    if unit.question is not None:
        start, end, label = unit.question
        # No entity of any label overlaps an annotated one, or has a token that is outside.
        ids += [
            identify(unit.text, [at, *about])
            for at in range(start, end)
            for about in ((), (label,))
        ]
        ids += [unit.id, identify(unit.text, (start, end, ""))]
    return not known.isdisjoint(ids)


def _rank_shard(
    shard: Shard, gpu_id: int, *, model: str, settings: Settings, options: Options
) -> ShardUnits:
    nlp = load(model, gpu_id, settings.precision)
    given = [item for item in shard.items if item.row is not None]
    texts = [(item.row or {})[settings.text_column] for item in given]
    found, documents = rank_texts(nlp, texts, options, settings)
    selection, counts = options.selection(), Counter[str]()
    for item, units, document in zip(given, found, documents):
        if document.error is not None:
            item.reason = document.error
            continue
        counts["empty"] += not units
        counts["tokens"] += document.words
        identity = (item.row or {}).get(settings.id_column)
        for unit in units:
            if _is_excluded(unit, options.exclude):
                counts["excluded"] += 1
                continue
            unit.source = {"file": item.file, "line": item.line, "id": identity, **unit.source}
            counts["units"] += 1
            selection.add([unit])
    errors = [error_record(item, settings.id_column) for item in shard.items if item.reason]
    blank = sum(item.row is None and not item.reason for item in shard.items)
    counts.update(documents=len(shard.items) - blank, blank=blank, errors=len(errors))
    counts["duplicates"] = selection.duplicates
    labels = recognizer(nlp, options.component).labels
    units = [*selection.ranked, *selection.sample]
    return ShardUnits(units, counts, errors, labels, shard.size)


@contextmanager
def _dead_workers() -> Iterator[None]:
    try:
        yield
    except BrokenExecutor as error:
        raise WorkerError(f"A worker died: {error}. Use fewer workers, or more memory.") from error


def _summarize(
    counts: "Counter[str]", selection: Selection, tasks: list[Unit], sample: list[Unit]
) -> dict[str, Any]:
    names = ("documents", "errors", "blank", "empty", "excluded", "units")
    over = len(selection.ranked) + len(selection.sample) - len(tasks) - len(sample)
    duplicates = counts["duplicates"] + selection.duplicates
    used = len(tasks) + len(sample) + over + duplicates
    return {
        **{name: counts[name] for name in names},
        "tasks": len(tasks),
        "sample": len(sample),
        "duplicates": duplicates,
        "over_budget": over,
        "not_chosen": counts["units"] - used,
        "tokens": sum(len(unit.tokens) for unit in (*tasks, *sample)),
    }
