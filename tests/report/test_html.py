"""The page of a report: its figures match the dict, text is escaped, nothing is loaded."""

import copy
import json
import re
from importlib.resources import files
from typing import Any

import pytest

from html_pages import Page, browser, cells, driven, visit, words
from spacy_crf_ner.report.html import report_page, review_page

STYLE = files("spacy_crf_ner.templates").joinpath("style.css").read_text("utf-8")

EVIL = '<script>document.title=1</script><img src=x onerror="document.title=1">'
KINDS = ("wrong type", "wrong boundary", "wrong type and boundary", "missed", "spurious")


def scores(
    precision: float | None, recall: float | None, f1: float | None, *counts: float
) -> dict[str, Any]:
    values = (precision, recall, f1, *counts)
    return dict(zip(("precision", "recall", "f1", "gold", "predicted", "correct"), values))


def ranges(*intervals: tuple[float, float]) -> dict[str, Any]:
    return dict(zip(("precision", "recall", "f1"), map(list, intervals)))


def entity(text: str, part: str, label: str, offset: int) -> dict[str, Any]:
    start = offset + text.index(part)
    return {"start": start, "end": start + len(part), "label": label, "text": part}


def error(
    kind: str,
    p: float | None,
    doc: int,
    context: tuple[str, str, str],
    gold: tuple[str, str] | None,
    predicted: tuple[str, str] | None,
) -> dict[str, Any]:
    before, text, after = context
    offset = len(before)
    sides = {
        side: entity(text, *given, offset) if given else None
        for side, given in (("gold", gold), ("predicted", predicted))
    }
    sure = {"confidence": None, "gold_probability": None}
    sure["confidence" if predicted else "gold_probability"] = p
    about = {"kind": kind, **sure, "doc": doc, **sides}
    about |= {"beside": {"gold": [], "predicted": []}}
    return {**about, "before": before, "text": text, "after": after, "offset": offset}


STRICT = {
    "micro": scores(0.7, 0.5833, 0.6364, 12, 10, 7.0),
    "macro": scores(0.7222, 0.6111, 0.6508, 12, 10, 7.0),
    "per_type": {
        "LOC": scores(0.6667, 0.5, 0.5714, 4, 3, 2.0),
        "ORG": scores(0.5, 0.3333, 0.4, 3, 2, 1.0),
        "PER": scores(0.8, 0.8, 0.8, 5, 5, 4.0),
        "WORK": scores(None, None, None, 0, 0, 0.0),
    },
}
MICROS = {
    "exact": scores(0.8, 0.6667, 0.7273, 12, 10, 8.0),
    "partial": scores(0.85, 0.7083, 0.7727, 12, 10, 8.5),
    "type": scores(0.8, 0.6667, 0.7273, 12, 10, 8.0),
}
ERRORS = [
    error("wrong type", 0.981, 3, ("The board of ", "Vienna", " met twice.\nIt will again."),
          ("Vienna", "ORG"), ("Vienna", "LOC")),
    error("wrong boundary", 0.774, 1, ("", "Dr Ida Brandt", " slept on the ferry."),
          ("Ida Brandt", "PER"), ("Dr Ida Brandt", "PER")),
    error("spurious", 0.512, 0, ("They sold ", "Monday", " to a stranger."),
          None, ("Monday", "ORG")),
    error("missed", 0.231, 4, ("Snow closed the road to ", "Aosta", " again."),
          ("Aosta", "LOC"), None),
    error("missed", None, 5, ("Nobody asked ", "Bo", "."), ("Bo", "LOC"), None),
]  # fmt: skip
EMPTY = {"count": 0, "confidence": None, "correct": None, "interval": None}
FIGURES: dict[str, Any] = {
    "model": "training/model-best",
    "data": "corpus/test.spacy",
    "docs": 1412,
    "tokens": 98_120,
    "gold": 12,
    "predicted": 10,
    "left_out": 2,
    "nesting": None,
    "matching": {"strict": STRICT}
    | {name: {"micro": micro, "macro": micro, "per_type": {}} for name, micro in MICROS.items()},
    "intervals": {
        "level": 0.95,
        "resamples": 1000,
        "micro": ranges((0.611, 0.789), (0.502, 0.664), (0.5521, 0.7189)),
        "macro": ranges((0.601, 0.799), (0.522, 0.694), (0.5601, 0.7299)),
        "per_type": {
            "LOC": ranges((0.5, 0.81), (0.4, 0.62), (0.44, 0.69)),
            "ORG": ranges((0.21, 0.79), (0.11, 0.59), (0.155, 0.649)),
            "PER": ranges((0.7, 0.9), (0.71, 0.91), (0.72, 0.88)),
            "WORK": ranges(),
        },
    },
    "confusion": {
        "labels": ["LOC", "ORG", "PER"],
        "counts": [[2, 0, 0, 2], [1, 1, 0, 1], [0, 0, 5, 0], [0, 1, 0, 0]],
    },
    "errors": {"counts": dict(zip(KINDS, (1, 1, 0, 2, 1))), "list": ERRORS},
    "calibration": "Confidences: calibrated on 36 entities",
    "reliability": {
        "entities": 10,
        "left_out": 2,
        "ece": 0.0712,
        "ece_by_chance": 0.0312,
        "brier": 0.1834,
        "bins": [EMPTY] * 7
        + [
            {"count": 1, "confidence": 0.512, "correct": 0.0, "interval": [0.0, 0.79]},
            *[EMPTY] * 3,
            {"count": 2, "confidence": 0.7791, "correct": 0.5, "interval": [0.09, 0.91]},
            {"count": 1, "confidence": 0.8423, "correct": 1.0, "interval": [0.21, 1.0]},
            EMPTY,
            {"count": 6, "confidence": 0.9777, "correct": 0.8333, "interval": [0.44, 0.97]},
        ],
    },
    "thresholds": [
        {"threshold": 0.0, "entities": 10, "precision": 0.7, "recall": 0.5833},
        {"threshold": 0.5, "entities": 10, "precision": 0.7, "recall": 0.5833},
        {"threshold": 0.8, "entities": 7, "precision": 0.8571, "recall": 0.5},
        {"threshold": 0.9, "entities": 6, "precision": 0.8333, "recall": 0.4167},
        {"threshold": 0.99, "entities": 0, "precision": None, "recall": 0.0},
    ],
    "coverage": {
        "docs": 4,
        "guarantees": {
            "recall": {
                "level": 0.9,
                "confidence_level": 0.95,
                "documents": 40,
                "threshold": 0.02,
                "by_label": True,
                "found": {"LOC": 0.9244, "PER": None},
            },
            "set_coverage": {
                "level": 0.8,
                "confidence_level": None,
                "documents": 50,
                "threshold": 0.01,
                "found": None,
            },
        },
        "curve": [
            {"threshold": 0.9, "coverage": 0.41, "per_entity": 0.5},
            {"threshold": 0.02, "coverage": 0.9, "per_entity": 1.5},
            {"threshold": None, "coverage": 0.9244, "per_entity": 1.856},
        ],
    },
    "transitions": {
        "tags": ["O", "B-LOC", "I-LOC"],
        "scores": [[1.25, 0.5, None], [-0.75, 0.25, 2.5], [0.0, -1.5, 1.0]],
        "start": [0.75, 0.3, None],
        "end": [0.6, 0.2, -0.04],
    },
    "training": [
        {"step": step, "epoch": step // 100, "losses": {"ner": loss}, "scores": {"ents_f": f}}
        for step, loss, f in ((0, 80.5, 0.0), (100, 31.0, 41), (200, 12.5, None), (300, 8.0, 60.5))
    ],
    "comparison": None,
}
OPTIONAL = (
    "calibration",
    "reliability",
    "thresholds",
    "coverage",
    "transitions",
    "training",
    "comparison",
)


def difference(value: float, low: float, high: float, p: float) -> dict[str, Any]:
    return {"difference": value, "interval": [low, high], "p": p}


UNKNOWN = {"difference": None, "interval": None, "p": None}


def compared() -> dict[str, Any]:
    """The figures beside those of another model, which has another set of labels."""
    other = copy.deepcopy(FIGURES)
    other["model"] = "training/cnn & more"
    strict = other["matching"]["strict"]
    strict["micro"] |= {"precision": 0.6111, "recall": 0.5111, "f1": 0.5566}
    strict["per_type"]["PER"]["f1"] = 0.7211
    strict["per_type"]["DATE"] = scores(0.0, None, None, 0, 2, 0.0)
    other["errors"]["counts"] = dict(zip(KINDS, (11, 12, 13, 14, 15)))
    micro = {
        "precision": difference(0.0889, 0.031, 0.142, 0.0),
        "recall": difference(0.0722, -0.012, 0.151, 0.094),
        "f1": difference(0.0798, 0.011, 0.147, 0.021),
    }
    per_type = {
        "DATE": {"f1": UNKNOWN},
        "ORG": {"f1": difference(0.0, 0.0, 0.0, 1.0) | {"interval": None}},
        "PER": {"f1": difference(-0.0211, -0.12, 0.09, 0.7)},
    }
    return FIGURES | {
        "comparison": {
            "model": other["model"],
            "other": other,
            "difference": {"micro": micro, "per_type": per_type},
            "test": "paired bootstrap over docs",
            "resamples": 1000,
        }
    }


def bare() -> dict[str, Any]:
    """The figures of a pipeline that has no confidences and no transitions."""
    errors = [each | {"confidence": None, "gold_probability": None} for each in ERRORS]
    figures = FIGURES | dict.fromkeys(OPTIONAL)
    return figures | {"errors": FIGURES["errors"] | {"list": errors}}


def empty() -> dict[str, Any]:
    """The figures of a corpus without entities, whose scores are None."""
    nothing = {"micro": scores(None, None, None, 0, 0, 0.0)}
    nothing |= {"macro": nothing["micro"], "per_type": {}}
    intervals = {"level": 0.95, "resamples": 1000, "micro": None, "macro": None, "per_type": {}}
    return bare() | {
        "gold": 0,
        "predicted": 0,
        "left_out": 0,
        "matching": dict.fromkeys(("strict", "exact", "partial", "type"), nothing),
        "intervals": intervals,
        "confusion": {"labels": [], "counts": [[0]]},
        "errors": {"counts": dict.fromkeys(KINDS, 0), "list": []},
        "reliability": {
            "entities": 0,
            "left_out": 0,
            "ece": None,
            "ece_by_chance": None,
            "brier": None,
            "bins": [EMPTY] * 15,
        },
        "thresholds": [{"threshold": 0.0, "entities": 0, "precision": None, "recall": None}],
    }


def hostile() -> dict[str, Any]:
    """The figures with markup wherever a corpus or a user has a word."""
    figures = compared()
    renamed = json.loads(
        json.dumps(figures)
        .replace('"PER"', json.dumps(EVIL))
        .replace("B-LOC", json.dumps("B-" + EVIL)[1:-1])
        .replace('"ner"', json.dumps(EVIL))
        .replace("training/", json.dumps(EVIL + "/")[1:-1])
    )
    text = f"\u2028{EVIL}\0"
    evil = error("spurious", 0.9, 7, (EVIL, text, "{x} &amp; </p>"), None, (EVIL, EVIL))
    renamed["errors"]["list"].insert(0, evil)
    return renamed


def large(n_labels: int = 20, n_errors: int = 300) -> dict[str, Any]:
    """The figures of many labels, in BILUO, and of many errors."""
    labels = [f"LABEL_{i:02}" for i in range(n_labels)]
    tags = ["O", *(f"{prefix}-{label}" for label in labels for prefix in "BILU")]
    wave = [((7 * i) % 23 - 11) / 4 for i in range(len(tags))]
    errors = [
        error(
            "wrong type", 1 - i / n_errors, i, ("The keys of ", f"Ward {i}", " are lost."),
            (f"Ward {i}", labels[i % n_labels]), (f"Ward {i}", labels[(i + 1) % n_labels]),
        )
        for i in range(n_errors)
    ]  # fmt: skip
    counts = [
        [200 - 3 * i if i == j else (i * j) % 7 for j in range(n_labels + 1)]
        for i in range(n_labels + 1)
    ]
    counts[-1][-1] = 0
    strict = STRICT | {"per_type": dict.fromkeys(labels, STRICT["per_type"]["PER"])}
    per_type = dict.fromkeys(labels, FIGURES["intervals"]["per_type"]["PER"])
    return FIGURES | {
        "matching": FIGURES["matching"] | {"strict": strict},
        "intervals": FIGURES["intervals"] | {"per_type": per_type},
        "confusion": {"labels": labels, "counts": counts},
        "errors": {"counts": dict(zip(KINDS, (n_errors, 0, 0, 0, 0))), "list": errors},
        "transitions": {
            "tags": tags,
            "scores": [
                [w * v / 3 if follows(a, b) else None for b, v in zip(tags, wave)]
                for a, w in zip(tags, wave)
            ],
            "start": [None if tag[0] in "IL" else w for tag, w in zip(tags, wave)],
            "end": [None if tag[0] in "BI" else w for tag, w in zip(tags, wave)],
        },
    }


def follows(a: str, b: str) -> bool:
    """Whether tag b may stand after tag a, in BILUO."""
    return a[1:] == b[1:] and b[0] in "IL" if a[0] in "BI" else b[0] in "BUO"


# Content of the page


@pytest.fixture(autouse=True, scope="module")
def day():
    """The day on which pages are made: 2023-11-14."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOURCE_DATE_EPOCH", "1700000000")
        yield


@pytest.fixture(scope="module")
def html():
    """Pages, drawn once."""
    figures = {
        "example": FIGURES,
        "compared": compared(),
        "bare": bare(),
        "empty": empty(),
        "hostile": hostile(),
        "large": large(),
    }
    return {name: report_page(of) for name, of in figures.items()}


@pytest.fixture(scope="module")
def page(html):
    return Page(html["compared"])


PAGES = ("example", "compared", "bare", "empty", "hostile", "large")


def test_report_page_head_shows_scores_and_counts(html, page):
    for start, told in (
        (words(page.text), [
            "Corpuscorpus/test.spacy Size1,412 documents, 98,120 tokens",
            "LabelsLOC, ORG, PER, WORK",
            "Gold12 entities",
            "Predicted, old10 entities; 2 more where gold annotation is missing",
            "Confidences, oldcalibrated on 36 entities",
            "Predicted, new10 entities",
            "Made2023-11-14, spacy-crf-ner ",
            "Ranges are 95 % intervals by the bootstrap over documents, with 1,000 resamples; of a "
            "score with fewer than 5 right or 5 wrong entities, Wilson's.",
            "F1, new minus old+8.0 +1.1 to +14.7",
            "F1, old63.6 55.2-71.9",
            "F1, new55.7 55.2-71.9",
            "Oldtraining/model-best",
            "Newtraining/cnn & more",
        ]),
        (words(Page(html["example"]).text), [
            "Evaluation report F1, micro63.6 55.2-71.9",
            "Pipelinetraining/model-best",
            "Confidencescalibrated on 36 entities",
            "Precision, micro70.0 61.1-78.9",
            "Recall, micro58.3 50.2-66.4",
        ]),
    ):  # fmt: skip
        assert [each for each in told if each not in start] == []
    assert [*page.sections][:2] == ["Comparison", "Labels"]


RULES = (
    "boundaries and label are right",
    "boundaries are right, with any label",
    "it overlaps a gold entity; half a point if boundaries differ",
    "it overlaps a gold entity of its label",
)
TABLES = {
    "Labels": [
        ["Label", "Precision", "Recall", "F1", "Gold", "Predicted", "F1, 0 to 100"],
        ["LOC", "66.7 50.0-81.0", "50.0 40.0-62.0", "57.1 44.0-69.0", "4", "3", ""],
        ["ORG", "50.0 21.0-79.0", "33.3 11.0-59.0", "40.0 15.5-64.9", "3", "2", ""],
        ["PER", "80.0 70.0-90.0", "80.0 71.0-91.0", "80.0 72.0-88.0", "5", "5", ""],
        ["WORK", "-", "-", "-", "0", "0", ""],
        ["micro mean", "70.0 61.1-78.9", "58.3 50.2-66.4", "63.6 55.2-71.9", "12", "10", ""],
        ["macro mean", "72.2 60.1-79.9", "61.1 52.2-69.4", "65.1 56.0-73.0", "12", "10", ""],
    ],
    "Matching": [
        ["Rule", "Precision", "Recall", "F1", "Correct", "A predicted entity is right if"],
        ["strict", "70.0", "58.3", "63.6", "7", RULES[0]],
        ["exact", "80.0", "66.7", "72.7", "8", RULES[1]],
        ["partial", "85.0", "70.8", "77.3", "8.5", RULES[2]],
        ["type", "80.0", "66.7", "72.7", "8", RULES[3]],
    ],
    "Errors": [
        ["Kind", "Errors", "% of all"],
        *(list(row) for row in zip(KINDS, "11021", ("20.0", "20.0", "0.0", "40.0", "20.0"))),
    ],
    "Guarantees": [
        ["Guarantee", "Level", "Confidence level", "Fitted to documents", "Found here"],
        ["recall of LOC", "90.0", "95.0", "40", "92.4"],
        ["recall of PER", "90.0", "95.0", "40", "-"],
        ["set_coverage", "80.0", "on average", "50", "-"],
        ["Threshold", "Candidates per gold entity", "% of the gold entities of a document"],
        ["0.9", "0.50", "41.0"],
        ["0.02", "1.50", "90.0"],
        ["by label", "1.86", "92.4"],
    ],
    "Training": [
        ["Step", "Epoch", "loss ner", "ents_f"],
        ["0", "0", "80.50", "0.00"],
        ["100", "1", "31.00", "41.00"],
        ["200", "2", "12.50", "-"],
        ["300", "3", "8.00", "60.50"],
    ],
}


@pytest.mark.parametrize("section", TABLES)
def test_report_page_tables_match_figures(page, section):
    assert [row for table in page.tables[section] for row in cells(table)] == TABLES[section]


def test_report_page_tells_what_figures_are_about(page):
    about = re.findall(r" · (.*document \d+)", page.sections["Errors"])
    assert about == [
        "confidence 0.981 · document 3",
        "confidence 0.774 · document 1",
        "confidence 0.512 · document 0",
        "probability of the gold entity 0.231 · document 4",
        "document 5",
    ]
    assert "of 4 documents with complete annotation" in words(page.sections["Guarantees"])
    assert "300 steps, up to epoch 3." in page.sections["Training"]
    assert "the densest from 2 on" in words(page.sections["Transitions"])
    left_out = "Left out, with fewer than 5 entities each: 3 bins, with 4 entities."
    assert left_out in words(page.sections["Confidence"])
    figures = compared()
    figures["intervals"] = FIGURES["intervals"] | {"level": 0.9, "resamples": 300}
    figures["comparison"] |= {"test": "another test", "resamples": 2000}
    text = words(Page(report_page(figures)).text)
    assert "90 % intervals by the bootstrap over documents, with 300 resamples" in text
    assert "p is from the another test, with 2,000 resamples." in text


def test_report_page_bars_match_scores(page):
    drawn = [each for each in page.all("rect") if each.get("height") == "4"]
    dots = [each["cx"] for each in page.all("circle") if each["cy"] == "4"]
    assert (drawn[0]["x"], drawn[0]["width"], dots[0]) == ("44.0", "25.0", "57.1")
    figures = bare() | {"intervals": copy.deepcopy(FIGURES["intervals"])}
    figures["intervals"]["per_type"]["LOC"] = {}
    bar = next(each for each in Page(report_page(figures)).all("rect") if each["height"] == "4")
    assert (bar["x"], bar["width"]) == ("57.1", "0.0")


@pytest.mark.parametrize("figures, name", [(FIGURES, "example"), (large(3, 1), "")])
def test_report_page_confusion_table_matches_figures(html, figures, name):
    table = Page(html[name] if name else report_page(figures)).tables["Confusion"][0]
    labels, counts = figures["confusion"]["labels"], figures["confusion"]["counts"]
    assert table[0] == ["Gold → predicted", *labels, "missed"]
    assert [row[0] for row in table[1:]] == [*labels, "spurious"]
    shown = [[int(cell) if cell else 0 for cell in row[1:]] for row in table[1:]]
    assert shown == counts
    assert table[-1][-1] == ""


def test_report_page_confusion_density_matches_share_of_row(html):
    section = html["example"].partition('<section id="Confusion">')[2].partition("</section>")[0]
    found = re.findall(r'<td(?: class="([^"]*)")? style="--density:(\d+)%">(\d+)</td>', section)
    expected = []
    for i, row in enumerate(FIGURES["confusion"]["counts"]):
        for j, number in enumerate(row[: 4 - (i == 3)]):  # the last cell is empty
            kinds = ["right"] * (i == j) + ["zero"] * (number == 0)
            share = (number / sum(row)) ** 0.5
            expected.append((" ".join(kinds), f"{100 * share:.0f}", str(number)))
    assert found == expected


def test_report_page_many_or_long_labels_are_upright(html):
    long = copy.deepcopy(FIGURES)
    long["confusion"]["labels"][0] = "L" * 11
    kinds = [
        each["class"]
        for page in (html["example"], html["large"], report_page(long))
        for each in Page(page).all("table")
        if each["class"].startswith("matrix") and "map" not in each["class"]
    ]
    assert kinds == ["matrix", "matrix upright", "matrix upright"]


@pytest.mark.parametrize("name, figures", [("example", FIGURES), ("large", large())])
def test_each_error_shows_gold_and_predicted_in_context(html, name, figures):
    articles, errors = Page(html[name]).articles, figures["errors"]["list"]
    assert len(articles) == len(errors)
    for article, told in zip(articles, errors):
        assert article["attributes"]["data-kind"] == told["kind"]
        entities = told["gold"], told["predicted"]
        labels = {entity["label"] for entity in entities if entity}
        assert json.loads(article["attributes"]["data-labels"]) == sorted(labels)
        whole = told["before"] + told["text"] + told["after"]
        assert article["attributes"]["data-text"] == whole
        sure = "", "" if told["confidence"] is None else f"{told['confidence']:.3f}"
        for entity, text, mark, p in zip(entities, article["sides"], article["marks"], sure):
            label = entity["label"] + p if entity else ""
            assert mark == (entity["text"] + label if entity else "")
            end = entity["end"] - told["offset"] + len(told["before"]) if entity else 0
            # The next heading, as text of the same article, is no part of the side.
            assert text.startswith(whole[:end] + label + whole[end:])


def test_error_shows_all_entities_of_its_context_and_outlines_the_one_in_question():
    """A reader judges gold: it must not look as if it lacked the entities beside an error."""
    text = "Ida met Bo Ek, a poet, in Ulm."
    found = error(
        "spurious", 0.5, 0, ("Ida met Bo Ek, a ", "poet", ", in Ulm."), None, ("poet", "X")
    )
    gold = [entity(text, "Bo Ek", "PER", 0), entity(text, "Ulm", "LOC", 0)]
    inner, crossing = entity(text, "Ek", "NAME", 0), entity(text, "Ek, a", "TITLE", 0)
    far = {"start": -9, "end": 3, "label": "PER", "text": "Dr and Ida"}  # begins in the text before
    found["beside"] = {"gold": [far, *gold, crossing, inner], "predicted": gold[1:]}
    figures = FIGURES | {"errors": {"counts": FIGURES["errors"]["counts"], "list": [found]}}
    html = report_page(figures)
    (article,) = Page(html).articles
    gold_side, predicted_side = article["marks"]
    assert gold_side == "IdaPERBo EkNAMEPERUlmLOC" + "Ek, aTITLE"
    assert predicted_side == "poetX0.500UlmLOC"
    assert "Overlapping: Ek, a" in article["sides"][0]
    outlined = re.findall(r'<mark class="asked"[^>]*>([^<]*)<', html)
    assert outlined == ["poet"]


def test_report_page_shows_first_100_errors(html):
    page = Page(html["large"])
    hidden = ["hidden" in article["attributes"] for article in page.articles]
    assert hidden == [False] * 100 + [True] * 200
    assert "Without JavaScript, these are the first 100." in page.text


def test_report_page_counts_errors_over_limit(monkeypatch):
    monkeypatch.setattr("spacy_crf_ner.report.html.MAX_ERRORS", 150)
    page = Page(report_page(bare() | {"errors": large(2, 1_350)["errors"]}))
    assert len(page.articles) == 150
    assert "1,200 more are in report.json." in page.text


def test_report_page_confidence_section_shows_figures(page):
    told = words(page.sections["Confidence"])
    assert "Expected calibration error 7.1 % (3.1 % by chance), Brier score 0.183, of 10" in told
    bins, curve = map(cells, page.tables["Confidence"])
    assert bins[1] == ["0.000 to 0.067", "0", "-", "-"]
    assert bins[12] == ["0.733 to 0.800", "2", "77.9", "50.0"]
    assert [row[1] for row in bins[1:]] == [
        str(each["count"]) for each in FIGURES["reliability"]["bins"]
    ]
    assert curve == [
        ["Threshold", "Entities", "Precision", "Recall"],
        ["0.00", "10", "70.0", "58.3"],
        ["0.50", "10", "70.0", "58.3"],
        ["0.80", "7", "85.7", "50.0"],
        ["0.90", "6", "83.3", "41.7"],
        ["0.99", "0", "-", "0.0"],
    ]


def test_transitions_are_drawn_as_a_table_of_colored_cells(page, html):
    (table,) = page.tables["Transitions"]
    assert cells(table)[0] == ["", "O", "B-LOC", "I-LOC", "end"]
    assert cells(table)[3] == ["B-LOC", "-0.75", "0.25", "2.50", "0.20"]
    assert '<td class="favored" style="--density:100%">2.50</td>' in html["compared"]
    assert html["compared"].count('<td class="forbidden"></td>') == 2


def test_report_page_draws_training_speed_in_separate_plot():
    rows = copy.deepcopy(FIGURES["training"])
    for row in rows:
        row["scores"]["speed"] = 5_000.0 + row["step"]
    rows[2]["losses"]["tagger"] = 7.5
    page = Page(report_page(bare() | {"training": rows}))
    about = [each["aria-label"] for each in page.all("svg") if "aria-label" in each]
    expected = ["losses: ner, tagger.", "scores: ents_f.", "speed: speed."]
    assert [each.rpartition("; ")[2] for each in about] == expected
    table = cells(page.tables["Training"][0])  # also of a loss that begins later
    assert table[0] == ["Step", "Epoch", "loss ner", "loss tagger", "ents_f", "speed"]
    assert [row[3] for row in table[1:]] == ["-", "-", "7.50", "-"]


def test_report_page_comparison_shows_both_models(page):
    models = ["Old", "New"]
    scores, errors = map(cells, page.tables["Comparison"])
    assert scores == [
        ["Strict", *models, "New minus old", "p"],
        ["Precision, micro", "70.0 61.1-78.9", "61.1 61.1-78.9", "+8.9 +3.1 to +14.2", "< 0.001"],
        ["Recall, micro", "58.3 50.2-66.4", "51.1 50.2-66.4", "+7.2 -1.2 to +15.1", "0.094"],
        ["F1, micro", "63.6 55.2-71.9", "55.7 55.2-71.9", "+8.0 +1.1 to +14.7", "0.021"],
        ["DATE F1", "-", "-", "-", "-"],
        ["ORG F1", "40.0 15.5-64.9", "40.0 15.5-64.9", "+0.0", "1.000"],
        ["PER F1", "80.0 72.0-88.0", "72.1 72.0-88.0", "-2.1 -12.0 to +9.0", "0.700"],
    ]
    counts = zip(KINDS, "11021", ("11", "12", "13", "14", "15"))
    assert errors == [["Errors", *models], *map(list, counts)]


def test_report_page_bold_only_if_interval_excludes_zero(html):
    bold = re.findall(r'<td class="significant">(\S+)', html["compared"])
    assert bold == ["+8.9", "+8.0"]
    worse = compared()
    worse["comparison"]["difference"]["per_type"]["PER"]["f1"]["interval"] = [-0.12, -0.01]
    bold = re.findall(r'<td class="significant">(\S+)', report_page(worse))
    assert bold == ["+8.9", "+8.0", "\N{MINUS SIGN}2.1"]


def test_report_page_p_is_limited_by_number_of_resamples():
    figures = compared()
    figures["comparison"]["resamples"] = 100
    table = Page(report_page(figures)).tables["Comparison"][0]
    assert [row[-1] for row in table[1:3]] == ["< 0.010", "0.094"]
    figures["comparison"]["difference"]["micro"]["recall"]["p"] = 0.01  # one of 100
    table = Page(report_page(figures)).tables["Comparison"][0]
    assert [row[-1] for row in table[1:3]] == ["< 0.010", "0.010"]


def test_report_page_without_confidences_shows_notes(html):
    page = Page(html["bare"])
    assert list(page.sections) == [
        "Labels", "Matching", "Confusion", "Errors", "Confidence", "Transitions",
    ]  # fmt: skip
    assert "This pipeline does not set confidences." in page.text
    assert "This pipeline has no transition scores." in page.text
    assert not [each for each in page.all("svg") if each.get("role") == "img"]
    assert "· confidence" not in page.text


def test_report_page_without_entities_is_valid(html):
    page = Page(html["empty"])
    assert "There are no gold and no predicted entities" in page.text
    assert "There are no errors." in page.text
    assert "Expected calibration error - %" in words(page.text)
    assert "F1, micro- " in words(page.text)
    for not_data in ("nan", "None", "null"):
        assert not_data not in page.text


def test_figures_that_were_written_as_json_give_the_same_page(html):
    """As all that are the same do: both of them, and their plots, are drawn anew."""
    assert report_page(json.loads(json.dumps(compared()))) == html["compared"]


# Gold annotation that is probably wrong


def finding(found: dict[str, Any], q: float | None, odds: float, *texts: int) -> dict[str, Any]:
    support = dict(zip(("predicted", "gold"), texts))
    return {**found, "gold_probability": q, "log_odds": odds, "support": support}


TASK: dict[str, Any] = {"text": "It's </script> & \u2028", "spans": [], "answer": "ignore"}


def test_review_page_finding_shows_probabilities():
    findings = [
        finding(ERRORS[0], 0.011, 4.25, 1234, 5),
        finding(ERRORS[2], None, 2.0, 6, 7),
        finding(ERRORS[3], 0.125, 1.5, 0, 0),
    ]
    tasks = dict.fromkeys((0, 3, 4), TASK)
    facts = [("Corpus", "dev.spacy")]
    page = Page(review_page(findings, tasks, facts, "the summary", "the method"))
    assert re.findall(" · (.*document .*)", page.text) == [
        "log odds 4.2 · confidence 0.981 · probability of the gold entity 0.011 · "
        "other texts: 1,234 as predicted, 5 as gold · document 3",
        "log odds 2.0 · confidence 0.512 · other texts: 6 as predicted, 7 as gold · document 0",
        "log odds 1.5 · probability of the gold entity 0.125 · document 4",
    ]
    for told in ("the summary", "the method", "Corpusdev.spacy Made2023-11-14, "):
        assert told in words(page.text)


def test_review_page_has_documents_of_findings_as_data():
    findings = [finding(each, 0.1, 1.0, 1, 1) for each in (ERRORS[0], ERRORS[3])]
    html = review_page(findings, {3: TASK, 4: TASK}, [], "", "")
    (data,) = re.findall('<script type="application/json" id="tasks">(.*?)</script>', html)
    assert json.loads(data) == {"3": TASK, "4": TASK}
    changes = [json.loads(each["data-finding"]) for each in Page(html).all("article")]
    assert changes == [
        {"doc": 3, "gold": ERRORS[0]["gold"], "predicted": ERRORS[0]["predicted"]},
        {"doc": 4, "gold": ERRORS[3]["gold"], "predicted": None},
    ]


def test_review_page_counts_findings_over_limit(monkeypatch):
    monkeypatch.setattr("spacy_crf_ner.report.html.MAX_ERRORS", 3)
    findings = [finding(each, 0.1, 1.0, 1, 1) for each in ERRORS]
    page = Page(review_page(findings, dict.fromkeys((0, 1, 3, 4), TASK), [], "", ""))
    assert len(page.articles) == 3  # document 5 has no task
    assert "2 more are in findings.jsonl." in page.text
    kinds = [each["value"] for each in page.all("option") if "value" in each]
    assert kinds == ["spurious", "wrong boundary", "wrong type", "LOC", "ORG", "PER"]


# Data, never markup


def test_report_page_escapes_words_of_corpus_and_user(html):
    page = Page(html["hostile"])
    assert not page.all("img")
    assert len(page.all("script")) == 1
    assert not [key for _, each in page.elements for key in each if key.startswith("on")]
    assert f"{EVIL}/model-best" in page.text
    for section in ("Labels", "Confusion", "Errors", "Transitions", "Training", "Comparison"):
        assert EVIL in page.sections[section], section
    assert f"B-{EVIL}" in page.sections["Transitions"]
    assert "{x} &amp; </p>" in page.sections["Errors"]


@pytest.mark.parametrize("name", PAGES)
def test_report_page_loads_no_external_resource(html, name):
    page = Page(html[name])
    for tag, attributes in page.elements:
        for key in ("src", "href", "action", "data", "srcset", "poster"):
            if key in attributes:
                assert re.match("#|data:|documents.html$", attributes[key]), (tag, attributes)
        assert "url(" not in attributes.get("style", "")
        assert attributes.get("clip-path", "url(#").startswith("url(#")
    style = re.search(r"<style>(.*?)</style>", html[name], re.DOTALL)
    assert style and "url(" not in style[1] and "@import" not in style[1]
    assert not re.search(r"\bfetch\b|XMLHttpRequest|import\b|innerHTML", page_script(html[name]))


def page_script(html: str) -> str:
    script = re.search(r"<script>(.*?)</script>\n</body>", html, re.DOTALL)
    assert script
    return script[1]


@pytest.mark.parametrize("name", PAGES)
def test_report_page_is_accessible(html, name):
    page = Page(html[name])
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert all(each.get("scope") in ("row", "col") for each in page.all("th"))
    for svg in page.all("svg"):
        assert svg.get("aria-hidden") == "true" or svg["aria-label"]
    assert [tag for tag, _ in page.elements if re.fullmatch("h[1-6]", tag)] == (
        ["h1"] + ["h2"] * len(page.sections)
    )
    links = [each["href"] for each in page.all("a")]
    assert links == [*(f"#{section}" for section in page.sections), "documents.html"]
    for box in (each for each in page.all("div") if each.get("class", "").startswith("scroll")):
        assert box["tabindex"] == "0" and box["aria-label"]


# Looks


def luminance(color: tuple[float, ...]) -> float:
    """Relative luminance. Source: WCAG 2.2."""
    parts = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in color]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), parts))


def contrast(a: tuple[float, ...], b: tuple[float, ...]) -> float:
    darker, lighter = sorted((luminance(a), luminance(b)))
    return (lighter + 0.05) / (darker + 0.05)


def mixed(a: tuple[float, ...], b: tuple[float, ...], share: float) -> tuple[float, ...]:
    return tuple(share * x + (1 - share) * y for x, y in zip(a, b))


def colors_in(block: str) -> dict[str, tuple[float, ...]]:
    return {
        name: tuple(int(part * (2 // len(part)), 16) / 255 for part in re.findall(size, digits))
        for name, digits in re.findall(r"--(\w+): #(\w+);", block)
        for size in ["." * (len(digits) // 3)]
    }


def test_stylesheet_text_has_sufficient_contrast():
    found = re.findall(r":root \{([^}]*)\}", STYLE)
    assert len(found) == 3  # light, dark, on paper
    (of_map,) = re.findall(r"\.map \{([^}]*)\}", STYLE)
    dots = colors_in(found[0])  # of confidences, with white numbers, everywhere
    for block in found:
        color = colors_in(block)
        for name in ("ink", "muted", "accent", "wrong"):
            assert contrast(color[name], color["ground"]) >= 4.5, (name, block)
        assert min(contrast(dots[end], (1.0, 1.0, 1.0)) for end in ("red", "green")) >= 4.5
        color |= colors_in(of_map)
        for name, most in (("accent", 0.4), ("wrong", 0.5), ("favored", 0.6), ("penalized", 0.6)):
            assert f"var(--{name}) calc(var(--density) * {str(most)[1:]})" in STYLE
            cell = mixed(color[name], color["ground"], most)
            assert contrast(color["ink"], cell) >= 4.5, (name, block)


# In a browser


@browser
def test_report_page_in_browser_runs_no_script_of_corpus(html, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(html["hostile"], encoding="utf-8")
    dom, console = visit(path, tmp_path / "profile")
    assert console == []
    assert "<title>1</title>" not in dom
    assert "6 found." in dom  # our own script has run
    # In the browser's own tree no image is left of it, and all is still there as text.
    page, written = Page(dom), Page(html["hostile"])
    assert not page.all("img") and len(page.all("script")) == 1
    assert page.text.count(EVIL) == written.text.count(EVIL) > 0


@browser
def test_report_page_policy_blocks_markup_in_browser(html, tmp_path):
    """If some text is not escaped, the test above fails, and this policy protects the reader."""
    path = tmp_path / "page.html"
    path.write_text(html["bare"].replace("<main>", f"<main>{EVIL}"), encoding="utf-8")
    dom, console = visit(path, tmp_path / "profile")
    assert len(console) >= 2 and all("Content Security Policy" in line for line in console)
    assert "<title>1</title>" not in dom


FILTERING = """
const report = [];
const note = () => report.push([
  articles.filter((each) => !each.hidden).length,
  document.getElementById("found").textContent,
  more.hidden,
]);
const choose = (select, value) => {
  select.value = value;
  select.dispatchEvent(new Event("change"));
  note();
};
note();
more.click();
note();
report.push(document.activeElement === articles[100]);
choose(label, "LABEL_03");
choose(kind, "missed");
choose(kind, "wrong type");
choose(label, "all");
search.value = "WARD 59";
search.dispatchEvent(new Event("input"));
note();
document.body.textContent = JSON.stringify(report);
"""


@browser
def test_errors_are_filtered_and_more_are_shown(tmp_path):
    path = tmp_path / "page.html"
    many = report_page(bare() | {"errors": large(4, 600)["errors"]})
    path.write_text(driven(many, FILTERING), encoding="utf-8")
    dom, console = visit(path, tmp_path / "profile")
    assert console == []
    # Of four labels, each is gold in a quarter of the errors, and predicted in another quarter.
    assert json.loads(Page(dom).text.strip().rpartition("\n")[2]) == [
        [100, "The first 100 of 600.", False],
        [200, "The first 200 of 600.", False],
        True,
        [100, "The first 100 of 300.", False],
        [0, "0 found.", True],
        [100, "The first 100 of 300.", False],
        [100, "The first 100 of 600.", False],
        [11, "11 found.", True],  # Ward 59, and Ward 590 to 599
    ]


@browser
@pytest.mark.parametrize("width", [400, 1280])
def test_report_page_fits_browser_width(html, tmp_path, width):
    tell = (
        "document.querySelectorAll('details').forEach((each) => { each.open = true; });"
        "parent.postMessage(document.documentElement.scrollWidth, '*');"
    )
    names = ("hostile", "large")
    for name in names:
        (tmp_path / f"{name}.html").write_text(driven(html[name], tell), encoding="utf-8")
    frames = "".join(
        f"<iframe src='{name}.html' style='width:{width}px;border:0'></iframe>" for name in names
    )
    listen = "addEventListener('message', (told) => { document.title += ' ' + told.data; });"
    path = tmp_path / "frames.html"
    path.write_text(f"<title></title><script>{listen}</script>{frames}", encoding="utf-8")
    dom, _ = visit(path, tmp_path / "profile")
    title = re.search("<title>(.*)</title>", dom)
    assert title and len(title[1].split()) == 2
    assert all(int(each) <= width for each in title[1].split())
