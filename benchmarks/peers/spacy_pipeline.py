"""A spaCy pipeline: crf_ner, accelerated or not, or spaCy's own ner."""

import shutil
from typing import Any

import spacy
from spacy.schemas import ConfigSchemaTraining
from spacy.tokens import Doc
from spacy.training import Corpus, Example
from spacy.util import load_config, registry
from system import Entity, Record, System, read, serve, words
from thinc.api import set_gpu_allocator


class SpacyPipeline(System):
    batch_sizes = (32, 128, 512)
    packages = ("spacy", "thinc", "transformers", "torch")

    def use_gpu(self, gpu_id: int) -> None:
        spacy.require_gpu(gpu_id)
        set_gpu_allocator("pytorch")  # as in the shipped configs
        super().use_gpu(gpu_id)

    def train(
        self,
        corpus: str,
        out: str,
        transformer: str,
        steps: int,
        rate: float | None,
        seed: int,
        evaluate_every: int = 0,
        config: str = "",
        overrides: dict[str, Any] | None = None,
    ) -> None:
        """Train a config as `spacy train` does, on the .spacy files of a folder.

        rate: None for the one of the config.
        """
        from spacy.cli.train import train

        settings = {
            "paths.train": f"{corpus}/train.spacy",
            "paths.dev": f"{corpus}/dev.spacy",
            "paths.transformer": transformer,
            "system.seed": seed,
            "training.max_steps": steps,
            "training.eval_frequency": evaluate_every or steps,
            "training.patience": 0,
            "training.optimizer.learn_rate.total_steps": steps,
            **(overrides or {}),
        }
        if rate is not None:
            settings["training.optimizer.learn_rate.initial_rate"] = rate
        folder = f"{out}.partial"
        gpu_id = -1 if self.device == "cpu" else int(self.device.partition(":")[2])
        train(config, folder, use_gpu=gpu_id, overrides=settings)
        if evaluate_every:
            shutil.move(f"{folder}/model-best", out)
            out = f"{out}.last"
        shutil.move(f"{folder}/model-last", out)
        shutil.rmtree(folder)

    def begin(
        self, corpus: str, transformer: str, config: str, overrides: dict[str, Any] | None = None
    ) -> None:
        """Make the pipeline of a config, with the optimizer of its training."""
        overrides = {"paths.transformer": transformer, **(overrides or {})}
        filled = load_config(config, overrides=overrides)
        self.nlp = spacy.util.load_model_from_config(filled, auto_fill=True)
        spacy.util.fix_random_seed(0)
        self.records = read(f"{corpus}/train.jsonl")
        self.nlp.initialize(lambda: map(self._example, self.records))
        training = self.nlp.config.interpolate()["training"]
        resolved = registry.resolve(training, schema=ConfigSchemaTraining)
        self.optimizer, self.dropout = resolved["optimizer"], resolved["dropout"]

    def _example(self, record: Record) -> Example:
        doc = doc_of(self.nlp.vocab, record)
        return Example.from_dict(doc, {"entities": record["ents"]})

    def update(self, batch: list[Record]) -> None:
        self.nlp.update([*map(self._example, batch)], sgd=self.optimizer, drop=self.dropout)
        self.optimizer.step_schedules()

    def use_dtype(self, dtype: Any) -> None:
        """Dtype: one of `accelerate`, or None."""
        from spacy_crf_ner import accelerate  # EDS-NLP's environment, which imports this, has none

        self.nlp = accelerate(self.nlp, dtype)

    def load(
        self,
        model: str,
        dtype: str | None = None,
        threshold: float | None = None,
        decode_for_f1: bool = False,
    ) -> None:
        """decode_for_f1: With the threshold of the best expected F1 on the dev part."""
        self.nlp = spacy.load(model)
        if decode_for_f1:
            from spacy_crf_ner.evaluation.calibration import calibrate

            dev = Corpus(self.nlp.config["paths"]["dev"])(self.nlp)
            calibrate(self.nlp, list(dev), f_beta=1.0)
        if threshold is not None and "spancat" in self.nlp.pipe_names:
            self.nlp.get_pipe("spancat").cfg["threshold"] = threshold
        elif threshold is not None:
            ner = self.nlp.get_pipe("ner")
            ner.decode, ner.f_score_threshold = "max_expected_f", threshold
        if dtype is not None:
            self.use_dtype(dtype)

    def annotate(self, texts: list[str], batch_size: int) -> Any:
        return list(self.nlp.pipe(texts, batch_size=batch_size or None))

    def find_in_tokens(self, path: str, batch_size: int) -> list[list[Entity]]:
        docs = [doc_of(self.nlp.vocab, record) for record in read(path)]
        return self.entities(self.nlp.pipe(docs, batch_size=batch_size))

    def entities(self, annotated: Any) -> list[list[Entity]]:
        return [entities_of(doc) for doc in annotated]


def doc_of(vocab: Any, record: Record) -> Doc:
    """Make a Doc of the tokens of a record."""
    text = record["text"]
    spaces = [text[end : end + 1] == " " for _, end in record["tokens"]]
    doc = Doc(vocab, words(record), spaces)
    assert doc.text == text, (doc.text, text)
    return doc


def entities_of(doc: Doc) -> list[Entity]:
    """Return `doc.spans["sc"]`, which may overlap, or `doc.ents` where there is none."""
    spans = doc.spans.get("sc", doc.ents)
    return [(span.start_char, span.end_char, span.label_) for span in spans]


if __name__ == "__main__":
    serve(SpacyPipeline)
