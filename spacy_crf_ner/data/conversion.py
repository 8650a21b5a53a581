"""Corpora of any format to the binary files that spaCy trains on."""

import random
from collections import Counter
from itertools import accumulate, groupby, islice, pairwise
from pathlib import Path
from typing import Callable, Dict, Iterable, Iterator, List, Sequence, Tuple

from spacy.language import Language
from spacy.tokens import Doc, DocBin

from ..syllables import SYLLABLES
from .conll import read_conll
from .detection import detect_format
from .files import SPLITS, find_files
from .gmb import read_gmb
from .inline import read_inline
from .journal import error
from .tagged import DOCUMENT

Converter = Callable[[Path, Language], Iterator[Doc]]

CONVERTERS: Dict[str, Converter] = {"inline": read_inline, "conll": read_conll, "gmb": read_gmb}


def group_sentences(docs: Iterable[Doc], n: int) -> Iterator[Doc]:
    """Join sentences to longer Docs, never across the boundary of two documents.

    docs: Sentences, as the converters yield them.
    n: Sentences a Doc; the last Doc of a document may have fewer. 1 keeps sentences apart. 0 joins
        all of a document, where the corpus marks documents, and keeps sentences apart elsewhere.

    Yields Docs in which each of the sentences begins a sentence, with a space between two.
    Raises ValueError for a negative n.
    """
    if n < 0:
        raise ValueError(f"group: expected a number of sentences, 0 or more, got {n}.")
    for document, sentences in groupby(docs, key=lambda doc: doc.user_data.get(DOCUMENT, 0)):
        size = n or (None if document else 1)
        while group := list(islice(sentences, size)):
            joined = Doc.from_docs(group, exclude=["user_data"])  # type: ignore[call-arg]  # not in the stub
            joined.has_unknown_spaces = group[0].has_unknown_spaces
            yield joined


def split(
    docs: Sequence[Doc], shares: Sequence[float] = (0.8, 0.1, 0.1), seed: int = 0
) -> Tuple[List[Doc], ...]:
    """Divide docs at random; the same number of docs, shares and seed give the same division.

    docs: N Docs.
    shares: Fraction of N that each part gets. Part k ends, in the shuffled order, at N times the
        sum of the first k shares, rounded.

    Returns a list for each share; inside it the docs are in their original order.
    Raises ValueError for shares that are negative or do not sum to 1.
    """
    if not all(share >= 0 for share in shares) or not abs(sum(shares) - 1) < 1e-9:
        got = ",".join(map(str, shares))
        raise ValueError(f"shares: expected fractions that sum to 1, as 0.8,0.1,0.1, got {got}.")
    draw = random.Random(seed).random  # the one method whose sequence Python never changes
    order = sorted(range(len(docs)), key=lambda _: draw())
    ends = [round(len(docs) * total) for total in accumulate(shares)]
    return tuple([docs[i] for i in sorted(order[at:end])] for at, end in pairwise([0, *ends]))


def convert(
    source: Path,
    target: Path,
    *,
    nlp: Language,
    format: str = "auto",
    group: int = 1,
    syllables: str = "keep",
    shares: Sequence[float] = (0.8, 0.1, 0.1),
    seed: int = 0,
) -> Dict[str, Dict[str, int]]:
    """Write a corpus as train.spacy, dev.spacy and test.spacy.

    source: A file, which is split by `shares`; or a folder, with a file for train, for dev and, if
        there is one, for test (train.txt, eng.testa), or else with one file, which is split.
    target: Folder for the three files. Nothing is written unless all of the corpus can be read.
    nlp: Pipeline whose tokenizer is used, if the format has no tokens, and whose vocabulary.
    format: A key of `CONVERTERS`, or "auto" to tell it by the content.
    group: Sentences a Doc, as for `group_sentences`.
    syllables: A key of `SYLLABLES`: keep tokens, split words into syllables, or join them to words.
    shares, seed: As for `split`; a part whose share is 0, or left out, is not written.

    Returns the number of docs, sentences, tokens and entities of each part written, and that of
    the entities of each label, as "entities.PERSON".
    Raises CorpusError for a corpus that cannot be read, and where a part would have no docs, and
    ValueError for a choice that there is not, or that needs a package which is not installed.
    """
    if format == "auto":
        format = detect_format(source)
    if format not in CONVERTERS:
        raise ValueError(f"format: expected auto, {', '.join(CONVERTERS)}, got {format!r}.")
    if syllables not in SYLLABLES:
        raise ValueError(f"syllables: expected {', '.join(SYLLABLES)}, got {syllables!r}.")
    if len(shares) > len(SPLITS):
        raise ValueError(f"shares: expected at most 3 ({', '.join(SPLITS)}), got {len(shares)}.")
    parts: Dict[str, Iterable[Doc]] = {
        name: group_sentences(SYLLABLES[syllables](CONVERTERS[format](file, nlp)), group)
        for name, file in find_files(source).items()
    }
    if "corpus" in parts:
        divided = zip(SPLITS, shares, split(list(parts["corpus"]), shares, seed), strict=False)
        parts = {name: docs for name, share, docs in divided if share}
    packed = {name: _pack(f"{source}, {name}", docs) for name, docs in parts.items()}
    target.mkdir(parents=True, exist_ok=True)
    for name, (docs, _) in packed.items():
        # Under another name first: a file that is only half written never looks whole.
        unfinished = target / f"{name}.spacy.part"
        docs.to_disk(unfinished)
        unfinished.replace(target / f"{name}.spacy")
    return {name: counts for name, (_, counts) in packed.items()}


def _pack(where: str, docs: Iterable[Doc]) -> Tuple[DocBin, Dict[str, int]]:
    packed, counts = DocBin(store_user_data=True), Counter[str]()
    for doc in docs:
        packed.add(doc)
        counts.update(docs=1, sentences=len(list(doc.sents)), tokens=len(doc))
        counts.update(entities=len(doc.ents), **Counter(f"entities.{e.label_}" for e in doc.ents))
    if not len(packed):
        raise error(where, "at least one doc", "none", "Change the shares, or add sentences")
    return packed, dict(counts)
