"""Export a pipeline of each kind, with its predictions, for environments without torch.

python tests/exported_pipelines.py FOLDER
"""

import sys
from pathlib import Path

import spacy
import srsly
from spacy.language import Language

from overlapping import TEXT, make_overlapping
from pipelines import OWN_TRANSFORMER, SENTENCES, make_examples, make_tiny_transformer, train
from spacy_crf_ner.export import export_pipeline
from test_without_torch import found

TEXTS = [*(text for text, _ in SENTENCES), TEXT, "So Tim Cook flew on to Paris Texas. " * 9]


def pipelines(folder: Path) -> dict[str, Language]:
    """Trained pipelines: over characters, over a transformer, and of overlapping entities."""
    made = {"overlapping": make_overlapping()}
    layers = {
        "char": {"@architectures": "spacy-crf-ner.CharWordEmbed.v1"},
        "transformer": {**OWN_TRANSFORMER, "name": make_tiny_transformer(folder)},
    }
    for name, tok2vec in layers.items():
        nlp = spacy.blank("en")
        nlp.add_pipe("crf_ner", config={"model": {"hidden_width": 16, "tok2vec": tok2vec}})
        train(nlp, make_examples(nlp))
        made[name] = nlp
    return made


def main(folder: Path) -> None:
    """Write the pipelines, and expected.json."""
    folder.mkdir(parents=True)
    expected = {}
    for name, nlp in pipelines(folder / "bert").items():
        expected[name] = found(nlp, TEXTS)
        assert any(p > 0.5 for spans in expected[name] for *_, p in spans)
        export_pipeline(nlp).to_disk(folder / name)
    srsly.write_json(folder / "expected.json", {"texts": TEXTS, "found": expected})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
