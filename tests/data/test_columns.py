"""Columns of tokens and tags: all layouts and schemes are equal; a bad line drops its sentence."""

import re
from pathlib import Path
from typing import Any

import pytest
from spacy.language import Language
from spacy.tokens import Doc

from helpers import GOLDEN, Sentence, put
from spacy_crf_ner.data import ConversionLog, detect_format, lines
from spacy_crf_ner.data.columns import read_conll
from spacy_crf_ner.data.iob import find_spelling
from spacy_crf_ner.data.table import read_table as read_gmb
from spacy_crf_ner.docbin import document_of
from spacy_crf_ner.input_error import CorpusError

HERE = Path(__file__).parents[1]

# Of each file: the columns that are not the first and the last, its scheme, how many comments.
LAYOUTS: dict[str, tuple[dict[str, int], str, int]] = {
    "iob1.conll": ({}, "IOB1", 0),
    "iob2.conll": ({}, "IOB2", 0),
    "bioes.conll": ({}, "BIOES", 0),
    "biluo.conll": ({}, "BILUO", 0),
    "comments.conll": ({}, "IOB2", 3),
    "columns.conllu": ({"token_column": 2, "tag_column": 4}, "IOB2", 6),
}
GMB_HEADER = "Sentence #,Word,POS,Tag\n"


def spans(doc: Doc) -> list[tuple[int, int, str]]:
    return [(ent.start, ent.end, ent.label_) for ent in doc.ents]


def sentences_of(docs: list[Doc]) -> list[Sentence]:
    return [([token.text for token in doc], spans(doc)) for doc in docs]


def write(path: Path, *sentences: str) -> Path:
    """Write sentences given as "word/tag word/tag"."""
    text = "\n\n".join(sentence.replace(" ", "\n").replace("/", "\t") for sentence in sentences)
    path.write_text(text + "\n", encoding="utf-8")
    return path


def words_of(docs: list[Doc]) -> list[str]:
    return [" ".join(token.text for token in doc) for doc in docs]


def check_totals(log: ConversionLog, docs: list[Doc], records: int, entities: int) -> None:
    """All that was found is there, or is counted as left out."""
    totals = log.totals
    assert (totals["records"], totals["entities"]) == (records, entities)
    assert len(docs) == records - totals["rejected.records"]
    assert sum(len(doc.ents) for doc in docs) == entities - totals["rejected.entities"]


# Layouts


@pytest.mark.parametrize("name", LAYOUTS)
def test_read_conll_all_layouts_give_same_sentences(name: str, nlp: Language) -> None:
    path = HERE / "fixtures" / name
    where, scheme, comments = LAYOUTS[name]
    log = ConversionLog()
    docs = list(read_conll(path, nlp, log, **where))
    assert sentences_of(docs) == GOLDEN
    assert log.tag_schemes == {str(path): scheme}
    assert log.counts == ({"skipped.comment": comments} if comments else {})
    check_totals(log, docs, records=3, entities=6)
    assert where or detect_format(path) == "conll"


@pytest.mark.parametrize(
    "where, says",
    [
        ({"tag_column": 0}, "expected a column from 1 to 2, or from -1, the last, to -2, got 0"),
        ({"tag_column": 3}, "expected a column from 1 to 2.*got 3"),
        ({"token_column": -3}, "expected a column from 1 to 2.*got -3"),
        ({"token_column": 2}, "expected a column of tokens and one of tags, got column 2 for both"),
    ],
)
def test_read_conll_invalid_column_raises(
    where: dict[str, int], says: str, tmp_path: Path, nlp: Language
) -> None:
    with pytest.raises(CorpusError, match=says):
        list(read_conll(write(tmp_path / "a.conll", "a/O"), nlp, **where))


def test_read_conll_undecodable_hash_line_rejects_sentence(tmp_path: Path, nlp: Language) -> None:
    path = tmp_path / "a.conll"
    path.write_bytes(b"a O\n\n# \xff\nb O\n")
    log = ConversionLog(repair=True)
    assert words_of(list(read_conll(path, nlp, log))) == ["a"]
    assert log.counts == {"rejected.encoding": 1}


# Layouts that are found


def lines_of(*sentences: str) -> str:
    """Rows as "1 Ann B-PER", with tabs; sentences separated by blank lines."""
    return "\n\n".join(sentence.replace(" ", "\t").replace("/", "\n") for sentence in sentences)


@pytest.mark.parametrize(
    "sentence",
    [
        *("1 O/2 O", "3 B-X/x O", "1 X O/3 X O", "1 1 O/3 1 O", "1 1 O"),
        *("en:a O/b O", "a:b O/c:d O", "en: O/en: O", "http:a O/http:b O"),
    ],
)
def test_read_conll_takes_numbers_and_colons_for_tokens_if_not_all_have_them(
    sentence: str, tmp_path: Path, nlp: Language
) -> None:
    path = put(tmp_path / "a.conll", lines_of(sentence))
    log = ConversionLog()
    (doc,) = read_conll(path, nlp, log)
    assert [token.text for token in doc] == [row.split(" ")[0] for row in sentence.split("/")]
    assert not log.notes


WORDS = ("Ann", "B-PER"), ("ran", "O")
ROWS = [f"{i % 5 + 1} {' '.join(WORDS[i % 2])}" for i in range(60)]
TEXT = "\n".join(ROWS)  # without blank lines
DEVIATING = {
    "no blank lines": TEXT,
    "gap": TEXT.replace("4 ran", "9 ran", 1),
    "comments": "\n\n".join(f"# sentence {i}\n# {i} x\n{TEXT[:19]}" for i in range(9)),
    "header": f"ID WORD NER\n\n{TEXT}",
}


@pytest.mark.parametrize("name", DEVIATING)
def test_read_conll_index_with_few_exceptions_is_not_the_token(
    name: str, tmp_path: Path, nlp: Language
) -> None:
    path = put(tmp_path / "a.conll", DEVIATING[name])
    docs = list(read_conll(path, nlp, ConversionLog(repair=True)))
    assert {token.text for doc in docs for token in doc} == {"Ann", "ran"}


def test_read_conll_numbers_beside_words_raise_and_name_the_option(
    tmp_path: Path, nlp: Language
) -> None:
    path = put(tmp_path / "a.conll", lines_of("1 Ann O/3 left O", "7 Bob B-X"))
    with pytest.raises(CorpusError, match=r"numbers in column 1, and words in .*--token-column 2"):
        list(read_conll(path, nlp))
    assert words_of(list(read_conll(path, nlp, token_column=1))) == ["1 3", "7"]
    path.write_text(lines_of("1 CD O/Ann NNP O", "7 CD B-X/x X O"))
    assert words_of(list(read_conll(path, nlp))) == ["1 Ann", "7 x"]


def test_read_conll_repeats_without_blank_lines_raise_and_name_the_option(
    tmp_path: Path, nlp: Language
) -> None:
    path, ids = tmp_path / "a.conll", "en en en en en en en en"
    words = ["Ann", "saw", "Bob", ".", "Bob", "ran", ".", "Now"]
    path.write_text("\n".join(f"{i} {word} O" for i, word in zip(ids.split(), words)))
    with pytest.raises(CorpusError, match=r"repeats in column 1, and words in .*--token-column 2"):
        list(read_conll(path, nlp))
    assert words_of(list(read_conll(path, nlp, token_column=2))) == [" ".join(words)]
    # Without other words, they are the tokens.
    path.write_text("\n".join(f"{i} O" for i in ids.split()))
    assert words_of(list(read_conll(path, nlp))) == [ids]


def test_read_conll_prefix_is_found_beside_comments_and_without_a_word(
    tmp_path: Path, nlp: Language
) -> None:
    path = put(tmp_path / "a.conll", "# 1\nen:Ann B-PER\nen:. O\n\n# 2\nen: O\n")
    log = ConversionLog(repair=True)
    assert words_of(list(read_conll(path, nlp, log))) == ["Ann ."]
    assert log.counts == {"skipped.comment": 2, "rejected.token": 1}
    assert "line 6: expected a token that begins with 'en:'" in log.messages[0]
    path.write_text("ftp://a.b B-URL\nftp://c.d B-URL\n")
    assert words_of(list(read_conll(path, nlp))) == ["ftp://a.b ftp://c.d"]


def test_read_conll_token_without_the_prefix_of_others_raises(
    tmp_path: Path, nlp: Language, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spacy_crf_ner.data.rows.LAYOUT_LINES", 4)
    path = put(
        tmp_path / "a.conll", lines_of("en:Ann B-PER/en:left O", "en:Oslo B-LOC", "de:Ulm B-LOC")
    )
    with pytest.raises(CorpusError, match=r"line 6: expected a token that begins with 'en:'.*Ulm"):
        list(read_conll(path, nlp))


NESTED = "Ann O B-PER/of O O/Oslo B-LOC I-PER/left O O"


def test_read_conll_several_tag_columns_raise_and_name_the_options(
    tmp_path: Path, nlp: Language
) -> None:
    path = tmp_path / "a.conll"
    # Also where only the first lines of the last column have no entity.
    for text, says in (
        (NESTED, r"one column of tags, got 2: 2 and 3. .*--tag-column 3, or .* with --spans-key"),
        ("Ann O O/left O O", r"got 2: 2 and 3. .*--tag-column 3, or"),
        ("Ann O B-PER O/left O O O", r"in the last column, got them in column 3.*column 3"),
    ):
        path.write_text(lines_of(text))
        with pytest.raises(CorpusError, match=says):
            list(read_conll(path, nlp))
    path.write_text(lines_of("Ann O B-PER/left O O"))
    log = ConversionLog()
    (doc,) = read_conll(path, nlp, log)
    assert spans(doc) == [(0, 1, "PER")]
    assert "column 2 has only O in the first lines, and was not read" in log.notes[0]
    path.write_text(lines_of("Ann B-PER B-NP/left O O"))
    with pytest.raises(CorpusError, match=r"in the last column, got them in column 2.*column 2"):
        list(read_conll(path, nlp))


def test_read_conll_spans_key_reads_all_tag_columns(tmp_path: Path, nlp: Language) -> None:
    path = put(tmp_path / "a.conll", lines_of(NESTED))
    log = ConversionLog(spans_key="sc")
    (doc,) = read_conll(path, nlp, log)
    entities = [(0, 1, "PER"), (2, 3, "PER"), (2, 3, "LOC")]
    assert sorted((span.start, span.end, span.label_) for span in doc.spans["sc"]) == sorted(
        entities
    )
    assert not doc.has_annotation("ENT_IOB") and log.totals["entities"] == 3
    (doc,) = read_conll(path, nlp, tag_column=2)
    assert spans(doc) == [(2, 3, "LOC")]
    path.write_text(lines_of("Ann B-PER B-PER/left O O"))
    with pytest.raises(CorpusError, match=r"expected a span once, got 'Ann' \(PER, 0:3\)"):
        list(read_conll(path, nlp, ConversionLog(spans_key="sc")))
    # A row that cannot be read takes the entities of all columns with it.
    path.write_text(lines_of(NESTED, NESTED, f"{NESTED}/he came"))
    log = ConversionLog(repair=True, spans_key="sc")
    assert len(list(read_conll(path, nlp, log))) == 2
    assert (log.totals["entities"], log.totals["rejected.entities"]) == (9, 3)


def test_read_conll_chunks_are_not_a_second_column_of_tags(tmp_path: Path, nlp: Language) -> None:
    path = put(tmp_path / "a.conll", lines_of("Ann NNP B-NP B-PER/left VBD B-VP O"))
    (doc,) = read_conll(path, nlp)
    assert spans(doc) == [(0, 1, "PER")]
    (doc,) = read_conll(path, nlp, ConversionLog(spans_key="sc"))
    assert [span.label_ for span in doc.spans["sc"]] == ["PER"]
    path.write_text(lines_of("Ann B-PER B-NP/left O B-VP"))
    log = ConversionLog(spans_key="sc")
    (doc,) = read_conll(path, nlp, log)
    assert [span.label_ for span in doc.spans["sc"]] == ["PER"]
    assert "column 2 has the tags" in log.notes[0]


@pytest.mark.parametrize(
    "tag", ["B-PER|B-ORG", "B-PER,I-ORG", "B-PER O O", "B-creative work", "B-PER;U-ORG"]
)
def test_read_conll_several_labels_or_words_in_a_tag_raise(
    tag: str, tmp_path: Path, nlp: Language
) -> None:
    path = put(tmp_path / "a.conll", f"Bea\tO\nAnn\t{tag}\n")
    with pytest.raises(CorpusError, match=r"line 2: .*label"):
        list(read_conll(path, nlp))
    (tmp_path / "a.csv").write_text(f'{GMB_HEADER}Sentence: 1,Ann,NN,"{tag}"\n')
    with pytest.raises(CorpusError, match=r"line 2: .*label"):
        list(read_gmb(tmp_path / "a.csv", nlp))


@pytest.mark.parametrize("label", ["PER", "A-B-C", "B-cell", "GPE/LOC", "R&B-Song", "a|b"])
def test_read_conll_accepts_labels_with_other_marks(
    label: str, tmp_path: Path, nlp: Language
) -> None:
    path = put(tmp_path / "a.conll", f"Ann\tB-{label}\n")
    (doc,) = read_conll(path, nlp)
    assert spans(doc) == [(0, 1, label)]


@pytest.mark.parametrize(
    "text, expected",
    [
        ("-DOCSTART- -X- O\n\na O\n\nb O\n-DOCSTART-\nc O\n", ["1", "1", "2"]),
        ("# newdoc\na O\n\nb O\n\n# newdoc\n# text = c\nc O\n", ["1", "1", "2"]),
        ("# newdoc id = x\na O\n\nb O\n\n# newdoc id = y 1\nc O\n", ["x", "x", "y 1"]),
        ("a O\n\n-DOCSTART- O\nb O\n\nc O\n", ["0", "1", "1"]),
        ("a O\n\nb O\n\nc O\n", ["None"] * 3),
        ("a n1 O\na2 n1 O\n\nb n1 O\nb2 n1 O\n\nc n2 O\nc2 n2 O\n", ["n1", "n1", "n2"]),
        ("n1 a O\nn1 a2 O\n\nn1 b O\nn1 b2 O\n\nn2 c O\nn2 c2 O\n", ["n1", "n1", "n2"]),
        ("# newdoc_id = x\na O\n\nb O\n\n# newdoc_id = y\nc O\n", ["x", "x", "y"]),
        ("# newdocs\na O\n\nb O\n\nc O\n", ["None"] * 3),
        # A column that changes with each sentence, or back, does not name documents.
        ("a 1 O\na2 1 O\n\nb 2 O\nb2 2 O\n\nc 3 O\nc2 3 O\n", ["None"] * 3),
        ("a x O\na2 x O\n\nb y O\nb2 y O\n\nc x O\nc2 x O\n", ["None"] * 3),
        ("a x O\na2 x O\n\nb x O\nb2 x O\n\nc x O\nc2 x O\n", ["None"] * 3),
    ],
)
def test_read_conll_knows_the_document_of_each_sentence(
    text: str, expected: list[str], tmp_path: Path, nlp: Language
) -> None:
    path = put(tmp_path / "a.conll", text)
    docs = list(read_conll(path, nlp))
    assert [doc[0].text for doc in docs] == ["a", "b", "c"]
    folder = f"{tmp_path.parent.name}/{tmp_path.name}"
    named = [str(document_of(doc)).removeprefix(f"{folder}/a.conll ") for doc in docs]
    assert named == expected


def test_read_conll_document_that_changes_later_within_a_sentence_divides_none(
    tmp_path: Path, nlp: Language, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spacy_crf_ner.data.rows.LAYOUT_LINES", 9)
    path = put(
        tmp_path / "a.conll",
        lines_of("a 1 O/b 1 O", "a 1 O/b 1 O", "c 2 O/d 2 O", "e 2 O/f 3 O/g 3 O"),
    )
    docs = list(read_conll(path, nlp))
    assert words_of(docs) == ["a b", "a b", "c d", "e f g"]
    assert [document_of(doc) for doc in docs] == ["1", "1", "2", "2"]


# Schemes


@pytest.mark.parametrize(
    "tags, spelling",
    [
        *(("O B-PER", "B-PER"), ("O B-PER B_X", "B-PER"), ("O", "B-PER"), ("0 I-PER", "B-PER")),
        *(("O B_PER I_PER", "B_PER"), ("O B_PER S.LOC", "B_PER"), ("O B:PER", "B_PER")),
        *(("o b-PER i-PER", "b-per"), ("O b_per", "b-per")),
        *(("O PER-B PER-I", "PER-B"), ("O PER-B LOC-S", "PER-B"), ("O PER_b PER_i", "PER-B")),
        *(
            ("O PER LOC", "PER"),
            ("0 PER", "PER"),
            ("O art-film e-mail", "PER"),
            ("O e-mail", "PER"),
        ),
        *(("O S M L", "PER"), ("O B PER", "PER"), ("O I E L", "PER")),  # sizes, not prefixes
        # Not known: they are as they are, and most of them no tags.
        *(("PER LOC", "B-PER"), ("OUT PER", "B-PER"), ("O B I", "B-PER"), ("O b i", "B-PER")),
        *(("O B- I-", "B-PER"), ("O S_ B_", "B-PER"), ("O X-PER", "B-PER"), ("O 1 2", "B-PER")),
    ],
)
def test_find_spelling_of_all_tags(tags: str, spelling: str) -> None:
    assert find_spelling(tags.split()) == spelling


@pytest.mark.parametrize(
    "tags, scheme",
    [
        ("O O", "none"),
        ("I-X I-X O I-Y", "IOB1"),
        ("I-X B-X I-X", "IOB1"),
        ("B-X I-X B-X O B-Y", "IOB2"),
        ("B-X O I-X", "IOB1, IOB2"),
        ("B-X I-Y", "IOB1, IOB2"),
        ("B-X L-X", "BILUO"),
        ("O U-X", "BILUO"),
        ("B-X I-X E-X", "BIOES"),
        ("S-X", "BIOES"),
        ("B-X M-X E-X S-X", "BMES"),
        ("B-X L-X S-X", "BILUO, BIOES"),
    ],
)
def test_read_conll_detects_scheme_from_all_tags(
    tags: str, scheme: str, tmp_path: Path, nlp: Language
) -> None:
    rest = " ".join(f"w/{tag}" for tag in tags.split())
    path = write(tmp_path / "a.conll", "w/O", rest)
    log = ConversionLog()
    list(read_conll(path, nlp, log))
    assert log.tag_schemes == {str(path): scheme}


# Repairing


@pytest.mark.parametrize(
    "tags, expected, repaired",
    [
        ("I-X L-X", [(0, 2, "X")], 1),  # I- begins
        ("O L-X O", [(1, 2, "X")], 1),
        ("B-X O O", [(0, 1, "X")], 1),  # what is open ends
        ("B-X I-X O", [(0, 2, "X")], 1),
        ("O B-X", [(1, 2, "X")], 1),
        ("B-X B-X L-X", [(0, 1, "X"), (1, 3, "X")], 1),
        ("B-X L-Y O", [(0, 1, "X"), (1, 2, "Y")], 1),
        ("B-X I-Y L-Y", [(0, 1, "X"), (1, 3, "Y")], 1),
        ("U-X L-X O", [(0, 1, "X"), (1, 2, "X")], 1),
        ("I-X I-X O", [(0, 2, "X")], 2),  # begun by the first, and never ended
        ("B-X L-X U-X", [(0, 2, "X"), (2, 3, "X")], 0),
    ],
)
def test_read_conll_repairs_illegal_tag_sequence(
    tags: str, expected: list[tuple[int, int, str]], repaired: int, tmp_path: Path, nlp: Language
) -> None:
    sentence = " ".join(f"w/{tag}" for tag in tags.split())
    path = write(tmp_path / "a.conll", sentence, "w/U-Z")
    log = ConversionLog(repair=True)
    docs = list(read_conll(path, nlp, log))
    assert spans(docs[0]) == expected
    assert log.counts["repaired.tags"] == repaired == len(log.messages)
    check_totals(log, docs, records=2, entities=len(expected) + 1)


def test_read_conll_repair_trims_or_rejects_whitespace(tmp_path: Path, nlp: Language) -> None:
    path = put(tmp_path / "a.conll", "\xa0\tB-X\na\tI-X\n \tI-X\nb\tO\n\xa0\tB-Y\n")
    log = ConversionLog(repair=True)
    (doc,) = read_conll(path, nlp, log)
    assert spans(doc) == [(1, 2, "X")]
    assert log.counts == {"trimmed.whitespace": 1, "rejected.whitespace": 1}
    check_totals(log, [doc], records=1, entities=2)
    assert [note.split(":")[0] for note in log.messages] == [f"{path}, line 5"]


BAD_LINES = {
    "columns": b"c\td\tB-X",
    "tag": b"c\tX-Y",
    "token": b"\tO",
    "encoding": b"\xff\tO",
    "nul": b"c\0d\tO",
    "length": b"c" * 100 + b"\tO",
}


@pytest.mark.parametrize("kind", BAD_LINES)
def test_read_conll_bad_line_rejects_only_its_sentence(
    kind: str, tmp_path: Path, nlp: Language, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 50)
    path = tmp_path / "a.conll"
    path.write_bytes(b"a\tB-X\n\nb\tB-X\n" + BAD_LINES[kind] + b"\ne\tB-X\n\nf\tB-X\n")
    log = ConversionLog(repair=True)
    docs = list(read_conll(path, nlp, log))
    assert sentences_of(docs) == [(["a"], [(0, 1, "X")]), (["f"], [(0, 1, "X")])]
    assert log.counts == {f"rejected.{kind}": 1}
    check_totals(log, docs, records=3, entities=4)
    assert log.messages[0].startswith(f"{path}, line 4: expected ")
    with pytest.raises(CorpusError, match=f"^{re.escape(str(path))}, line 4: expected "):
        list(read_conll(path, nlp))


@pytest.mark.parametrize("first", ["EU B-ORG", "# a comment", "-DOCSTART- -X- O", "EU\tB-ORG"])
def test_read_conll_carriage_return_inside_line_raises(
    first: str, tmp_path: Path, nlp: Language
) -> None:
    path = tmp_path / "a.conll"
    path.write_bytes(f"{first}\rfoo O\r".encode())
    with pytest.raises(CorpusError, match=r"line 1: expected a line without carriage returns, got"):
        list(read_conll(path, nlp))
    path.write_bytes(f"{first}\rfoo O\n\nbar O\r\n\r\nbaz B-X\r\n\r\r\nend O\n".encode())
    log = ConversionLog(repair=True)
    docs = list(read_conll(path, nlp, log))
    assert words_of(docs) == ["bar", "baz", "end"] and log.counts == {"rejected.columns": 1}
    check_totals(log, docs, records=4, entities=1)


def test_read_conll_long_token_gives_short_error_message(tmp_path: Path, nlp: Language) -> None:
    path = put(tmp_path / "a.conll", "a O\n" + "b" * 10**6 + " X-\n")
    with pytest.raises(CorpusError) as caught:
        list(read_conll(path, nlp))
    assert len(str(caught.value)) < 2000 and str(caught.value).endswith(
        "with a hyphen and one label."
    )


# GMB


def gmb(path: Path, rows: str, nlp: Language, **choices: Any) -> tuple[list[Doc], ConversionLog]:
    path.write_text(GMB_HEADER + rows, encoding="utf-8")
    log = ConversionLog(**choices)
    return list(read_gmb(path, nlp, log)), log


@pytest.mark.parametrize(
    "row, kind",
    [
        (",a,NN", "columns"),
        ("junk,a,NN", "columns"),  # its first cell begins no sentence
        (',"a,NN,O', "csv"),
    ],
)
def test_read_gmb_bad_row_rejects_only_its_sentence(
    row: str, kind: str, tmp_path: Path, nlp: Language
) -> None:
    rows = f"Sentence: 1,a,NN,B-geo\nSentence: 2,x,NN,B-geo\n{row}\n,y,NN,B-geo\n"
    rows += "Sentence: 3,b,NN,O\n"
    docs, log = gmb(tmp_path / "a.csv", rows, nlp, repair=True)
    assert words_of(docs) == ["a", "b"]
    assert log.counts == {f"rejected.{kind}": 1}
    check_totals(log, docs, records=3, entities=3)
