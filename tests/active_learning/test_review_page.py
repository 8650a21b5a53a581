"""Answers that are given in the page of `review` are read by `merge --into`."""

import json

import pytest
import spacy
from spacy.tokens import DocBin, Span
from typer.testing import CliRunner

from html_pages import Page, browser, driven, visit
from pipelines import doc_of
from spacy_crf_ner.active_learning.label_errors import Review
from spacy_crf_ner.cli import app

# Beyond the characters of UTF-16, markup, and a line end of JavaScript.
TEXTS = ["\U0001f600 Anna saw </script> Bonn .", "Bonn \u2028 <!-- Bob Ek", "Carla came .", "Ulm ."]
GOLD = [[(1, 2, "LOC"), (4, 5, "ORG")], [(0, 1, "LOC"), (3, 5, "ORG")], [(0, 1, "PER")], []]
PREDICTED = [[(1, 2, "PER"), (4, 5, "LOC")], [(0, 1, "PER"), (4, 5, "PER")], [], [(0, 1, "LOC")]]


@pytest.fixture
def gold():
    unknown = [[2, 3], [], [], []]
    return [doc_of(text.split(" "), *about) for text, *about in zip(TEXTS, GOLD, unknown)]


def findings(docs, gold=GOLD, predicted=PREDICTED):
    """One for each pair of gold and predicted entities, the first document first."""
    for i, doc in enumerate(docs):
        for number in range(max(len(gold[i]), len(predicted[i]))):
            spans = {
                side: Span(doc, *of[i][number]) if number < len(of[i]) else None
                for side, of in (("gold", gold), ("predicted", predicted))
            }
            ents = {
                side: span and {
                    "start": span.start_char, "end": span.end_char, "label": span.label_,
                    "text": span.text,
                }
                for side, span in spans.items()
            }  # fmt: skip
            start = min(ent["start"] for ent in ents.values() if ent)
            end = max(ent["end"] for ent in ents.values() if ent)
            yield {
                **ents, "kind": "other type", "doc": i, "confidence": 0.9, "gold_probability": 0.1,
                "log_odds": 2.0, "support": {"predicted": 0, "gold": 0}, "offset": start,
                "before": doc.text[:start], "text": doc.text[start:end], "after": doc.text[end:],
                "beside": {"gold": [], "predicted": []},
            }  # fmt: skip


GIVE = """
HTMLAnchorElement.prototype.click = function () { document.title = this.download; };
URL.createObjectURL = (blob) => {
  blob.text().then((text) => { document.body.textContent = text; });
  return "data:,";
};
const press = (key) => document.activeElement.dispatchEvent(
  new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
"""


def merged(docs, found, script, said, tmp_path):
    """The gold documents after the keys of a script answered the findings."""
    corpus, page = tmp_path / "gold.spacy", tmp_path / "driven.html"
    DocBin(docs=docs).to_disk(corpus)
    review = Review([*found], docs, ["LOC", "ORG", "PER"], 0, 0)
    review.write(tmp_path / "out", "jsonl", 9, [("Corpus", "gold.spacy")], "")
    html = (tmp_path / "out" / "review.html").read_text("utf-8")
    presses = "".join(f"press({key!r});" for key in script.split())
    check = f"console.assert(answered.textContent.startsWith({said!r}), answered.textContent);"
    download = "document.getElementById('download').click();"
    page.write_text(driven(html, GIVE + presses + check + download), encoding="utf-8")
    dom, console = visit(page, tmp_path / "profile")
    assert console == [] and "<title>answers.jsonl</title>" in dom
    answers = Page(dom.partition("<body")[2].partition(">")[2].partition("</body>")[0]).text
    (tmp_path / "answers.jsonl").write_text(answers, encoding="utf-8")
    assert {json.loads(line)["answer"] for line in answers.strip().split("\n")} == {"accept"}
    arguments = ["merge", "answers.jsonl", "new.spacy", "--into", "gold.spacy"]
    paths = [str(tmp_path / each) if "." in each else each for each in arguments]
    result = CliRunner().invoke(app, paths)
    assert result.exit_code == 0, result.output
    return [*DocBin().from_disk(tmp_path / "new.spacy").get_docs(spacy.blank("en").vocab)]


def spans(docs):
    return [[(ent.start, ent.end, ent.label_) for ent in doc.ents] for doc in docs]


@browser
@pytest.mark.parametrize(
    "script, said, expected",
    [
        # The keys: accept, reject, accept what overlaps, accept that there is nothing.
        ("a r ArrowDown a a", "4 of 6 answered: 3 accepted, 1 rejected.", [
            [(1, 2, "PER"), (4, 5, "ORG")], [(0, 1, "LOC"), (4, 5, "PER")], [], []]),
        # The second "a" of a finding takes the first one back.
        ("a ArrowUp a ArrowDown ArrowDown ArrowUp a", "1 of 6 answered: 1 accepted, 0 rejected.", [
            GOLD[0], [(0, 1, "PER"), (3, 5, "ORG")], GOLD[2], []]),
        ("ArrowRight ArrowRight ArrowRight ArrowRight ArrowRight a", "1 of 6", [
            *GOLD[:3], [(0, 1, "LOC")]]),
    ],
)  # fmt: skip
def test_answers_of_the_page_are_merged(gold, tmp_path, script, said, expected):
    found = merged(gold, findings(gold), script, said, tmp_path)
    assert spans(found) == expected
    assert [doc.text for doc in found] == [doc.text for doc in gold]
    assert [token.ent_iob for token in found[0]][2:4] == [0, 0]  # still unknown


@browser
@pytest.mark.parametrize("first", ["wrong boundary", "spurious"])
def test_accepted_findings_in_one_gold_entity_are_all_kept(tmp_path, first):
    doc = doc_of(["Berlin", "near", "Ulm"], [(0, 3, "LOC")])
    predicted = [(0, 1, "LOC"), (2, 3, "LOC")]
    found = [*findings([doc], [[(0, 3, "LOC")]], [predicted])]
    if first == "spurious":
        found.reverse()
    docs = merged([doc], found, "a a", "2 of 2 answered: 2 accepted", tmp_path)
    assert spans(docs) == [predicted]


@browser
def test_buttons_answer_and_keys_are_letters_in_the_search(gold, tmp_path):
    review = Review([*findings(gold)], gold, ["LOC", "ORG", "PER"], 0, 0)
    review.write(tmp_path / "out", "jsonl", 9, [], "")
    html = (tmp_path / "out" / "review.html").read_text("utf-8")
    script = """
    const [accept, reject] = articles[1].querySelectorAll("button");
    const report = [];
    const note = () => report.push([
      accept.ariaPressed, reject.ariaPressed, articles[1].dataset.answer, answered.textContent]);
    search.focus();
    press("a");
    note();
    for (const button of [accept, reject, reject]) { button.click(); note(); }
    document.body.textContent = JSON.stringify(report);
    """
    page = tmp_path / "driven.html"
    page.write_text(driven(html, GIVE + script), encoding="utf-8")
    dom, console = visit(page, tmp_path / "profile")
    assert console == []
    none, one = "0 of 6 answered", "1 of 6 answered"
    assert json.loads(Page(dom).text.strip().rpartition("\n")[2]) == [
        ["false", "false", None, f"{none}."],
        ["true", "false", "accept", f"{one}: 1 accepted, 0 rejected."],
        ["false", "true", "reject", f"{one}: 0 accepted, 1 rejected."],
        ["false", "false", "", f"{none}: 0 accepted, 0 rejected."],
    ]


@browser
def test_the_policy_of_the_page_allows_its_script(gold, tmp_path):
    review = Review([*findings(gold)], gold, ["LOC", "ORG", "PER"], 0, 0)
    review.write(tmp_path / "out", "jsonl", 2, [], "")
    dom, console = visit(tmp_path / "out" / "review.html", tmp_path / "profile")
    assert console == [] and "4 found." in dom
