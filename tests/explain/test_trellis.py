"""The explanation of a text: scores match Viterbi decoding, labelings match the n best."""

import math
from pathlib import Path
from typing import Any

import pytest
import spacy
from spacy.language import Language
from typer.testing import CliRunner

from pipelines import listening, make_examples, small, train
from spacy_crf_ner.cli import app
from spacy_crf_ner.explain.trellis import entities_in_words, explain, relevant_tags, visible

TEXT = "Tim Cook visited Hanoi. Nothing to see here."
runner = CliRunner()


@pytest.fixture(scope="module")
def folder(trained: Language, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("explain") / "model"
    trained.to_disk(path)
    return path


def viterbi(explanation: dict[str, Any]) -> list[int]:
    """Decode by hand, in plain loops, from what the explanation has of the potentials."""
    tags = range(len(explanation["tags"]))

    def of(value: Any) -> float:
        return -math.inf if value is None else value

    best = [of(explanation["start"][c]) + explanation["emissions"][0][c] for c in tags]
    pointers: list[list[int]] = []
    for emissions in explanation["emissions"][1:]:
        moves = [[best[i] + of(explanation["transitions"][i][c]) for i in tags] for c in tags]
        pointers.append([max(tags, key=move.__getitem__) for move in moves])
        best = [max(move) + emission for move, emission in zip(moves, emissions)]
    ended = [score + of(explanation["end"][c]) for c, score in enumerate(best)]
    path = [max(tags, key=ended.__getitem__)]
    for backpointers in reversed(pointers):
        path.append(backpointers[path[-1]])
    assert explanation["score"] == pytest.approx(max(ended), abs=1e-3)
    return path[::-1]


@pytest.mark.parametrize("text", [TEXT, "Hanoi", "Ada Lovelace Byron in Paris Texas."])
def test_explain_path_matches_plain_viterbi(trained: Language, text: str) -> None:
    explanation = explain(trained, text)
    assert explanation["path"] == viterbi(explanation)
    assert explanation["tokens"] == [token.text for token in trained.make_doc(text)]


def test_explain_scores_equal_sum_of_steps(trained: Language) -> None:
    explanation = explain(trained, TEXT)
    tags, scores = explanation["tags"], explanation["scores"]
    told = 0
    for t, emissions in enumerate(explanation["emissions"]):
        for c, emission in enumerate(emissions):
            before = explanation["backpointers"][t][c]
            if scores[t][c] is None:
                # Inside an entity, or at its last token, nothing begins.
                assert t == 0 and tags[c][0] in "IL" and before is None
                continue
            if before is None:
                assert t == 0
                expected = explanation["start"][c]
            else:
                expected = scores[t - 1][before] + explanation["transitions"][before][c]
            assert scores[t][c] == pytest.approx(expected + emission, abs=1e-4)
            told += 1
    assert told == len(tags) * len(scores) - 6
    for row in explanation["marginals"]:
        assert sum(row) == pytest.approx(1.0, abs=1e-4)


def test_explain_returns_most_probable_labelings(trained: Language) -> None:
    explanation = explain(trained, TEXT, n=3)
    assert explanation["component"] == "crf_ner"
    best, *others = explanation["labelings"]
    assert best["entities"] == [
        {"start": 0, "end": 8, "text": "Tim Cook", "label": "PERSON"},
        {"start": 17, "end": 22, "text": "Hanoi", "label": "GPE"},
    ]
    assert len(others) == 2
    assert 1.0 > best["probability"] > others[0]["probability"] >= others[1]["probability"] > 0.0
    for n in (0, -1):
        with pytest.raises(ValueError, match="expected 1 or more"):
            explain(trained, TEXT, n=n)


@pytest.mark.parametrize("text, tokens", [("", []), ("  \n ", ["  \n "])])
def test_a_text_without_words_has_an_explanation(
    trained: Language, text: str, tokens: list[str]
) -> None:
    explanation = explain(trained, text)
    assert (explanation["text"], explanation["tokens"]) == (text, tokens)
    assert explanation["path"] == [0] * len(tokens)
    assert (explanation["score"] is None) == (not tokens)
    (labeling,) = explanation["labelings"]
    assert labeling == {
        "probability": pytest.approx(1.0),
        "log_probability": pytest.approx(0.0, abs=1e-6),
        "entities": [],
    }
    assert entities_in_words(labeling) == "none"
    assert relevant_tags(explanation) == [[0]] * len(tokens)
    assert [visible(token) for token in tokens] == [repr(token) for token in tokens]


def test_explain_runs_only_components_before_recognizer() -> None:
    nlp = listening("tok2vec")
    train(nlp, make_examples(nlp), steps=3)
    ruler = nlp.add_pipe("entity_ruler", before="crf_ner")
    ruler.add_patterns([{"label": "ORG", "pattern": "visited"}])
    nlp.add_pipe("merge_entities")
    explanation = explain(nlp, "Tim Cook visited Hanoi.")
    assert explanation["tokens"] == ["Tim", "Cook", "visited", "Hanoi", "."]
    assert explanation["tags"][explanation["path"][2]] == "U-ORG"
    reached = [score is not None for score in explanation["scores"][2]]
    assert sum(reached) == 1 and reached[explanation["path"][2]]
    assert {"start": 9, "end": 16, "text": "visited", "label": "ORG"} in explanation["labelings"][
        0
    ]["entities"]
    assert nlp.pipe_names == ["tok2vec", "entity_ruler", "crf_ner", "merge_entities"]


def test_explain_missing_or_ambiguous_component_raises(trained: Language) -> None:
    nlp = spacy.blank("en")
    with pytest.raises(ValueError, match="expected a pipeline with a crf_ner component"):
        explain(nlp, TEXT)
    for name in ("first", "second"):
        nlp.add_pipe("crf_ner", name=name, source=trained)
    for wrong in (None, "third"):
        with pytest.raises(ValueError, match=r"expected one of \['first', 'second'\]"):
            explain(nlp, TEXT, name=wrong)
    assert explain(nlp, TEXT, name="second")["component"] == "second"


def test_relevant_tags_are_probable_or_lead_to_probable_tags() -> None:
    explanation = {
        "tokens": ["a", "b", "c"],
        "tags": ["O", "U-X", "U-Y", "U-Z"],
        "path": [0, 0, 0],
        # Of the second token tag 1 is probable enough, and came from 2; so is 3 of the third,
        # which came from 2, and that from 1.
        "marginals": [
            [0.999, 0.001, 0.0, 0.0],
            [0.98, 0.0100001, 0.005, 0.0],
            [0.9, 0.0, 0.0, 0.1],
        ],
        "backpointers": [[None] * 4, [0, 2, 1, 0], [0, 0, 0, 2]],
    }
    assert relevant_tags(explanation) == [[0, 1, 2], [0, 1, 2], [0, 3]]


# The command


def rows_of(output: str) -> list[list[str]]:
    return [
        [cell.strip() for cell in line.split("│")[1:-1]]
        for line in output.splitlines()
        if line.startswith("│")
    ]


def test_the_command_prints_the_path_and_the_labelings(folder: Path, tmp_path: Path) -> None:
    page = tmp_path / "pages" / "page.html"
    text = "Tim Cook visited Hanoi."
    result = runner.invoke(app, ["explain", str(folder), text, "--html", str(page), "--n", "2"])
    assert result.exit_code == 0, result.output
    on_path = [row for row in rows_of(result.output) if len(row) == 6 and row[1].startswith("*")]
    assert [row[1] for row in on_path] == ["* B-PERSON", "* L-PERSON", "* O", "* U-GPE", "* O"]
    assert [row[4] for row in on_path] == ["", "B-PERSON", "L-PERSON", "O", "U-GPE"]
    labelings = [row for row in rows_of(result.output) if len(row) == 2]
    assert len(labelings) == 2 and labelings[0][1] == "Tim Cook (PERSON), Hanoi (GPE)"
    shown = {row[1].removeprefix("* ") for row in rows_of(result.output) if len(row) == 6}
    assert f"Tags: 13, {13 - len(shown)} of them not shown" in result.output
    assert all(len(line) <= 80 for line in result.output.splitlines() if line != f"Page: {page}")
    assert text in page.read_text("utf-8")


def test_explain_command_prints_labels_with_markup_verbatim(tmp_path: Path) -> None:
    nlp = small()
    train(nlp, make_examples(nlp, [("Hanoi", [(0, 5, "[red]:cat:")])]), steps=1)
    nlp.to_disk(tmp_path)
    result = runner.invoke(app, ["explain", str(tmp_path), "Hanoi"])
    assert result.exit_code == 0
    assert "U-[red]:cat:" in result.output and "Hanoi ([red]:cat:)" in result.output


def test_explain_command_empty_text_prints_message(folder: Path) -> None:
    result = runner.invoke(app, ["explain", str(folder), ""])
    assert result.exit_code == 0
    assert result.output.strip() == "The text has no token, so there is nothing to search."
