"""The share of the CRF on the host: both times, for updates and predictions."""

from pathlib import Path

import spacy
from spacy.tokens import DocBin

from benchmark_host import host
from pipelines import make_examples


def test_host_prints_crf_and_rest_times(tmp_path: Path, capsys) -> None:
    examples = make_examples(spacy.blank("en"))
    DocBin(docs=[eg.reference for eg in examples if len(eg.x)]).to_disk(tmp_path / "dev.spacy")
    host(tmp_path / "dev.spacy", labels=2, words=100, batches=1, rounds=2)
    rows = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()[2:]]
    assert [row[:2] for row in rows] == [["update", "9"], ["prediction", "9"]]
    assert all(float(crf) > 0 and float(rest) > 0 for *_, crf, rest in rows)
