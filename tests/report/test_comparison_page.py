"""Pages of annotated documents."""

import re

import pytest
import spacy
from spacy.tokens import Doc, Span
from spacy.training import Example

from html_pages import Page
from spacy_crf_ner.pipeline.annotation import add_confidence_extension
from spacy_crf_ner.report.html import comparison_page


@pytest.fixture
def vocab():
    return spacy.blank("en").vocab


def example(vocab, words, gold, predicted):
    docs = []
    for ents in (predicted, gold):
        doc = Doc(vocab, words=words)
        doc.set_ents([Span(doc, *ent) for ent in ents])
        docs.append(doc)
    return Example(*docs)


def test_comparison_page_shows_gold_beside_predicted(vocab):
    same = example(vocab, ["Hanoi", "sleeps"], [(0, 1, "GPE")], [(0, 1, "GPE")])
    other = example(vocab, ["Tim", "Cook"], [(0, 2, "PERSON")], [(0, 1, "PERSON")])
    page = Page(comparison_page([same, other], "Test"))
    assert [each.get("class") for each in page.all("article")] == [None, "differs"]
    assert page.tags.count("mark") == 4
    assert page.text.count("Hanoi") == 2
    assert "2 gold entities, 2 predicted, 1 of them equal" in page.text


def test_comparison_page_uses_one_color_per_label(vocab):
    words = ["Tim", "saw", "Oslo"]
    eg = example(vocab, words, [(0, 1, "PERSON"), (2, 3, "GPE")], [(2, 3, "GPE"), (0, 1, "ORG")])
    html = comparison_page([eg], "Test")
    found = re.findall(r'<mark style="background:(#\w{6})">\w+<span>(\w+)</span>', html)
    colors = {label: {color for color, of in found if of == label} for _, label in found}
    assert len(found) == 4 and {*colors} == {"PERSON", "GPE", "ORG"}
    assert len({*map(frozenset, colors.values())}) == 3 and max(map(len, colors.values())) == 1


def test_predicted_entities_show_their_confidence(vocab):
    add_confidence_extension()
    eg = example(vocab, ["Tim", "saw", "Oslo"], [(0, 1, "PERSON")], [(0, 1, "GPE"), (2, 3, "GPE")])
    for ent, confidence in zip(eg.predicted.ents, (0.8125, None), strict=True):
        ent._.confidence = confidence
    html = comparison_page([eg], "Test")
    assert re.findall("<small>(.*?)</small>", html) == ["0.812"]
    assert "Tim<span>GPE</span><small>0.812</small>" in html


def test_comparison_page_escapes_text_and_labels(vocab):
    evil = "<script>alert(1)</script>"
    eg = example(vocab, [evil, "&amp;", "{x}"], [(0, 1, "<b>L</b>")], [])
    page = Page(comparison_page([eg], "<i>title</i>"))
    assert not {"script", "b", "i"} & set(page.tags)
    for text in (evil, "&amp;", "{x}", "<b>L</b>", "<i>title</i>"):
        assert text in page.text


def test_comparison_page_loads_nothing_and_runs_nothing(vocab):
    page = Page(comparison_page([example(vocab, ["a"], [], [])], "Test"))
    (policy,) = (each["content"] for each in page.all("meta") if "http-equiv" in each)
    assert policy.startswith("default-src 'none'; ") and "script" not in page.tags


def test_comparison_page_without_documents_shows_0_documents():
    assert "0 documents" in comparison_page([], "Empty")


def test_comparison_page_prediction_without_gold_is_no_difference(vocab):
    ents = [(0, 1, "GPE"), (2, 3, "GPE")]
    eg = example(vocab, ["Hanoi", "and", "Oslo"], ents[1:], ents)
    eg.reference.set_ents(eg.reference.ents, missing=[eg.reference[0:1]], default="outside")
    page = Page(comparison_page([eg], "Test"))
    assert page.all("article") == [{}]
    assert "1 gold entity, 1 predicted, 1 of them equal" in page.text
    assert "1 more predicted where gold annotation is missing" in page.text
    assert "HanoiGPE and OsloGPE" in page.text  # at its position


def test_comparison_page_keeps_whitespace_of_text(vocab):
    eg = example(vocab, ["\n", "Hanoi", " "], [(1, 2, "GPE")], [])
    assert Page(comparison_page([eg], "Test")).text.count("\n Hanoi") == 2
