"""Find gold annotation that is probably wrong, with models that have not seen it."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example

from ..docbin import read_docbin
from ..evaluation.calibration import calibrate
from ..evaluation.error_analysis import errors, missed_probabilities, sets_entities_alone
from ..evaluation.matching import Entity, Match, collect_entities, match_entities
from ..input_error import InputError
from ..pipeline.lookup import recognizer, require_recognizer
from ..training.cross_validation import divide, known_negatives, train_folds
from .ranking import identify
from .selection import Unit

LEAST = 1e-12  # probabilities are rounded
# How often annotation has an entity where there is none, for one that is wrong or overlooked: an
# assumption, so that findings without a better analysis come later.
INVENTED = 0.1
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

    findings: As in the list of `evaluation.error_analysis.errors`, with a "kind" of `KINDS`, the
        index "doc" in the corpus, the "gold_probability" of the gold entity, and "log_odds", see
        the function.
    docs: The number of gold docs.
    docs_of: The gold docs with a finding, by index.
    left_out: The number of predicted entities in tokens without annotation.
    negatives: The number of negative spans that a fold was trained without, since it does not have
        their label.
    """

    findings: list[dict[str, Any]]
    docs: int
    docs_of: dict[int, Doc]
    left_out: int
    negatives: int

    def units(self) -> Iterator[Unit]:
        """Yield the docs with findings, with their gold entities, the most suspicious first."""
        notes: dict[int, list[str]] = {}
        for each in self.findings:
            notes.setdefault(each["doc"], []).append(_note(each))
        score = {each["doc"]: each["log_odds"] for each in reversed(self.findings)}
        for i, own in notes.items():
            doc = self.docs_of[i]
            ents = [((e.start_char, e.end_char, e.label_), None) for e in doc.ents]
            tokens = [(token.text, bool(token.whitespace_)) for token in doc]
            source = {"doc": i, "findings": own}
            yield Unit(identify(doc.text), doc.text, tokens, ents, score[i], "", source)


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

    nlp: A trained pipeline whose entities all come from its `crf_ner` component.
    corpus: Gold docs: a .spacy file or a folder of them.
    folds: 0 to predict with the given pipeline, without calibration: if it was trained on the
        corpus, it agrees with errors that it has learned.
    seed: Of the folds. gpu_id: To train on; -1 for the CPU.
    component: The name of the component; None for the only one.
    on_fold: Called with the number of folds that are done.

    Raises InputError as `require_recognizer`, `divide` and `train_folds`, for a corpus without
    entities, and for a pipeline without confidences, or with other components that set entities.
    """
    name = require_recognizer(nlp, component)
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
    _, docs = read_docbin(corpus, nlp.vocab)
    gold = list(docs)
    if not any(doc.ents for doc in gold):
        raise InputError(f"{corpus}: expected docs with entities, got {len(gold)} without.")
    findings: list[dict[str, Any]] = []
    left_out = 0
    key = pipe.incorrect_spans_key
    negatives = [span.label_ for doc in gold if key for span in doc.spans.get(key, ())]
    lost: set[str] = set()  # labels of negative spans that a fold does not have
    if folds == 0:
        findings, left_out = _compare(nlp, name, gold, [*range(len(gold))])
    else:
        fold_of = divide([doc.text for doc in gold], folds, seed)
        for done, (trained, held_out) in enumerate(
            train_folds(nlp.config, gold, fold_of, gpu_id, seed, key), 1
        ):
            own = [gold[i] for i in held_out]
            labels = {*recognizer(trained, name).labels}
            lost |= {*negatives} - labels - {"", "O"}
            # A label may be only in this fold: nothing is known about it.
            known = [
                known_negatives(doc, key, labels)
                for doc in own
                if labels.issuperset(ent.label_ for ent in doc.ents)
            ]
            if any(doc.has_annotation("ENT_IOB") for doc in known):
                calibrate(trained, _examples(trained, known), name)
            found, unknown = _compare(trained, name, own, held_out)
            findings += found
            left_out += unknown
            on_fold(done)
    _rank(findings, gold)
    chosen = {each["doc"] for each in findings}
    docs_of = {i: gold[i] for i in sorted(chosen)}
    return Review(findings, len(gold), docs_of, left_out, sum(each in lost for each in negatives))


def _compare(
    nlp: Language, name: str, gold: Sequence[Doc], numbers: Sequence[int]
) -> tuple[list[dict[str, Any]], int]:
    """Find the disagreements in docs with these numbers; also count predictions left out."""
    numbers = [i for i, doc in zip(numbers, gold) if len(doc)]
    examples = _examples(nlp, gold)
    pairs = ((eg.predicted, eg.reference) for eg in examples)
    examples = [Example(doc, own) for doc, own in nlp.pipe(pairs, as_tuples=True)]
    if len(examples) < len(numbers):
        raise InputError(
            f"expected {len(numbers)} docs from the pipeline, got {len(examples)}: its error "
            "handler dropped the others. Correct the pipeline or the corpus."
        )
    docs = collect_entities(examples)
    matches = [match_entities(doc.gold, doc.predicted) for doc in docs]
    known = _gold_probabilities(nlp, name, examples, matches)
    listed: list[dict[str, Any]] = errors(docs, matches, known)["list"]
    findings = []
    for each in listed:
        q = None
        if each["gold"]:
            of_gold = each["gold"]
            q = known[each["doc"]][Entity(of_gold["start"], of_gold["end"], of_gold["label"])]
        place = {"kind": KINDS[each["kind"]], "doc": numbers[each["doc"]]}
        findings.append({**each, **place, "gold_probability": q})
    return findings, sum(len(doc.left_out) for doc in docs)


def _examples(nlp: Language, gold: Sequence[Doc]) -> list[Example]:
    """Pair gold docs that have tokens with docs of the same ones, in a pipeline's vocabulary."""
    return [
        Example(
            Doc(
                nlp.vocab,
                [token.text for token in doc],
                None if doc.has_unknown_spaces else [bool(token.whitespace_) for token in doc],
            ),
            Doc(nlp.vocab).from_bytes(doc.to_bytes()),
        )
        for doc in gold
        if len(doc)
    ]


def _gold_probabilities(
    nlp: Language, name: str, examples: Sequence[Example], matches: Sequence[Sequence[Match]]
) -> list[dict[Entity, float]]:
    """Compute the probabilities of the gold entities that are not predicted."""
    wrong = [
        [(g, None) for g, p in of_doc if g and (p is None or p[:3] != g[:3])] for of_doc in matches
    ]
    found = missed_probabilities(nlp, name, [eg.predicted for eg in examples], wrong)
    assert found is not None  # no other component sets entities
    return found


def log_odds(finding: dict[str, Any], miss_rate: float) -> float:
    """Estimate the log odds of a model against gold annotation.

    For a prediction with the probability p, log p / (1 - p). For a gold entity with the probability
    q that the model does not find, log (1 - q) / q + log INVENTED; but a model that misses half of
    such entities is as sure of the absence of each of them, so q is at least the miss rate.
    """
    if finding["predicted"]:
        return _logit(finding["confidence"])
    return _logit(1 - max(finding["gold_probability"], miss_rate)) + math.log(INVENTED)


def _logit(p: float) -> float:
    return math.log(max(p, LEAST) / max(1 - p, LEAST))


def _rank(findings: list[dict[str, Any]], gold: Sequence[Doc]) -> None:
    """Set the log odds, and sort by them; of equal ones, the least probable gold is first.

    A model misses entities that it has never seen, so there are two miss rates for each label.
    """
    texts: dict[tuple[str, str], set[str]] = {}
    for doc in gold:
        for ent in doc.ents:
            texts.setdefault((ent.text.casefold(), ent.label_), set()).add(doc.text)

    def group(text: str, label: str) -> tuple[str, bool]:
        """Return the label, and whether the entity is in another text, too."""
        return label, len(texts[text.casefold(), label]) > 1

    total = Counter(group(ent.text, ent.label_) for doc in gold for ent in doc.ents)
    groups = [
        group(each["gold"]["text"], each["gold"]["label"]) if each["gold"] else ("", False)
        for each in findings
    ]
    missed = Counter(own for own, each in zip(groups, findings) if not each["predicted"])
    for own, each in zip(groups, findings):
        each["log_odds"] = log_odds(each, (missed[own] + 1) / (total[own] + 2))
    findings.sort(
        key=lambda each: (-each["log_odds"], each["gold_probability"] or 0.0, each["doc"])
    )


def _note(finding: dict[str, Any]) -> str:
    """Describe a finding in the meta data of a task."""
    sides = []
    for side, key in (("gold", "gold_probability"), ("predicted", "confidence")):
        ent = finding[side]
        shown = f"{ent['text']!r} ({ent['label']}, {finding[key]:.3f})" if ent else "none"
        sides.append(f"{side} {shown}")
    return f"{finding['kind']}: {', '.join(sides)}"
