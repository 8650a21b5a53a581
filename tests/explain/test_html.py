"""The page of a trellis: what a browser would find in it."""

import copy
import re
from html.parser import HTMLParser
from typing import Any

import pytest
from spacy.language import Language

from spacy_crf_ner.explain import html as module
from spacy_crf_ner.explain.html import trellis_page
from spacy_crf_ner.explain.trellis import explain

EVIL = "<script>alert(1)</script>"


class Page(HTMLParser):
    """The elements with their attributes, and the text within each."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, Any]]] = []
        self.text: list[tuple[str, str]] = []
        self.inside: list[str] = []
        self.feed(html)
        assert not self.inside  # each element is closed

    def handle_starttag(self, tag: str, attrs: list[tuple[str, Any]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in ("meta", "link"):
            self.inside.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, Any]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.inside.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append((self.inside[-1] if self.inside else "", data))

    def of(self, tag: str, kind: str) -> list[dict[str, Any]]:
        """The attributes of all elements of a tag and a class."""
        found = [attrs for name, attrs in self.elements if name == tag]
        return [attrs for attrs in found if attrs.get("class") == kind]


@pytest.fixture(scope="module")
def explanation(trained: Language) -> dict[str, Any]:
    return explain(trained, "Tim Cook visited Hanoi.")


def test_trellis_page_draws_each_node_and_backpointer(explanation: dict[str, Any]) -> None:
    page = Page(trellis_page(explanation))
    T, C = 5, 13
    unreached = 6  # at the first token: I and L of three labels
    assert len(page.of("circle", "unreachable")) == unreached
    assert len(page.of("rect", "path node")) == T
    assert len(page.of("rect", "node")) == T * C - unreached - T
    assert len(page.of("line", "path edge")) == T - 1
    assert len(page.of("line", "edge")) == (T - 1) * (C - 1)
    scores = [text for tag, text in page.text if tag == "text" and re.fullmatch(r"-?\d+\.\d", text)]
    told = [score for row in explanation["scores"] for score in row if score is not None]
    assert sorted(map(float, scores)) == pytest.approx(sorted(told), abs=0.051)


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
    explanation["marginals"] = [[(13 * t + c) / 100 for c in range(13)] for t in range(5)]
    page, tags, expected = Page(trellis_page(explanation)), explanation["tags"], []
    for t, token in enumerate(explanation["tokens"]):
        for c, tag in enumerate(tags):
            score, before = explanation["scores"][t][c], explanation["backpointers"][t][c]
            if score is None:
                expected.append(f"{token}, {tag}: no legal path")
                continue
            came = "" if before is None else f", backpointer {tags[before]}"
            emission, p = explanation["emissions"][t][c], explanation["marginals"][t][c]
            numbers = f"emission {emission:.3f}, probability {p:.3f}"
            expected.append(f"{token}, {tag}: score {score:.3f}{came}, {numbers}")
    assert [text for tag, text in page.text if tag == "title" and ": " in text] == expected
    # The middle of each node, by token and tag.
    boxes = [attrs for tag, attrs in page.elements if tag == "rect" and "fill-opacity" in attrs]
    middle = [(float(box["x"]) + 24, float(box["y"]) + 11) for box in boxes]
    xs, ys = (sorted({each[i] for each in middle}) for i in range(2))
    assert (len(xs), len(ys)) == (5, 13)
    shades = {(xs.index(x), ys.index(y)): box for (x, y), box in zip(middle, boxes)}
    for (t, c), box in shades.items():
        assert box["fill-opacity"] == f"{explanation['marginals'][t][c]:.3f}"
    lines = [attrs for tag, attrs in page.elements if tag == "line"]
    found = {
        (xs.index(float(line["x2"]) + 24), ys.index(float(line["y2"]))): line for line in lines
    }
    assert len(found) == len(lines) == 4 * 13
    for (t, c), line in found.items():
        assert float(line["x1"]) == xs[t - 1] + 24
        assert float(line["y1"]) == ys[explanation["backpointers"][t][c]]


def test_trellis_page_gives_long_names_enough_width(explanation: dict[str, Any]) -> None:
    long = copy.deepcopy(explanation)
    long["tokens"][1] = "C" * 20
    page = Page(trellis_page(long))
    ends = 0.0
    for attrs, token in zip(page.of("text", "token"), long["tokens"], strict=True):
        half = max(48, 7.5 * len(token)) / 2  # a node, or the name
        assert float(attrs["x"]) - half >= ends
        ends = float(attrs["x"]) + half
    names, drawing = (attrs for tag, attrs in page.elements if tag == "svg")
    assert ends <= float(drawing["width"])
    assert float(names["width"]) >= 7.5 * len("L-PERSON")


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
    assert ("blockquote", evil["text"]) in page.text
    assert ("td", EVIL) in page.text
    assert any(tag == "title" and text == EVIL for tag, text in page.text)


def test_trellis_page_loads_no_external_resource(explanation: dict[str, Any]) -> None:
    html = trellis_page(explanation)
    assert not re.search(r"https?:|url\(|@import", html)
    asking = ("src", "href", "srcset", "data", "action")
    asked = [attrs[key] for _, attrs in Page(html).elements for key in asking if key in attrs]
    assert asked == ["data:,"]  # the icon


def test_trellis_page_large_trellis_draws_only_relevant_rows(
    explanation: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_NODES", 5 * 13)
    assert "left out" not in trellis_page(explanation)
    monkeypatch.setattr(module, "MAX_NODES", 5 * 13 - 1)
    small = copy.deepcopy(explanation)
    # Sure of its path: B-PERSON, L-PERSON, O, U-GPE, whose back-pointers lead along it.
    small["marginals"] = [[float(c == chosen) for c in range(13)] for chosen in explanation["path"]]
    page = Page(trellis_page(small))
    names = [text for tag, text in page.text if tag == "text" and text in small["tags"]]
    assert sorted(names) == ["B-PERSON", "L-PERSON", "O", "U-GPE"]
    assert len(page.of("line", "path edge")) == 4
    assert "9 of 13 tags are left out" in trellis_page(small)


def test_trellis_page_empty_text_shows_message(trained: Language) -> None:
    page = Page(trellis_page(explain(trained, "")))
    assert "svg" not in {tag for tag, _ in page.elements}
    assert ("p", "The text has no token, so there is nothing to search.") in page.text


def test_trellis_page_shows_whitespace_token_as_repr(trained: Language) -> None:
    page = Page(trellis_page(explain(trained, "Hanoi \n\n Paris")))
    assert ("td", repr("\n\n ")) in page.text
