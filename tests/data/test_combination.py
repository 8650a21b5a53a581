"""Combining annotations of several sources: compared with a direct count of votes."""

import json
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spacy.language import Language
from spacy.tokens import Doc, DocBin, Span
from typer.testing import CliRunner

from helpers import annotations, load, tags
from spacy_crf_ner import data
from spacy_crf_ner.cli import app
from spacy_crf_ner.data import ConversionLog
from spacy_crf_ner.input_error import InputError

LABELS = ("LOC", "PER")
runner = CliRunner()
Ents = list[tuple[int, int, str]]  # first token, last token + 1, label


def annotate(doc: Doc, ents: Ents, missing: Iterable[int] = ()) -> Doc:
    unknown = [doc[i : i + 1] for i in sorted(missing)]
    doc.set_ents([Span(doc, *ent) for ent in ents], missing=unknown, default="outside")
    return doc


def save(path: Path, *docs: Doc) -> Path:
    DocBin(docs=docs, store_user_data=True).to_disk(path)
    return path


def combine(nlp: Language, folder: Path, *sources: list[Doc], **options: Any) -> list[Doc]:
    paths = [save(folder / f"{i}.spacy", *docs) for i, docs in enumerate(sources)]
    target = folder / "out.spacy"
    target.unlink(missing_ok=True)
    data.combine(paths, target, nlp=nlp, **options)
    return load(target, nlp)


def spans(doc: Doc) -> Ents:
    return [(ent.start, ent.end, ent.label_) for ent in doc.ents]


# The rule


@st.composite
def sources(draw: st.DrawFn) -> tuple[int, list[tuple[Ents, set[int]]], int]:
    """Draw a number of tokens, annotations of several sources, and how many have to agree.

    Sources repeat each other often, so that they agree.
    """
    T = draw(st.integers(1, 5))
    some = []
    for _ in range(2):
        _, ents = draw(annotations(LABELS, max_pieces=3))
        ents = [ent for ent in ents if ent[1] <= T]
        outside = {*range(T)} - {i for start, end, _ in ents for i in range(start, end)}
        some.append((ents, draw(st.sets(st.sampled_from(sorted(outside)))) if outside else set()))
    said = draw(st.lists(st.sampled_from(some), min_size=2, max_size=4))
    return T, said, draw(st.integers(1, len(said)))


def expected(T: int, said: list[tuple[Ents, set[int]]], needed: int) -> tuple[Ents, set[int]]:
    """Count the votes for each token, and return the entities and the missing tokens."""
    winners: dict[int, Any] = {}
    for i in range(T):
        votes: Counter[Any] = Counter()
        for ents, missing in said:
            if i not in missing:
                votes[next((ent for ent in ents if ent[0] <= i < ent[1]), "O")] += 1
        best = [each for each in votes if votes[each] == max(votes.values())]
        if len(best) == 1 and votes[best[0]] >= needed:
            winners[i] = best[0]
    entities = {ent for ents, _ in said for ent in ents}
    agreed = [e for e in entities if all(winners.get(i) == e for i in range(e[0], e[1]))]
    known = {i for i, each in winners.items() if each == "O" or each in agreed}
    return sorted(agreed), {*range(T)} - known


@given(drawn=sources())
def test_combine_matches_direct_vote_count(
    nlp: Language, scratch: Path, drawn: tuple[int, list[tuple[Ents, set[int]]], int]
) -> None:
    T, said, needed = drawn
    docs = [[annotate(Doc(nlp.vocab, ["w"] * T), *each)] for each in said]
    scratch.mkdir(exist_ok=True)
    (doc,) = combine(nlp, scratch, *docs, min_agree=needed)
    ents, missing = expected(T, said, needed)
    assert spans(doc) == ents
    assert {i for i, tag in enumerate(tags(doc)) if tag == "-"} == missing


WORDS = ["Anna", "saw", "New", "York", "City"]


@pytest.mark.parametrize(
    "said, result",
    [
        ([[(2, 5, "LOC")], [(2, 5, "LOC")]], "OOBII"),
        ([[(2, 5, "LOC")], [(2, 4, "LOC")]], "OO---"),
        ([[(2, 5, "LOC")], [(2, 4, "LOC")], [(2, 5, "LOC")]], "OOBII"),
        ([[(2, 5, "LOC")], [], []], "OOOOO"),
    ],
)
def test_combine_needs_more_than_half_of_the_sources(
    said: list[Ents], result: str, tmp_path: Path, nlp: Language
) -> None:
    docs = [[annotate(Doc(nlp.vocab, WORDS), ents)] for ents in said]
    (doc,) = combine(nlp, tmp_path, *docs)
    assert tags(doc) == result


def test_combine_source_with_label_subset_does_not_vote_outside(
    tmp_path: Path, nlp: Language
) -> None:
    some = annotate(Doc(nlp.vocab, WORDS), [(0, 1, "PER")])
    some.spans["annotated_labels"] = [Span(some, 0, 5, "PER")]
    full = annotate(Doc(nlp.vocab, WORDS), [(0, 1, "PER"), (2, 5, "LOC")])
    (doc,) = combine(nlp, tmp_path, [some], [full])
    assert tags(doc) == "B----"


# Documents


def test_documents_are_matched_by_text_and_order(tmp_path: Path, nlp: Language) -> None:
    def docs(*words: str) -> list[Doc]:
        made = [nlp(word.strip("*")) for word in words]
        return [annotate(d, [(0, 1, "PER")] if w[-1] == "*" else []) for d, w in zip(made, words)]

    log = ConversionLog(alignment="missing")
    first, second = docs("a", "twice", "twice*", "only"), docs("twice", "other", "twice*", "a")
    found = combine(nlp, tmp_path, first, second, log=log)
    assert [(doc.text, tags(doc)) for doc in found] == [
        ("a", "O"), ("twice", "O"), ("twice", "B"), ("only", "-"), ("other", "-"),
    ]  # fmt: skip
    assert log.notes == [f"Not in all: 'only', which is in {tmp_path / '0.spacy'}."]


@pytest.mark.parametrize("agreed", [True, False])
def test_combine_tags_whitespace_outside_only_if_all_words_agree(
    agreed: bool, tmp_path: Path, nlp: Language
) -> None:
    first, second = (nlp.make_doc("Anna \n\n came. \n") for _ in range(2))
    annotate(first, [(0, 1, "PER")])
    annotate(second, [(0, 1, "PER" if agreed else "LOC")])
    (doc,) = combine(nlp, tmp_path, [first], [second])
    assert tags(doc) == ("BOOOO" if agreed else "--O" + "O-")
    assert doc.has_annotation("ENT_IOB", require_complete=True) == agreed


def test_tokens_and_spaces_may_differ(tmp_path: Path, nlp: Language) -> None:
    """A column file has no spaces, JSON lines have the text, and a person has typed two spaces."""
    (tmp_path / "a.conll").write_text("Anna B-PER\nlives O\nin O\nNew-York B-LOC\n. O\n")
    texts = {
        "b": ("Anna lives in New-York.", [[0, 4, "PER"], [14, 22, "LOC"]]),
        "c": (" Anna lives  in New-York .", [[1, 5, "PER"], [16, 19, "LOC"]]),
    }
    for name, (text, entities) in texts.items():
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"text": text, "entities": entities}))
    paths = [tmp_path / name for name in ("a.conll", "b.jsonl", "c.jsonl")]
    counts = data.combine(paths, tmp_path / "out.spacy", nlp=nlp)
    (doc,) = load(tmp_path / "out.spacy", nlp)
    assert [token.text for token in doc] == ["Anna", "lives", "in", "New-York", "."]
    assert tags(doc) == "BOOBO"
    # "New" is not a token of the first source, so this source does not vote on "New-York".
    assert counts[str(paths[2])]["entities, not aligned"] == 1
    assert counts[str(paths[2])]["tokens, missing"] == 1
    assert counts[str(tmp_path / "out.spacy")]["tokens, missing"] == 0
    assert all(type(number) is int for each in counts.values() for number in each.values())


@given(
    text=st.text("ab \n\u00a0", min_size=1, max_size=12).filter(str.strip),
    cuts=st.lists(st.sets(st.integers(1, 11)), min_size=2, max_size=2),
    drawn=st.data(),
)
def test_combine_keeps_entity_characters_across_tokenizations(
    nlp: Language, scratch: Path, text: str, cuts: list[set[int]], drawn: st.DataObject
) -> None:
    """Two sources with the same entity characters agree on every token that aligns."""
    letters = [i for i, each in enumerate(text) if not each.isspace()]
    start, end = (drawn.draw(st.sampled_from(letters)) for _ in range(2))
    start, end = min(start, end), max(start, end) + 1
    docs = []
    for each in cuts:
        edges = sorted({0, start, end, len(text), *(at for at in each if at < len(text))})
        words = [text[i:j] for i, j in pairwise(edges)]
        doc = Doc(nlp.vocab, words, spaces=[False] * len(words))
        doc.set_ents([doc.char_span(start, end, "PER")], default="outside")
        docs.append(doc)
    scratch.mkdir(exist_ok=True)
    (doc,) = combine(nlp, scratch, *([each] for each in docs))
    assert [(ent.start_char, ent.end_char, ent.label_) for ent in doc.ents] == [(start, end, "PER")]
    assert doc.text == text
    blank = [token for token in doc if token.text.isspace()]
    assert all(token.ent_iob for token in doc if token not in blank)


def test_combine_keeps_metadata_and_counts_unused_spans(tmp_path: Path, nlp: Language) -> None:
    first, second = (annotate(nlp("Anna saw Bonn"), []) for _ in range(2))
    first.set_ents([Span(first, 0, 1, "PER"), Span(first, 2, 3, "LOC", kb_id="Q9")])
    second.set_ents([Span(second, 0, 1, "PER", kb_id="Q1", span_id="x")])
    first.user_data["meta"] = {"id": 1}
    second.spans["incorrect_spans"] = [second[1:2]]
    paths = [save(tmp_path / "a.spacy", first), save(tmp_path / "b.spacy", second)]
    counts = data.combine(paths, tmp_path / "out.spacy", nlp=nlp)
    (doc,) = load(tmp_path / "out.spacy", nlp)
    assert [(ent.text, ent.kb_id_, ent.id_) for ent in doc.ents] == [("Anna", "Q1", "x")]
    assert [token.ent_kb_id_ for token in doc] == ["Q1", "", ""]
    assert doc.user_data["meta"] == {"id": 1} and not doc.spans
    assert counts[str(paths[1])]["doc.spans, not used"] == 1


def test_combine_takes_ids_from_first_source_with_ids(tmp_path: Path, nlp: Language) -> None:
    sources = []
    for kb_id in ("", "Q1", "Q2"):
        doc = nlp("Anna came")
        doc.set_ents([Span(doc, 0, 1, "PER", kb_id=kb_id)])
        doc.spans["sc"] = [doc[:1]]
        sources.append([doc])
    (doc,) = combine(nlp, tmp_path, *sources)
    assert [(ent.text, ent.kb_id_) for ent in doc.ents] == [("Anna", "Q1")]
    assert not doc.spans


@pytest.mark.parametrize("start, end", [(0, 3), (4, 8)])
def test_combine_skips_entity_inside_token_of_first_source(
    start: int, end: int, tmp_path: Path, nlp: Language
) -> None:
    whole = annotate(Doc(nlp.vocab, ["New-York", "grew"]), [])
    parts = Doc(nlp.vocab, ["New", "-", "York", "grew"], [False, False, True, False])
    parts.set_ents([parts.char_span(start, end, "LOC")], default="outside")
    (doc,) = combine(nlp, tmp_path, [whole], [parts], min_agree=1)
    assert not doc.ents and tags(doc) == "OO"
    (doc,) = combine(nlp, tmp_path, [whole], [parts])
    assert not doc.ents and tags(doc) == "-O"


def test_entities_within_tokens_are_not_annotated_by_default(tmp_path: Path, nlp: Language) -> None:
    for name in "ab":
        record = {"text": "Annabel came", "entities": [[0, 4, "PER"]]}
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(record))
    paths = [tmp_path / f"{name}.jsonl" for name in "ab"]
    data.combine(paths, tmp_path / "out.spacy", nlp=nlp)
    (doc,) = load(tmp_path / "out.spacy", nlp)
    assert tags(doc) == "-O"


def test_combine_counts_documents_absent_from_some_sources(tmp_path: Path, nlp: Language) -> None:
    texts = {"a": "all some few", "b": "all some", "c": "all"}
    paths = [
        save(tmp_path / f"{name}.spacy", *(annotate(nlp(word), []) for word in words.split()))
        for name, words in texts.items()
    ]
    log = ConversionLog()
    counts = data.combine(paths, tmp_path / "out.spacy", nlp=nlp, log=log)
    found = [(each["docs"], each["docs, not in all"]) for each in counts.values()]
    assert found == [(3, 2), (2, 1), (1, 0), (3, 2)]
    assert log.notes == [f"Not in all: 'some', which is in {paths[0]} and {paths[1]}."]
    assert [log.parts[str(path)]["records"] for path in paths] == [3, 2, 1]


def test_documents_without_tokens_are_kept(tmp_path: Path, nlp: Language) -> None:
    empty = [nlp(""), annotate(nlp("a"), [])]
    assert [doc.text for doc in combine(nlp, tmp_path, empty, [nlp("")])] == ["", "a"]


# The command


def test_merge_command_prints_expected_counts(tmp_path: Path, nlp: Language) -> None:
    said: list[list[Ents]] = [
        [[(0, 1, "PER"), (2, 5, "LOC")], [(2, 5, "LOC")]],
        [[(0, 1, "PER"), (2, 4, "LOC")], [(2, 5, "LOC")]],
        [[(2, 5, "LOC")], []],
    ]
    texts = [WORDS, [*WORDS[:4], "Town"]]
    docs = [[annotate(Doc(nlp.vocab, w), e) for w, e in zip(texts, each)] for each in said]
    paths = [str(save(tmp_path / f"{i}.spacy", *each)) for i, each in enumerate(docs)]
    result = runner.invoke(app, ["merge", *paths, str(tmp_path / "all.spacy"), "--min-agree", "3"])
    assert result.exit_code == 0, result.output
    rows = [" ".join(line.replace("│", " ").split()) for line in result.output.splitlines()]
    for row in (
        "docs 2 2 2 2",
        "docs, not in all 0 0 0 0",
        "tokens 10 10 10 10",
        "tokens, missing 0 0 0 7",
        "entities, agreed 0 0 0 0",
        "entities, not agreed 3 3 1 4",
    ):
        assert row in rows
    assert "0.spacy 1.spacy 2.spacy all.spacy" in " ".join(result.output.replace("┃", " ").split())
    result = runner.invoke(app, ["merge", *paths, str(tmp_path / "two.spacy")])
    assert "Not in all" not in result.output
    for doc, ents in zip(
        load(tmp_path / "two.spacy", nlp),
        ([(0, 1, "PER"), (2, 5, "LOC")], [(2, 5, "LOC")]),
    ):
        assert spans(doc) == ents and "-" not in tags(doc)


def test_merge_command_bad_offsets_fail_or_are_counted(tmp_path: Path, nlp: Language) -> None:
    """A language model may give offsets that are not in the text."""
    good = '{"text": "Anna came", "spans": [{"start": 0, "end": 4, "label": "PER"}]}\n'
    bad = '{"text": "Bob came", "spans": [{"start": 0, "end": 40, "label": "PER"}]}\n'
    inside = '{"text": "Annabel", "spans": [{"start": 0, "end": 4, "label": "PER"}]}\n'
    (tmp_path / "a.jsonl").write_text(good + inside)
    (tmp_path / "b.jsonl").write_text(good + bad)
    args = [*(str(tmp_path / name) for name in ("a.jsonl", "b.jsonl")), str(tmp_path / "o.spacy")]
    result = runner.invoke(app, ["merge", *args])
    assert result.exit_code == 1 and "b.jsonl, line 2: expected whole numbers" in result.output
    for loss in ([], ["--max-loss", "0.4"]):  # half of the docs of b.jsonl
        (tmp_path / "c.jsonl").write_text(good)
        result = runner.invoke(
            app, ["merge", str(tmp_path / "c.jsonl"), *args[1:], "--repair", *loss]
        )
        assert result.exit_code == 1 and not (tmp_path / "o.spacy").exists()
        assert "b.jsonl: expected at most" in result.output and "1 of 2 (50.0%)" in result.output
    result = runner.invoke(app, ["merge", *args, "--repair", "--max-loss", "0.5"])
    assert result.exit_code == 0, result.output
    assert "Rejected: offsets 1" in result.output and "Aligned: missing 1" in result.output


def test_combine_invalid_arguments_raise(tmp_path: Path, nlp: Language) -> None:
    a, b = (save(tmp_path / f"{name}.spacy", annotate(nlp("a"), [])) for name in "ab")
    new = tmp_path / "new.spacy"
    for sources, target, needed, says in (
        ([a], new, None, "two or more different inputs"),
        ([a, a], new, None, "two or more different inputs"),
        ([a, tmp_path / "x" / ".." / "a.spacy"], new, None, "two or more different inputs"),
        ([a, b], b, None, "b.spacy exists already"),
        ([a, b], new, 0, "min_agree: expected 1 to 2, all sources, got 0"),
        ([a, b], new, 3, "min_agree: expected 1 to 2, all sources, got 3"),
    ):
        with pytest.raises(InputError, match=says):
            data.combine(sources, target, nlp=nlp, min_agree=needed)
    assert not new.exists()


def test_combine_accepts_source_named_combined(
    tmp_path: Path, nlp: Language, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("combined", "b"):
        Path(name).write_text("Anna B-PER\nlives O\n")
    paths = [Path("combined"), Path("b")]
    counts = data.combine(paths, Path("out.spacy"), nlp=nlp)
    assert list(counts) == ["combined", "b", "out.spacy"]
    assert [each["docs"] for each in counts.values()] == [1, 1, 1]
