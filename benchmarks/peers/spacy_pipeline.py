"""A spaCy pipeline: crf_ner, accelerated or not, or spaCy's own ner."""

from typing import Any, List, Optional

import spacy
from spacy.tokens import Doc
from system import Entity, Record, System, read, serve, words


class SpacyPipeline(System):
    batch_sizes = (32, 128, 512)
    packages = ("spacy", "thinc", "spacy-transformers", "transformers", "torch")

    def load(self, model: str, precision: Optional[str] = None) -> None:
        self.nlp = spacy.load(model)
        if precision is not None:
            from spacy_crf_ner import accelerate

            self.nlp = accelerate(self.nlp, precision=precision)

    def annotate(self, texts: List[str], batch_size: int) -> Any:
        return list(self.nlp.pipe(texts, batch_size=batch_size))

    def find_in_tokens(self, path: str, batch_size: int) -> List[List[Entity]]:
        docs = [doc_of(self.nlp.vocab, record) for record in read(path)]
        return self.entities(self.nlp.pipe(docs, batch_size=batch_size))

    def entities(self, annotated: Any) -> List[List[Entity]]:
        return [
            [(ent.start_char, ent.end_char, ent.label_) for ent in doc.ents] for doc in annotated
        ]


def doc_of(vocab: Any, record: Record) -> Doc:
    """Make a Doc of the tokens of a record."""
    text = record["text"]
    spaces = [text[end : end + 1] == " " for _, end in record["tokens"]]
    doc = Doc(vocab, words(record), spaces)
    assert doc.text == text, (doc.text, text)
    return doc


if __name__ == "__main__":
    serve(SpacyPipeline())
