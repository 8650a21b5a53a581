"""Choose the texts of a corpus of any size that are most worth annotating, and write tasks."""

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor
from functools import partial
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any, NamedTuple

import srsly

from ..annotate.files import find_sources, locate
from ..annotate.multiprocess import processes
from ..annotate.readers import check_text_column
from ..annotate.run import Progress, WorkerError
from ..annotate.settings import Settings, check_settings
from ..annotate.shards import Shard, cut_shards, load
from ..annotate.writers import json_line
from ..atomic import atomic_write, check_new_folder
from ..extras import require
from ..pipeline.lookup import recognizer
from .exclusion import annotated_ids, is_excluded
from .ranking import Options, check_options, rank_texts
from .selection import Selection, Unit, until_enough, within_budget
from .tasks import check_tool, write_tasks

TASKS, SAMPLE, ERRORS, SUMMARY = "tasks", "sample", "errors.jsonl", "summary.json"


class ShardUnits(NamedTuple):
    """The units of a shard that are among its best, and what it adds to the summary."""

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
    exclude: Sequence[Path] = (),
    tool: str = "jsonl",
    workers: int = 0,
    gpu_ids: Sequence[int] = (),
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> dict[str, Any]:
    """Choose the texts, or spans of them, that are most worth annotating, and write tasks.

    Args:
        model: Folder or package of a pipeline.
        inputs: Files, globs, folders or URIs: .txt, .jsonl, .csv, .tsv, also .gz and .zst;
            .parquet; .spacy.
        output: New folder for "tasks", the most valuable first; "sample", the random ones;
            errors.jsonl, the documents that could not be read or scored; and summary.json.
        settings: How documents are read and predicted.
        exclude: Corpora, .spacy files or folders of them: what they answer is left out.
        tool: The format of the tasks, one of `TOOLS`.
        workers: Processes, each with one thread and its own copy of the model; 0 chooses the
            number.
        gpu_ids: The GPUs that the workers share; empty for none.
        on_progress: Called after each shard; its words are the tokens of the units.

    Returns:
        The content of summary.json: the numbers of "documents", "errors" and "blank" lines; of
        "units", which are "tasks", "sample", "duplicates" of these, "over_budget",
        "over_max_per_surface" (left out although there are fewer tasks than asked for), or
        "not_chosen"; of "excluded" ones; and of "empty" documents, which have none; and "tokens",
        those of the tasks and the sample together, and "median_tokens", those of the median task,
        without whitespace.

    Raises:
        InputError: For invalid options, inputs and outputs.
        OSError: If a file cannot be read or written.
        WorkerError: If a worker dies.
    """
    require("annotate")
    check_options(options)
    check_tool(tool, options.unit == "spans")
    check_settings(settings)
    check_new_folder(output)
    sources = find_sources(inputs, locate(str(output))).sources
    check_text_column(sources[0], settings)
    selection, counts = options.selection(), Counter[str]()
    if exclude:
        nlp = load(model, -1, None)
        ids = (annotated_ids(each, options.unit, nlp, options.component) for each in exclude)
        options = options._replace(exclude=options.exclude.union(*ids))
    work = partial(_rank_shard, model=model, settings=settings, options=options)
    total, began = sum(source.size for source in sources), monotonic()
    size = 0
    labels: tuple[str, ...] = ()
    with atomic_write(output) as folder:
        folder.mkdir()
        try:
            with (
                (folder / ERRORS).open("wb") as errors,
                processes(workers, gpu_ids, sources, settings) as engine,
            ):
                for found in engine.map(work, cut_shards(sources, settings)):
                    selection.add(found.units)
                    counts += found.counts
                    errors.writelines(map(json_line, found.errors))
                    size, labels = size + found.size, found.labels
                    done = counts["documents"], counts["tokens"], monotonic() - began
                    on_progress(Progress(size, total, *done))
        except BrokenExecutor as error:
            message = f"A worker died: {error}. Use fewer workers, or more memory."
            raise WorkerError(message) from error
        selection.balance(options.random_share)
        chosen = choose(selection, options)
        used = {span[2] for units in chosen for unit in units for span, _ in unit.entities}
        labels = (*labels, *sorted(used.difference(labels)))  # also of earlier components
        for name, units in zip((TASKS, SAMPLE), chosen):
            write_tasks(folder, name, units, tool, labels, options.unit == "spans")
        summary = _summarize(counts, selection, options, *chosen)
        srsly.write_json(folder / SUMMARY, summary)
    return summary


def choose(selection: Selection, options: Options) -> tuple[list[Unit], list[Unit]]:
    """Return the tasks and the random sample, within the budget, which both share.

    Sampled units over budget compete as ordinary candidates.
    """
    if options.budget is None:
        return selection.ranked, selection.sample
    share = round(options.budget * options.random_share)
    sample = until_enough(selection.sample, share, options.budget)
    selection.limit_sample(len(sample))
    left = options.budget - sum(len(unit.tokens) for unit in sample)
    return within_budget(selection.ranked, left)[: options.n - len(sample)], sample


def _rank_shard(
    shard: Shard, gpu_id: int, *, model: str, settings: Settings, options: Options
) -> ShardUnits:
    nlp = load(model, gpu_id, settings.dtype)
    given = shard.rows
    texts = [row[settings.text_column] for _, row in given]
    found, documents = rank_texts(nlp, texts, options, settings)
    selection, counts = options.selection(), Counter[str]()
    for (item, row), units, document in zip(given, found, documents):
        if document.error is not None:
            item.reason = document.error
            continue
        counts["empty"] += not units
        counts["tokens"] += document.words
        identity = row.get(settings.id_column)
        for unit in units:
            if is_excluded(unit, options.exclude):
                counts["excluded"] += 1
                continue
            unit.source = {"file": item.file, "line": item.line, "id": identity, **unit.source}
            counts["units"] += 1
            selection.add([unit])
    report = shard.report()
    counts.update(documents=report.documents, blank=report.blank, errors=len(report.errors))
    counts["duplicates"] = selection.duplicates
    labels = recognizer(nlp, options.component).labels
    units = [*selection.ranked, *selection.sample]
    return ShardUnits(units, counts, report.errors, labels, shard.size)


def _summarize(
    counts: "Counter[str]",
    selection: Selection,
    options: Options,
    tasks: list[Unit],
    sample: list[Unit],
) -> dict[str, Any]:
    names = ("documents", "errors", "blank", "empty", "excluded", "units")
    without_budget = min(options.n, len(selection.ranked) + len(selection.sample))
    over = without_budget - len(tasks) - len(sample)
    duplicates = counts["duplicates"] + selection.duplicates
    left = counts["units"] - len(tasks) - len(sample) - over - duplicates
    # Only `max_per_surface` leaves out a unit while there is room for more.
    repeated = left if without_budget < options.n else 0
    sizes = [sum(not word.isspace() for word, _ in unit.tokens) for unit in tasks]
    return {
        **{name: counts[name] for name in names},
        "tasks": len(tasks),
        "sample": len(sample),
        "duplicates": duplicates,
        "over_budget": over,
        "over_max_per_surface": repeated,
        "not_chosen": left - repeated,
        "tokens": sum(len(unit.tokens) for unit in (*tasks, *sample)),
        "median_tokens": median(sizes) if sizes else 0,
    }
