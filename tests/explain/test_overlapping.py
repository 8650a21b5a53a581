"""The explanation of overlapping entities: the trellis of one label, the labelings of all."""

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from spacy.language import Language
from typer.testing import CliRunner

from overlapping import LEARNED, TEXT, make_overlapping
from pipelines import small
from spacy_crf_ner.cli import app
from spacy_crf_ner.explain.html import trellis_page
from spacy_crf_ner.explain.trellis import explain

PATHS = {  # of the outermost layer
    "PER": "BIILOBIIILOOO",
    "LOC": "OOOUOOOOUOOUO",
    "ORG": "OOOOOOBILOOOO",
}


@pytest.fixture(scope="module")
def nlp() -> Language:
    return make_overlapping()


def run(*arguments: Any) -> Any:
    return CliRunner().invoke(app, ["explain", *map(str, arguments)])


def score_of(explanation: dict[str, Any], path: list[int]) -> float:
    """Sum the scores of a path by the definition; minus infinity for an illegal one."""
    steps = [explanation["start"][path[0]], explanation["end"][path[-1]]]
    steps += [explanation["transitions"][i][j] for i, j in pairwise(path)]
    if None in steps:
        return -math.inf
    return sum(steps) + sum(row[c] for row, c in zip(explanation["emissions"], path))


@pytest.mark.parametrize("label", PATHS)
def test_explain_label_gives_path_of_label(nlp: Language, label: str) -> None:
    explanation = explain(nlp, TEXT, label=label)
    assert explanation["label"] == label
    assert explanation["tags"] == ["O", *(f"{prefix}-{label}" for prefix in "BILU")]
    path = [explanation["tags"][c].removesuffix(f"-{label}") for c in explanation["path"]]
    assert "".join(path) == PATHS[label]
    assert json.loads(json.dumps(explanation, allow_nan=False)) == explanation


@pytest.mark.parametrize("label", PATHS)
def test_explain_label_path_has_highest_score(nlp: Language, label: str) -> None:
    explanation = explain(nlp, "Oslo won it", label=label)
    scores = {path: score_of(explanation, [*path]) for path in np.ndindex(5, 5, 5)}
    best = max(scores, key=scores.__getitem__)
    assert explanation["path"] == [*best]
    assert explanation["score"] == pytest.approx(scores[best], abs=1e-4)
    z = sum(map(math.exp, scores.values()))
    marginals = np.zeros((3, 5))
    for path, score in scores.items():
        marginals[range(3), path] += math.exp(score) / z
    assert np.array(explanation["marginals"]) == pytest.approx(marginals, abs=1e-4)


def test_explain_label_labelings_include_all_labels(nlp: Language) -> None:
    best, second, _ = explain(nlp, TEXT, n=3, label="ORG")["labelings"]
    found = [(ent["start"], ent["end"], ent["label"]) for ent in best["entities"]]
    assert sorted(found) == LEARNED[TEXT]
    assert best["probability"] > second["probability"]


def test_explain_label_empty_text_gives_empty_explanation(nlp: Language) -> None:
    explanation = explain(nlp, "", label="PER")
    assert (explanation["tokens"], explanation["score"]) == ([], None)
    assert "nothing to search" in trellis_page(explanation)


def test_explain_command_label_option_selects_label(nlp: Language, tmp_path: Path) -> None:
    nlp.to_disk(tmp_path / "model")
    page = tmp_path / "page.html"
    result = run(tmp_path / "model", "Oslo won", "--label", "ORG", "--n", 1, "--html", page)
    assert result.exit_code == 0, result.output
    assert "* U-ORG" in result.output and "-LOC" not in result.output
    assert "Oslo (LOC)" in result.output and "Oslo (ORG)" in result.output
    assert "<dt>Labels</dt><dd>ORG</dd>" in page.read_text("utf-8")
    for wrong in ([], ["--label", "GPE"]):
        result = run(tmp_path / "model", "Oslo won", *wrong)
        assert result.exit_code == 1 and len(result.stderr.splitlines()) == 1
        got = "no label" if not wrong else "'GPE'"
        assert f"label: expected one of LOC, ORG, PER, got {got}. Choose one" in result.stderr


def test_explain_command_label_with_flat_entities_prints_error(tmp_path: Path) -> None:
    nlp = small()
    nlp.get_pipe("crf_ner").add_label("PER")
    nlp.initialize()
    nlp.to_disk(tmp_path)
    result = run(tmp_path, "Anna", "--label", "PER")
    assert result.exit_code == 1 and len(result.stderr.splitlines()) == 1
    assert "label: expected no label, got 'PER'. Leave it out" in result.stderr
