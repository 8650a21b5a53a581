"""Held-out docs with the entities of the teachers, to measure the student's agreement on."""

from collections.abc import Iterator
from pathlib import Path

from spacy.language import Language
from spacy.tokens import Doc, DocBin, Span

from ..atomic import atomic_write
from ..pipeline.distill_targets import DistillTarget, probable_entities
from ..pipeline.lookup import recognizer
from ..training.teacher_shard import as_example, count_docs, find_shards, read_shard

MAX_DOCS, LEAST = 1000, 10


def interval(docs: int) -> int:
    """Return n, where every n-th doc is held out: a tenth of the docs, but about 1000 at most."""
    return max(LEAST, docs // MAX_DOCS)


def write_held_out(nlp: Language, shards: Path, file: Path) -> int:
    """Write the held-out docs of shards with their teachers' entities; return `hold_out`.

    That is the setting of `spacy-crf-ner.DistillCorpus.v1`. An entity is a span with a mean
    posterior above 0.5. The student need not be trained.
    """
    hold_out = interval(sum(map(count_docs, find_shards(shards))))
    with atomic_write(file) as unfinished:
        DocBin(docs=_held_out(nlp, shards, hold_out)).to_disk(unfinished)
    return hold_out


def _held_out(nlp: Language, shards: Path, hold_out: int) -> Iterator[Doc]:
    ner = recognizer(nlp)
    number = 0
    for path in find_shards(shards):
        shard = read_shard(path, nlp.vocab)
        held = slice(-number % hold_out, None, hold_out)
        number += len(shard.docs)
        for gold, emissions in zip(shard.docs[held], shard.emissions[held]):
            doc = as_example(nlp, gold).predicted
            target = DistillTarget(shard.teachers, emissions, 1.0, 1.0)
            spans = [Span(doc, *span) for span in probable_entities(doc, target, ner.encoding_of)]
            if ner.entities_key is None:
                doc.set_ents(spans)
            else:
                doc.spans[ner.entities_key] = spans
            yield doc
