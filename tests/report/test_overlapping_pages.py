"""The report and the page of documents, for overlapping entities."""

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from spacy.language import Language
from spacy.tokens import Span
from spacy.training import Example

from html_pages import Page, words
from pipelines import small, spans_of
from spacy_crf_ner.evaluation import evaluate
from spacy_crf_ner.evaluation.matching import Entity
from spacy_crf_ner.report.documents import documents_page
from spacy_crf_ner.report.html import report_page
from spacy_crf_ner.report.markdown import markdown
from spacy_crf_ner.report.segments import colors_of, draw

DASH = "\N{EN DASH}"
WORDS = ["the", "king", "of", "France", "met", "University", "of", "Oslo", "president"]
GOLD = [(0, 4, "PER"), (1, 2, "PER"), (3, 4, "LOC"), (5, 9, "PER"), (7, 8, "LOC")]
PREDICTED = [(0, 4, "PER"), (3, 4, "ORG"), (5, 8, "ORG"), (7, 8, "LOC")]


@pytest.fixture(scope="module")
def nlp():
    """A component without training: the docs are annotated by hand."""
    nlp = small(overlap=True)
    doc = spans_of(WORDS, [span for span in GOLD if span[0] != 1])
    nlp.get_pipe("crf_ner").initialize(lambda: [Example(doc, doc)], labels=["LOC", "PER"])
    return nlp


def example(words, gold, predicted):
    scores = np.linspace(0.9, 0.6, len(predicted))
    return Example(spans_of(words, predicted, scores), spans_of(words, gold))


@pytest.fixture(scope="module")
def figures(nlp):
    eg = example(WORDS, GOLD, PREDICTED)
    return evaluate([eg], model="m", data="d", nlp=nlp, resamples=2)


@pytest.mark.slow
def test_the_report_has_a_table_of_nested_entities(figures):
    rows = {tuple(row) for row in Page(report_page(figures).replace(DASH, "-")).rows}
    head = ("Recall, flat", "Gold, flat", "Recall, overlapping", "Gold, overlapping", "Too deep")
    expected = [
        ("Label", *head),
        ("LOC", "-", "0", "50.0", "2", "0"),
        ("PER", "-", "0", "33.3", "3", "1"),
        ("ORG", "-", "0", "-", "0", "0"),
        ("all", "-", "0", "40.0", "5", "1"),
    ]
    assert rows >= {*expected}
    text = markdown(figures).replace(DASH, "-")
    for row in expected:
        assert f"| {' | '.join(row)} |" in text
    assert (
        "than the model has, which is 1. A model that finds all others has a recall of 80.0" in text
    )


def test_only_the_strict_matching_is_shown(figures):
    text = markdown(figures)
    assert "Not defined for entities that overlap: exact, partial, type." in text
    names = [line.split(" | ")[0] for line in text.splitlines()]
    assert "| strict" in names and not {"| exact", "| partial", "| type"} & {*names}


def test_errors_of_nested_entities_are_listed(figures):
    text = markdown(figures)
    for error in (
        "| wrong type | 0.800 | France (LOC) | France (ORG) | the king of <b>France</b>",
        "| wrong type and boundary | 0.700 | University of Oslo president (PER) "
        "| University of Oslo (ORG) |",
    ):
        assert error in text
    assert re.search(r"\| missed \| 0\.\d{3} \| king \(PER\) \| . \| the <b>king</b> of", text)
    assert f"| missed | 1 | {100 / 3:.1f} |" in text
    page = Page(report_page(figures))
    assert page.tags.count("article") == 3
    assert page.tags.count("mark") > 5


# The page of documents


def page_of(nlp: Language, *examples: Example) -> str:
    results = evaluate(examples, model="m", data="d", nlp=nlp, resamples=2)
    return documents_page(results, examples)


def test_documents_page_draws_entities_inside_others_in_their_color(nlp):
    same = example(["Hanoi", "sleeps"], [(0, 1, "GPE")], [(0, 1, "GPE")])
    other = example(WORDS, GOLD, [*PREDICTED, (6, 9, "PER")])
    html = page_of(nlp, same, other)
    page = Page(html)
    assert [each.get("class") for each in page.all("article")] == [None, "differs"]
    gold, predicted = (words(side) for side in page.articles[1]["sides"])
    assert gold.startswith("the kingPER of FranceLOCPER met University of OsloLOC presidentPER ")
    assert predicted == (
        "the king of FranceORG0.825PER0.900 met University of OsloLOC0.675ORG0.750 president "
        "Overlapping: of Oslo presidentPER0.600"  # it crosses another one
    )
    found = re.findall(r'background:(#\w{6})">[\w ]+<span>(\w+)<', html)
    assert {*found} == {
        (colors_of(["GPE", "LOC", "ORG", "PER"])[label], label) for _, label in found
    }
    assert page.tags.count("mark") == 4 + 1 + 1 + 5 + 5  # the legend, and both documents
    assert page.tags.count("small") == 3 + 1 + 5  # a confidence has a color, as in the legend


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9), st.sampled_from("AB")), max_size=7),
    st.data(),
)
def test_drawn_entities_are_all_shown_in_the_whole_text(spans, data):
    text = "abcdefghij"
    ents = [Entity(start, min(start + n, 10), label) for start, n, label in spans]
    asked = data.draw(st.sampled_from([None, *ents]))
    side = draw(text, ents, asked)
    shown: list[Entity] = []

    def written(parts: list[Any]) -> str:
        found = ""
        for part in parts:
            if not isinstance(part, str):
                shown.append(part.entity)
                assert part.asked == (part.entity is asked)
                own = written(part.parts)
                assert own == text[part.entity.start : part.entity.end]
            found += part if isinstance(part, str) else own
        return found

    assert written(side.parts) == text
    assert asked is None or any(each is asked for each in shown)
    for other in side.others:
        assert any({*range(*other.entity.span)} & {*range(*ent.span)} for ent in shown)
        assert other.parts == [text[other.entity.start : other.entity.end]]
    assert sorted([*shown, *(other.entity for other in side.others)]) == sorted(ents)


def test_a_gold_span_without_tokens_is_not_drawn(nlp):
    eg = example(WORDS, [(0, 4, "PER")], [(0, 4, "PER")])
    eg.reference.spans["sc"] = [Span(eg.reference, 2, 2, "LOC"), *eg.reference.spans["sc"]]
    (article,) = Page(page_of(nlp, eg)).articles
    assert article["attributes"]["data-kind"] == "with errors"
    html = page_of(nlp, eg)
    assert html.partition("<article")[2].count("LOC") == 1  # in data-labels
