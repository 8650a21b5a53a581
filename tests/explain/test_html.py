"""The page of a trellis: what a browser would find in it."""

import copy
import re
from typing import Any

import pytest
from spacy.language import Language

import html_pages
from spacy_crf_ner.explain.html import trellis_page
from spacy_crf_ner.explain.trellis import explain

EVIL = "<script>alert(1)</script>"


class Page(html_pages.Page):
    """A page, with the text within each element."""

    def __init__(self, html: str) -> None:
        self.texts: list[tuple[str, str]] = []
        super().__init__(html)

    def handle_data(self, data: str) -> None:
        self.texts.append((self.open[-1] if self.open else "", data))
        super().handle_data(data)

    def of(self, tag: str, kind: str) -> list[dict[str, str]]:
        """The attributes of all elements of a tag and a class."""
        return [attrs for attrs in self.all(tag) if attrs.get("class") == kind]


@pytest.fixture(scope="module")
def explanation(trained: Language) -> dict[str, Any]:
    return explain(trained, "Tim Cook visited Hanoi.")


def nodes_to_draw(explanation: dict[str, Any]) -> set[tuple[int, int]]:
    """The path, the nodes with a probability of 0.01, and all that backpointers lead to."""
    drawn = set(enumerate(explanation["path"]))
    for t, row in enumerate(explanation["marginals"]):
        drawn |= {(t, c) for c, p in enumerate(row) if p >= 0.01}
    for _ in explanation["tokens"]:
        drawn |= {(t - 1, explanation["backpointers"][t][c]) for t, c in drawn if t}
    return drawn


def test_trellis_page_draws_only_relevant_nodes_with_their_backpointers(
    explanation: dict[str, Any],
) -> None:
    page, drawn = Page(trellis_page(explanation)), nodes_to_draw(explanation)
    T, C = 5, len({c for _, c in drawn})
    assert T <= len(drawn) < 5 * 13
    assert len(page.of("rect", "path node")) == T
    assert len(page.of("rect", "node")) == len(drawn) - T
    assert len(page.of("line", "path edge")) == T - 1
    assert len(page.of("line", "edge")) == sum(t > 0 for t, _ in drawn) - (T - 1)
    told = [f"{explanation['marginals'][t][c]:.2f}" for t, c in drawn]
    found = [text for tag, text in page.texts if tag == "text" and re.fullmatch(r"\d\.\d\d", text)]
    assert sorted(found) == sorted(told)
    assert f"and {13 - C} of 13 tags, which" in trellis_page(explanation)


def test_trellis_page_table_rows_match_explanation(explanation: dict[str, Any]) -> None:
    path, score, expected = explanation["path"], 0.0, []
    for t, c in enumerate(path):
        move = explanation["transitions"][path[t - 1]][c] if t else explanation["start"][c]
        emission, p = explanation["emissions"][t][c], explanation["marginals"][t][c]
        after = explanation["scores"][t][c]
        assert after == pytest.approx(score + move + emission, abs=1e-4)
        numbers = f"{score:.2f} {move:.2f} {emission:.2f} {after:.2f} {p:.3f}"
        expected.append([explanation["tokens"][t], explanation["tags"][c], *numbers.split()])
        score = after
    end, total = explanation["end"][path[-1]], explanation["score"]
    assert total == pytest.approx(score + end, abs=1e-4)
    expected.append(["", "end", f"{score:.2f}", f"{end:.2f}", "", f"{total:.2f}", ""])
    html = trellis_page(explanation)
    cells = re.findall("<td>(.*?)</td>", html)
    assert [cells[i : i + 7] for i in range(0, 42, 7)] == expected
    assert cells[42::2] == [f"{each['probability']:.4f}" for each in explanation["labelings"]]
    assert f"highest score, {total:.2f}," in html


def test_trellis_page_nodes_and_edges_match_explanation(explanation: dict[str, Any]) -> None:
    explanation = copy.deepcopy(explanation)
    explanation["marginals"] = [
        [0.0 if score is None else (13 * t + c + 1) / 100 for c, score in enumerate(row)]
        for t, row in enumerate(explanation["scores"])
    ]
    page, tags = Page(trellis_page(explanation)), explanation["tags"]
    drawn = sorted(nodes_to_draw(explanation))
    assert len(drawn) == 5 * 13 - 6  # all but I and L of three labels at the first token
    expected = []
    for t, c in drawn:
        token, score, before = (explanation[key][t] for key in ("tokens", "scores", "backpointers"))
        came = "" if before[c] is None else f", backpointer {tags[before[c]]}"
        emission, p = explanation["emissions"][t][c], explanation["marginals"][t][c]
        numbers = f"probability {p:.3f}, emission {emission:.3f}, score {score[c]:.3f}"
        expected.append(f"{token}, {tags[c]}: {numbers}{came}")
    assert [text for tag, text in page.texts if tag == "title" and ": " in text] == expected
    # The middle of each node, by token and tag.
    boxes = [attrs for tag, attrs in page.elements if tag == "rect" and "fill-opacity" in attrs]
    middle = [(float(box["x"]) + 21, float(box["y"]) + 11) for box in boxes]
    xs, ys = (sorted({each[i] for each in middle}) for i in range(2))
    assert (len(xs), len(ys)) == (13, 5)
    shades = {(ys.index(y), xs.index(x)): box for (x, y), box in zip(middle, boxes)}
    assert sorted(shades) == drawn
    for (t, c), box in shades.items():
        assert box["fill-opacity"] == f"{explanation['marginals'][t][c]:.3f}"
    lines = [attrs for tag, attrs in page.elements if tag == "line"]
    found = {
        (ys.index(float(line["y2"]) + 11), xs.index(float(line["x2"]))): line for line in lines
    }
    assert len(found) == len(lines) == 4 * 13
    for (t, c), line in found.items():
        assert float(line["y1"]) == ys[t - 1] + 11
        assert float(line["x1"]) == xs[explanation["backpointers"][t][c]]


def names_in(html: str, *kinds: str) -> list[tuple[float, str]]:
    """The names of some kinds, with the place of each."""
    found = re.findall(r'<text class="(\w+)" x="([\d.]+)"[^>]*><title>(.*?)</title>', html)
    return [(float(x), name) for kind, x, name in found if kind in kinds]


def test_trellis_page_gives_long_names_enough_width(explanation: dict[str, Any]) -> None:
    long = copy.deepcopy(explanation)
    long["tokens"][1] = "C" * 14
    long["tags"] = [tag.replace("PERSON", "P" * 14) for tag in long["tags"]]
    html = trellis_page(long)
    _, header, names, drawing = (attrs for tag, attrs in Page(html).elements if tag == "svg")
    assert float(names["width"]) >= 7.5 * 14 + 8
    assert header["width"] == drawing["width"]
    ends = 0.0
    for x, name in sorted(names_in(html, "tag")):
        half = max(42, 6.5 * len(name)) / 2  # a node, or the name
        assert x - half >= ends
        ends = x + half
    assert ends <= float(drawing["width"])
    assert "P" * 14 in {name for _, name in names_in(html, "tag")}


def test_trellis_page_escapes_text_and_labels(explanation: dict[str, Any]) -> None:
    evil = copy.deepcopy(explanation)
    evil["text"] = f"{EVIL} {{trellis}} & x"
    evil["tokens"][0] = EVIL
    evil["tags"] = [f"B-{EVIL}{i}" for i in range(13)]
    evil["component"] = EVIL
    for labeling in evil["labelings"]:
        labeling["entities"] = [{"start": 0, "end": 1, "text": EVIL, "label": EVIL}]
    page = Page(trellis_page(evil))
    assert "script" not in {tag for tag, _ in page.elements}
    assert ("blockquote", evil["text"]) in page.texts
    assert ("td", EVIL) in page.texts
    assert any(tag == "title" and text == EVIL for tag, text in page.texts)


def test_trellis_page_loads_no_external_resource(explanation: dict[str, Any]) -> None:
    html = trellis_page(explanation)
    assert not re.search(r"https?:|url\(|@import", html)
    asking = ("src", "href", "srcset", "data", "action")
    asked = [attrs[key] for _, attrs in Page(html).elements for key in asking if key in attrs]
    assert asked == ["data:,"]  # the icon


def test_trellis_page_of_sure_model_draws_the_path_alone(explanation: dict[str, Any]) -> None:
    small = copy.deepcopy(explanation)
    # Sure of its path: B-PERSON, L-PERSON, O, U-GPE, whose back-pointers lead along it.
    small["marginals"] = [[float(c == chosen) for c in range(13)] for chosen in explanation["path"]]
    page = Page(trellis_page(small))
    assert sorted(name for _, name in names_in(trellis_page(small), "prefix", "tag")) == [
        "B", "GPE", "L", "O", "PERSON", "PERSON", "U",
    ]  # fmt: skip
    assert len(page.of("line", "path edge")) == 4 and page.of("line", "edge") == []
    assert "and 9 of 13 tags, which" in trellis_page(small)


def test_trellis_page_head_has_pipeline_and_calibration(explanation: dict[str, Any]) -> None:
    html = trellis_page(explanation, "training/model-best")
    found = re.findall("<dt>(.*?)</dt><dd>(.*?)</dd>", html)
    assert found[:-1] == [
        ("Pipeline", "training/model-best"),
        ("Component", "crf_ner"),
        ("Labels", "GPE, ORG, PERSON"),
        ("Size", "5 tokens, 13 tags"),
        ("Confidences", "not calibrated"),
    ]
    assert found[-1][0] == "Made"


def test_trellis_page_empty_text_shows_message(trained: Language) -> None:
    page = Page(trellis_page(explain(trained, "")))
    assert "svg" not in {tag for tag, _ in page.elements}
    assert ("p", "The text has no token, so there is nothing to search.") in page.texts


def test_trellis_page_shows_whitespace_token_as_repr(trained: Language) -> None:
    page = Page(trellis_page(explain(trained, "Hanoi \n\n Paris")))
    assert ("td", repr("\n\n ")) in page.texts
