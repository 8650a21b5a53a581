"""A Hugging Face pipeline: a token classifier that tags each word by its first subword.

It is trained on all subwords, since what the pipeline takes for the words of a text, such as the
parts of "U.S.", need not begin a token.
"""

from typing import Any

import torch
from system import Entity, Record, System, bio, from_bio, read, serve, words
from transformers import AutoModelForTokenClassification, AutoTokenizer, pipeline

IGNORED = -100  # the label of what is no subword
OVERLAP = 32  # subwords that the windows of a long text share


class HuggingFace(System):
    batch_sizes = (1, 8, 32, 128)
    packages = ("transformers", "torch")

    def build(
        self, records: list[Record], transformer: str, steps: int, rate: float, seed: int
    ) -> None:
        torch.manual_seed(seed)
        kinds = sorted({label for record in records for *_, label in record["ents"]})
        labels = ["O", *(f"{prefix}-{kind}" for kind in kinds for prefix in "BI")]
        self.tokenizer = AutoTokenizer.from_pretrained(transformer)
        self.model = AutoModelForTokenClassification.from_pretrained(
            transformer,
            id2label=dict(enumerate(labels)),
            label2id={n: i for i, n in enumerate(labels)},
        ).to(self.device)
        self.optimize(self.model, self.model.base_model, steps, rate)

    def loss(self, batch: list[Record]) -> Any:
        return self.model(**self._inputs(batch).to(self.device)).loss

    def save(self, out: str) -> None:
        self.model.save_pretrained(out)
        self.tokenizer.save_pretrained(out)

    def _inputs(self, batch: list[Record]) -> Any:
        inputs, ids = self._encode(batch), self.model.config.label2id
        labels = torch.full_like(inputs["input_ids"], IGNORED)
        for i, record in enumerate(batch):
            tags, before = bio(record), None
            for j, word in enumerate(inputs.word_ids(i)):
                if word is not None:
                    tag = tags[word]
                    inside = tag != "O" and word == before
                    labels[i, j] = ids[f"I{tag[1:]}" if inside else tag]
                before = word
        inputs["labels"] = labels
        return inputs

    def load(self, model: str, dtype: str = "float32") -> None:
        self.pipeline = pipeline(
            "token-classification",
            model,
            torch_dtype=getattr(torch, dtype),
            device=self.device,
            aggregation_strategy="first",
            stride=OVERLAP,
        )
        self.model, self.tokenizer = self.pipeline.model, self.pipeline.tokenizer

    def annotate(self, texts: list[str], batch_size: int) -> Any:
        return self.pipeline(texts, batch_size=batch_size)

    def find_in_tokens(self, path: str, batch_size: int) -> list[list[Entity]]:
        """By the tag of the first subword of each token, as Hugging Face's examples do."""
        records, found = read(path), []
        for i in range(0, len(records), batch_size):
            batch = records[i : i + batch_size]
            inputs = self._encode(batch)
            with torch.inference_mode():
                best = self.model(**inputs.to(self.device)).logits.argmax(-1).tolist()
            for j, record in enumerate(batch):
                tags = ["O"] * len(record["tokens"])
                for word, tag in reversed(list(zip(inputs.word_ids(j), best[j]))):
                    if word is not None:
                        tags[word] = self.model.config.id2label[tag]
                found.append(from_bio(record, tags))
        return found

    def entities(self, annotated: Any) -> list[list[Entity]]:
        return [[(e["start"], e["end"], e["entity_group"]) for e in found] for found in annotated]

    def _encode(self, batch: list[Record]) -> Any:
        return self.tokenizer(
            [words(record) for record in batch],
            is_split_into_words=True,
            padding=True,
            truncation=True,
            return_tensors="pt",
        )


if __name__ == "__main__":
    serve(HuggingFace)
