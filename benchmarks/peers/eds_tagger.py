"""EDS-NLP's `eds.ner_crf` over `eds.transformer`, as in its documentation."""

from typing import Any

import edsnlp
import edsnlp.pipes as eds
import torch
from spacy.tokens import Doc
from spacy_pipeline import doc_of, entities_of
from system import Entity, Record, System, read, serve


class EdsTagger(System):
    batch_sizes = (8, 32, 128, 512)
    packages = ("edsnlp", "transformers", "torch")
    mixed = False  # whether it trains under autocast
    # Whether, or in which dtype, it predicts under autocast. True, its default, is in torch's:
    # bfloat16 on a CPU, float16 on a GPU.
    autocast: Any = True

    def begin(self, corpus: str, transformer: str, mixed: bool = False) -> None:
        """Mixed: train under autocast to bfloat16; its own trainer does not by default."""
        self.mixed = mixed
        super().begin(corpus, transformer)

    def build(
        self, records: list[Record], transformer: str, steps: int, rate: float, seed: int
    ) -> None:
        torch.manual_seed(seed)
        key = "sc" if "spans" in records[0] else "ents"
        self.nlp = nlp = edsnlp.blank("en")
        encoder = eds.transformer(model=transformer, window=128, stride=96)
        embedding = self.embedding(encoder)
        nlp.add_pipe(
            eds.ner_crf(embedding=embedding, mode="joint", target_span_getter=key, span_setter=key),
            name="ner",
        )
        nlp.post_init([self._doc(record) for record in records])
        nlp.to(self.device)
        self.optimize(nlp.get_pipe("ner"), encoder, steps, rate)

    def loss(self, batch: list[Record]) -> Any:
        ner = self.network
        docs = [self._doc(record) for record in batch]
        inputs = ner.prepare_batch(docs, supervision=True, device=self.device)
        with torch.autocast(self.device.split(":")[0], torch.bfloat16, enabled=self.mixed):
            return ner(inputs)["loss"]

    def save(self, out: str) -> None:
        self.nlp.to_disk(out)

    def embedding(self, transformer: Any) -> Any:
        """Return the component whose vectors the CRF reads."""
        return transformer

    def _doc(self, record: Record) -> Doc:
        doc = doc_of(self.nlp.vocab, record)
        if "spans" in record:  # they may overlap
            doc.spans["sc"] = [doc.char_span(*span) for span in record["spans"]]
            return doc
        spans = [doc.char_span(start, end, label) for start, end, label in record["ents"]]
        doc.ents = [span for span in spans if span is not None]
        return doc

    def load(self, model: str) -> None:
        self.nlp = edsnlp.load(model).to(self.device)

    def use_dtype(self, dtype: Any) -> None:
        """Dtype: "auto" for its default, or a name of torch."""
        kinds = {"auto": True, "float32": False}
        self.autocast = kinds[dtype] if dtype in kinds else getattr(torch, dtype)
        self.nlp.train(False)

    def annotate(self, texts: list[str], batch_size: int) -> Any:
        settings = {"batch_size": batch_size, "autocast": self.autocast}
        return list(self.nlp.pipe(texts).set_processing(**settings))

    def find_in_tokens(self, path: str, batch_size: int) -> list[list[Entity]]:
        docs = [doc_of(self.nlp.vocab, record) for record in read(path)]
        return self.entities(self.nlp.pipe(docs).set_processing(batch_size=batch_size))

    def entities(self, annotated: Any) -> list[list[Entity]]:
        return [entities_of(doc) for doc in annotated]


class EdsTextCnn(EdsTagger):
    """The same over `eds.text_cnn`, as in its tutorial."""

    head = 6  # its tutorial has 3e-4 and 5e-5
    clip = 5.0  # its default

    def embedding(self, transformer: Any) -> Any:
        return eds.text_cnn(kernel_sizes=[3], embedding=transformer)


if __name__ == "__main__":
    serve(EdsTagger, edsnlp_text_cnn=EdsTextCnn)
