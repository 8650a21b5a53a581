"""Checks of a corpus: each faulty corpus has its finding, and a clean one has none."""

import json
import random
import tracemalloc
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import numpy as np
import pytest
import spacy
from spacy.tokens import Doc, DocBin, Span
from spacy.training import Example
from spacy.util import load_config
from typer.testing import CliRunner

from pipelines import TOK2VEC
from spacy_crf_ner.check import CheckSettings, Finding, Report, check, check_corpus, read_settings
from spacy_crf_ner.check.findings import MESSAGES, SEVERITIES
from spacy_crf_ner.cli import app
from spacy_crf_ner.input_error import InputError

ROOT = Path(__file__).parents[2]
VOCAB = spacy.blank("en").vocab
Entity = tuple[int, int, str]  # first token, last token + 1, label
Corpus = tuple[list[Doc], list[Doc]]
runner = CliRunner()


@pytest.fixture(autouse=True)
def few_are_enough(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """The corpora here have a few entities in dev, of which one test alone is about."""
    if "few" not in request.node.name:
        monkeypatch.setattr(check_corpus, "ENOUGH_DEV", 0)


def make(text: str, *ents: Entity, missing: Sequence[int] = (), starts: Sequence[int] = ()) -> Doc:
    """A doc of words with a space between them, and sentence starts where there are any."""
    words = text.split(" ") if text else []
    sent_starts = [i in (0, *starts) for i in range(len(words))] if starts else None
    doc = Doc(VOCAB, words=words, sent_starts=sent_starts)
    spans = [Span(doc, *ent) for ent in ents]
    doc.set_ents(spans, missing=[doc[i : i + 1] for i in missing], default="outside")
    return doc


def wrong(doc: Doc, *spans: Entity, key: str = "wrong") -> Doc:
    """The doc, with spans that are known to be wrong."""
    doc.spans[key] = [Span(doc, *span) for span in spans]
    return doc


def clean() -> Corpus:
    """Train and dev without findings."""
    train = [make(f"Anna{i} visited Bonn{i} .", (0, 1, "PER"), (2, 3, "LOC")) for i in range(10)]
    dev = [make(f"Berta{i} lives in Graz{i} .", (0, 1, "PER"), (3, 4, "LOC")) for i in range(9)]
    return [*train, make("Nothing is here")], dev


def kinds(report: Report) -> list[str]:
    return [finding.kind for finding in report.findings]


def the(report: Report, kind: str) -> Finding:
    (finding,) = [finding for finding in report.findings if finding.kind == kind]
    return finding


# The findings


def test_check_clean_corpus_has_no_findings() -> None:
    train, dev = clean()
    assert check(train, dev).findings == []
    assert check(train).findings == []
    assert check(iter(train), iter(dev), CheckSettings(scheme="io", window=5)).findings == []


def often(text: str, n: int, *ents: Entity) -> list[Doc]:
    """A text n times, each with another word behind it."""
    return [make(f"{text} {'so ' * i}it is", *ents) for i in range(n)]


NUMBERS = " ".join(f"n{i}" for i in range(15))


def of(doc: Doc, document: str) -> Doc:
    """The doc, as a sentence of a document."""
    doc.user_data["meta"] = {"document": document}
    return doc


def spaced(words: list[str], spaces: list[int], *ents: Entity) -> Doc:
    """A doc whose spaces are known."""
    doc = Doc(VOCAB, words=words, spaces=list(map(bool, spaces)))
    doc.set_ents([Span(doc, *ent) for ent in ents], default="outside")
    return doc


class Case(NamedTuple):
    """A corpus with one finding: its severity, its counts by part, its first place and its note.

    The corpus is the clean one, with more docs.
    """

    severity: str
    counts: dict[str, int]
    place: tuple[str, int, int, str, str] | None
    train: list[Doc]
    dev: list[Doc] = []  # noqa: RUF012
    settings: dict[str, Any] = {}  # noqa: RUF012

    def corpus(self) -> Corpus:
        train, dev = clean()
        if self.place is None and self.counts:  # no entities in dev
            dev = []
        for docs, more in ((train, self.train), (dev, self.dev)):
            for i, doc in enumerate(docs):
                of(doc, str(i))  # numbers that count the docs of a part are not one document
            docs += [doc.copy() for doc in more]
        return train, dev


CASES = {
    "whitespace-edge": Case(
        "error",
        {"train": 2, "dev": 1},
        ("train", 11, 0, "Graz \n", "LOC"),
        [make("Graz \n is", (0, 2, "LOC")), make("in \t Ulm", (1, 3, "LOC"))],
        [make("so \n then", (1, 2, "LOC"))],
    ),
    "whitespace-inside": Case(
        "error",
        {"train": 1},
        ("train", 11, 3, "Bad \n Ems", "LOC"),
        [make("in Bad \n Ems", (1, 4, "LOC"))],
        settings={"scheme": "bio"},
    ),
    "crosses-sentence": Case(
        "error",
        {"train": 1},
        ("train", 11, 3, "Bad Ems", "LOC"),
        [
            make("in Bad Ems it is", (1, 3, "LOC"), starts=[2]),
            make("so Bad Ems it is", (1, 3, "LOC"), starts=[1, 3]),
        ],
    ),
    "label-mark": Case(
        "error",
        {"train": 10, "dev": 9},
        ("train", 11, 3, "Ems", "!LOC"),
        often("so Ems", 10, (1, 2, "!LOC")),
        often("in Ems", 9, (1, 2, "!LOC")),
    ),
    "adjacent": Case(
        "warning",
        {"train": 1},
        ("train", 11, 0, "Ems Ulm", "LOC"),
        [
            make("Ems Ulm", (0, 1, "LOC"), (1, 2, "LOC")),
            make("Otto Ulm", (0, 1, "PER"), (1, 2, "LOC")),
            make("Ems , Ulm", (0, 1, "LOC"), (2, 3, "LOC")),
        ],
        settings={"scheme": "io"},
    ),
    "empty-doc": Case(
        "warning",
        {"train": 2, "dev": 1},
        ("train", 11, 0, "", ""),
        [make(""), make("\n")],
        [make("")],
    ),
    "no-annotation": Case(
        "warning",
        {"dev": 1},
        ("dev", 9, 0, "he came ", ""),
        [],
        [make("he came", missing=[0, 1])],
    ),
    "partly-annotated": Case(
        "note",
        {"train": 1},
        ("train", 11, 0, "he came ", "1 of 2 tokens not annotated"),
        [make("he came", missing=[1])],
    ),
    "long-entity": Case(
        "note",
        {"train": 1},
        ("train", 11, 0, "a b c d e f g h i j k", "LOC, 11 tokens"),
        [
            make("a b c d e f g h i j k", (0, 11, "LOC")),
            make("b c d e f g h i j k", (0, 10, "LOC")),
        ],
    ),
    "right-and-wrong": Case(
        "error",
        {"train": 2},
        ("train", 11, 0, "Ems", "LOC"),
        [
            wrong(make("Ems it is", (0, 1, "LOC")), (0, 1, "LOC")),
            wrong(make("in Ems it is", (1, 2, "LOC")), (1, 2, "")),
            # Another label, other tokens, or not outside: no contradiction.
            wrong(make("so Ems it is", (1, 2, "LOC")), (1, 2, "PER"), (0, 2, "LOC"), (1, 2, "O")),
        ],
        settings={"incorrect_spans_key": "wrong"},
    ),
    "unknown-incorrect": Case(
        "error",
        {"train": 1},
        ("train", 11, 0, "Ems", "ORG"),
        [wrong(make("Ems it is"), (0, 1, "ORG"), (0, 1, "O"), (0, 1, ""), (0, 1, "PER"))],
        settings={"incorrect_spans_key": "wrong"},
    ),
    "no-incorrect": Case(
        "warning",
        {},
        None,
        [wrong(make("Ems it is"), (0, 1, "LOC"), key="other")],
        settings={"incorrect_spans_key": "wrong"},
    ),
    "no-entities": Case("error", {"dev": 0}, None, [], [make("he came"), make("she came")]),
    "rare-label": Case(
        "warning",
        {"train": 1},
        ("train", 11, 3, "Otto", "ORG 9"),
        often("so Otto", 9, (1, 2, "ORG")),
        often("here Otto", 9, (1, 2, "ORG")),
    ),
    "unseen-label": Case(
        "error",
        {"dev": 1},
        ("dev", 9, 5, "Otto", "ORG 1"),
        [],
        [make("here Otto", (1, 2, "ORG"))],
    ),
    "absent-label": Case(
        "note",
        {"train": 1},
        ("train", 11, 5, "Otto", "ORG 10"),
        often("here Otto", 10, (1, 2, "ORG")),
    ),
    "similar-labels": Case(
        "warning",
        {"train": 2},
        ("train", 21, 4, "Ems", "WORK_OF_ART 10"),
        [
            *often("so Otto", 10, (1, 2, "work_of art")),
            *often("but Ems", 10, (1, 2, "WORK_OF_ART")),
        ],
        [make("here Otto", (1, 2, "work_of art")), make("and Ems", (1, 2, "WORK_OF_ART"))],
    ),
    "conflicting-labels": Case(
        "warning",
        {"all": 2},
        ("train", 12, 5, "Otto Ems", "PER 2, LOC 1"),
        [
            make("so Otto Ems", (1, 3, "PER")),
            make("here Otto Ems", (1, 3, "LOC")),
            make("Otto Ems here", (0, 2, "PER")),
            make("Ulm", (0, 1, "LOC")),
            make("ulm", (0, 1, "PER")),
        ],
        [make("in Ulm", (1, 2, "PER")), make("ULM is", (0, 1, "PER"))],
    ),
    "sometimes-outside": Case(
        "note",
        {"all": 1},
        ("train", 16, 8, "Bad Ems", "LOC 5, outside 5"),
        [
            *often("so Bad Ems", 5, (1, 3, "LOC")),
            *often("here in Bad Ems", 5),
            # Four occurrences, inside or outside of entities, are too few.
            *often("so Ulm", 4, (1, 2, "LOC")),
            *often("in Ulm", 7),
            *often("so Trier", 5, (1, 2, "LOC")),
            *often("in Trier", 4),
        ],
    ),
    "duplicate": Case(
        "warning",
        {"train": 2},
        ("train", 12, 0, "he \n came ", "as train doc 11"),
        [make("he came"), make("he \n came"), make("he came"), make("He came")],
    ),
    "leak": Case(
        "warning",
        {"dev": 1},
        ("dev", 9, 0, "he \n came ", "as train doc 11"),
        [make("he came")],
        [make("he \n came"), make("she came"), make("she went")],
    ),
    "divided-document": Case(
        "warning",
        {"dev": 2},
        ("dev", 9, 0, "he went ", "a"),
        [of(make("he came"), "a"), of(make("she came"), "b")],
        [of(make("he went"), "a"), of(make("he left"), "a"), of(make("so"), "c")],
    ),
    "shared-text": Case(
        "warning",
        {"dev": 1},
        ("dev", 9, 9, NUMBERS, "as in train doc 11"),
        [make(f"so {NUMBERS} he came")],
        # As many words in a row; fewer; another one between them.
        [make(f"and then {NUMBERS} she"), make(NUMBERS[3:]), make(NUMBERS.replace("n7", "n"))],
    ),
    "other-tokens": Case(
        "note",
        {"train": 3},
        ("train", 11, 3, "Mai,", "as 'Mai' ','"),
        [spaced(["in", "Mai,", "so", "he", "ca", "me"], [1, 1, 1, 1, 0, 0])],
        settings={"make_doc": spacy.blank("en").make_doc},
    ),
    "long-doc": Case(
        "warning",
        {"train": 1},
        ("train", 11, 0, "he " * 19 + "...", "5,001 tokens"),
        [make("he " * 5000 + "came"), make("he " * 4999 + "came")],
    ),
    "cut-in-windows": Case(
        "note",
        {"dev": 1},
        ("dev", 10, 0, "he did not go to it ", "6 tokens"),
        [],
        [make("so he went to Graz", (4, 5, "LOC")), make("he did not go to it")],
        {"window": 5},
    ),
}


def test_check_uses_thresholds_of_settings() -> None:
    train, dev = clean()
    for setting, n, kind in (
        ("rare", 11, "rare-label"),
        ("long_doc", 3, "long-doc"),
        ("long_entity", 0, "long-entity"),
    ):
        report = check(train, dev, CheckSettings(**{setting: n}))  # type: ignore[arg-type]
        assert f" {n} " in the(report, kind).found


@pytest.mark.parametrize("kind", CASES)
def test_check_faulty_corpus_has_exactly_one_finding(kind: str) -> None:
    case = CASES[kind]
    report = check(*case.corpus(), CheckSettings(**case.settings))
    assert kinds(report) == [kind]
    (finding,) = report.findings
    assert (finding.severity, finding.counts) == (case.severity, case.counts)
    total = sum(case.counts.values())
    assert [tuple(place) for place in finding.places[:1]] == ([case.place] if case.place else [])
    assert len(finding.places) == min(5, total)
    assert finding.found.endswith(f": {total}." if total else ".") and finding.fix.endswith(".")
    # Without it, the settings alone find nothing.
    if "incorrect_spans_key" not in case.settings:
        assert check(*clean(), CheckSettings(**case.settings)).findings == []


def test_every_kind_of_finding_has_a_case() -> None:
    elsewhere = {"misaligned-entity", "punctuation-edge", "annotated-differently", "long-word"}
    elsewhere |= {"many-steps", "few-dev"}
    # In test_overlapping_entities.py.
    elsewhere |= {"unused-annotated", "unknown-annotated", "invalid-span", "other-key"}
    assert set(MESSAGES) == set(CASES) | elsewhere


WHOLE = {"tolerance": 0.0, "discard_oversize": False, "get_length": None}


@pytest.mark.parametrize("words, enough", [(2400, 480), (500, 200), (100, 200)])
def test_check_reports_twice_the_sufficient_steps(words: int, enough: int) -> None:
    """20 epochs of a batch for each doc, or 200 steps."""
    train = [make("so " * 99 + "so") for _ in range(words // 100)]
    settings = CheckSettings(batcher={"@batchers": "spacy.batch_by_words.v1", "size": 100} | WHOLE)
    finding = the(check(train, None, settings._replace(max_steps=2 * enough)), "many-steps")
    assert f" {2 * enough:,}, where {enough} are the 20 epochs " in finding.found
    for steps in (2 * enough - 1, enough, None):
        assert "many-steps" not in kinds(check(train, None, settings._replace(max_steps=steps)))


@pytest.mark.parametrize("kind", sorted({*CASES} - {"partly-annotated"}))
def test_check_spans_key_matches_findings_of_ents(kind: str) -> None:
    """Only doc.ents can be partially annotated."""
    settings = CASES[kind].settings
    train, dev = CASES[kind].corpus()
    expected = check(train, dev, CheckSettings(**settings))
    for doc in [*train, *dev]:
        if len(doc) == 0 or doc.has_annotation("ENT_IOB"):
            doc.spans["sc"] = [*doc.ents][::-1]
        doc.set_ents([], default="missing")
    assert check(train, dev, CheckSettings(spans_key="sc", **settings)) == expected


@pytest.mark.parametrize(
    "text, ents, found",
    [
        ("Ems , it is", [(0, 2, "LOC")], 1),
        ('" Ems " it is', [(0, 2, "LOC")], 1),
        ("( Ems is", [(0, 2, "LOC")], 1),
        ("it is -", [(2, 3, "LOC")], 1),
        ("so Ems .", [(1, 3, "LOC")], 1),
        ("so .", [(1, 2, "LOC")], 1),
        ("Ems ) is (", [(0, 2, "LOC")], 1),
        # Probably part of the name.
        ("Alpha Inc. and U.S. too", [(0, 2, "LOC"), (3, 4, "LOC")], 0),
        ("Alpha Inc . and U . S . too", [(0, 3, "LOC"), (4, 8, "LOC")], 0),
        ('The " Beta "', [(0, 4, "LOC")], 0),
        ("Rot ( Weiss ) is", [(0, 4, "LOC")], 0),
        ("( Rot ) Weiss is", [(0, 4, "LOC")], 0),
        ("so 5 % of # 1", [(1, 3, "LOC"), (4, 6, "LOC")], 0),
        ("Anna-Maria O'Neill", [(0, 2, "PER")], 0),
    ],
)
def test_check_punctuation_edge_ignores_punctuation_of_names(
    text: str, ents: list[Entity], found: int
) -> None:
    train, dev = clean()
    report = check([*train, make(text, *ents)], dev)
    assert kinds(report) == ["punctuation-edge"] * found
    for finding in report.findings:
        assert (finding.severity, finding.counts) == ("warning", {"train": 1})


def test_check_counts_entities_that_the_tokenizer_of_the_config_cuts(tmp_path: Path) -> None:
    """As spaCy aligns them in training, where they count as not annotated."""
    docs = [
        spaced(["in", "Mai", "land", "so"], [1, 0, 1, 0], (1, 2, "LOC")),
        spaced(["in", "Mai,", "so"], [1, 1, 0], (1, 2, "LOC")),
        spaced(["in", "Mai", ",", "so"], [1, 0, 1, 0], (1, 2, "LOC")),
        spaced(["ca", "me", "in"], [0, 1, 0], (0, 2, "LOC")),  # only inside, it is cut otherwise
        Doc(VOCAB, words=["in", "Mai", "land"], ents=["O", "B-LOC", "O"]),  # unknown spaces
    ]
    (tmp_path / "a.cfg").write_text("[nlp]\nlang = en\n")
    settings = read_settings(tmp_path / "a.cfg")
    finding = the(check(docs, settings=settings), "misaligned-entity")
    assert [place.doc for place in finding.places] == [0]
    nlp = spacy.blank("en")
    for number, doc in enumerate(docs[:4]):
        tags = Example(nlp.make_doc(doc.text), doc).get_aligned_ner()
        assert (None in tags) == (number == 0)
    own = {"@tokenizers": "spacy.Tokenizer.v1"}
    (tmp_path / "a.cfg").write_text(f'[nlp]\nlang = en\n\n[nlp.tokenizer]\n@tokenizers = "{own}"\n')
    assert read_settings(tmp_path / "a.cfg").make_doc is None  # nobody has registered it


# Docs that are there twice


def pool(rng: random.Random, n: int) -> list[Doc]:
    """Docs of few texts, with many ways to be annotated, and to be spaced."""
    docs = []
    for _ in range(n):
        words = rng.choices(["Ems", "Ulm", "is"], k=rng.randint(1, 3))
        at = rng.randrange(len(words))
        # Leading whitespace shifts the tokens, but does not change the text.
        shift = rng.randint(0, 1)
        ents = [(at + shift, at + shift + 1, "LOC")] if rng.random() < 0.7 else []
        docs.append(make(" ".join(["\n"] * shift + words), *ents))
    return docs


def plain(doc: Doc) -> str:
    return " ".join(doc.text.split())


def annotation(doc: Doc) -> list[tuple[int, str]]:
    """The entities by the number of words in front of them."""
    solid = [token.i for token in doc if not token.is_space]
    return [(solid.index(ent.start), ent.label_) for ent in doc.ents]


@pytest.mark.parametrize("seed", range(5))
def test_check_duplicates_and_leaks_match_pairwise_comparison(seed: int) -> None:
    rng = random.Random(seed)
    train, dev = pool(rng, 25), pool(rng, 20)
    report = check(train, dev)
    for part, docs in (("train", train), ("dev", dev)):
        repeated = sum(
            any(plain(docs[j]) == plain(docs[i]) for j in range(i)) for i in range(len(docs))
        )
        assert the(report, "duplicate").counts[part] == repeated > 0
    leaked = sum(any(plain(doc) == plain(other) for other in train) for doc in dev)
    leak = the(report, "leak")
    assert leak.counts == {"dev": leaked} and leaked > 0
    assert f"{100 * leaked / len(dev):.1f}% of dev" in leak.found
    assert leak.severity == "error"
    # Each is compared with the first doc of its text in train, and in its own part.
    differing = Counter[str]()
    for part, docs in (("train", train), ("dev", dev)):
        for i, doc in enumerate(docs):
            first = [
                next((other for other in others if plain(other) == plain(doc)), doc)
                for others in (train, docs[:i])
            ]
            differing[part] += any(annotation(other) != annotation(doc) for other in first)
    assert the(report, "annotated-differently").counts == dict(differing)


def test_check_unannotated_duplicate_is_not_annotated_differently() -> None:
    train, dev = clean()
    for first, second in ([], [0, 1]), ([0, 1], []):
        docs = [make("Ems is", missing=first), make("Ems is", missing=second)]
        assert kinds(check(train + docs, dev)) == ["no-annotation", "duplicate"]
    docs = [make("Ems is", (0, 1, "LOC")), make("Ems is")]
    assert kinds(check(train + docs, dev)) == ["annotated-differently", "duplicate"]
    # Partial annotation does not contradict complete annotation.
    docs = [make("Ems is", (0, 1, "LOC")), make("Ems is", missing=[0])]
    assert kinds(check(train + docs, dev)) == ["duplicate", "partly-annotated"]
    # The docs after one without annotation are compared with each other.
    docs = [make("Ems is", missing=[0, 1]), make("Ems is", (0, 1, "LOC")), make("Ems is")]
    (finding,) = (f for f in check(train + docs, dev).findings if f.kind == "annotated-differently")
    assert finding.counts == {"train": 1}
    assert finding.places[0].note == f"not as train doc {len(train) + 1}"


@pytest.mark.parametrize("n", [1, 199, 200])
def test_check_few_entities_in_dev_are_a_warning(n: int) -> None:
    """What calibration calls few. A dev part without any is an error of its own."""
    train, _ = clean()
    dev = [make(f"in Graz{i}", (1, 2, "LOC")) for i in range(n)]
    assert ("few-dev" in kinds(check(train, dev))) == (n < 200)
    if n == 1:
        finding = the(check(train, dev), "few-dev")
        assert (finding.severity, finding.counts) == ("warning", {"dev": 1})
        assert finding.found == "Dev has fewer than 200 entities: 1."
        assert "few-dev" not in kinds(check(train)) + kinds(check(train, [make("it is")]))


def test_check_long_doc_in_both_parts_is_only_a_leak() -> None:
    train, dev = clean()
    docs = [make(f"he {NUMBERS}")]
    assert kinds(check(train + docs, dev + docs)) == ["leak"]


def test_check_repeated_text_does_not_divide_its_document() -> None:
    """`convert` keeps equal texts together."""
    train, dev = clean()
    train += [of(make("yes"), "a"), of(make("yes"), "b")]
    dev += [of(make("no"), "c"), of(make("no"), "a"), of(make("it rains"), "b")]
    assert kinds(check(train, dev)) == ["duplicate"]
    train += [of(make("it snows"), "b")]
    finding = the(check(train, dev), "divided-document")
    assert finding.counts == {"dev": 1} and "(1 documents)" in finding.found


@pytest.mark.parametrize(("in_dev", "n_divided"), [(range(0, 12, 2), 4), (range(12), 0)])
def test_check_finds_divided_documents_that_have_numbers(in_dev: range, n_divided: int) -> None:
    """Numbers count the documents of dev if none is left out; one too many is not noticed."""
    train, dev = clean()
    train += [of(make(f"t{i} {j}"), str(i)) for i in range(12) for j in range(3)]
    dev = [of(make(f"d{i} {j}"), str(i)) for i in in_dev for j in range(3)] + dev
    found = [each for each in check(train, dev).findings if each.kind == "divided-document"]
    assert sum(each.counts["dev"] for each in found) == 3 * n_divided


@pytest.mark.parametrize("seed", range(3))
def test_check_shared_text_matches_comparison_of_all_runs(seed: int) -> None:
    rng = random.Random(seed)
    words = [f"n{i}" for i in range(9)]
    texts = [" ".join(rng.choices(words, k=9)) for _ in range(12)]
    train = [make(f"t{i} {text}") for i, text in enumerate(texts)]
    dev = [make(f"d{i} {' '.join(rng.choices(words, k=9))}") for i in range(40)]

    def runs(doc: Doc) -> list[tuple[str, ...]]:
        found = [token.text for token in doc]
        return [tuple(found[i : i + 3]) for i in range(len(found) - 2)]

    expected = []
    for number, doc in enumerate(dev):
        shared = [run for run in runs(doc) if any(run in runs(other) for other in train)]
        if shared:
            first = next(i for i, other in enumerate(train) if shared[0] in runs(other))
            expected.append((number, " ".join(shared[0]), f"as in train doc {first}"))
    report = check(train, dev, CheckSettings(shared_tokens=3), max_examples=40)
    places = the(report, "shared-text").places
    assert [(place.doc, place.text, place.note) for place in places] == expected
    assert 0 < len(expected) < len(dev)


@pytest.mark.parametrize(
    ("run", "is_shared"),
    [
        ("- " * 20, False),
        ("| - " * 10, False),
        ("a b c d " * 5, False),
        ("a b c d e " * 4, True),
        ("- " * 20 + NUMBERS, True),
    ],
)
def test_check_run_of_few_different_words_is_not_shared_text(run: str, is_shared: bool) -> None:
    train, dev = clean()
    train, dev = [*train, make(f"so {run.strip()} he")], [*dev, make(f"and {run.strip()} she")]
    assert ("shared-text" in kinds(check(train, dev))) == is_shared


def test_check_sorts_the_runs_of_train_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for each doc of dev, whose time would grow with train."""
    sort, calls = np.argsort, list[Any]()
    monkeypatch.setattr(np, "argsort", lambda runs, **how: calls.append(runs) or sort(runs, **how))
    train, dev = ([make(f"so {NUMBERS} {part}{i}") for i in range(9)] for part in ("he", "she"))
    assert "shared-text" in kinds(check(train, dev))
    assert len(calls) == 1


def test_check_finds_rare_label_with_any_dev() -> None:
    train, dev = clean()
    rare = [make("Ems is", (0, 1, "RIVER"))]
    without = [doc.copy() for doc in dev]
    for doc in without:
        doc.set_ents([], default="outside")
    for other in (None, dev, without):
        findings = check(train + rare, other).findings
        (finding,) = (f for f in findings if f.kind == "rare-label")
        assert [place.text for place in finding.places] == ["Ems"]


def test_check_leak_of_a_tenth_of_dev_is_error() -> None:
    train, dev = clean()
    for more, severity in (([make("who came")], "error"), ([make("who"), make("came")], "warning")):
        docs = [*dev, make("Nothing is here"), *([] if severity == "error" else more)]
        finding = the(check(train, docs), "leak")
        assert finding.severity == severity, len(docs)
        assert f"{1 / len(docs):.1%}" in finding.found


# Surfaces


@pytest.mark.parametrize("seed", range(3))
def test_check_sometimes_outside_matches_plain_search(seed: int) -> None:
    rng = random.Random(seed)
    docs = []
    for _ in range(150):
        words = rng.choices(["Bad", "Ems", "Ulm"], k=6)
        ents = [(i, i + rng.randint(1, 2), "LOC") for i in (0, 2, 4) if rng.random() < 0.4]
        docs.append(make(" ".join(words), *ents, missing=[i for i in [5] if not ents]))
    inside, outside = Counter[str](), Counter[str]()
    for doc in docs:
        inside.update(ent.text for ent in doc.ents)
        for n in (1, 2):
            for i in range(len(doc) - n + 1):
                if all(token.ent_iob_ == "O" for token in doc[i : i + n]):
                    outside[doc[i : i + n].text] += 1
    expected = {
        text: f"LOC {inside[text]}, outside {outside[text]}"
        for text in inside
        if inside[text] >= 5 and outside[text] >= 5
    }
    finding = the(check(docs, max_examples=100), "sometimes-outside")
    assert {place.text: place.note for place in finding.places} == expected
    assert len(expected) > 3
    for place in finding.places:
        start = place.offset
        assert docs[place.doc].text[start : start + len(place.text)] == place.text
    # Sorted by the smaller of the two counts, in descending order.
    ranks = [min(inside[place.text], outside[place.text]) for place in finding.places]
    assert ranks == sorted(ranks, reverse=True)


# Order and places


def test_errors_come_first_and_places_are_limited() -> None:
    train = [*clean()[0], *often("so Ems", 9, (1, 2, "ORG")), make("x " * 11 + "y", (0, 12, "ORG"))]
    train += [make(f"so{i} ,", (1, 2, "LOC")) for i in range(7)]
    dev = [make("he came", (0, 1, "PLACE")), make("", missing=[])]
    report = check(train, dev)
    severities = [finding.severity for finding in report.findings]
    assert set(severities) == set(SEVERITIES)
    assert severities == sorted(severities, key=SEVERITIES.index)
    assert [f.severity for f in report.of("note")] == ["note"] * severities.count("note")
    finding = the(report, "punctuation-edge")
    assert (len(finding.places), finding.counts) == (5, {"train": 7})
    (place,) = the(check(train, dev, max_examples=1), "punctuation-edge").places
    assert place == finding.places[0]
    assert not any(f.places for f in check(train, dev, max_examples=0).findings)


def test_check_empty_corpus_reports_no_entities() -> None:
    report = check([])
    assert kinds(report) == ["no-entities"]
    assert report.statistics["train"].docs == 0
    assert the(check(clean()[0], []), "no-entities").counts == {"dev": 0}
    finding = the(check([], []), "no-entities")
    assert finding.counts == {"train": 0, "dev": 0} and "in train and dev." in finding.found


def test_check_unknown_scheme_raises() -> None:
    with pytest.raises(InputError, match=r"scheme: expected one of .*'biluo'.*, got 'bilou'"):
        check([], settings=CheckSettings(scheme="bilou"))


# Memory


def test_check_does_not_keep_docs_or_texts_in_memory() -> None:
    """The words are few and long, so that texts are large and the vocab does not grow."""
    words = [letter * 10_000 for letter in "abcdefghij"]
    alive: weakref.WeakSet[Any] = weakref.WeakSet()
    sizes = []

    def docs(seed: int) -> Iterator[Doc]:
        rng = random.Random(seed)
        for _ in range(30):
            doc = make(" ".join(rng.choices(words, k=10)), (0, 1, "LOC"), (3, 5, "PER"))
            probe = type("Probe", (), {})()
            doc.user_data["probe"] = probe
            alive.add(probe)
            del probe
            yield doc
            sizes.append(tracemalloc.get_traced_memory()[0])
            assert len(alive) <= 2

    tracemalloc.start()
    try:
        check(docs(0), docs(1), max_examples=1000)
    finally:
        tracemalloc.stop()
    text = 10 * 10_000
    assert sizes[-1] - sizes[5] < 5 * text


# Statistics


def test_statistics_match_manual_counts() -> None:
    unmarked = Doc(VOCAB, words=["to", "Bad", "Ems", "it"], sent_starts=[False, False, True, False])
    unmarked.set_ents([Span(unmarked, 1, 3, "LOC")])  # in two sentences
    train = [
        make("Anna Berg saw Bonn it rained", (0, 2, "PER"), (3, 4, "LOC"), starts=[4]),
        make("he came", missing=[1]),
        make(""),
        unmarked,
    ]
    dev = [make("Anna", (0, 1, "PER"))]
    statistics = check(train, dev).statistics
    assert statistics["train"].to_dict() == {
        "docs": 4,
        "longest_doc": 6,
        "sentences": 5,  # two, one, none, two
        "empty_sentences": 2,
        "tokens": 12,
        "missing": 1,
        "missing_share": 1 / 12,
        "entities": 3,
        "labels": {"LOC": 2, "PER": 1},
        "label_tokens": {"LOC": 3, "PER": 2},
        "lengths": {"1": 1, "2": 2},
        "overlapping": 0,
        "overlapping_same_label": 0,
        "levels": {"LOC": [2], "PER": [1]},
        "level_shares": [1.0, 1.0, 1.0],
    }
    assert statistics["dev"].docs == statistics["dev"].sentences == statistics["dev"].entities == 1


# The transformer


def config_file(folder: Path, transformer: str, window: int = 128, **ner: Any) -> Path:
    """The shipped config, with other settings."""
    config = spacy.util.load_config(ROOT / "configs" / "transformer.cfg")
    config["paths"]["transformer"] = transformer
    block(config)["get_spans"]["window"] = window
    config["components"]["ner"].update(ner)
    config.to_disk(folder / "config.cfg")
    return folder / "config.cfg"


def block(config: Any) -> Any:
    """The transformer of a config."""
    return config["components"]["ner"]["model"]["tok2vec"]["*"]["transformer"]


def changed(path: Path, change: Callable[[Any], Any]) -> CheckSettings:
    """The settings of a config after a change."""
    config = spacy.util.load_config(path)
    change(config)
    config.to_disk(path)
    return read_settings(path)


def test_words_of_which_the_transformer_reads_only_the_beginning_are_reported(
    tiny_transformer: str, tmp_path: Path
) -> None:
    settings = read_settings(config_file(tmp_path, tiny_transformer))
    assert settings.tokenizer is not None
    # To BERT, each hyphen is a subword, and two of the 128 are special ones; a word of more than
    # 100 letters is one unknown subword.
    train, dev = clean()
    words = ["-" * 126, "-" * 127, "x" * 200]
    finding = the(check([*train, make(" ".join(words))], dev, settings), "long-word")
    assert (finding.severity, finding.counts) == ("warning", {"train": 1})
    assert finding.places[0][:3] == ("train", 11, 127)

    nlp = spacy.blank("en")
    transformer = {**block(load_config(tmp_path / "config.cfg")), "name": tiny_transformer}
    nlp.add_pipe("tok2vec", config={"model": transformer})
    nlp.initialize()

    def vector(word: str) -> Any:
        return nlp(Doc(nlp.vocab, [word])).tensor

    assert (vector("-" * 128) == vector(words[1])).all()  # its end is not read
    assert (vector(words[1]) != vector(words[0])).any()


def test_marks_of_no_width_are_not_counted_as_subwords() -> None:
    def encode(words: list[str]) -> list[Any]:
        return [SimpleNamespace(ids=f"[{word}]") for word in words]

    settings = CheckSettings(tokenizer=cast(Any, SimpleNamespace(longest=6, encode=encode)))
    train, dev = [make("ab\u00ad\u00adcd"), make("so abcde")], [make("abc")]
    finding = the(check(train, dev, settings), "long-word")
    assert [place[:3] for place in finding.places] == [("train", 1, 3)]


# The config


def test_read_settings_matches_config(tiny_transformer: str, tmp_path: Path) -> None:
    path = config_file(tmp_path, tiny_transformer, 50, scheme="io", incorrect_spans_key="no")
    settings = read_settings(path)
    assert settings[:4] == ("en", "io", "no", 50)
    assert (settings.max_steps, settings.batcher["size"]) == (1000, 1000)
    assert settings.tokenizer is not None and settings.tokenizer.longest == 128
    # With another transformer as argument.
    path = config_file(tmp_path, "nobody/nothing")
    assert read_settings(path, tiny_transformer).tokenizer is not None
    found = read_settings(ROOT / "configs" / "cnn.cfg")
    assert found._replace(make_doc=None) == CheckSettings()


@pytest.mark.parametrize(
    "change",
    [
        {"training": {"max_steps": 0}},
        {"training": {"batcher": {"@batchers": "my.batcher.v1", "size": 32}}},
        {"training": {"batcher": {"get_length": {"@misc": "my.length.v1"}}}},
        {"components": {"ner": {"factory": "ner"}}},
    ],
)
def test_read_settings_unknown_steps_returns_none(
    tiny_transformer: str, tmp_path: Path, change: dict[str, Any]
) -> None:
    path = config_file(tmp_path, tiny_transformer)

    def update(config: Any) -> None:
        config["training"].update(change.get("training", {}))
        config["components"]["ner"].update(change.get("components", {}).get("ner", {}))

    settings = changed(path, update)
    assert settings.tokenizer is not None and settings.max_steps is None


@pytest.mark.parametrize("get_spans, window", [(None, 128), ("spacy-crf-ner.sent_spans.v1", None)])
def test_read_settings_of_other_windows(
    get_spans: str | None, window: int | None, tiny_transformer: str, tmp_path: Path
) -> None:
    given = {"get_spans": get_spans and {"@misc": get_spans}}
    path = config_file(tmp_path, tiny_transformer)
    settings = changed(path, lambda config: block(config).update(given))
    assert settings.tokenizer is not None and settings.window == window


@pytest.mark.parametrize("part", ["tokenizer", "transformer"])
def test_read_settings_that_run_code_raises(
    part: str, tiny_transformer: str, tmp_path: Path
) -> None:
    given = {f"{part}_config": {"trust_remote_code": True}}
    path = config_file(tmp_path, tiny_transformer)
    with pytest.raises(InputError, match=r"'trust_remote_code' runs code .*_TRUST_REMOTE_CODE=1"):
        changed(path, lambda config: block(config).update(given))


def test_read_settings_of_shared_transformer_of_another_package(
    tiny_transformer: str, tmp_path: Path
) -> None:
    theirs = {"@architectures": "spacy-transformers.TransformerModel.v3", "name": tiny_transformer}
    theirs["get_spans"] = {"@span_getters": "spacy-transformers.strided_spans.v1", "window": 50}

    def change(config: Any) -> None:
        config["components"]["ner"]["model"]["tok2vec"]["*"].pop("transformer")
        config["components"]["transformer"] = {"factory": "transformer", "model": theirs}

    settings = changed(config_file(tmp_path, tiny_transformer), change)
    assert settings.tokenizer is not None and settings.window == 50


def install(folder: Path, config: Path) -> str:
    """A package of a pipeline with this config, as `spacy package` makes it; its name."""
    inner = folder / "en_sourced" / "en_sourced-1.2.0"
    inner.mkdir(parents=True)
    (inner.parent / "__init__.py").touch()
    meta = {"lang": "en", "name": "sourced", "version": "1.2.0"}
    for each in (inner.parent, inner):
        (each / "meta.json").write_text(json.dumps(meta))
    (inner / "config.cfg").write_text(config.read_text())
    info = folder / "en_sourced-1.2.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: en_sourced\nVersion: 1.2.0\n")
    return "en_sourced"


@pytest.mark.parametrize("kind", ["folder", "package"])
def test_read_settings_sourced_components_match_source_pipeline(
    kind: str, tiny_transformer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"scheme": "io", "overlap": True, "spans_key": "ents"}
    path = config_file(tmp_path, tiny_transformer, 50, **given)
    expected = read_settings(path)
    source = str(tmp_path)
    if kind == "package":
        source = install(tmp_path / "site", path)
        monkeypatch.syspath_prepend(tmp_path / "site")
    config = spacy.util.load_config(path)
    config["components"] = {"own": {"source": source, "component": "ner"}}
    config.to_disk(tmp_path / "sourced.cfg")
    found = read_settings(tmp_path / "sourced.cfg")
    assert (found.scheme, found.spans_key, found.window) == ("io", "ents", 50)
    same = {"make_doc": None, "tokenizer": None}
    assert found._replace(**same) == expected._replace(**same)
    assert found.tokenizer is not None and expected.tokenizer is not None
    assert found.tokenizer.state == expected.tokenizer.state


@pytest.mark.torch
def test_read_settings_sourced_component_has_saved_changes_of_settings(tmp_path: Path) -> None:
    nlp = spacy.blank("en")
    model = {"hidden_width": 8, "tok2vec": TOK2VEC}
    ner: Any = nlp.add_pipe("crf_ner", config={"overlap": True, "model": model})
    ner.spans_key, ner.incorrect_spans_key = "ents", "wrong"
    nlp.to_disk(tmp_path / "source")
    config = spacy.blank("en").config
    own = {"source": str(tmp_path / "source"), "component": "crf_ner"}
    changed = "ents", "wrong"
    for components, expected in (
        ({"crf_ner": {"source": str(tmp_path / "gone")}}, (None, None)),
        ({"crf_ner": {"source": own["source"]}}, changed),
        ({"own": own}, changed),
    ):
        config["components"] = components
        config.to_disk(tmp_path / "sourced.cfg")
        found = read_settings(tmp_path / "sourced.cfg")
        assert (found.spans_key, found.incorrect_spans_key) == expected
    cfg = tmp_path / "source" / "crf_ner" / "cfg"
    cfg.write_text("{")
    with pytest.raises(InputError, match=rf"^{cfg} cannot be read"):
        read_settings(tmp_path / "sourced.cfg")


# Files


def save(folder: Path, train: list[Doc], dev: list[Doc]) -> tuple[str, str]:
    for name, docs in (("train", train), ("dev", dev)):
        DocBin(docs=docs).to_disk(folder / f"{name}.spacy")
    return str(folder / "train.spacy"), str(folder / "dev.spacy")


def test_check_docs_with_only_incorrect_spans_are_partly_annotated() -> None:
    train = [*clean()[0], wrong(make("Ems is", missing=[0, 1]), (0, 1, "LOC"))]
    assert kinds(check(train)) == ["no-annotation"]
    settings = CheckSettings(incorrect_spans_key="wrong")
    assert kinds(check(train, settings=settings)) == ["partly-annotated"]


# The command


def run(*arguments: Any) -> tuple[int, str]:
    result = runner.invoke(app, ["check", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def cells(output: str) -> list[list[str]]:
    return [
        [cell.strip() for cell in line.strip("│").split("│")]
        for line in output.splitlines()
        if line.startswith("│")
    ]


def test_the_command_prints_statistics_and_findings(tmp_path: Path) -> None:
    train, dev = clean()
    train += [make("in [red]Ems ! it", (1, 3, "[b]:cat:")), make("so", missing=[0])]
    dev += [make("he came", missing=[0, 1])]
    code, output = run(*save(tmp_path, train, dev), "--max-examples", "1")
    assert code == 0
    rows = cells(output)
    assert ["docs", "13", "10"] in rows
    assert ["without entities", "2 (15.4%)", "1 (10.0%)"] in rows
    assert ["not annotated", "1 (2.1%)", "2 (4.3%)"] in rows
    assert ["of 2", "1 (4.8%)", "0"] in rows
    assert ["LOC", "10", "10", "9", "9"] in rows
    assert ["[b]:cat:", "1", "2", "0", "0"] in rows
    text = " ".join(output.split())
    assert "Errors: 0 Warnings: 3" in text and "Notes: 1" in text
    # Markup and line breaks in texts and labels are escaped.
    assert "train doc 11, character 3: '[red]Ems !' ([b]:cat:)" in text
    assert "Entities that begin or end with punctuation: 1." in text
    assert "Docs without any annotation: 2. (1 in train, 1 in dev)" in text
    assert text.index("Labels with fewer than 10 entities in train: 1.") < text.index(
        "Labels of train that do not occur in dev: 1."
    )


def test_check_command_json_prints_only_the_report(tmp_path: Path) -> None:
    train, dev = clean()
    train.append(make("Ems \n it", (0, 2, "LOC")))
    result = runner.invoke(app, ["check", *save(tmp_path, train, dev), "--json"])
    assert (result.exit_code, result.stderr) == (1, "")
    found = json.loads(result.stdout)
    assert found == json.loads(json.dumps(check(train, dev).to_dict()))
    (finding,) = found["findings"]
    place = {"part": "train", "doc": 11, "offset": 0, "text": "Ems \n", "note": "LOC"}
    assert finding["places"] == [place]
    assert found["statistics"]["train"]["lengths"] == {"1": 20, "2": 1}


def test_the_command_reads_the_config(tiny_transformer: str, tmp_path: Path) -> None:
    train, dev = clean()
    train.append(make("Ems Ulm", (0, 1, "LOC"), (1, 2, "LOC")))
    train.append(make("so " + "-" * 200))
    paths = save(tmp_path, train, dev)
    config = config_file(tmp_path, tiny_transformer, 3, scheme="io")
    code, output = run(*paths, "--config", config)
    text = " ".join(output.split())
    assert code == 0
    assert "Words with more subwords than the 128 that the transformer reads, which" in text
    assert "Entities that directly follow another one of their label: 1." in text
    assert "Docs longer than the window of 3 tokens, up to 5 tokens: 19." in text
    assert run(*paths)[0] == 0


def mistakes(tmp_path: Path) -> Iterator[tuple[list[Any], str]]:
    train, _ = save(tmp_path, *clean())
    (tmp_path / "text.spacy").write_text("Ems is here")
    (tmp_path / "half.spacy").write_bytes(Path(train).read_bytes()[:200])
    (tmp_path / "text.cfg").write_text("Ems is here")
    (tmp_path / "empty").mkdir()
    nobody = config_file(tmp_path, str(tmp_path / "nobody"))
    yield [tmp_path / "missing.spacy"], "missing.spacy"
    yield [train, tmp_path / "missing.spacy"], "missing.spacy"
    yield [tmp_path / "text.spacy"], "text.spacy: expected spaCy's binary format"
    yield [tmp_path / "half.spacy"], "half.spacy: expected spaCy's binary format"
    yield [tmp_path / "empty"], "expected .spacy files in the folder, got none"
    yield [train, "--config", tmp_path / "missing.cfg"], "missing.cfg"
    yield [train, "--config", tmp_path / "text.cfg"], "text.cfg: expected a config of spaCy"
    yield [train, "--config", nobody], "a transformer with weights as safetensors, got"
    yield [train, "--config", nobody], "or a local folder, as --transformer assets/minilm,"
    yield [train, "--lang", "klingon"], "expected a language of spaCy, got 'klingon'"


@pytest.mark.torch
def test_check_command_invalid_input_prints_one_line_error(tmp_path: Path) -> None:
    for arguments, says in mistakes(tmp_path):
        for more in ([], ["--json"]):
            code, output = run(*arguments, *more)
            assert code == 1
            (line,) = output.splitlines()
            assert line.startswith("Error: ") and says in line


def test_check_command_combines_labels_after_twenty_in_one_row(tmp_path: Path) -> None:
    docs = [make(f"so Ems{i} is", (1, 2, f"L{i:02d}")) for i in range(25) for _ in range(30 - i)]
    rows = cells(run(save(tmp_path, docs, [])[0])[1])
    labels = [row for row in rows if row[0].startswith("L")]
    assert [row[0] for row in labels] == [f"L{i:02d}" for i in range(20)]
    assert ["5 more", "40", "40"] in rows
