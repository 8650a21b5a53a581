"""Answers replace the annotation of the same tokens in a corpus; contradictions are found."""

import pytest
import spacy
from spacy.tokens import Doc, DocBin, Span

from spacy_crf_ner import data
from spacy_crf_ner.data.merging import merge_answers
from spacy_crf_ner.data.offsets import INCORRECT
from spacy_crf_ner.input_error import CorpusError, InputError
from spacy_crf_ner.pipeline.annotated_labels import annotated_labels, mark_annotated_labels

VOCAB = spacy.blank("en").vocab


def doc(ents="", missing=(), incorrect="", words="New York City saw Bonn"):
    """A doc of five words; spans are such as "0:2 LOC, 4:5 PER"."""
    made = Doc(VOCAB, words.split(), [True] * (len(words.split()) - 1) + [False])
    blank = [made[i : i + 1] for i in missing]
    made.set_ents(spans(made, ents), missing=blank, default="outside")
    if incorrect:
        made.spans[INCORRECT] = spans(made, incorrect)
    return made


def spans(made, text):
    found = []
    for each in filter(None, text.split(", ")):
        at, _, label = each.partition(" ")
        start, end = map(int, at.split(":"))
        found.append(Span(made, start, end, label))
    return found


def answer(ents="", incorrect=""):
    """A yes or no about a span: all else is unknown."""
    made = doc()
    made.set_ents(spans(made, ents), default="missing")
    if incorrect:
        made.spans[INCORRECT] = spans(made, incorrect)
    return made


def content(made):
    ents = ", ".join(f"{e.start}:{e.end} {e.label_}" for e in made.ents)
    wrong = [f"{e.start}:{e.end} {e.label_}" for e in made.spans.get(INCORRECT, ())]
    return ents, {t.i for t in made if not t.ent_iob}, ", ".join(wrong)


def merged(base, *answers, repair=False):
    log = data.ConversionLog(repair)
    (found,) = merge_answers([base], answers, log)
    return content(found), log


@pytest.mark.parametrize(
    "base, given, expected",
    [
        # A whole answer replaces everything.
        (doc("0:2 LOC"), doc("0:3 LOC, 4:5 PER"), ("0:3 LOC, 4:5 PER", set(), "")),
        (doc("0:2 LOC", incorrect="4:5 LOC"), doc("4:5 LOC"), ("4:5 LOC", set(), "")),
        # A yes is an entity, and nothing else is known.
        (doc("4:5 PER", missing=[0, 1]), answer("0:2 LOC"), ("0:2 LOC, 4:5 PER", set(), "")),
        # The rest of an entity that the answer replaces is unknown.
        (doc("0:3 LOC"), answer("0:2 LOC"), ("0:2 LOC", {2}, "")),
        # A no removes the entity, and leaves its tokens unknown.
        (doc("4:5 PER"), answer(incorrect="4:5 PER"), ("", {4}, "4:5 PER")),
        (doc("4:5 PER"), answer(incorrect="4:5 "), ("", {4}, "4:5 ")),
        (doc("4:5 PER"), answer(incorrect="4:5 LOC"), ("4:5 PER", set(), "4:5 LOC")),
        (doc("", missing=range(5)), answer(incorrect="0:1 LOC"), ("", set(range(5)), "0:1 LOC")),
        (doc(incorrect="4:5 PER"), answer(incorrect="0:1 LOC"), ("", set(), "0:1 LOC, 4:5 PER")),
        # An entity is not incorrect under any label.
        (doc(incorrect="4:5 "), doc("4:5 LOC"), ("4:5 LOC", set(), "")),
    ],
)
def test_merge_answers_replaces_annotation_of_answered_tokens(base, given, expected):
    assert merged(base, given)[0] == expected


@pytest.mark.parametrize("has_space", [(True, False), (False, True)])
def test_merge_answers_ignores_trailing_whitespace(has_space):
    """Converters of columns write a space after the last token, and annotation tools drop it."""
    words = ["Bonn", "is", "big"]
    corpus, given = (Doc(VOCAB, words, [True, True, space], ents=["O"] * 3) for space in has_space)
    given.set_ents([Span(given, 0, 1, "LOC")], default="outside")
    found, log = merged(corpus, given)
    assert found == ("0:1 LOC", set(), "")
    assert log.merged == {"answers": 1, "changed": 1}


@pytest.mark.parametrize("first", [True, False])
def test_merge_answers_ignores_leading_whitespace(first):
    words = ["\n ", "Bonn", "saw", "Ada"]
    longer = Doc(VOCAB, words, [False, True, True, False], ents=["", "O", "O", ""])
    given = Doc(VOCAB, words[1:], [True, True, False], ents=["B-LOC", "O", ""])
    given.spans[INCORRECT] = [Span(given, 2, 3, "LOC")]
    if first:
        assert merged(longer, given)[0] == ("1:2 LOC", {0, 3}, "3:4 LOC")
        return
    longer.set_ents([Span(longer, 1, 2, "PER")], default="outside")
    assert merged(given, longer)[0] == ("0:1 PER", set(), "2:3 LOC")


def test_merge_answers_counts_rejected_answer_once():
    """Also where several docs have its text."""
    copies = [doc(missing=range(5)) for _ in range(3)]
    log = data.ConversionLog(repair=True)
    log.read(records=2, entities=2)
    found = [*merge_answers(copies, [doc("0:1 PER"), doc("0:1 ORG")], log)]
    assert [content(each) for each in found] == [("0:1 PER", set(), "")] * 3
    assert log.counts == {"rejected.contradiction": 1}
    assert log.totals["rejected.records"] == log.totals["rejected.entities"] == 1


def test_merge_answers_keeps_whitespace_token_absent_from_answer():
    longer = Doc(VOCAB, ["Bonn", "\n"], [False, False], ents=["O", ""])
    given = Doc(VOCAB, ["Bonn"], [False], ents=["B-LOC"])
    assert merged(longer, given)[0] == ("0:1 LOC", {1}, "")


def test_merge_answers_without_whitespace_token_covers_whole_text():
    longer = limited(Doc(VOCAB, ["Bonn", "\n"], [False, False], ents=["O", ""]), "LOC")
    given = Doc(VOCAB, ["Bonn"], [False], ents=["B-LOC"])
    merged(longer, given)
    assert annotated_labels(longer) is None
    longer = limited(Doc(VOCAB, ["Bonn", "saw", "\n"], [True, False, False], ents=["O"] * 3), "LOC")
    first, more = (
        Doc(VOCAB, ["Bonn", "saw"], [True, False], ents=["O", each]) for each in ("O", "B-PER")
    )
    found, _ = merged(longer, limited(first, "LOC"), limited(more, "LOC", "PER"))
    assert found == ("1:2 PER", set(), "") and annotated_labels(longer) == {"LOC", "PER"}


def test_several_answers_about_a_text_are_joined():
    base = doc(missing=range(5))
    found, log = merged(base, answer("0:3 LOC"), answer(incorrect="4:5 PER"), answer("4:5 LOC"))
    assert found == ("0:3 LOC, 4:5 LOC", {3}, "4:5 PER")
    assert log.merged == {"answers": 3, "changed": 1}


@pytest.mark.parametrize(
    "first, second",
    [
        (answer("0:2 LOC"), answer("0:3 LOC")),
        (answer("0:2 LOC"), answer("0:2 PER")),
        (answer("0:2 LOC"), answer(incorrect="0:2 LOC")),
        (answer(incorrect="0:2 LOC"), answer("0:2 LOC")),
        (answer(incorrect="0:2 "), answer("0:2 LOC")),
        (doc(""), answer("0:2 LOC")),
        (answer("0:2 LOC"), doc("")),
        (doc("0:2 LOC"), doc("0:2 LOC, 4:5 PER")),
    ],
)
@pytest.mark.parametrize("known", [True, False])
def test_merge_answers_contradiction_raises_or_is_rejected(first, second, known):
    corpus = [doc("4:5 PER")] if known else []
    with pytest.raises(CorpusError, match="answers that agree"):
        list(merge_answers(corpus, [first, second], data.ConversionLog()))
    log = data.ConversionLog(repair=True)
    (found,) = merge_answers(corpus, [first, second], log)
    assert log.counts == {"rejected.contradiction": 1}
    (alone,) = merge_answers([doc("4:5 PER")] if known else [], [first], data.ConversionLog())
    assert content(found) == content(alone)


def test_equal_answers_do_not_contradict():
    both = answer("0:2 LOC"), answer("0:2 LOC")
    assert merged(doc(missing=range(5)), *both)[0] == ("0:2 LOC", {2, 3, 4}, "")


def test_merge_answers_conflict_with_any_earlier_answer_raises():
    answers = answer("0:2 LOC"), answer("4:5 PER"), answer("0:3 LOC")
    with pytest.raises(CorpusError, match="answers that agree"):
        merged(doc(missing=range(5)), *answers)


def test_merge_answers_keeps_and_counts_all_docs():
    same, other = doc("0:3 LOC"), doc("", words="Nothing here")
    new = [doc("0:1 PER", words="Anna came"), answer("4:5 LOC"), answer("0:3 LOC")]
    log = data.ConversionLog()
    found = [*merge_answers([same, other, doc("0:3 LOC")], new, log)]
    texts = ["New York City saw Bonn", "Nothing here", "New York City saw Bonn", "Anna came"]
    assert [each.text for each in found] == texts
    assert log.merged == {"answers": 3, "changed": 2, "unchanged": 1, "added": 1}


def test_merge_answers_maps_answer_to_corpus_tokens():
    split = Doc(VOCAB, ["New", "York", "City", "saw", "Bo", "nn"], [True] * 4 + [False] * 2)
    split.set_ents([Span(split, 4, 6, "LOC")], default="missing")
    assert merged(doc(missing=range(5)), split)[0] == ("4:5 LOC", {0, 1, 2, 3}, "")
    split.set_ents([Span(split, 4, 5, "LOC")], default="missing")
    with pytest.raises(CorpusError, match="whole tokens"):
        merged(doc(), split)
    # Of a token of which a part is unknown, nothing is known.
    split.set_ents([], missing=[split[5:6]], default="outside")
    assert merged(doc(missing=range(5)), split)[0] == ("", {4}, "")


def limited(made, *labels):
    mark_annotated_labels(made, labels)
    return made


@pytest.mark.parametrize("base", [doc(), limited(doc("4:5 PER"), "PER")])
def test_merge_answers_with_other_annotated_labels_raises(base):
    with pytest.raises(CorpusError, match="annotated labels"):
        merged(base, limited(doc("0:3 LOC"), "LOC"))


def test_merge_answers_doc_with_only_overlapping_spans_raises():
    """Training would not read them: it reads `doc.spans["sc"]`."""
    base = doc(missing=range(5))
    base.spans["sc"] = [Span(base, 0, 3, "LOC"), Span(base, 1, 3, "LOC")]
    with pytest.raises(CorpusError, match=r"entities in doc\.ents, got only doc\.spans\['sc'\]"):
        merged(base.copy(), answer("4:5 PER"))
    found, log = merged(base.copy(), answer("4:5 PER"), repair=True)
    assert found == content(base) and log.counts["rejected.spans"] == 1
    # Candidates of a component beside gold entities are no gold.
    base.set_ents([Span(base, 0, 3, "LOC")], default="outside")
    assert merged(base, doc("4:5 PER"))[0] == ("4:5 PER", set(), "")


def test_a_new_text_keeps_its_entities_and_candidates():
    given = doc("4:5 PER")
    given.spans["sc"] = [Span(given, 0, 3, "LOC")]
    log = data.ConversionLog()
    _, new = merge_answers([doc(words="Nothing here")], [given], log)
    assert content(new) == ("4:5 PER", set(), "") and log.merged["added"] == 1
    assert [(span.start, span.end, span.label_) for span in new.spans["sc"]] == [(0, 3, "LOC")]


def test_later_answers_may_annotate_fewer_labels_than_earlier_ones():
    base = limited(doc("0:3 LOC"), "LOC")
    both, one = limited(doc("0:3 LOC"), "LOC", "PER"), limited(doc("0:3 LOC"), "LOC")
    assert merged(base, both, one)[0] == ("0:3 LOC", set(), "")
    assert annotated_labels(base) == {"LOC", "PER"}


def test_later_answers_may_annotate_more_labels_than_earlier_ones():
    first = limited(doc("0:3 LOC"), "LOC")
    more = limited(doc("0:3 LOC, 4:5 PER"), "LOC", "PER")
    base = limited(doc(), "LOC")
    assert merged(base, first, more)[0] == ("0:3 LOC, 4:5 PER", set(), "")
    assert annotated_labels(base) == {"LOC", "PER"}
    for later in (answer("4:5 PER"), limited(answer("4:5 PER"), "LOC", "PER")):
        with pytest.raises(CorpusError, match="answers that agree"):  # it would undo the first one
            merged(limited(doc(), "LOC"), first, later)


def test_merge_answers_rejected_answer_changes_nothing():
    first = limited(doc("0:3 LOC"), "LOC")
    wrong = limited(doc("0:2 LOC, 4:5 ORG"), "LOC", "ORG")
    more = limited(doc("0:3 LOC, 4:5 PER"), "LOC", "PER")
    found, log = merged(limited(doc(), "LOC"), first, wrong, more, repair=True)
    assert found == ("0:3 LOC, 4:5 PER", set(), "")
    assert log.counts["rejected.contradiction"] == 1
    assert log.totals["rejected.entities"] == 2


@pytest.mark.parametrize("ents", ["4:5 PER", "0:2 PER, 4:5 PER", "0:3 LOC, 4:5 LOC"])
def test_merge_answers_later_conflict_on_earlier_labels_raises(ents):
    first, more = limited(doc("0:3 LOC"), "LOC"), limited(doc(ents), "LOC", "PER")
    with pytest.raises(CorpusError, match="answers that agree"):
        merged(limited(doc(), "LOC"), first, more)


@pytest.mark.parametrize(
    "given, expected, labels",
    [
        # An answer about the whole text is about all labels, also if it finds nothing new.
        (doc("0:3 LOC, 4:5 PER"), ("0:3 LOC, 4:5 PER", set(), ""), None),
        (doc("0:3 LOC"), ("0:3 LOC", set(), ""), None),
        # An answer about an annotated label leaves the rest as it is: no token is LOC.
        (answer("4:5 LOC"), ("0:3 LOC, 4:5 LOC", set(), ""), {"LOC"}),
        (answer(incorrect="0:3 LOC"), ("", {0, 1, 2}, "0:3 LOC"), {"LOC"}),
        (answer(incorrect="4:5 PER"), ("0:3 LOC", set(), "4:5 PER"), {"LOC"}),
        # With an entity of another label, no token is known to be outside of both labels.
        (answer("4:5 PER"), ("0:3 LOC, 4:5 PER", {3}, ""), None),
        # An answer about the same labels stays one.
        (limited(doc("4:5 LOC"), "LOC"), ("4:5 LOC", set(), ""), {"LOC"}),
        # One about more labels, and the whole text, adds them.
        (limited(doc("0:3 PER"), "LOC", "PER"), ("0:3 PER", set(), ""), {"LOC", "PER"}),
        # One about a span leaves the other tokens unchanged.
        (limited(answer("4:5 LOC"), "LOC", "PER"), ("0:3 LOC, 4:5 LOC", set(), ""), {"LOC"}),
        (limited(answer("4:5 PER"), "LOC", "PER"), ("0:3 LOC, 4:5 PER", {3}, ""), None),
        # Its outside tokens are not outside for all labels.
        (limited(doc("4:5 PER", missing=[0]), "LOC", "PER"), ("4:5 PER", {0, 1, 2, 3}, ""), None),
    ],
)
def test_merge_answers_updates_annotated_labels_of_doc(given, expected, labels):
    base = limited(doc("0:3 LOC"), "LOC")
    found, log = merged(base, given)
    assert (found, annotated_labels(base)) == (expected, labels)
    assert log.merged["changed"] == 1


def test_entities_that_stay_keep_their_ids():
    base, given = doc(), doc("0:3 LOC, 4:5 PER")
    ents = [Span(base, 0, 3, "LOC", kb_id="Q60", span_id="ny"), Span(base, 4, 5, "LOC", kb_id="Q1")]
    base.set_ents(ents, default="outside")
    _, log = merged(base, given)
    assert [(e.label_, e.kb_id_, e.id_) for e in base.ents] == [
        ("LOC", "Q60", "ny"),
        ("PER", "", ""),
    ]
    assert log.merged["changed"] == 1
    given.set_ents([Span(given, 0, 3, "LOC", kb_id="Q2"), given.ents[1]], default="outside")
    _, log = merged(base, given)
    assert base.ents[0].kb_id_ == "Q2"  # the answer has its own
    assert log.merged["changed"] == 1
    assert merged(base, given)[1].merged["unchanged"] == 1


def test_merge_answers_clears_ids_of_removed_entity():
    base = doc()
    base.set_ents([Span(base, 0, 3, "LOC", kb_id="Q60", span_id="ny")], default="outside")
    assert merged(base, answer("0:2 LOC"))[0] == ("0:2 LOC", {2}, "")
    assert [(token.ent_kb_id_, token.ent_id_) for token in base] == [("", "")] * 5


# Files


HANOI = '{"text": "Hanoi is big", "spans": [{"start": 0, "end": 5, "label": "GPE"}]}\n'
OTHER = '{"text": "Bonn too", "spans": []}\n'


@pytest.fixture
def written(tmp_path):
    """Three corpora with the same two documents, and two files of answers about one of them."""
    nlp = spacy.blank("en")
    (tmp_path / "corpus.jsonl").write_text(HANOI.replace("GPE", "ORG") + OTHER)
    for name in ("corpus.spacy", "folder/corpus.spacy"):
        data.convert(tmp_path / "corpus.jsonl", tmp_path / name, nlp=nlp)
    (tmp_path / "a.jsonl").write_text(HANOI)
    (tmp_path / "b.jsonl").write_text(HANOI + '{"text": "so new", "spans": []}\n')
    return tmp_path


@pytest.mark.parametrize("corpus", ["corpus.jsonl", "corpus.spacy", "folder"])
def test_merge_reads_corpora_and_answers_in_any_format(written, corpus):
    answers, target = [written / "a.jsonl", written / "b.jsonl"], written / "new.spacy"
    log = data.ConversionLog()
    counts = data.merge(answers, written / corpus, target, nlp=spacy.blank("en"), log=log)
    docs = DocBin().from_disk(target).get_docs(VOCAB)
    assert [(each.text, content(each)[0]) for each in docs] == [
        ("Hanoi is big", "0:1 GPE"),
        ("Bonn too", ""),
        ("so new", ""),
    ]
    assert log.merged == {"answers": 3, "changed": 1, "unchanged": 1, "added": 1}
    assert counts == {"docs": 3, "tokens": 7, "entities": 1, "entities.GPE": 1}


def test_merge_counts_or_raises_mistakes_of_all_answers(written):
    contradicting = written / "c.jsonl"
    contradicting.write_text(HANOI.replace("GPE", "PER") + OTHER.replace("[]", "[{}]"))
    asked = {"target": written / "new.spacy", "nlp": spacy.blank("en")}
    answers = [written / "a.jsonl", contradicting], written / "corpus.spacy"
    with pytest.raises(CorpusError, match=r"expected no mistakes, got 2 \(.*contradiction 1"):
        data.merge(*answers, **asked)
    with pytest.raises(CorpusError, match=r"answers: expected at most 5.0% of the .* to be left"):
        data.merge(*answers, **asked, log=data.ConversionLog(repair=True))
    assert not (written / "new.spacy").exists()
    data.merge(*answers, **asked, log=data.ConversionLog(repair=True, max_loss=1.0))
    found = DocBin().from_disk(written / "new.spacy").get_docs(VOCAB)
    assert [content(each)[0] for each in found] == ["0:1 GPE", ""]


@pytest.mark.parametrize(
    "target, says",
    [
        ("corpus.spacy", "corpus.spacy exists already"),
        ("folder", "folder exists already"),
        ("new.parquet", "new.parquet is no .spacy file"),
        ("folder/new.spacy", "new.spacy is in the input"),
    ],
)
def test_merge_into_other_than_a_new_file_raises(written, target, says):
    before = {path: path.stat().st_mtime_ns for path in written.rglob("*")}
    with pytest.raises(InputError, match=says):
        data.merge(
            [written / "a.jsonl"], written / "folder", written / target, nlp=spacy.blank("en")
        )
    assert {path: path.stat().st_mtime_ns for path in written.rglob("*")} == before
