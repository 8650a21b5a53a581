"""The command `predict`, for entities that overlap."""

from pathlib import Path

from typer.testing import CliRunner

from overlapping import LEARNED, TEXT, make_overlapping
from spacy_crf_ner.cli import app


def test_predict_prints_overlapping_entities_with_their_probabilities(tmp_path: Path) -> None:
    nlp = make_overlapping()
    nlp.to_disk(tmp_path)
    result = CliRunner().invoke(app, ["predict", str(tmp_path), "It rains.", TEXT])
    assert result.exit_code == 0, result.output
    assert all(len(line) <= 80 for line in result.output.splitlines())
    rows = [
        [cell.strip() for cell in line.split("│")[2:5]]
        for line in result.output.splitlines()
        if line.startswith("│")
    ]
    doc = nlp(TEXT)
    group = doc.spans["sc"]
    scores = {
        (span.start_char, span.end_char, span.label_): f"{score:.3f}"
        for span, score in zip(group, group.attrs["scores"].tolist(), strict=True)
    }
    assert rows[0] == ["none", "", ""]
    printed = [row for row in rows[1:] if row[1]]  # without the other lines of wrapped cells
    assert [row[1:] for row in printed] == [
        [label, scores[start, end, label]] for start, end, label in LEARNED[TEXT]
    ]
    assert printed[0][0] == "The king" and printed[2][0] == "France"
