"""Find gold annotation that is probably wrong, with models that have not seen it."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import srsly
from spacy.language import Language
from spacy.matcher import PhraseMatcher
from spacy.tokens import Doc, Span
from spacy.training import Example
from spacy.vocab import Vocab

from ..atomic import atomic_write
from ..data import ConversionLog, read_gold
from ..data.jsonl import annotated_parts
from ..docbin import without_annotation
from ..evaluation import check_shared_label
from ..evaluation.calibration import calibrate
from ..evaluation.error_analysis import errors, missed_probabilities
from ..evaluation.matching import collect_entities, match_entities
from ..input_error import InputError
from ..pipeline.annotated_labels import annotated_labels
from ..pipeline.calibration import log_likelihoods_of
from ..pipeline.gold import check_text, count_entities
from ..pipeline.lookup import later_names, recognizer, recognizer_name, sets_entities_alone
from ..pipeline.preset import IOB_OUTSIDE
from ..report.html import review_page
from ..templates import write_page
from ..training.cross_validation import check_not_frozen, divide, known_negatives, train_folds
from .ranking import identify
from .selection import Unit
from .tasks import TOOLS, write_tasks

if TYPE_CHECKING:
    from ..pipeline.crf_ner import CRFEntityRecognizer

# A log likelihood ratio counts up to this: models are too sure of names that they have not seen.
LIMIT = 5.0
# The log of how often annotators overlook an entity, and annotate one where there is none, for one
# that gets this label or boundary instead of its own: assumptions.
OVERLOOKED = math.log(10)
INVENTED = math.log(0.01)
# The kinds of errors of a pipeline, as what gold has.
KINDS = {
    "spurious": "not in gold",
    "missed": "only in gold",
    "wrong type": "other type",
    "wrong boundary": "other boundary",
    "wrong type and boundary": "other type and boundary",
}


class Review(NamedTuple):
    """The disagreements of gold annotation and models, the most suspicious first.

    Attributes:
        findings: One dict for each, as `evaluation.error_analysis.errors` lists them, with a "kind"
            of `KINDS`, the index "doc" in the corpus, the "gold_probability" of the gold entity,
            and its `log_odds`, with the "log_likelihood_ratio" and the "support" of both sides.
        gold: The gold docs.
        labels: Labels of the pipeline, and of entities of docs with findings.
        left_out: The number of predicted entities in tokens without annotation.
        negatives: The number of negative spans that a fold was trained without, since it does not
            have their label.
    """

    findings: list[dict[str, Any]]
    gold: list[Doc]
    labels: list[str]
    left_out: int
    negatives: int

    @property
    def likely(self) -> list[dict[str, Any]]:
        """The findings to list: those where the prediction is more likely than gold."""
        return [each for each in self.findings if each["log_odds"] > 0]

    def summary(self) -> str:
        """Describe what was found, in one paragraph."""
        likely = self.likely
        kinds = Counter(each["kind"] for each in likely)
        by_kind = ", ".join(f"{number:,} {kind}" for kind, number in kinds.most_common())
        docs = {each["doc"] for each in likely}
        summary = (
            f"Gold is probably wrong in {len(likely):,} places, in {len(docs):,} of "
            f"{len(self.gold):,} documents{f': {by_kind}' if by_kind else ''}. Left out are "
            f"{len(self.findings) - len(likely):,} predictions that are less likely than gold, and "
            f"{self.left_out:,} in text without annotation."
        )
        if self.negatives:
            summary += f" {self.negatives:,} negative spans have a label that is not in all folds."
        return summary

    def units(self) -> Iterator[Unit]:
        """Yield the docs to correct, with their gold entities, the most suspicious first."""
        notes: dict[int, list[str]] = {}
        for each in self.likely:
            notes.setdefault(each["doc"], []).append(_note(each))
        score = {each["doc"]: each["log_odds"] for each in reversed(self.likely)}
        for i, own in notes.items():
            doc = self.gold[i]
            ents = [((e.start_char, e.end_char, e.label_), None) for e in doc.ents]
            tokens = [(token.text, bool(token.whitespace_)) for token in doc]
            source = {"doc": i, "findings": own}
            unit = Unit(identify(doc.text), doc.text, tokens, ents, score[i], "", source)
            unit.limits = annotated_parts(doc)
            yield unit

    def write(
        self, output: Path, tool: str, n: int, facts: Sequence[tuple[str, str]], method: str
    ) -> None:
        """Write a folder: the likely findings, and the first n docs with some, as tasks and a page.

        Args:
            facts: Names and values for the head of the page.
            method: How gold was compared, in words.
        """
        units = [*islice(self.units(), n)]
        tasks = {unit.source["doc"]: TOOLS["jsonl"](unit) for unit in units}
        facts = [
            *facts,
            ("Size", f"{len(self.gold):,} documents"),
            ("Gold", f"{sum(len(doc.ents) for doc in self.gold):,} entities"),
            ("Labels", ", ".join(self.labels)),
        ]
        page = review_page(self.likely, tasks, facts, self.summary(), method)
        with atomic_write(output) as folder:
            folder.mkdir()
            write_page(folder / "review.html", page)
            srsly.write_jsonl(folder / "findings.jsonl", self.likely)
            write_tasks(folder, "tasks", units, tool, self.labels, binary=False)


def review(
    nlp: Language,
    corpus: Path,
    folds: int = 5,
    *,
    seed: int = 0,
    gpu_id: int = -1,
    component: str | None = None,
    on_fold: Callable[[int], None] = lambda done: None,
) -> Review:
    """Compare gold annotation with models that were trained without it, and are calibrated.

    Each fold of the corpus is predicted by a pipeline that is trained on the other folds, with the
    config of the given one. The findings are sorted by log odds.

    Args:
        nlp: A trained pipeline whose entities all come from its `crf_ner` component.
        corpus: Gold docs: a .spacy file or a folder of them, or in any format of `convert`.
        folds: 0 to predict with the given pipeline, without calibration: if it was trained on the
            corpus, it agrees with errors that it has learned.
        seed: Seed of the folds.
        gpu_id: GPU to train on; -1 for the CPU.
        component: The name of the component; None for the only one.
        on_fold: Called with the number of folds that are done.

    Raises:
        InputError: If the pipeline lacks the component, has no confidences, has a frozen component
            or other components that set entities, or has a config without paths of the corpora; for
            a corpus with fewer different texts than folds, without entities, or with gold entities
            that begin or end with whitespace.
    """
    name = recognizer_name(nlp, component)
    pipe = recognizer(nlp, name)
    _check_pipeline(nlp, name)
    gold = list(read_gold(corpus, nlp, ConversionLog())[1])
    if folds == 0:
        check_shared_label(gold, str(corpus), nlp, name)
    if not any(doc.ents for doc in gold):
        raise InputError(f"{corpus}: expected docs with entities, got {len(gold)} without.")
    _check_learnable(gold, corpus, name)
    key = pipe.incorrect_spans_key
    negatives = [span.label_ for doc in gold if key for span in doc.spans.get(key, ())]
    lost: set[str] = set()  # labels of negative spans that a fold does not have
    parts: Iterable[tuple[Language, list[int]]] = [(nlp, [*range(len(gold))])]
    if folds:
        check_not_frozen(nlp, name)
        fold_of = divide([doc.text for doc in gold], folds, seed)
        parts = train_folds(nlp.config, gold, fold_of, gpu_id, seed, key, source=nlp)
    findings: list[dict[str, Any]] = []
    left_out = 0
    for done, (trained, rows) in enumerate(parts, 1):
        own = [gold[i] for i in rows]
        if folds:
            _calibrate(trained, name, own, key)
            lost |= {*negatives} - {"", "O", *recognizer(trained, name).labels}
        found, unknown = _compare(trained, name, own, rows)
        findings += found
        left_out += unknown
        if folds:
            on_fold(done)
    for each, counts in zip(findings, _support(findings, gold, nlp.vocab)):
        span = _span(gold[each["doc"]], each["predicted"])
        is_apart = span is not None and not any(token.ent_type for token in span)
        each["support"] = counts
        each["log_odds"] = log_odds(each, is_apart)
    findings.sort(key=lambda each: (-each["log_odds"], each["doc"]))
    found_in = {each["doc"] for each in findings}
    labels = {*pipe.labels, *(ent.label_ for i in found_in for ent in gold[i].ents)}
    return Review(
        findings, gold, sorted(labels), left_out, sum(label in lost for label in negatives)
    )


def _check_pipeline(nlp: Language, name: str) -> None:
    pipe = recognizer(nlp, name)
    if pipe.entities_key is not None:
        raise InputError(
            f"[{name}] review: expected a pipeline with flat entities, got one with overlapping "
            "ones. An entity that overlaps gold is no contradiction to it there."
        )
    if not pipe.confidence:
        raise InputError(
            f"[{name}] confidence: expected true, got false. Findings are sorted by the confidence "
            "of entities: set it to true in the config of the pipeline."
        )
    if not sets_entities_alone(nlp, name):
        raise InputError(
            f"[{name}] review: expected a pipeline in which no other component sets entities, got "
            f"{nlp.pipe_names}. Remove the others from a copy of it."
        )


def _calibrate(nlp: Language, name: str, gold: Sequence[Doc], key: str | None) -> None:
    """Calibrate a pipeline on the docs of its fold whose labels it has."""
    pipe = recognizer(nlp, name)
    # A label may be only in this fold: nothing is known about it.
    known = [
        known_negatives(doc, key, pipe.labels)
        for doc in gold
        if {*pipe.labels}.issuperset(ent.label_ for ent in doc.ents)
    ]
    examples = _examples(nlp, known)
    if count_entities(examples, pipe.entities_key, pipe.excluded):
        calibrate(nlp, examples, name)


def _check_learnable(gold: Sequence[Doc], corpus: Path, name: str) -> None:
    """Raise InputError with all entities that `check_text` refuses."""
    wrong = []
    for ent in (ent for doc in gold for ent in doc.ents):
        try:
            check_text([ent], name)
        except InputError as error:
            wrong.append(f"\n{error}")
    if wrong:
        raise InputError(
            f"{corpus}: expected entities that can be learned, got {len(wrong)} others:"
            + "".join(wrong)
        )


def _compare(
    nlp: Language, name: str, gold: Sequence[Doc], numbers: Sequence[int]
) -> tuple[list[dict[str, Any]], int]:
    """Find the disagreements in docs with these numbers; also count predictions left out."""
    numbers = [i for i, doc in zip(numbers, gold) if len(doc)]
    examples = _examples(nlp, gold)
    pairs = ((eg.predicted, eg.reference) for eg in examples)
    docs_and_gold = nlp.pipe(pairs, as_tuples=True, disable=later_names(nlp, name))
    examples = [Example(doc, own) for doc, own in docs_and_gold]
    if len(examples) < len(numbers):
        raise InputError(
            f"expected {len(numbers)} docs from the pipeline, got {len(examples)}: its error "
            "handler dropped the others. Correct the pipeline or the corpus."
        )
    docs = collect_entities(examples)
    matches = [match_entities(doc.gold, doc.predicted) for doc in docs]
    wrong = [
        [(g, None) for g, p in of_doc if g and (p is None or p[:3] != g[:3])] for of_doc in matches
    ]
    known = missed_probabilities(nlp, name, [eg.predicted for eg in examples], wrong)
    assert known is not None  # no other component sets entities
    listed: list[dict[str, Any]] = errors(docs, matches, known)["list"]
    ratios = _log_likelihood_ratios(recognizer(nlp, name), examples, listed)
    findings = []
    for each, ratio in zip(listed, ratios):
        place = {"kind": KINDS[each["kind"]], "doc": numbers[each["doc"]]}
        findings.append({**each, **place, "log_likelihood_ratio": ratio})
    return findings, sum(len(doc.left_out) for doc in docs)


def _examples(nlp: Language, gold: Sequence[Doc]) -> list[Example]:
    """Pair gold docs that have tokens with docs of the same ones, in a pipeline's vocabulary."""
    examples = []
    for doc in filter(len, gold):
        own = Doc(nlp.vocab).from_bytes(doc.to_bytes())
        examples.append(Example(without_annotation(doc, nlp.vocab), own))
    return examples


def _log_likelihood_ratios(
    pipe: "CRFEntityRecognizer", examples: Sequence[Example], findings: Sequence[dict[str, Any]]
) -> list[float]:
    """Compute how much more likely gold is with the prediction of each finding in its place.

    Only the entities of the finding change. The ratios are at most LIMIT; so is the ratio of a gold
    entity whose label the model does not predict. Other entities of such labels count as not
    annotated.
    """
    of_doc: dict[int, list[int]] = {}
    for k, each in enumerate(findings):
        of_doc.setdefault(each["doc"], []).append(k)
    ratios = [LIMIT] * len(findings)
    for i, own in of_doc.items():
        gold = _known(examples[i].reference, pipe.enabled_labels)
        changed = (_replaced(gold, findings[k]) for k in own)
        before, *after = log_likelihoods_of(pipe, examples[i].predicted, chain([gold], changed))
        for k, log_p in zip(own, after):
            side = findings[k]["gold"]
            if side is None or side["label"] in pipe.enabled_labels:
                ratios[k] = min(log_p - before, LIMIT)
    return ratios


def _known(gold: Doc, labels: Sequence[str]) -> Doc:
    """Copy gold; entities of other labels become tokens without annotation."""
    gold = gold.copy()
    others = [ent for ent in gold.ents if ent.label_ not in labels]
    gold.set_ents([], missing=others, default="unmodified")
    return gold


def _replaced(gold: Doc, finding: dict[str, Any]) -> Doc:
    """Copy gold, with the predicted entity in place of those that it overlaps."""
    gold = gold.copy()
    start, end = finding["offset"], finding["offset"] + len(finding["text"])
    old = [ent for ent in gold.ents if ent.start_char < end and start < ent.end_char]
    gold.set_ents([], outside=old, default="unmodified")
    if span := _span(gold, finding["predicted"]):
        gold.set_ents([span], default="unmodified")
    return gold


def _support(
    findings: Sequence[dict[str, Any]], gold: Sequence[Doc], vocab: Vocab
) -> list[dict[str, int]]:
    """Count the other texts that annotate the same words as "predicted", and as "gold" does.

    Case is ignored. Where one side has no entity, the words of the other side are looked up, and
    support it in texts that annotate their label, where they are outside of entities. Equal texts
    are one text.
    """
    matcher = PhraseMatcher(vocab, attr="LOWER")
    asked: dict[str, set[str]] = {}  # the labels of words
    for each in findings:
        spans = [_span(gold[each["doc"]], each[side]) for side in ("predicted", "gold")]
        for span in filter(None, spans):
            matcher.add(span.text.lower(), [Doc(vocab, [token.text for token in span])])
            asked.setdefault(span.text.lower(), set()).add(span.label_)
    # By words, label, and whether they are an entity of this label, or of none.
    texts: dict[tuple[str, str, bool], set[str]] = {}
    for doc in gold:
        text = doc.text  # built at each access
        annotated = annotated_labels(doc)
        label_of = {(ent.start, ent.end): ent.label_ for ent in doc.ents}
        for key, start, end in matcher(doc):
            words = vocab.strings[key]
            label = label_of.get((start, end))
            labels = set() if label is None else {label}
            if label is None and all(token.ent_iob == IOB_OUTSIDE for token in doc[start:end]):
                labels = asked[words] if annotated is None else asked[words] & annotated
            for asked_for in labels:
                texts.setdefault((words, asked_for, label is not None), set()).add(text)

    def count(finding: dict[str, Any], side: str) -> int:
        ent = finding[side] or finding["gold"] or finding["predicted"]
        found = texts.get((ent["text"].lower(), ent["label"], finding[side] is not None), set())
        return len(found) - (gold[finding["doc"]].text in found)

    return [{side: count(each, side) for side in ("predicted", "gold")} for each in findings]


def _span(doc: Doc, ent: dict[str, Any] | None) -> Span | None:
    return doc.char_span(ent["start"], ent["end"], ent["label"]) if ent else None


def log_odds(finding: dict[str, Any], is_apart: bool) -> float:
    """Estimate the log odds that the prediction of a finding is right, and not gold.

    The sum of the log likelihood ratio of the model, the log ratio of the texts that support each
    side, each with a half of a text added, and the log of how often annotators make this error.
    They overlook only entities that are apart, which overlap no gold one.
    """
    support = finding["support"]
    odds: float = finding["log_likelihood_ratio"]
    odds += math.log((0.5 + support["predicted"]) / (0.5 + support["gold"]))
    if is_apart:
        return odds + OVERLOOKED
    return odds + INVENTED if finding["predicted"] is None else odds


def _note(finding: dict[str, Any]) -> str:
    """Describe a finding in the meta data of a task."""
    sides = []
    for side, key in (("gold", "gold_probability"), ("predicted", "confidence")):
        ent = finding[side]
        shown = f"{ent['text']!r} ({ent['label']}, {finding[key]:.3f})" if ent else "none"
        sides.append(f"{side} {shown}")
    return f"{finding['kind']}: {', '.join(sides)}"
