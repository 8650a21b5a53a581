"""The page of documents: what is drawn in it, and what its filters show."""

import json
import re

import pytest

from html_pages import Page
from pipelines import example_of
from spacy_crf_ner.evaluation import compare, evaluate
from spacy_crf_ner.pipeline.annotation import add_confidence_extension
from spacy_crf_ner.report import documents
from spacy_crf_ner.report.documents import documents_page


@pytest.fixture(scope="module", autouse=True)
def confidences():
    add_confidence_extension()


def page_of(*examples):
    return documents_page(evaluate(examples, model="m", data="d", resamples=2), examples)


def kinds_of(page):
    return [each["data-kind"] for each in page.all("article")]


def sides_of(article):
    """The texts, without what follows them."""
    return [side.partition("\n")[0] for side in article["sides"]]


def test_page_shows_gold_beside_predicted():
    same = example_of(["Hanoi", "sleeps"], [(0, 1, "GPE")], [(0, 1, "GPE")])
    other = example_of(["Tim", "Cook"], [(0, 2, "PERSON")], [(0, 1, "PERSON")])
    page = Page(page_of(same, other))
    assert [each.get("class") for each in page.all("article")] == [None, "differs"]
    assert kinds_of(page) == ["without errors", "with errors"]
    assert [*map(sides_of, page.articles)] == [
        ["HanoiGPE sleeps ", "HanoiGPE sleeps "],
        ["Tim CookPERSON ", "TimPERSON Cook "],
    ]
    assert [each["data-text"] for each in page.all("article")] == ["Hanoi sleeps ", "Tim Cook "]
    assert "Size2 documents, 4 tokens" in page.text.replace("\n", "")
    assert page.text.index("document 0") < page.text.index("document 1 · with errors")


def test_page_of_two_pipelines_shows_both():
    gold = [(0, 1, "GPE")]
    cases = [([], gold), (gold, []), ([], []), (gold, gold)]
    old, new = (
        [example_of(["Hanoi", "sleeps"], gold, case[i]) for case in cases] for i in range(2)
    )
    figures = [evaluate(each, resamples=2) for each in (old, new)]
    figures = compare(figures[0], old, figures[1], new, resamples=2)
    page = Page(documents_page(figures, old, new))
    kinds = ["right in new only", "right in old only", "errors in both", "right in both"]
    assert kinds_of(page) == kinds
    assert {*kinds} < {each.get("value") for each in page.all("option")}
    assert sides_of(page.articles[1]) == ["HanoiGPE sleeps "] * 2 + ["Hanoi sleeps "]
    assert [text for _, text in page.words if text in ("Gold", "Old", "New")][-3:] == [
        "Gold", "Old", "New",
    ]  # fmt: skip


def test_page_uses_one_color_per_label():
    words = ["Tim", "saw", "Oslo"]
    eg = example_of(words, [(0, 1, "PERSON"), (2, 3, "GPE")], [(2, 3, "GPE"), (0, 1, "ORG")])
    html = page_of(eg)
    found = re.findall(r'<mark style="background:(#\w{6})">\w+<span>(\w+)</span>', html)
    found += re.findall(r'<mark style="background:(#\w{6})">(\w+)</mark>', html)  # the legend
    colors = {label: {color for color, of in found if of == label} for _, label in found}
    assert len(found) == 4 + 3 and {*colors} == {"PERSON", "GPE", "ORG"}
    assert len({*map(frozenset, colors.values())}) == 3 and max(map(len, colors.values())) == 1


def test_predicted_entities_show_their_confidence_as_number_and_color():
    ents = [(i, i + 1, "A") for i in range(4)]
    eg = example_of(list("abcd"), ents[:1], ents)
    for ent, confidence in zip(eg.predicted.ents, (0.8125, 0.3, 1.0, None), strict=True):
        ent._.confidence = confidence
    html = page_of(eg)
    badges = re.findall('(.)<span>A<small style="--sure:(.*?)%">(.*?)</small></span>', html)
    assert badges == [("a", "62", "0.812"), ("b", "0", "0.300"), ("c", "100", "1.000")]
    assert "Confidence:" in html
    for ent in eg.predicted.ents:
        ent._.confidence = None
    assert "Confidence:" not in page_of(eg)


def test_page_escapes_text_and_labels():
    evil = "<script>alert(1)</script>"
    label = "<b>'L\"</b>"
    eg = example_of([evil, "&amp;", "{x}"], [(0, 1, label)], [])
    figures = evaluate([eg], model="<i>title</i>", data="d", resamples=2)
    page = Page(documents_page(figures, [eg]))
    assert not {"b", "i"} & set(page.tags) and page.tags.count("script") == 1
    for text in (evil, "&amp;", "{x}", label, "<i>title</i>"):
        assert text in page.text
    (article,) = page.all("article")
    assert json.loads(article["data-labels"]) == [label] and evil in article["data-text"]


def test_page_loads_nothing():
    page = Page(page_of(example_of(["a"], [], [])))
    (policy,) = (each["content"] for each in page.all("meta") if "http-equiv" in each)
    assert policy.startswith("default-src 'none'; ")
    assert [each["href"] for each in page.all("a")] == ["report.html"]


def test_prediction_without_gold_is_no_difference():
    ents = [(0, 1, "GPE"), (2, 3, "GPE")]
    eg = example_of(["Hanoi", "and", "Oslo"], ents[1:], ents)
    eg.reference.set_ents(eg.reference.ents, missing=[eg.reference[0:1]], default="outside")
    page = Page(page_of(eg))
    assert kinds_of(page) == ["without errors"]
    assert "1 entity; 1 more where gold annotation is missing" in page.text
    assert "HanoiGPE and OsloGPE" in page.text  # at its position


def test_page_keeps_whitespace_of_text():
    eg = example_of(["\n", "Hanoi", " "], [(1, 2, "GPE")], [])
    assert Page(page_of(eg)).text.count("\n Hanoi") == 2


def test_page_of_many_documents_has_those_with_errors_first(monkeypatch):
    ent = [(0, 1, "A")]
    examples = [example_of([f"w{i}"], ent, [] if i in (2, 4) else ent) for i in range(6)]
    monkeypatch.setattr(documents, "MAX_CHARACTERS", 4 * (documents.MARKUP + len("w0 ")))
    page = Page(page_of(*examples))
    assert re.findall(r"document (\d)", page.text) == ["2", "4", "0", "1"]
    assert "4 of 6 documents, those with errors first" in page.text
    monkeypatch.setattr(documents, "MAX_CHARACTERS", 1)
    assert re.findall(r"document (\d)", Page(page_of(*examples)).text) == ["2"]


def test_page_has_the_filters_of_its_script():
    page = Page(page_of(example_of(["Tim", "Cook"], [(0, 1, "PER")], [(0, 1, "A&B")])))
    assert [each["id"] for each in page.all("select")] == ["kind", "label"]
    values = [each["value"] for each in page.all("option") if "value" in each]
    assert values == ["with errors", "without errors", "A&B", "PER"]
    assert "search" in [each["id"] for each in page.all("input")]
