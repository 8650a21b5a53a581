"""`annotate_frames` in Spark's `mapInPandas` matches the pipeline."""

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec

import pytest
import spacy

from annotated import entities

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("pyspark") is None, reason="pyspark is not installed"),
    pytest.mark.skipif(shutil.which("java") is None, reason="there is no Java, which Spark needs"),
]

TEXTS = ["Ada went to Hanoi.", "", "Nothing.", None, "Hanoi and  Huế!", "Huế\n", "x", "y"]
ENTITIES = "entities array<struct<start:long,end:long,label:string,confidence:double>>"
# The recipe of the documentation.
RECIPE = """
import json
import sys
from functools import partial

from pyspark.sql import SparkSession
from spacy_crf_ner.annotate import annotate_frames

model, rows, schema = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.sql.execution.arrow.maxRecordsPerBatch", "2")
    .getOrCreate()
)
df = spark.createDataFrame(json.loads(rows), "n int, text string").repartition(2)
annotated = df.mapInPandas(
    partial(annotate_frames, model=model, text_column="text"),
    schema=f"n int, text string, {schema}, error string",
)
print(json.dumps([row.asDict(recursive=True) for row in annotated.collect()]))
"""


def test_map_in_pandas_matches_plain_loop(tmp_path):
    nlp = spacy.blank("en")
    ruler = nlp.add_pipe("entity_ruler")
    ruler.add_patterns([{"label": "CITY", "pattern": name} for name in ("Hanoi", "Huế")])
    nlp.to_disk(tmp_path / "model")
    rows = json.dumps([*enumerate(TEXTS)])
    run = subprocess.run(
        [sys.executable, "-c", RECIPE, str(tmp_path / "model"), rows, ENTITIES],
        capture_output=True,
        text=True,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
    )
    assert run.returncode == 0, run.stderr[-2000:]
    found = sorted(json.loads(run.stdout.splitlines()[-1]), key=lambda row: row["n"])
    assert [row["text"] for row in found] == TEXTS
    for row in found:
        assert row["entities"] == entities(nlp(row["text"] or ""))
        assert (row["error"] is None) == (row["text"] is not None)
