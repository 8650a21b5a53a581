"""Overlapping entities: all of them are in each format, with the probabilities in `doc.spans`."""

from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet
import pytest
import spacy
import srsly
from spacy.language import Language
from spacy.tokens import Doc, DocBin
from typer.testing import CliRunner

from overlapping import LEARNED, TEXT, make_overlapping
from spacy_crf_ner.annotate import Settings, annotate, annotate_frames
from spacy_crf_ner.annotate.chunking import Chunk, merge_entities
from spacy_crf_ner.cli import app

KEY = "all"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("overlapping")
    make_overlapping().to_disk(folder / "sc")
    load(folder / "sc", KEY).to_disk(folder / KEY)
    return folder


def load(folder: Path, key: str) -> Language:
    return spacy.load(folder, config={"components": {"crf_ner": {"spans_key": key}}})


@pytest.fixture(scope="module")
def nlp(folder: Path) -> Language:
    return spacy.load(folder / KEY)


@pytest.fixture
def pipeline(folder: Path) -> Language:
    """A pipeline to be changed."""
    return spacy.load(folder / KEY)


def found(row: list[dict[str, Any]]) -> list[tuple[int, int, str]]:
    return [(ent["start"], ent["end"], ent["label"]) for ent in row]


def annotated(nlp: Language, text: str, **settings: Any) -> list[dict[str, Any]]:
    (frame,) = annotate_frames([pd.DataFrame({"text": [text]})], nlp, **settings)
    assert frame["error"].isna().all(), frame["error"][0]
    return frame["entities"][0]


def scores_of(doc: Doc) -> dict[tuple[int, int, str], float]:
    group = doc.spans[KEY]
    spans = [(span.start_char, span.end_char, span.label_) for span in group]
    return dict(zip(spans, group.attrs["scores"].tolist(), strict=True))


@pytest.mark.parametrize("text", LEARNED)
def test_annotate_frames_returns_overlaps_with_probabilities(nlp: Language, text: str) -> None:
    row, scores = annotated(nlp, text), scores_of(nlp(text))
    assert found(row) == LEARNED[text]
    assert [ent["confidence"] for ent in row] == [
        pytest.approx(scores[span], abs=1e-5) for span in LEARNED[text]
    ]


def test_annotate_frames_docs_have_spans_and_disjoint_ents(nlp: Language) -> None:
    frame = pd.DataFrame({"text": [*LEARNED]})
    (frame,) = annotate_frames([frame], nlp, docs=True)
    for text, content in zip(frame["text"], frame["doc"]):
        doc, expected = Doc(nlp.vocab).from_bytes(content), nlp(text)
        assert scores_of(doc) == pytest.approx(scores_of(expected), abs=1e-5)
        ents = [(ent.start, ent.end, ent.label_, ent._.confidence) for ent in doc.ents]
        assert ents == [
            (ent.start, ent.end, ent.label_, pytest.approx(ent._.confidence, abs=1e-5))
            for ent in expected.ents
        ]
        assert bool(ents) == bool(LEARNED[text])


def test_annotate_frames_chunked_text_matches_whole_text(nlp: Language) -> None:
    text = f"{TEXT} " * 4
    expected = sorted(scores_of(nlp(text)))
    assert len(expected) > 20
    for size in (20, 30, 40, 70, 100, 1000):
        assert found(annotated(nlp, text, max_characters=size)) == expected


def test_merge_entities_keeps_overlaps_at_cut_only_with_overlapping() -> None:
    first, second = Chunk(0, 10, 0, 20), Chunk(10, 20, 0, 20)
    over, inside, other = (5, 15, "A", 0.9), (6, 8, "B", 0.8), (12, 18, "B", 0.7)
    chunks = [(first, [over, inside, other]), (second, [over, inside, other])]
    assert merge_entities(chunks, overlapping=True) == [over, inside, other]
    assert merge_entities([(first, [over]), (second, [over, other])]) == [over]


def test_entities_of_other_components_are_kept(pipeline: Language) -> None:
    before = pipeline.add_pipe("entity_ruler", name="before", before="crf_ner")
    before.add_patterns([{"label": "EVENT", "pattern": "met"}])
    after = pipeline.add_pipe("entity_ruler", name="after")
    after.add_patterns([{"label": "ROLE", "pattern": "in"}])
    row = annotated(pipeline, TEXT)
    assert found(row) == sorted([*LEARNED[TEXT], (19, 22, "EVENT"), (56, 58, "ROLE")])
    confidences = {ent["label"]: ent["confidence"] for ent in row}
    assert confidences["EVENT"] == 1.0 and confidences["ROLE"] is None


def test_annotate_frames_two_components_merges_entities(pipeline: Language, folder: Path) -> None:
    pipeline.add_pipe("crf_ner", name="second", source=spacy.load(folder / "sc"))
    pipeline.get_pipe("crf_ner").thresholds = {"LOC": 1.0, "ORG": 1.0}
    pipeline.get_pipe("second").thresholds = {"PER": 1.0, "LOC": 1.0}
    expected = [span for span in LEARNED[TEXT] if span[2] != "LOC"]
    assert found(annotated(pipeline, TEXT)) == expected


def test_annotate_frames_with_token_merging_component_raises(pipeline: Language) -> None:
    pipeline.add_pipe("merge_entities")
    with pytest.raises(ValueError, match=r"no component that merges tokens .*merge_ent"):
        annotated(pipeline, TEXT)
    pipeline.disable_pipe("merge_entities")
    assert found(annotated(pipeline, TEXT)) == LEARNED[TEXT]


@pytest.mark.parametrize("format", ["jsonl", "parquet", "spacy"])
def test_each_format_has_all_entities(folder: Path, tmp_path: Path, format: str) -> None:
    (tmp_path / "texts.txt").write_text("\n".join(LEARNED))
    settings, out = Settings(format=format), tmp_path / "out"
    summary = annotate(str(folder / KEY), [tmp_path / "texts.txt"], out, settings, workers=1)
    assert (summary["errors"], summary["entities"]) == (0, sum(map(len, LEARNED.values())))
    shard = out / f"part-000000.{format}"
    if format == "spacy":
        docs = DocBin().from_disk(shard).get_docs(spacy.blank("en").vocab)
        assert [sorted(scores_of(doc)) for doc in docs] == [*LEARNED.values()]
        return
    rows = [*srsly.read_jsonl(shard)] if format == "jsonl" else None
    rows = rows or pyarrow.parquet.read_table(shard).to_pylist()
    assert [found(row["entities"]) for row in rows] == [*LEARNED.values()]
    assert [*rows[0]["entities"][0]] == ["start", "end", "label", "confidence"]


def test_redact_command_overlapping_entities_prints_error(folder: Path, tmp_path: Path) -> None:
    srsly.write_jsonl(tmp_path / "texts.jsonl", [{"text": TEXT}])
    paths = folder / KEY, tmp_path / "texts.jsonl", tmp_path / "out.jsonl"
    result = CliRunner().invoke(app, ["redact", *map(str, paths)])
    assert result.exit_code == 1 and len(result.stderr.splitlines()) == 1
    assert "expected a pipeline with flat entities, got one with overlapping ones" in result.stderr
    assert not (tmp_path / "out.jsonl").exists()
