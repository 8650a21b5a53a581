r"""Corpora: annotated text in three formats, read into Docs and written as spaCy's binary corpora.

inline  A sentence a line, UTF-8: `[Tim Cook](PERSON) visited [Hanoi](GPE).` The three characters
        `\[`, `\]` and `\\` stand for themselves; any other backslash is a backslash.
conll   A token a line, UTF-8, 2 to 4 columns, the token first and its tag last; a blank line ends
        a sentence, a line that begins with -DOCSTART- begins a document.
gmb     `ner_dataset.csv` of Kaggle's "Annotated Corpus for Named Entity Recognition".

Tags may be IOB1, IOB2 (BIO) or BILUO (BIOES). The first two need not be told apart: an I- that
follows no tag of its label begins an entity, as in conlleval, and a B- always does. A file that
has an L-, U-, E- or S- anywhere is BILUO, and there every entity must be closed.
"""

import csv
import random
import re
from collections import Counter, deque
from itertools import accumulate, groupby, islice, pairwise
from pathlib import Path
from typing import Callable, Dict, Iterable, Iterator, List, NamedTuple, Sequence, Tuple
from unicodedata import category, is_normalized

import spacy
from spacy.language import Language
from spacy.tokens import Doc, DocBin, Span
from spacy.util import get_words_and_spaces

from .syllables import SYLLABLES

Converter = Callable[[Path, Language], Iterator[Doc]]

SPLITS = ("train", "dev", "test")
ALIASES = {"valid": "dev", "validation": "dev", "testa": "dev", "testb": "test"}
EXTENSIONS = ("txt", "conll", "iob", "csv", "tsv")
# In the user_data of a sentence, for `group_sentences` only: the number of its document, from 1.
DOCUMENT = "document"
GMB_HEADER = ["Sentence #", "Word", "POS", "Tag"]
TAG = re.compile(r"O|[BILUES]-\S+")
ESCAPED = re.compile(r"\\([\[\]\\])")
# An escaped character, an entity (its text, its label), or a bracket that is part of neither.
MARKUP = re.compile(
    r"\\[\[\]\\]|\[((?:\\[\[\]\\]|\\(?![\[\]\\])|[^\[\]\\])+)\]\(([^\s()\[\]\\]+)\)|[\[\]]"
)


class CorpusError(ValueError):
    """A corpus that cannot be read; the message says where, what was expected, and what to do."""


class Row(NamedTuple):
    """A token and its tag as written, where, and the numbers of its sentence and document."""

    where: str
    word: str
    tag: str
    sentence: int
    document: int = 0  # in front of the first boundary, and where the format has none


def blank_pipeline(lang: str, segment: bool = True) -> Language:
    """Make a pipeline that only tokenises.

    lang: Language code of spaCy. Vietnamese ("vi") is segmented by pyvi into words, which may hold
        spaces; where pyvi is not installed, by spaCy's general rules, into syllables.
    segment: False for syllables, with pyvi too.

    Raises ValueError where spaCy does not have the language, or a package that it needs.
    """
    rules = {"nlp": {"tokenizer": {"@tokenizers": "spacy.Tokenizer.v1"}}}
    if lang == "vi" and not segment:
        return spacy.blank("vi", config=rules)
    try:
        return spacy.blank(lang)
    except ImportError as error:
        if lang == "vi":
            return spacy.blank("vi", config=rules)
        raise ValueError(f"lang: expected a language of spaCy, got {lang!r}: {error}") from error


def read_inline(path: Path, nlp: Language) -> Iterator[Doc]:
    """Read sentences with entities in brackets, tokenised by the pipeline.

    path: File, UTF-8. Whitespace around a line is not part of the sentence.
    nlp: Pipeline whose tokenizer is used.

    Yields a Doc a sentence. A word of several syllables ends where an entity begins or ends, and so
    does one that the rules of the tokenizer leave punctuation with, in decomposed letters (NFD).
    Raises CorpusError for brackets that do not match, nested entities, and an entity without a
    label or without a token, not of whitespace, at each of its edges.
    """
    for where, line in _lines(path):
        if line.strip():
            text, entities = _parse_inline(where, line.strip())
            doc = _cut(
                nlp.make_doc(text), [at for start, end, _ in entities for at in (start, end)]
            )
            spans = [_whole_tokens(where, doc, *entity) for entity in entities]
            doc.set_ents(spans, default="outside")
            for token in doc:
                token.is_sent_start = token.i == 0
            yield doc


def read_conll(path: Path, nlp: Language) -> Iterator[Doc]:
    """Read columns of tokens and tags; spaCy trains on these tokens, not on its tokenizer's.

    path: File, UTF-8. If its first token line has a tab, columns are separated by single tabs,
        so that a token may hold spaces; else by runs of spaces.
    nlp: Pipeline whose vocabulary the Docs share.

    Yields a Doc a sentence. Raises CorpusError for a wrong number of columns, an empty token, an
    unknown tag, an entity that BILUO leaves open, or one with a whitespace token at an edge.
    """
    return _tagged_docs(nlp, lambda: _conll_rows(path))


def read_gmb(path: Path, nlp: Language) -> Iterator[Doc]:
    """Read Kaggle's export of the Groningen Meaning Bank; its tokens are kept, as `read_conll`'s.

    path: CSV file with the header `Sentence #,Word,POS,Tag`, in UTF-8 if it is valid as such, else
        in Latin-1. A sentence begins where the first cell is filled and is not the one before.
    nlp: Pipeline whose vocabulary the Docs share.

    Yields a Doc a sentence. Raises CorpusError as `read_conll` does.
    """
    encoding = "utf-8-sig"
    try:
        deque(_lines(path), maxlen=0)
    except CorpusError:
        encoding = "latin-1"
    return _tagged_docs(nlp, lambda: _gmb_rows(path, encoding))


CONVERTERS: Dict[str, Converter] = {"inline": read_inline, "conll": read_conll, "gmb": read_gmb}


def detect_format(path: Path) -> str:
    """Tell the format of a corpus, a key of `CONVERTERS`, by its first lines.

    path: A file, or a folder as for `convert`, whose files must then be of one format.

    Raises CorpusError for content of no known format.
    """
    formats = {file.name: _detect_format_of_file(file) for file in _find_files(path).values()}
    if len(set(formats.values())) > 1:
        found = ", ".join(f"{file} ({format})" for file, format in formats.items())
        raise _error(str(path), "files of one format", found, "Convert each of them alone")
    return next(iter(formats.values()))


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
        for name, file in _find_files(source).items()
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


def _error(where: str, expected: str, got: str, fix: str) -> CorpusError:
    return CorpusError(f"{where}: expected {expected}, got {got}. {fix}.")


def _lines(path: Path, errors: str = "strict") -> Iterator[Tuple[str, str]]:
    """Read (where, text) of the lines of a UTF-8 file, which end at line feeds, not at U+2028."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            where = f"{path}, line {number}"
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8", errors)
            except UnicodeDecodeError as error:
                raise _error(where, "UTF-8", str(error), "Save the file as UTF-8") from error
            yield where, text.removesuffix("\n").removesuffix("\r")


def _parse_inline(where: str, line: str) -> Tuple[str, List[Tuple[int, int, str]]]:
    """Take the markup off a line: its text, and (start, end, label) of entities, in characters."""
    text, at = "", 0
    entities = []
    for match in MARKUP.finditer(line):
        if match[0] in "[]":
            got = repr(line[match.start() :][:40])
            fix = r"Close and label each entity, nest none, and write \[ or \] for a bracket"
            raise _error(where, "[text](LABEL), neither of them empty", got, fix)
        entity, label = match.groups()
        text += line[at : match.start()]
        at, start = match.end(), len(text)
        text += ESCAPED.sub(r"\1", entity or match[0])
        if label:
            entities.append((start, len(text), label))
    return text + line[at:], entities


def _cut(doc: Doc, edges: Sequence[int]) -> Doc:
    """Cut the tokens in which entities begin or end, at these characters, where words may end."""
    words: List[str] = []
    for token in doc:
        begin, end = token.idx, token.idx + len(token)
        inside = {at for at in edges if begin < at < end and _may_cut(token.text, at - begin)}
        parts = [doc.text[i:j].strip() for i, j in pairwise(sorted({begin, end} | inside))]
        words += filter(None, parts) if inside else [token.text]
    if len(words) == len(doc):
        return doc
    words, spaces = get_words_and_spaces(words, doc.text)
    return Doc(doc.vocab, words, spaces=spaces)


def _may_cut(word: str, at: int) -> bool:
    """Tell whether the tokenizer was to cut here, were there no pyvi, and all letters composed."""
    sides = word[at - 1 : at + 1]
    if is_normalized("NFC", word):
        return any(side.isspace() for side in sides)
    return not all(side.isalnum() or category(side)[0] == "M" for side in sides)


def _whole_tokens(where: str, doc: Doc, start: int, end: int, label: str) -> Span:
    span = doc.char_span(start, end, label)
    if span is None or span[0].is_space or span[-1].is_space:
        tokens = [t.text for t in doc if t.idx < end and start < t.idx + len(t)]
        got = f"{doc.text[start:end]!r} in the tokens {tokens}"
        fix = "Move the brackets to where tokens begin and end, or put spaces around the entity"
        raise _error(where, "an entity of whole tokens, without whitespace at an edge", got, fix)
    return span


def _tagged_docs(nlp: Language, read: Callable[[], Iterator[Row]]) -> Iterator[Doc]:
    """Make a Doc of each sentence; read twice, first to check the tags: are they BILUO?"""
    biluo = False
    for row in read():
        if not row.word or not TAG.fullmatch(row.tag):
            got = f"{row.word!r} and {row.tag!r}"
            fix = "A tag is O, or one of B, I, L, U, E, S with a hyphen and a label"
            raise _error(row.where, "a token and a tag, as O or B-PER", got, fix)
        biluo = biluo or row.tag[0] in "LUES"
    for (document, _), sentence in groupby(read(), lambda row: (row.document, row.sentence)):
        rows = list(sentence)
        known = {DOCUMENT: document} if document else {}
        # No spaces: spaCy then trains on these tokens, not on those of its own tokenizer.
        doc = Doc(nlp.vocab, [row.word for row in rows], user_data=known)
        for token in doc:
            token.is_sent_start = token.i == 0
        doc.set_ents([Span(doc, *span) for span in _spans(rows, biluo)], default="outside")
        yield doc


def _spans(rows: List[Row], biluo: bool) -> List[Tuple[int, int, str]]:
    """Read (first token, last token + 1, label) of each entity off the tags of a sentence."""
    spans: List[Tuple[int, int, str]] = []
    inside = ""  # label of the entity that the next token may continue, and in BILUO must
    end = rows[-1]._replace(word="the end of the sentence", tag="O")
    for i, row in enumerate([*rows, end]):
        prefix, label = row.tag[0], row.tag[2:]
        continues = prefix in "ILE" and label == inside
        if biluo and not continues and (inside or prefix in "ILE"):
            expected = f"I-, L- or E-{inside}" if inside else f"B-{label} in front of {row.tag}"
            fix = "In BILUO (BIOES) an entity is B- I- L- (B- I- E-), of one token U- (S-)"
            raise _error(row.where, expected, f"{row.tag} ({row.word})", fix)
        if continues:
            spans[-1] = (spans[-1][0], i + 1, label)
        elif row.tag != "O":
            spans.append((i, i + 1, label))
        inside = label if prefix in "BI" else ""
    for row in (rows[i] for start, stop, _ in spans for i in (start, stop - 1)):
        if row.word.isspace():
            raise _error(row.where, "no whitespace at an entity's edge", repr(row.word), "Tag it O")
    return spans


def _conll_rows(path: Path) -> Iterator[Row]:
    sentence = document = n_columns = tabs = 0
    for where, line in _lines(path):
        if line.startswith("-DOCSTART-"):
            document += 1
        elif not line.strip():
            sentence += 1
        else:
            tabs = tabs if n_columns else "\t" in line
            cells = line.split("\t") if tabs else [cell for cell in line.split(" ") if cell]
            n_columns = n_columns or min(max(len(cells), 2), 4)
            if len(cells) != n_columns:
                expected = f"{n_columns} columns (2 to 4, as in the first line)"
                fix = "Separate all columns by tabs, or all by spaces; the last one is the tag"
                raise _error(where, expected, f"{len(cells)}: {cells}", fix)
            yield Row(where, cells[0], cells[-1], sentence, document)


def _gmb_rows(path: Path, encoding: str) -> Iterator[Row]:
    previous, sentence = "", 0
    with path.open(encoding=encoding, newline="") as file:
        rows = csv.reader(file, strict=True)
        try:
            for cells in filter(None, rows):
                where = f"{path}, line {rows.line_num}"
                if len(cells) != len(GMB_HEADER) or (rows.line_num == 1 and cells != GMB_HEADER):
                    fix = "Put a cell that holds a comma in quotes"
                    raise _error(where, ",".join(GMB_HEADER), str(cells), fix)
                name, word, _, tag = cells
                if name not in ("", previous):
                    previous, sentence = name, sentence + 1
                if cells != GMB_HEADER:
                    yield Row(where, word, tag, sentence)
        except csv.Error as error:
            where, fix = f"{path}, line {rows.line_num}", 'Write a cell that is a quote as """"'
            raise _error(where, "CSV", str(error), fix) from error


def _detect_format_of_file(path: Path) -> str:
    lines = [line for _, line in islice(_lines(path, errors="replace"), 200) if line.strip()]
    if lines and lines[0].replace('"', "").split(",") == GMB_HEADER:
        return "gmb"
    # Most of the lines, not all: a line with a mistake is for the converter to point out.
    rows = [line.split() for line in lines]
    tagged = [row for row in rows if 2 <= len(row) <= 4 and TAG.fullmatch(row[-1])]
    if len(tagged) > len(lines) / 2:
        return "conll"
    if any(match[2] for line in lines for match in MARKUP.finditer(line)):
        return "inline"
    expected = "inline ([Tim Cook](PERSON) came.), conll (a token and a tag a line) or gmb (CSV)"
    got = repr(lines[0][:60]) if lines else "no text"
    raise _error(str(path), expected, got, "If it is one of these, name the format")


def _part(path: Path) -> str:
    """Tell the part that a file is by its name: train, train.txt, eng.testa, eng.testa.conll."""
    stem, _, extension = path.name.lower().rpartition(".")
    name = stem.rpartition(".")[2] if extension in EXTENSIONS else extension
    part = ALIASES.get(name, name)
    named = part in (*SPLITS, "readme", "license", "licence")
    return "corpus" if extension in EXTENSIONS and not named else part


def _find_files(source: Path) -> Dict[str, Path]:
    """Find the files of a corpus, by part; the name of a file that is to be split is "corpus"."""
    if not source.is_dir():
        return {"corpus": source}
    files = [path for path in sorted(source.iterdir()) if path.is_file()]
    names = SPLITS if any(_part(path) in SPLITS for path in files) else ["corpus"]
    parts = {name: [path for path in files if _part(path) == name] for name in names}
    for name, paths in parts.items():
        if len(paths) > 1 or (not paths and name != "test"):
            found = ", ".join(path.name for path in files) or "none"
            fix = f"Name them train.txt and so on (.{', .'.join(EXTENSIONS)}), or give one file"
            raise _error(str(source), f"one file for {name}", found, fix)
    return {name: paths[0] for name, paths in parts.items() if paths}


def _pack(where: str, docs: Iterable[Doc]) -> Tuple[DocBin, Dict[str, int]]:
    packed, counts = DocBin(store_user_data=True), Counter[str]()
    for doc in docs:
        packed.add(doc)
        counts.update(docs=1, sentences=len(list(doc.sents)), tokens=len(doc))
        counts.update(entities=len(doc.ents), **Counter(f"entities.{e.label_}" for e in doc.ents))
    if not len(packed):
        raise _error(where, "at least one doc", "none", "Change the shares, or add sentences")
    return packed, dict(counts)
