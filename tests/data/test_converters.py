"""Corpus readers: round trips, and errors with file and line."""

import csv
import os
import random
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import spacy
from hypothesis import example, given
from hypothesis import strategies as st
from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Corpus, biluo_tags_to_spans, iob_to_biluo, offsets_to_biluo_tags
from spacy.util import filter_spans

from helpers import GOLDEN, Sentence, put
from spacy_crf_ner import data
from spacy_crf_ner.data import FORMATS, Split
from spacy_crf_ner.data.columns import read_conll
from spacy_crf_ner.data.sentences import group_sentences
from spacy_crf_ner.data.splits import split_units
from spacy_crf_ner.docbin import document_of
from spacy_crf_ner.input_error import CorpusError, InputError
from spacy_crf_ner.ml.zero_width import is_blank

HERE = Path(__file__).parents[1]
REAL = Path(os.environ.get("SPACY_CRF_NER_DATA", HERE.parent.parent / "shared" / "data"))

GOLDEN_FILES = {
    "inline.txt": "inline",
    "iob2.conll": "conll",
    "iob1.conll": "conll",
    "bioes.conll": "conll",
    "gmb.csv": "table",
}
GMB_HEADER = "Sentence #,Word,POS,Tag\n"


@pytest.fixture(scope="module")
def whitespace_nlp() -> Language:
    """A pipeline whose tokens are what stands between spaces."""
    nlp = spacy.blank("xx")
    nlp.tokenizer = lambda text: Doc(nlp.vocab, words=text.split(" "))
    return nlp


def sentences_of(docs: list[Doc]) -> list[Sentence]:
    return [
        ([token.text for token in doc], [(ent.start, ent.end, ent.label_) for ent in doc.ents])
        for doc in docs
    ]


def read(path: Path, format: str, nlp: Language) -> list[Sentence]:
    return sentences_of(list(FORMATS[format](path, nlp)))


# Writers: the other way, independent of the readers.


def iob1(words: list[str], spans: list[tuple[int, int, str]]) -> list[str]:
    tags = ["O"] * len(words)
    for start, end, label in spans:
        tags[start:end] = [f"I-{label}"] * (end - start)
        if any(stop == start and other == label for _, stop, other in spans):
            tags[start] = f"B-{label}"
    return tags


def iob2(words: list[str], spans: list[tuple[int, int, str]]) -> list[str]:
    tags = ["O"] * len(words)
    for start, end, label in spans:
        tags[start:end] = [f"B-{label}"] + [f"I-{label}"] * (end - start - 1)
    return tags


def biluo(words: list[str], spans: list[tuple[int, int, str]]) -> list[str]:
    tags: list[str] = iob_to_biluo(iob2(words, spans))
    return tags


def bioes(words: list[str], spans: list[tuple[int, int, str]]) -> list[str]:
    return [re.sub("^U-", "S-", re.sub("^L-", "E-", tag)) for tag in biluo(words, spans)]


def bmes(words: list[str], spans: list[tuple[int, int, str]]) -> list[str]:
    return [re.sub("^I-", "M-", tag) for tag in bioes(words, spans)]


SCHEMES: dict[str, Callable[..., list[str]]] = {
    "iob1": iob1,
    "iob2": iob2,
    "biluo": biluo,
    "bioes": bioes,
    "bmes": bmes,
}


def write_conll(path: Path, sentences: list[Sentence], scheme: str, columns: str) -> None:
    """Write the columns that a pattern asks for, such as "{word} - {tag}"."""
    lines = []
    for words, spans in sentences:
        tags = SCHEMES[scheme](words, spans)
        lines += [columns.format(word=word, tag=tag) for word, tag in zip(words, tags, strict=True)]
        lines.append("")
    path.write_bytes("\n".join(lines).encode())


def escape(text: str) -> str:
    return re.sub(r"([\[\]\\])", r"\\\1", text)


def write_inline(path: Path, sentences: list[Sentence]) -> None:
    lines = []
    for words, spans in sentences:
        cells = [escape(word) for word in words]
        for start, end, label in spans:
            cells[start] = "[" + cells[start]
            cells[end - 1] += f"]({label})"
        lines.append(" ".join(cells))
    path.write_bytes("\n".join(lines).encode())


def words(*excluded: str) -> st.SearchStrategy[str]:
    """Words of any characters but control characters, these, and those that end or begin a file.

    Numbers are not words, and tokens of marks of no width are in no entity.
    """
    anything = st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufeff")
    # Brackets and separators that tokens of real tweets hold, more often than chance has them.
    odd = st.sampled_from("[]()\\\"'-,\xa0\u2028\u2029\u3000")
    text = st.text(anything | odd, min_size=1, max_size=6)
    kept = text.filter(lambda word: word.strip() == word and not set(word) & {*"".join(excluded)})
    return kept.filter(lambda word: not word.isdecimal() and not is_blank(word))


@st.composite
def sentence(draw: st.DrawFn, word: st.SearchStrategy[str]) -> Sentence:
    """A sentence of different words in pieces, each of them an entity or not."""
    labels = st.sampled_from([None, "PER", "LOC", "creative-work"])
    pieces = draw(st.lists(st.tuples(st.integers(1, 3), labels), min_size=1, max_size=5))
    spans, at = [], 0
    for length, label in pieces:
        if label:
            spans.append((at, at + length, label))
        at += length
    return draw(st.lists(word, min_size=at, max_size=at, unique=True)), spans


# Reading


@pytest.mark.parametrize("end, encoding", [("\n", "utf-8"), ("\r\n", "utf-8-sig")])
@pytest.mark.parametrize("name", GOLDEN_FILES)
def test_readers_give_same_sentences_for_all_formats(
    name: str, end: str, encoding: str, tmp_path: Path, nlp: Language
) -> None:
    """Line ends and byte order marks do not matter."""
    text = (HERE / "fixtures" / name).read_text(encoding="utf-8")
    path = tmp_path / name
    path.write_text(text, encoding=encoding, newline=end)
    assert data.detect_format(path) == GOLDEN_FILES[name]
    docs = list(FORMATS[GOLDEN_FILES[name]](path, nlp))
    assert sentences_of(docs) == GOLDEN
    for doc, (expected, _) in zip(docs, GOLDEN, strict=True):
        assert doc.text.strip() == " ".join(expected)
        assert [token.is_sent_start for token in doc] == [i == 0 for i in range(len(doc))]
        assert {token.ent_iob_ for token in doc} <= set("BIO")  # none is missing
        assert doc.vocab is nlp.vocab


@given(st.lists(sentence(words()), min_size=1, max_size=3), st.sampled_from(list(SCHEMES)))
@example([(["a", "b", "c"], [(0, 1, "PER"), (1, 2, "PER"), (2, 3, "LOC")])], "iob1")
def test_read_conll_tab_separated_columns_round_trip(
    scratch: Path, nlp: Language, sentences: list[Sentence], scheme: str
) -> None:
    write_conll(scratch, sentences, scheme, "{word}\tx y\t{tag}")
    assert read(scratch, "conll", nlp) == sentences


@given(st.lists(sentence(words(" ")), min_size=1, max_size=3), st.sampled_from(list(SCHEMES)))
def test_read_conll_space_separated_columns_round_trip(
    scratch: Path, nlp: Language, sentences: list[Sentence], scheme: str
) -> None:
    write_conll(scratch, sentences, scheme, "  {word} -   {tag} ")
    assert read(scratch, "conll", nlp) == sentences


@given(
    st.lists(sentence(words()), min_size=1, max_size=3),
    st.sampled_from(list(SCHEMES)),
    st.sampled_from(",;"),
)
def test_read_table_round_trip(
    scratch: Path, nlp: Language, sentences: list[Sentence], scheme: str, separator: str
) -> None:
    with scratch.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=separator)
        writer.writerow(["sentence", "word", "tag"])
        for number, (words, spans) in enumerate(sentences):
            tags = SCHEMES[scheme](words, spans)
            writer.writerows(zip([number] * len(words), words, tags, strict=True))
    assert data.detect_format(scratch) == "table"
    assert read(scratch, "table", nlp) == sentences


@given(st.lists(sentence(words(" \xa0\u2028\u2029\u3000")), min_size=1, max_size=3))
@example([([r"\[", "]", "\\"], [(0, 1, "PER"), (2, 3, "PER")])])
def test_read_inline_round_trip(
    scratch: Path, whitespace_nlp: Language, sentences: list[Sentence]
) -> None:
    write_inline(scratch, sentences)
    assert read(scratch, "inline", whitespace_nlp) == sentences


@given(st.lists(st.sampled_from(["O", "B-X", "I-X", "B-Y", "I-Y"]), min_size=1, max_size=8))
def test_read_conll_iob_tags_match_spacy(scratch: Path, nlp: Language, tags: list[str]) -> None:
    """Also those that are not well-formed; where an I- begins an entity, so it does in IOB1."""
    scratch.write_text("\n".join(f"w {tag}" for tag in tags))
    (doc,) = read_conll(scratch, nlp)
    oracle = biluo_tags_to_spans(doc, iob_to_biluo(tags))
    assert [(s.start, s.end, s.label_) for s in doc.ents] == [
        (s.start, s.end, s.label_) for s in filter_spans(oracle)
    ]


@given(
    st.lists(
        st.sampled_from(["O", "B-X", "I-X", "L-X", "U-X", "B-Y", "I-Y", "L-Y"]),
        min_size=1,
        max_size=5,
    )
)
def test_read_conll_biluo_matches_spacy_or_raises_if_invalid(
    scratch: Path, nlp: Language, tags: list[str]
) -> None:
    # A U- in another sentence makes the file BILUO, whatever this one has.
    scratch.write_text("\n".join(f"w {tag}" for tag in tags) + "\n\nw U-Z")
    entity = r"(U-(X|Y) |B-X (I-X )*L-X |B-Y (I-Y )*L-Y )"
    if re.fullmatch(rf"(O |{entity})*", "".join(f"{tag} " for tag in tags)):
        doc, _ = read_conll(scratch, nlp)
        oracle = biluo_tags_to_spans(doc, tags)
        assert [(s.start, s.end) for s in doc.ents] == [(s.start, s.end) for s in oracle]
    else:
        with pytest.raises(CorpusError, match="BILUO"):
            list(read_conll(scratch, nlp))


def test_read_inline_entities_match_character_offsets(tmp_path: Path, nlp: Language) -> None:
    path = put(
        tmp_path / "a.txt",
        r'"[Tim Cook](PERSON)", he said \[sic\], doesn\'t  like C:\dir [Hanoi](GPE).',
    )
    (doc,) = data.read_inline(path, nlp)
    assert doc.text == r'"Tim Cook", he said [sic], doesn\'t  like C:\dir Hanoi.'
    at = doc.text.index("Hanoi")
    entities = [(1, 9, "PERSON"), (at, at + 5, "GPE")]
    tags = ["O" if token.ent_iob_ == "O" else token.ent_type_ for token in doc]
    oracle = [tag.split("-")[-1] for tag in offsets_to_biluo_tags(doc, entities)]
    assert tags == oracle


def test_tokens_keep_odd_characters(tmp_path: Path, nlp: Language) -> None:
    path = tmp_path / "tweets.conll"
    odd = ["a\xa0b", "\u2028", "c\x85d", " e ", "\ufe0f", "\x1c"]
    path.write_bytes("".join(f"{word}\tO\n" for word in odd).encode())
    assert read(path, "conll", nlp) == [([*odd[:3], "e", *odd[4:]], [])]


def test_gmb_falls_back_to_latin_1(tmp_path: Path, nlp: Language) -> None:
    path = tmp_path / "ner_dataset.csv"
    rows = "Sentence: 1,Café,NN,O\nSentence: 2,Zoë,NNP,B-per\n"
    for encoding in ("utf-8", "latin-1"):
        path.write_bytes((GMB_HEADER + rows).encode(encoding))
        assert read(path, "table", nlp) == [(["Café"], []), (["Zoë"], [(0, 1, "per")])]


def test_read_inline_streams_docs(tmp_path: Path, nlp: Language) -> None:
    path = put(tmp_path / "a.txt", "[Anna](PER) came .\nAn [open bracket .\n")
    docs = data.read_inline(path, nlp)
    assert next(docs).text == "Anna came ."
    with pytest.raises(CorpusError):
        next(docs)


@pytest.mark.parametrize(
    "format, content",
    [
        ("inline", "Is[ Tim](PER) here"),
        ("inline", "Is [Tim ](PER) here"),
        ("inline", " \t[ Tim](PER) here  "),
        ("inline", "Is [Tim   ](PER)here"),
        ("jsonl", '{"text": "Tim left", "spans": [{"start": 0, "end": 4, "label": "PER"}]}'),
        ("conll", "Tim\tB-PER\n \tI-PER\nhere\tO"),
        ("conll", "\xa0\tB-PER\nTim\tI-PER"),
    ],
)
def test_readers_trim_whitespace_at_edges_of_entities_and_count_it(
    format: str, content: str, tmp_path: Path, nlp: Language
) -> None:
    (tmp_path / "a").write_text(content, encoding="utf-8")
    log = data.ConversionLog()
    (doc,) = FORMATS[format](tmp_path / "a", nlp, log)
    assert [(ent.text, ent.label_) for ent in doc.ents] == [("Tim", "PER")]
    assert log.counts == {"trimmed.whitespace": 1}
    assert log.totals["entities"] == 1 and not log.totals["rejected.entities"]


# Errors. Each: format, content, line of the error, what else the message must contain.

MISTAKES = {
    "unclosed bracket": ("inline", "ok\n\nSee [Tim Cook now", 3, r"'[Tim Cook now'.*\["),
    "nested brackets": ("inline", "[Bank of [Hanoi](GPE)](ORG)", 1, "without nesting"),
    "no label": ("inline", "a\n[Tim Cook] came", 2, "[text](LABEL)"),
    "empty entity": ("inline", "so [](PER) came", 1, "neither of them empty"),
    "only space": ("inline", "Is [  ](PER) here", 1, "characters beside whitespace"),
    "inside a token": (
        "inline",
        "ok\n[Tim](PER)othy came",
        2,
        "'Tim' (PER, 0:3) in the tokens ['Timothy']",
    ),
    "inline not UTF-8": ("inline", "ok\n\udce9t\udce9", 2, "expected UTF-8.*Save the file"),
    "one column": ("conll", "EU\nrejects", 1, "expected 2 columns, as in most.*got 1"),
    "a column of its own": ("conll", "a b c O\nd e f O\nEU a b c O", 3, "expected 4.*got 5"),
    "a comment in a sentence": ("conll", "a O\n# not a comment\n", 2, "expected 2 columns"),
    "missing column": ("conll", "EU NNP O\n\ncalls VBZ", 3, "expected 3 columns.*['calls', 'VBZ']"),
    "unknown prefix": ("conll", "EU O\nHanoi X-PER", 2, "as O or B-PER, got 'Hanoi' and 'X-PER'"),
    "tag without label": ("conll", "EU O\nHanoi B-", 2, "'B-'. A tag is O"),
    "lower case tag": ("conll", "EU o", 1, "got 'EU' and 'o'"),
    "trailing space": ("conll", "EU\tO\nHanoi\tB-LOC ", 2, "'B-LOC '"),
    "empty token": ("conll", "EU\tO\n\tO", 2, "expected a token"),
    "I without B": ("conll", "EU S-ORG\nHanoi O\n\nTim I-PER", 4, "B-PER in front of I-PER"),
    "E without B": ("conll", "Tim O\nCook E-PER", 2, "B-PER in front of E-PER.*BIOES"),
    "E of another label": ("conll", "Tim B-PER\nCook E-ORG", 2, "expected I-, L- or E-PER"),
    "B before O": ("conll", "Tim B-PER\ncame O\n\nEU S-ORG", 2, "E-PER, got O (came)"),
    "whitespace token": ("conll", "a\tO\n\xa0\tB-X\nb\tO", 2, r"whitespace.*'\xa0'.*tag it O"),
    "a token of marks": ("conll", "a\tO\n\ufeff\tB-X\nb\tO", 2, "whitespace.*tag it O"),
    "bare comma": ("table", GMB_HEADER + "Sentence: 1,a,NN,O\n,,,,,O\n", 3, "comma in quotes"),
    "open quote": ("table", GMB_HEADER + 'Sentence: 1,",`,O\n', 2, 'expected CSV.*""""'),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_reader_error_names_file_line_and_remedy(case: str, tmp_path: Path, nlp: Language) -> None:
    format, content, line, says = MISTAKES[case]
    path = tmp_path / "corpus.file"
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(CorpusError) as caught:
        list(FORMATS[format](path, nlp))
    message = str(caught.value)
    assert message.startswith(f"{path}, line {line}: expected ")
    assert re.search(", got .+\\. .+\\.$", message)
    assert re.search(".*".join(re.escape(part) for part in says.split(".*")), message), message


def test_read_conll_accepts_whitespace_token_inside_entity(tmp_path: Path, nlp: Language) -> None:
    path = put(tmp_path / "a.conll", "New\tB-X\n\xa0\tI-X\nYork\tI-X\n")
    assert read(path, "conll", nlp) == [(["New", "\xa0", "York"], [(0, 3, "X")])]


# Format detection


def test_detect_format_identifies_file_with_bad_line(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    for content, format in [
        ("[Anna](PER) came .\n[Bob came .\n", "inline"),
        ("[Anna](PER) saw the U.S\n", "inline"),  # the last word is no tag
        ("Anna B-PER\ncame O\nhere\n", "conll"),
        ("-DOCSTART-\n\nAnna B-PER\ncame O\n", "conll"),
        # A markdown link in a tweet.
        ("[this](link)\tO\nis\tO\n", "conll"),
    ]:
        path.write_text(content)
        assert data.detect_format(path) == format


@pytest.mark.parametrize(
    "content, says",
    [
        ('{"text":"a b","spans":[],"x":1e999}', "line 1: expected JSON, .*not finite"),
        ('{"text":"see [a](b)","spans":[],"x":NaN}\n' * 3, "line 1: expected JSON, .*not finite"),
        ("{'text': 'a b', 'spans': []}\n", "line 1: expected JSON, .*in double quotes"),
        ('{\n"text": "a [b](c)",\n"spans": [}', "line 1: expected JSON, .*one JSON object per"),
        ('{"text":"a b"}\n', "line 1: expected JSON lines of a text and spans, got no entities"),
    ],
)
def test_convert_reads_file_starting_with_object_as_json_lines(
    content: str, says: str, tmp_path: Path, nlp: Language
) -> None:
    path = put(tmp_path / "a.json", content)
    with pytest.raises(CorpusError, match=says):
        data.convert(path, tmp_path / "out.spacy", nlp=nlp)
    n = len(content.splitlines())
    with pytest.raises(CorpusError, match=f"at least one doc, got none, {n} rejected.record"):
        data.convert(path, tmp_path / "out.spacy", nlp=nlp, log=data.ConversionLog(repair=True))


@pytest.mark.parametrize("begin", ["{sigh}", '{ "Hi" , said}'])
def test_detect_format_accepts_inline_starting_with_brace(begin: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(f"{begin} [Anna](PER) came .\n")
    assert data.detect_format(tmp_path / "a.txt") == "inline"


def test_detect_format_folder_of_mixed_formats_raises(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("[Anna](PER) came .")
    (tmp_path / "dev.txt").write_text("Anna B-PER")
    with pytest.raises(CorpusError, match=r"train.txt \(inline\), dev.txt \(conll\)"):
        data.detect_format(tmp_path)


# Grouping


def texts(docs: list[Doc]) -> list[str]:
    return [doc.text.strip() for doc in docs]


@pytest.fixture
def documents(tmp_path: Path, nlp: Language) -> list[Doc]:
    """Documents of 1, 3 and 2 sentences of one word: a / b c d / e f."""
    path = tmp_path / "documents.conll"
    path.write_text(
        "-DOCSTART- O\n\na B-X\n\n-DOCSTART- O\n\n-DOCSTART- O\nb O\n\nc O\n\nd B-X\n"
        "-DOCSTART- O\ne B-X\n\nf B-X\n"
    )
    return list(read_conll(path, nlp))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "n, expected",
    [
        (0, ["a", "b c d", "e f"]),
        (1, ["a", "b", "c", "d", "e", "f"]),
        (2, ["a", "b c", "d", "e f"]),
        (9, ["a", "b c d", "e f"]),
    ],
)
def test_group_sentences_keeps_documents_apart(
    n: int, expected: list[str], documents: list[Doc]
) -> None:
    groups = list(group_sentences(documents, n))
    assert texts(groups) == expected
    assert [len(list(doc.sents)) for doc in groups] == [len(text.split()) for text in expected]
    assert [e.text for doc in groups for e in doc.ents] == ["a", "d", "e", "f"]
    # Each says which document it is from, for a split and for `check`.
    numbers = [str(document_of(doc)).rpartition(" ")[2] for doc in groups]
    number = {"a": "1", "b": "3", "c": "3", "d": "3", "e": "4", "f": "4"}
    assert numbers == [number[text[0]] for text in expected]
    assert not any(doc.user_data.keys() - {"meta"} for doc in groups)


@pytest.mark.parametrize("n", [1, 3])
def test_convert_conll_keeps_tokens_in_spacy_corpus(n: int, tmp_path: Path) -> None:
    """Also where its own tokenizer would split them, as in don't."""
    source = tmp_path / "corpus.conll"
    source.write_text("don't O\nU.S.A.! B-GPE\n\nAT&T's B-ORG\n\n" * 3, encoding="utf-8")
    nlp = spacy.blank("en")
    data.convert(source, tmp_path, data.ConvertOptions(n_sents=n, split=Split((1.0,))), nlp=nlp)
    examples = list(Corpus(tmp_path / "train.spacy")(nlp))
    assert [t.text for eg in examples for t in eg.x] == ["don't", "U.S.A.!", "AT&T's"] * 3
    assert [tag for eg in examples for tag in eg.get_aligned_ner()] == ["O", "U-GPE", "U-ORG"] * 3


def test_group_sentences_without_documents_joins_n_docs(nlp: Language) -> None:
    docs = list(data.read_inline(HERE / "fixtures" / "inline.txt", nlp))
    assert texts(list(group_sentences(docs, 0))) == texts(docs)
    first, second = group_sentences(docs, 2)
    assert first.text == "Anna Schmidt visited Hanoi . From Paris Berlin New York Bob rings ."
    assert [sent.text for sent in first.sents] == texts(docs)[:2]
    assert [(e.start, e.end) for e in first.ents] == [
        (0, 2),
        (3, 4),
        (6, 7),
        (7, 8),
        (8, 10),
        (10, 11),
    ]
    assert second.text == docs[2].text


def test_group_sentences_negative_size_raises(documents: list[Doc]) -> None:
    with pytest.raises(ValueError, match="0 or more, got -1"):
        list(group_sentences(documents, -1))


# Splitting


@given(
    st.lists(st.integers(1, 9) | st.integers(1, 300), max_size=60),
    st.lists(st.integers(1, 10), min_size=1, max_size=4),
    st.integers(0, 5),
)
def test_split_units_part_sizes_match_shares(
    sizes: list[int], weights: list[int], seed: int
) -> None:
    """Up to a unit, unless a part would have no unit."""
    shares = [weight / sum(weights) for weight in weights]
    parts = split_units(sizes, shares, seed)
    assert len(parts) == len(sizes) and set(parts) <= set(range(len(shares)))
    if len(sizes) >= len(shares):
        assert set(parts) == set(range(len(shares)))
    found = [
        sum(size for size, of in zip(sizes, parts) if of == part) for part in range(len(shares))
    ]
    wanted = [sum(sizes) * share for share in shares]
    if max(sizes, default=0) <= min(wanted) or 1 not in map(parts.count, range(len(shares))):
        assert all(abs(n - w) <= max(sizes, default=0) + 1e-9 for n, w in zip(found, wanted))
    assert split_units(sizes, shares, seed) == parts


@pytest.mark.parametrize("seed", range(5))
def test_split_units_puts_large_documents_into_train(seed: int) -> None:
    for sizes, wanted in (
        ([1, 1000, 1], [1000, 1, 1]),
        ([10] * 10 + [1000], [1000, 50, 50]),
        ([5000] + [20] * 100, [5600, 700, 700]),
    ):
        parts = split_units(sizes, (0.8, 0.1, 0.1), seed)
        found = [sum(n for n, of in zip(sizes, parts) if of == part) for part in range(3)]
        assert found == wanted
    others = {tuple(split_units([5000] + [20] * 100, (0.8, 0.1, 0.1), k)) for k in range(5)}
    assert len(others) == 5


def test_split_units_seed_0_gives_pinned_parts() -> None:
    """Figures on a corpus without an official split are of this split: pinned."""
    # Draws of seed 0: .84 .76 .42 .26 .51 .40 .78 .30 .48 .58. Unit 0 comes last, 6 before it.
    state = random.getstate()
    parts = split_units([1] * 10, (0.8, 0.1, 0.1))
    assert parts == [2, 0, 0, 0, 0, 0, 1, 0, 0, 0]
    assert split_units([1] * 10, (0.8, 0.1, 0.1), seed=1) != parts
    assert random.getstate() == state


@pytest.mark.parametrize("shares", [(), (0.5, 0.4), (0.8, 0.3), (1.2, -0.2), (float("nan"),)])
def test_split_shares_not_summing_to_1_raise(shares: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="expected fractions that sum to 1"):
        Split(shares)
    with pytest.raises(ValueError, match="at most 3"):
        Split([0.25] * 4)


@given(st.lists(st.sampled_from("abcdefgh"), min_size=20, max_size=60), st.integers(0, 3))
def test_split_assigns_each_document_to_one_part(documents: list[str], seed: int) -> None:
    """Also one whose sentences are in several places."""
    if len({*documents}) < 3:
        return
    parts, how = Split(seed=seed).assign(documents, {"train": 0.8, "dev": 0.1, "test": 0.1})
    assert len({*zip(documents, parts)}) == len({*documents})
    assert {*parts} == {"train", "dev", "test"}
    assert how == f"by whole documents, {len({*documents})}"


def test_split_without_documents_keeps_blocks_of_neighbors_together() -> None:
    shares = {"train": 0.8, "dev": 0.1, "test": 0.1}
    parts, how = Split().assign([None] * 2000, shares)
    assert all(len({*parts[i : i + 50]}) == 1 for i in range(0, 2000, 50))
    assert [parts.count(name) for name in shares] == [1600, 200, 200]
    assert how == "in blocks of 50 neighboring docs, as no documents are marked"
    parts, how = Split().assign([None] * 100, shares)
    assert all(len({*parts[i : i + 5]}) == 1 for i in range(0, 100, 5))
    parts, _ = Split(by="sentences").assign([None] * 2000, shares)
    assert any(len({*parts[i : i + 50]}) > 1 for i in range(0, 2000, 50))


def test_split_of_too_few_documents_uses_blocks_and_says_so() -> None:
    shares = {"train": 0.5, "dev": 0.3, "test": 0.2}
    parts, how = Split().assign(["a"] * 50 + ["b"] * 50, shares)
    assert {*parts} == {*shares}
    assert how.endswith("as no documents (of the 2 marked, too few to split) are marked")


def test_split_of_documents_and_other_docs_divides_neither() -> None:
    documents = ["a"] * 5 + [None] * 60 + ["b"] * 5 + [None] * 3
    shares = {"train": 0.8, "dev": 0.1, "test": 0.1}
    parts, how = Split().assign(documents, shares)
    assert (
        how == "by whole documents, 2; 63 docs without a document in blocks of 3 neighboring docs"
    )
    for start, size in ((0, 5), (65, 5), *((i, 3) for i in range(5, 65, 3)), (70, 3)):
        assert len({*parts[start : start + size]}) == 1


@given(
    st.data(),
    st.sampled_from(["documents", "blocks", "sentences"]),
    st.lists(st.integers(0, 30), min_size=3, max_size=300),
    st.integers(0, 5),
)
def test_split_keeps_equal_texts_in_one_part(
    drawn: st.DataObject, mode: str, texts: list[int], seed: int
) -> None:
    """In all modes, and with the sizes of the shares as long as no unit is larger."""
    if len({*texts}) < 3:
        return
    names = st.sampled_from("abcdefgh" if mode == "documents" else [None])
    documents = drawn.draw(st.lists(names, min_size=len(texts), max_size=len(texts)))
    split = Split(seed=seed, by="sentences" if mode == "sentences" else "documents")
    shares = {"train": 0.6, "dev": 0.2, "test": 0.2}
    parts, how = split.assign(documents, shares, texts=texts)
    assert len({*zip(texts, parts)}) == len({*texts})
    assert {*parts} == {*shares}
    first = {text: texts.index(text) for text in texts}
    if mode == "documents" and len({documents[i] for i in first.values()}) >= 3:
        units = {(documents[i], parts[i]) for i in first.values()}
        assert len(units) == len({document for document, _ in units})
    if mode == "sentences":
        largest = max(map(texts.count, texts))
        if largest <= 0.2 * len(texts):
            for name, share in shares.items():
                assert abs(parts.count(name) - share * len(texts)) <= largest
    repeated = len(texts) - len({*texts})
    assert (f"; {repeated} docs that repeat a text in" in how) == (repeated > 0)
    assert split.assign(documents, shares, texts=texts) == (parts, how)
    # Texts are compared, not ordered.
    assert split.assign(documents, shares, texts=[f"t{text}" for text in texts])[0] == parts


def test_split_of_one_text_in_most_docs_fills_all_parts() -> None:
    shares = {"train": 0.8, "dev": 0.1, "test": 0.1}
    parts, _ = Split().assign([None] * 100, shares, texts=["a"] * 90 + ["b"] * 5 + ["c"] * 5)
    assert sorted(map(parts.count, shares)) == [5, 5, 90] and len(parts) == 100
    with pytest.raises(InputError, match=r"at least 3 docs with different texts .* got 2"):
        Split().assign([None] * 100, shares, texts=["a", "b"] * 50)


def test_split_of_fewer_docs_than_parts_raises_and_names_a_file() -> None:
    with pytest.raises(
        InputError, match=r"at least 3 docs to split into train, dev, test, got 2.*file"
    ):
        Split().assign([None] * 2, {"train": 0.8, "dev": 0.1, "test": 0.1})


# Converting


@pytest.mark.parametrize(
    "names, found",
    [
        (["train.txt", "valid.csv"], "train dev"),
        (["train", "dev", "test"], "train dev test"),
        (["train.txt", "dev.txt", "all.txt"], "train dev"),
        (["eng.train", "eng.testa", "eng.testb.txt", "LICENSE", "notes.md"], "train dev test"),
        (["my_train.txt", "my-dev.txt", "emerging.test.annotated"], "train dev test"),
        (["license-contracts.jsonl", "README.txt"], "train dev test"),  # they are split
        (["ner_dataset.csv", "README", "readme.txt", "train.spacy"], "train dev test"),
    ],
)
def test_files_are_found_by_name(
    names: list[str], found: str, tmp_path: Path, nlp: Language
) -> None:
    for name in names:
        (tmp_path / name).write_text("".join(f"w{i} B-X\n\n" for i in range(10)))
    counts = data.convert(tmp_path, tmp_path / "out", data.ConvertOptions(format="conll"), nlp=nlp)
    assert list(counts) == found.split()


def test_hidden_files_are_skipped(tmp_path: Path, nlp: Language) -> None:
    source = tmp_path / "in"
    (source / ".brat").mkdir(parents=True)
    for name in ("train.txt", "dev.txt", ".test.txt", "._train.txt", ".brat/a.txt", ".brat/a.ann"):
        (source / name).write_text("w B-X\n")
    for target in ("out", "out.jsonl"):
        log = data.ConversionLog()
        counts = data.convert(source, tmp_path / target, nlp=nlp, log=log)
        assert sum(count["docs"] for count in counts.values()) == 2 and "test" not in counts
        assert log.notes == ["Skipped: ._train.txt, .brat, .test.txt."]
    counts = data.convert(source / ".test.txt", tmp_path / "one.spacy", nlp=nlp)
    assert counts["corpus"]["docs"] == 1  # named by the user


@pytest.mark.parametrize(
    "names, says",
    [
        ([], "one file for corpus, got none"),
        ([".train.txt"], "one file for corpus, got none"),
        (["README.md"], r"one file for corpus, got README\.md"),
        (["a.txt", "b.conll"], r"one file for corpus, got a\.txt, b\.conll"),
        (
            ["train.txt", "train.conll", "dev.txt"],
            r"one file for train, got dev\.txt, train\.conll",
        ),
        (["train-0.txt", "train-1.txt", "test-0.txt"], "one file for train, got .*train-1"),
        (["train.txt", "dev.txt", "valid.txt"], "one file for dev, got .*valid"),
        (["dev.txt", "test.txt"], "one file for train, got none"),
    ],
)
def test_convert_ambiguous_folder_raises(
    names: list[str], says: str, tmp_path: Path, nlp: Language
) -> None:
    for name in names:
        (tmp_path / name).write_text("w B-X\n")
    for target in ["out"] if "train" in says and "got none" in says else ["out", "out.jsonl"]:
        with pytest.raises(CorpusError, match=says):
            data.convert(tmp_path, tmp_path / target, nlp=nlp)
        assert not (tmp_path / target).exists()


@pytest.mark.parametrize("shares", [(0.5, 0.5), (0.5, 0.5, 0)])
def test_convert_zero_share_is_not_written(
    shares: tuple[float, ...], tmp_path: Path, nlp: Language
) -> None:
    source = put(tmp_path / "all.txt", "[Anna](PER) came .\n[Bob](PER) left .\n")
    options = data.ConvertOptions(split=Split(shares))
    assert [*data.convert(source, tmp_path / "out", options, nlp=nlp)] == ["train", "dev"]
    assert not (tmp_path / "out" / "test.spacy").exists()


# Tokenizers


def test_vietnamese_needs_no_pyvi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyvi", None)
    nlp = data.blank_pipeline("vi")
    nlp.to_disk(tmp_path)
    for pipeline in (nlp, spacy.load(tmp_path)):
        assert pipeline.lang == "vi"
        tokens = [token.text for token in pipeline("Ông Joe Biden (Mỹ) thăm Hà Nội.")]
        assert " ".join(tokens) == "Ông Joe Biden ( Mỹ ) thăm Hà Nội ."


# Real corpora, where they are


def real(name: str) -> Path:
    if not (REAL / name).exists():
        pytest.skip(f"{name} is not in {REAL}; SPACY_CRF_NER_DATA may name another folder")
    return REAL / name


@pytest.mark.parametrize(
    "name, n",
    [pytest.param("train", 3394, marks=pytest.mark.slow), ("dev", 1009), ("test", 1287)],
)
def test_read_conll_reads_all_of_wnut17(name: str, n: int, nlp: Language) -> None:
    path = real(f"wnut17/{name}.conll")
    lines = path.read_bytes().decode().split("\n")
    assert data.detect_format(path) == "conll"
    log = data.ConversionLog()
    sentences = sentences_of(list(read_conll(path, nlp, log)))
    assert log.tag_schemes == {str(path): "IOB2"} and not log.counts
    assert len(sentences) == n
    assert [word for words, _ in sentences for word in words] == [
        line.split("\t")[0] for line in lines if line.strip()
    ]
    assert sum(len(spans) for _, spans in sentences) == sum("\tB-" in line for line in lines)


@pytest.mark.slow
def test_read_gmb_reads_all_of_gmb(nlp: Language) -> None:
    path = real("gmb/ner_dataset_head.csv")
    assert data.detect_format(path) == "table"
    sentences = read(path, "table", nlp)
    assert len(sentences) == 8300
    assert sum(len(words) for words, _ in sentences) == 181291
    assert sum(len(spans) for _, spans in sentences) == path.read_bytes().count(b",B-")
