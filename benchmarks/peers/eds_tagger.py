"""EDS-NLP's `eds.ner_crf` over `eds.transformer`, as in its documentation."""

import shutil
from typing import Any

import edsnlp
import edsnlp.pipes as eds
import torch
from spacy.tokens import Doc
from spacy_pipeline import doc_of, entities_of
from system import (
    HEAD,
    Entity,
    Record,
    System,
    batches,
    learning_rate,
    read,
    serve,
)


class EdsTagger(System):
    batch_sizes = (8, 32, 128, 512)
    packages = ("edsnlp", "transformers", "torch")
    head = HEAD
    clip = 1.0  # largest norm of the gradients
    mixed = False  # whether it trains under autocast
    # Whether, or in which dtype, it predicts under autocast. True, its default, is in torch's:
    # bfloat16 on a CPU, float16 on a GPU.
    autocast: Any = True

    def use_gpu(self, gpu_id: int) -> None:
        self.device = f"cuda:{gpu_id}"

    def train(
        self,
        corpus: str,
        out: str,
        transformer: str,
        steps: int,
        rate: float,
        seed: int,
        evaluate_every: int = 0,
    ) -> None:
        records = read(f"{corpus}/train.jsonl")
        self._build(records, transformer, steps, rate, seed)
        best = -1.0
        for step, batch in enumerate(batches(records, steps, seed), 1):
            self.update(batch)
            if evaluate_every and (step % evaluate_every == 0 or step == steps):
                self.nlp.train(False)
                if (found := self.f1(f"{corpus}/dev.jsonl")) > best:
                    best = found
                    shutil.rmtree(out, ignore_errors=True)
                    self.nlp.to_disk(out)
                self.nlp.train(True)
        if not evaluate_every:
            self.nlp.train(False)
            self.nlp.to_disk(out)

    def begin(self, corpus: str, transformer: str, mixed: bool = False) -> None:
        """Mixed: train under autocast to bfloat16; its own trainer does not by default."""
        self.mixed = mixed
        self.records = read(f"{corpus}/train.jsonl")
        self._build(self.records, transformer, 1000, 1e-4, 0)

    def _build(
        self, records: list[Record], transformer: str, steps: int, rate: float, seed: int
    ) -> None:
        """Make the pipeline, its optimizer and its schedule."""
        torch.manual_seed(seed)
        key = "sc" if "spans" in records[0] else "ents"
        self.nlp = nlp = edsnlp.blank("en")
        encoder = eds.transformer(model=transformer, window=128, stride=96)
        embedding = self.embedding(encoder)
        nlp.add_pipe(
            eds.ner_crf(embedding=embedding, mode="joint", target_span_getter=key, span_setter=key),
            name="ner",
        )
        nlp.post_init([self._doc(nlp, record) for record in records])
        nlp.to(self.device)
        ner = nlp.get_pipe("ner")
        body = set(encoder.parameters())
        head = [weight for weight in ner.parameters() if weight not in body]
        groups = [{"params": list(body), "lr": rate}, {"params": head, "lr": self.head * rate}]
        self.optimizer = torch.optim.AdamW(groups, weight_decay=0.01)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda step: learning_rate(step, steps)
        )
        nlp.train(True)

    def update(self, batch: list[Record]) -> None:
        ner = self.nlp.get_pipe("ner")
        docs = [self._doc(self.nlp, record) for record in batch]
        inputs = ner.prepare_batch(docs, supervision=True, device=self.device)
        with torch.autocast(self.device.split(":")[0], torch.bfloat16, enabled=self.mixed):
            loss = ner(inputs)["loss"]
        loss.backward()
        torch.nn.utils.clip_grad_norm_(ner.parameters(), self.clip)
        self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad()

    def embedding(self, transformer: Any) -> Any:
        """Return the component whose vectors the CRF reads."""
        return transformer

    def _doc(self, nlp: Any, record: Record) -> Doc:
        doc = doc_of(nlp.vocab, record)
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

    def parameters(self) -> int:
        return sum(weight.numel() for weight in self.nlp.get_pipe("ner").parameters())


if __name__ == "__main__":
    serve(EdsTagger())
