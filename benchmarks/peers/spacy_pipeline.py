"""A spaCy pipeline: crf_ner, accelerated or not, or spaCy's own ner."""

from typing import Any, List, Optional

import spacy
from system import Entity, System, serve


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

    def entities(self, annotated: Any) -> List[List[Entity]]:
        return [
            [(ent.start_char, ent.end_char, ent.label_) for ent in doc.ents] for doc in annotated
        ]


if __name__ == "__main__":
    serve(SpacyPipeline())
