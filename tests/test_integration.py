"""The component in packages, in several processes, and beside other components."""

import subprocess
import sys

import pytest
import spacy
from spacy.cli.train import train as spacy_train
from spacy.tokens import DocBin
from spacy.training import Example

from pipelines import SENTENCES, TOK2VEC, ents, listening, make_examples, train

TEXTS = [text for text, _ in SENTENCES]
SCRIPT = """
import sys

import spacy

if __name__ == "__main__":
    nlp = spacy.load(sys.argv[1])
    texts = ["Tim Cook visited Hanoi.", "", "Apple hired Ada Lovelace Byron in Paris Texas."] * 4
    alone = [[(e.text, e.label_, round(e._.confidence, 4)) for e in nlp(t).ents] for t in texts]
    docs = nlp.pipe(texts, n_process=2, batch_size=2)
    piped = [[(e.text, e.label_, round(e._.confidence, 4)) for e in doc.ents] for doc in docs]
    assert piped == alone, (piped, alone)
    print(sum(map(len, piped)), "entities")
"""


def run(*command, **options):
    """Run a process; its output, which an error shows."""
    done = subprocess.run(
        [sys.executable, *map(str, command)], capture_output=True, text=True, timeout=300, **options
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def save(docs, path):
    DocBin(docs=docs, store_user_data=True).to_disk(path)
    return path


# Packages


@pytest.mark.slow
@pytest.mark.parametrize("overlap", [False, True])
def test_packaged_pipeline_loads_by_name(overlap, tmp_path):
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_ner", config={"model": {"tok2vec": TOK2VEC}, "overlap": overlap})
    train(nlp, make_examples(nlp, SENTENCES), steps=40)
    nlp.to_disk(tmp_path / "model")
    package = ["-m", "spacy", "package", tmp_path / "model", tmp_path, "--build", "none"]
    run(*package, "--name", "found", "--version", "0.0.1")
    (source,) = tmp_path.glob("*found-0.0.1")
    requirements = (source / "meta.json").read_text()
    assert "spacy-crf-ner" in requirements or "spacy_crf_ner" in requirements
    # Installed without looking up what is here already; there may be no network.
    install = ["-m", "pip", "install", "--no-deps", "--no-build-isolation", "--quiet"]
    run(*install, "--target", tmp_path / "site", source)
    loads = (
        f"import sys, spacy; sys.path.insert(0, {str(tmp_path / 'site')!r}); "
        f"doc = spacy.load('en_found')({TEXTS[0]!r}); "
        "print([(e.start_char, e.end_char, e.label_) for e in doc.ents])"
    )
    assert run("-c", loads, cwd=tmp_path).strip() == repr(SENTENCES[0][1])


# Processes


@pytest.mark.slow
@pytest.mark.parametrize("below", ["alone", "transformer"])
def test_pipe_with_two_processes_in_script_matches_one(trained, below, tiny_transformer, tmp_path):
    """The pipeline has used torch's threads before it forks, which its children cannot."""
    nlp = trained
    if below == "transformer":
        nlp = listening("transformer", tiny_transformer=tiny_transformer)
        train(nlp, make_examples(nlp), steps=40)
    nlp.to_disk(tmp_path / "model")
    (tmp_path / "script.py").write_text(SCRIPT)
    found = run(tmp_path / "script.py", tmp_path / "model")
    assert found.endswith("entities\n") and not found.startswith("0 ")


# Other pipes


def test_pipe_as_tuples_keeps_contexts_with_docs(trained):
    pairs = [(text, {"id": i}) for i, text in enumerate(TEXTS)]
    piped = list(trained.pipe(pairs, as_tuples=True, batch_size=3))
    assert [context["id"] for _, context in piped] == list(range(len(TEXTS)))
    assert [ents(doc) for doc, _ in piped] == [gold for _, gold in SENTENCES]


def test_two_components_with_different_labels_annotate_one_doc():
    """The second keeps the entities of the first, whose labels it does not have."""
    nlp = spacy.blank("en")
    model = {"hidden_width": 16, "tok2vec": TOK2VEC}
    for name, labels in (("people", ["PERSON"]), ("places", ["GPE", "ORG"])):
        other = spacy.blank("en")
        other.add_pipe("crf_ner", name=name, config={"model": model})
        kept = [(text, [e for e in found if e[2] in labels]) for text, found in SENTENCES]
        train(other, make_examples(other, kept), steps=30)
        assert other.get_pipe(name).labels == tuple(sorted(labels))
        nlp.add_pipe(name, source=other)
    assert [ents(doc) for doc in nlp.pipe(TEXTS)] == [gold for _, gold in SENTENCES]
    assert all(ent._.confidence > 0.5 for doc in nlp.pipe(TEXTS) for ent in doc.ents)
    with nlp.select_pipes(disable=["people"]):
        assert {ent.label_ for doc in nlp.pipe(TEXTS) for ent in doc.ents} == {"GPE", "ORG"}


def test_sourced_pipe_with_replaced_listener_keeps_predictions(tmp_path):
    nlp = listening("tok2vec")
    train(nlp, make_examples(nlp), steps=30)
    expected = [ents(doc) for doc in nlp.pipe(TEXTS)]
    assert any(expected)
    nlp.to_disk(tmp_path / "source")
    source = spacy.load(tmp_path / "source")
    source.replace_listeners("tok2vec", "crf_ner", ["model.tok2vec"])
    other = spacy.blank("en")
    other.add_pipe("crf_ner", name="ner", source=source)
    assert [ents(doc) for doc in other.pipe(TEXTS)] == expected
    other.to_disk(tmp_path / "other")
    assert [ents(doc) for doc in spacy.load(tmp_path / "other").pipe(TEXTS)] == expected


@pytest.mark.slow
def test_spacy_train_keeps_frozen_annotating_component(trained, tmp_path):
    """A frozen one annotates what a second, of another label, is trained around."""
    trained.to_disk(tmp_path / "first")
    examples = [
        Example.from_dict(trained.make_doc(text), {"entities": [(start, start + 7, "VERB")]})
        for text, start in (("Tim Cook visited Hanoi.", 9), ("Ada arrived in Paris.", 4))
    ]
    corpus = save([eg.reference for eg in examples], tmp_path / "corpus.spacy")
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_ner", name="first", source=spacy.load(tmp_path / "first"))
    nlp.add_pipe("crf_ner", name="second", config={"model": {"hidden_width": 32}})
    config = nlp.config
    config["components"]["first"] = {"source": str(tmp_path / "first"), "component": "crf_ner"}
    config["paths"].update(train=str(corpus), dev=str(corpus))
    config["training"].update(
        max_steps=30,
        eval_frequency=30,
        frozen_components=["first"],
        annotating_components=["first"],
    )
    config.to_disk(tmp_path / "config.cfg")
    spacy_train(tmp_path / "config.cfg", tmp_path / "out")
    loaded = spacy.load(tmp_path / "out" / "model-last")
    before = trained.get_pipe("crf_ner").to_bytes(exclude=["vocab"])
    assert loaded.get_pipe("first").to_bytes(exclude=["vocab"]) == before
    found = [(ent.text, ent.label_) for ent in loaded("Tim Cook visited Hanoi.").ents]
    assert found == [("Tim Cook", "PERSON"), ("visited", "VERB"), ("Hanoi", "GPE")]
