"""flair's SequenceTagger: a recurrent network and a CRF over the same transformer."""

from typing import Any

import flair
import torch
from flair.data import Corpus, Dictionary, Sentence
from flair.datasets import FlairDatapointDataset
from flair.embeddings import TransformerWordEmbeddings
from flair.models import SequenceTagger
from flair.trainers import ModelTrainer
from system import WARMUP, Entity, Record, System, batches, read, serve, words

DEV = 40  # sentences that it is evaluated on at the end, which nobody reads

flair.device = torch.device("cpu")


class FlairTagger(System):
    pooling = "mean"  # of the pieces of a word
    rnn_and_crf = True
    batch_sizes = (8, 32)
    packages = ("flair", "transformers", "torch")

    def use_gpu(self, gpu_id: int) -> None:
        flair.device = torch.device(f"cuda:{gpu_id}")

    def train(
        self, corpus: str, out: str, transformer: str, steps: int, rate: float, seed: int
    ) -> None:
        """An epoch of a number of batches; flair counts sentences, not words."""
        flair.set_seed(seed)
        drawn = [
            record
            for batch in batches(read(f"{corpus}/train.jsonl"), steps, seed)
            for record in batch
        ]
        dev = [self._sentence(record) for record in read(f"{corpus}/dev.jsonl")[:DEV]]
        train = [self._sentence(record) for record in drawn]
        parts = Corpus(FlairDatapointDataset(train), FlairDatapointDataset(dev), name="corpus")
        labels: Dictionary = parts.make_label_dictionary("ner", add_unk=False)
        embeddings = TransformerWordEmbeddings(
            transformer, layers="-1", subtoken_pooling=self.pooling, fine_tune=True
        )
        tagger = SequenceTagger(
            embeddings,
            labels,
            "ner",
            hidden_size=200,
            use_rnn=self.rnn_and_crf,
            use_crf=self.rnn_and_crf,
            reproject_embeddings=False,
            dropout=0.1,
            word_dropout=0.0,
            locked_dropout=0.0,
        )
        ModelTrainer(tagger, parts).fine_tune(
            out,
            learning_rate=rate,
            decoder_learning_rate=self.head * rate,
            warmup_fraction=min(1.0, WARMUP / steps),
            mini_batch_size=round(len(drawn) / steps),
            max_epochs=1,
        )

    def _sentence(self, record: Record) -> Sentence:
        sentence = Sentence(words(record))
        starts = {start: i for i, (start, _) in enumerate(record["tokens"])}
        ends = {end: i for i, (_, end) in enumerate(record["tokens"])}
        for start, end, label in record["ents"]:
            if start in starts and end in ends:
                sentence[starts[start] : ends[end] + 1].add_label("ner", label)
        return sentence

    def load(self, model: str) -> None:
        self.tagger = SequenceTagger.load(f"{model}/final-model.pt")

    def annotate(self, texts: list[str], batch_size: int) -> Any:
        sentences = [Sentence(text) for text in texts]
        self.tagger.predict(sentences, mini_batch_size=batch_size)
        return sentences

    def find_in_tokens(self, path: str, batch_size: int) -> list[list[Entity]]:
        records = read(path)
        sentences = [Sentence(words(record)) for record in records]
        self.tagger.predict(sentences, mini_batch_size=batch_size)
        found: list[list[Entity]] = [[] for _ in records]
        for record, sentence, ents in zip(records, sentences, found):
            for span in sentence.get_spans("ner"):
                first, last = (record["tokens"][span.tokens[i].idx - 1] for i in (0, -1))
                ents.append((first[0], last[1], span.get_label("ner").value))
        return found

    def entities(self, annotated: Any) -> list[list[Entity]]:
        return [
            [
                (s.start_position, s.end_position, s.get_label("ner").value)
                for s in one.get_spans("ner")
            ]
            for one in annotated
        ]


class FlairLinear(FlairTagger):
    """A linear layer alone: no RNN, no CRF, the first piece of each word.

    As flair's documentation fine-tunes a transformer, with one learning rate, but with the dropout
    above, and without the context of a document: the documents here are sentences.
    """

    pooling = "first"
    rnn_and_crf = False
    head = 1


if __name__ == "__main__":
    serve(FlairTagger, flair_linear=FlairLinear)
