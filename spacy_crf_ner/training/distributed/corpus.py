"""The share of a corpus that one rank learns from."""

from pathlib import Path
from typing import Any, Callable, Iterable, Iterator, Optional

from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Corpus, Example
from spacy.training.corpus import FILE_TYPE
from spacy.vocab import Vocab

from .process_group import ranks
from .state import run


class RankCorpus(Corpus):
    """The docs of a corpus, of which each rank learns from every so many-th; see `rank_corpus`."""

    def __call__(self, nlp: Language) -> Iterator[Example]:
        """Yield the examples of a pipeline in training that are this rank's; else all."""
        _require_docbins(self.path)
        self.shared = run().nlp is nlp
        yield from super().__call__(nlp)

    def read_docbin(self, vocab: Vocab, locs: Iterable[Any]) -> Iterator[Doc]:
        """Yield the docs, from which examples are made, of this rank."""
        rank, world = (ranks().rank, ranks().world) if self.shared else (0, 1)
        docs = 0
        for doc in super().read_docbin(vocab, locs):
            if docs % world == rank:
                yield doc
            docs += 1
        if docs < world:
            raise ValueError(
                f"{self.path}: expected at least a doc for each of {world} ranks, got {docs}. "
                "Start fewer processes."
            )


def rank_corpus(
    path: Optional[Path],
    gold_preproc: bool,
    max_length: int = 0,
    limit: int = 0,
    augmenter: Optional[Callable[..., Any]] = None,
) -> Callable[[Language], Iterable[Example]]:
    """Make `spacy-crf-ner.RankCorpus.v1`: a corpus of which each rank learns from a share.

    Of docs in the order of the files, rank r of N takes those whose number is r modulo N, and
    makes examples of them alone. What initializes a pipeline is all of it: ranks must know the
    same labels. A process that is alone takes all.

    path: A .spacy file, or a folder of nothing but such files; hidden files do not count.
    gold_preproc, max_length, augmenter: As of `spacy.Corpus.v1`.
    limit: Docs that are read of a file, by all ranks together; 0 for all.

    Raises ValueError for no path; in reading, for other files, and for fewer docs than ranks.
    """
    if path is None:
        raise ValueError(
            "[corpora.train] path: expected a .spacy file or a folder of them, got none. Give "
            "--paths.train."
        )
    return RankCorpus(
        path, gold_preproc=gold_preproc, max_length=max_length, limit=limit, augmenter=augmenter
    )


def _require_docbins(path: Path) -> None:
    """Refuse what spaCy would skip, and never say so."""
    inside = [file for file in path.rglob("*") if file.is_file()]
    hidden = {file for file in inside if "/." in f"/{file.relative_to(path).as_posix()}"}
    files = [file for file in inside if file not in hidden] if path.is_dir() else [path]
    other = sorted(str(file) for file in files if not file.name.endswith(FILE_TYPE))
    if other or not files:
        raise ValueError(
            f"{path}: expected nothing but files that end in {FILE_TYPE}, got "
            f"{', '.join(other[:5]) or 'none'}. Convert a corpus with spacy-crf-ner convert, or "
            "move what is none elsewhere."
        )
