"""Check a corpus: read every Doc once and apply all rules."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from spacy.attrs import ENT_IOB
from spacy.tokens import Doc

from ..input_error import InputError
from ..pipeline.annotated_labels import annotated_labels
from ..pipeline.gold import gold_entities
from ..pipeline.platt_scaling import FEW
from ..pipeline.preset import IOB_INSIDE, IOB_OUTSIDE
from ..pipeline.training_steps import MOST_EPOCHS, count_batches, training_steps
from ..tags import SCHEMES
from . import corpus_rules
from .doc_rules import doc_problems
from .findings import MESSAGES, SEVERITIES, CorpusDoc, Finding, Place, Problem, Report
from .settings import CheckSettings
from .statistics import Statistics

DEFAULTS = CheckSettings()
OF_TEXTS = ("conflicting-labels", "sometimes-outside")  # counted over both parts
ENOUGH_DEV = FEW  # entities to calibrate on
NO_LABEL = ("", "O")  # labels of incorrect spans that are not entity labels


def check(
    train: Iterable[Doc],
    dev: Iterable[Doc] | None = None,
    settings: CheckSettings = DEFAULTS,
    max_examples: int = 5,
) -> Report:
    """Find mistakes in a corpus before training; raise InputError for an unknown scheme.

    Docs have gold entities; they are read once and not stored. The findings, errors first, have at
    most `max_examples` places each.
    """
    if settings.scheme not in SCHEMES:
        raise InputError(f"scheme: expected one of {sorted(SCHEMES)}, got {settings.scheme!r}.")
    parts = {"train": train} if dev is None else {"train": train, "dev": dev}
    statistics = {part: Statistics() for part in parts}
    incorrect: set[str] = set()
    train_texts = corpus_rules.TrainTexts(settings.shared_tokens)
    counts: dict[str, Counter[str]] = {}
    examples: dict[str, list[Place]] = {}
    for kind, place in _problems(parts, settings, statistics, incorrect, train_texts):
        counts.setdefault(kind, Counter())["all" if kind in OF_TEXTS else place.part] += 1
        if len(examples.setdefault(kind, [])) < max_examples:
            examples[kind].append(place)
    if settings.incorrect_spans_key is not None and not incorrect:
        counts["no-incorrect"] = Counter()
    if empty := {part: 0 for part, s in statistics.items() if not s.entities}:
        counts["no-entities"] = Counter(empty)
    if "dev" in statistics and 0 < (n := statistics["dev"].entities) < ENOUGH_DEV:
        counts["few-dev"] = Counter(dev=n)
    lengths = statistics["train"].doc_lengths
    enough = 0
    if settings.max_steps and any(lengths):
        batches = count_batches(settings.batcher, lengths.elements())
        enough = training_steps(batches, settings.max_steps).steps
        if settings.max_steps >= 2 * enough:
            counts["many-steps"] = Counter()
    divided = len(train_texts.divided)
    reported = _findings(settings, statistics, counts, examples, divided, enough)
    return Report(statistics, sorted(reported, key=lambda each: SEVERITIES.index(each.severity)))


def _problems(
    parts: dict[str, Iterable[Doc]],
    settings: CheckSettings,
    statistics: dict[str, Statistics],
    incorrect: set[str],
    train_texts: corpus_rules.TrainTexts,
) -> Iterator[Problem]:
    """Read all docs once: yield the problems of each doc, then those of the corpus.

    It fills in the statistics, the parts with incorrect spans, and the texts of train.
    """
    first: dict[tuple[str, str], Place] = {}  # the first entity by part and label
    # By kind, part and label: where docs have a label, perhaps without an entity of it.
    unused: dict[tuple[str, str, str], list[Place]] = {}
    seen: corpus_rules.Seen = {}
    forms = corpus_rules.SurfaceForms()
    for part, docs in parts.items():
        for number, doc in enumerate(docs):
            ents = gold_entities(doc, settings.spans_key)
            iob: Any = doc.to_array(ENT_IOB)
            if settings.spans_key in doc.spans:
                iob[:] = IOB_OUTSIDE
                for ent in ents:
                    iob[ent.start : ent.end] = IOB_INSIDE
            at = CorpusDoc(part, number, doc, ents, iob)
            statistics[part].add(doc, at.ents, at.iob)
            forms.add(at)
            for ent in at.ents:
                first.setdefault((part, ent.label_), at.place(ent))
            for label in annotated_labels(doc) or ():
                unused.setdefault(("unused-annotated", part, label), [at.doc_place(label)])
            for span in doc.spans.get(settings.incorrect_spans_key, []):
                incorrect.add(part)
                if part == "train" and span.label_ not in NO_LABEL:
                    key = "unknown-incorrect", part, span.label_
                    unused.setdefault(key, []).append(at.place(span, span.label_))
            yield from doc_problems(at, settings)
            duplicates = [*corpus_rules.duplicate_problems(at, seen)]
            yield from duplicates
            yield from train_texts.problems(at, {kind for kind, _ in duplicates})
    labels = {part: s.labels for part, s in statistics.items()}
    yield from corpus_rules.label_problems(labels, first, settings.rare)
    for (kind, part, label), places in unused.items():
        if label not in labels[part]:
            yield from ((kind, place) for place in places)
    yield from corpus_rules.conflicting_labels(forms)
    yield from corpus_rules.sometimes_outside(forms, settings.frequent)


def _findings(
    settings: CheckSettings,
    statistics: dict[str, Statistics],
    counts: dict[str, Counter[str]],
    examples: dict[str, list[Place]],
    divided: int,
    enough: int,
) -> Iterator[Finding]:
    """Describe the counted problems, in the order of the messages."""
    leak_share = counts["leak"].total() / statistics["dev"].docs if "leak" in counts else 0.0
    is_leaky = leak_share >= settings.leak_error
    facts = {
        "empty": " and ".join(counts.get("no-entities", ())),
        "leak_share": leak_share,
        "divided": divided,
        "longest": max(s.longest_doc for s in statistics.values()),
        "max_length": settings.tokenizer and settings.tokenizer.longest,
        "enough": enough,
        "most_epochs": MOST_EPOCHS,
        "enough_dev": ENOUGH_DEV,
        **settings._asdict(),
    }
    for kind in filter(counts.__contains__, MESSAGES):
        message, total = MESSAGES[kind], counts[kind].total()
        found = message["found"].format(**facts) + (f": {total:,}." if total else ".")
        severity = "error" if kind == "leak" and is_leaky else message["severity"]
        places = examples.get(kind, [])
        yield Finding(severity, kind, found, dict(counts[kind]), places, message["fix"])
