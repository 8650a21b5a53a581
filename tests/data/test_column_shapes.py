"""Shapes of files that people have: each is read, or refused by its name with a way through."""

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import pytest
from spacy.language import Language

from spacy_crf_ner.data import FORMATS, ConversionLog, detect_format
from spacy_crf_ner.input_error import InputError


class Read(NamedTuple):
    """A file, and what is read: sentences as "[Ann](PER) left", and words of the notes."""

    content: str
    sentences: list[str]
    said: str = ""
    options: Mapping[str, Any] = MappingProxyType({})
    format: str = "conll"


ANN = ["[Ann](PER) left"]
TWO = [*ANN, "[Oslo](LOC)"]
IS = [*ANN, "[Oslo](LOC) -"]
COLUMNS = {
    "index": Read("1\tAnn\tB-PER\n2\tleft\tO\n", ANN, "column 1 counts the tokens"),
    "index from 0": Read("0\tAnn\tB-PER\n1\tleft\tO\n", ANN, "column 1 counts the tokens"),
    "index of the file": Read("7 Ann B-PER\n8 left O\n\n9 Oslo B-LOC\n", TWO, "2 has the tokens"),
    "index and id": Read("1 s1 Ann B-PER\n2 s1 left O\n\n1 s2 Oslo B-LOC\n2 s2 - O\n", IS, "3 has"),
    "id of sentence": Read(
        "s1 Ann B-PER\ns1 left O\n\ns2 Oslo B-LOC\ns2 - O\n", IS, "2 has the tok"
    ),
    "long code": Read("zh-min-nan:Ann\tB-PER\nzh-min-nan:left\tO\n", ANN, "with 'zh-min-nan:'"),
    "from the end": Read(
        "B-PER x Ann y\nO x left y\n", ANN, options={"token_column": -2, "tag_column": 1}
    ),
    "language": Read("en:Ann\tB-PER\nen:left\tO\n", ANN, "all tokens begin with 'en:'"),
    "spacy's iob": Read("Ann|NNP|B-PER left|VBD|O\nOslo|NNP|B-LOC\n", TWO),
    "iob of two columns": Read("Ann|B-PER left|O\n\nOslo|B-LOC\n", TWO),
    "address": Read("#\thttp://x\t[2010]\n1\tAnn\tB-PER\n2\tleft\tO\n", ANN, "comment 1"),
    "begin and end": Read("#begin document (x)\nAnn B-PER\nleft O\n\n#end document\n", ANN, "nt 2"),
    "other marks": Read("; one\n## two\nAnn\tB-PER\nleft\tO\n", ANN, "comment 2"),
    "hashtag": Read("#nlp\tO\n\n;\tO\nAnn\tB-PER\n", ["#nlp", "; [Ann](PER)"]),
    "a mark as a token": Read(
        "# O\nAnn B-PER\n\n# two\n# O\n# B-X\n", ["# [Ann](PER)", "# [#](X)"], "1"
    ),
    "header": Read("Token\tTag\nAnn\tB-PER\nleft\tO\n", ANN),
    "header of columns": Read(
        "Token\tNER\tX\nAnn\tB-PER\tO\nleft\tO\tB-A\n", ANN, options={"tag_column": "NER"}
    ),
    "unusual header": Read(
        "Mot Etikett\nAnn B-PER\nleft O\n", ANN, options={"tag_column": "Etikett"}
    ),
    "tags inside": Read("1\tAnn\tB-PER\t-\t-\n2\tleft\tO\t-\t-\n", ANN, "column 3 has the tags"),
    "tags before a score": Read("Ann\tB-PER\t0.98\nleft\tO\t0.9\n", ANN, "column 2 has the tags"),
    "B_PER": Read("Ann B_PER\nLee I_PER\nleft O\n", ["[Ann Lee](PER) left"], "written as B_PER"),
    "PER-B": Read("Ann PER-B\nLee PER-I\nleft O\n", ["[Ann Lee](PER) left"], "written as PER-B"),
    "b-per": Read("Ann b-per\nLee i-per\nleft o\n", ["[Ann Lee](per) left"], "written as b-per"),
    "labels": Read("On\tO\nAnn\tperson\nLee\tperson\n", ["On [Ann Lee](person)"], "IO written"),
    "0 for O": Read("On\t0\nAnn\tperson\nLee\tperson\n", ["On [Ann Lee](person)"], "IO written"),
    "0 beside prefixes": Read("Ann B-PER\nleft 0\n\nOslo B-LOC\n", TWO),
    "a key of a cell": Read(
        "# text = Ann left\n1\tAnn\t_\tname=B-PER|Gloss=x\n2\tleft\t_\t_\n",
        ANN,
        "column 2 has the tokens",
        options={"tag_column": "4:name"},
    ),
    "ranges": Read("1\tAnn\tB-PER\n2-3\tal\t_\n2\tleft\tO\n2.1\tx\t_\n", ANN, "range of tokens 2"),
}
TABLES = {
    "gmb": Read(
        "Sentence #,Word,POS,Tag\nSentence: 1,Ann,N,B-PER\n,left,V,O\nSentence: 2,Oslo,N,B-LOC\n",
        TWO,
    ),
    "number in each row": Read("Sentence #,Word,Tag\n1,Ann,B-PER\n1,left,O\n2,Oslo,B-LOC\n", TWO),
    "other names": Read("sentence_idx,word,tag\n1,Ann,B-PER\n1,left,O\n2,Oslo,B-LOC\n", TWO),
    "semicolons, labels": Read(
        "sent_id;token;label\n1;Ann;PER\n1;left;O\n2;Oslo;LOC\n", TWO, "IO written"
    ),
    "blank rows": Read("word,tag\nAnn,B-PER\nleft,O\n,\nOslo,B-LOC\n", TWO),
    "no header": Read("1,Ann,B-PER\n1,left,O\n2,Oslo,B-LOC\n", TWO, "column 1 names the sentence"),
    "chosen names": Read(
        "nr,tok,ne\n1,Ann,B-PER\n1,left,O\n2,Oslo,B-LOC\n",
        TWO,
        "column 1 names the sentence",
        options={"token_column": "tok", "tag_column": "ne"},
    ),
    "header again": Read("word,tag\nAnn,B-PER\nword,tag\nleft,O\n", ANN, "skipped.header 1"),
    "quotes": Read('word,tag\n"Ann","B-PER"\n",",O\n"""",O\n', ['[Ann](PER) , "']),
}
TEXTS = {
    "text and spans": Read(
        'text,entities\nAnn left,"[[0,3,""PER""]]"\nOslo,"[[0, 4, ""LOC""]]"\n', TWO
    ),
    "Python's lists": Read("text;spans\nAnn left;[(0, 3, 'PER')]\nOslo;[(0, 4, 'LOC')]\n", TWO),
    "tabs": Read('Text\tLabels\nAnn left\t[{"start":0,"end":3,"label":"PER"}]\n', ANN),
    "a tag for each token": Read("sentence,tags\nAnn left,B-PER O\nOslo,B-LOC\n", TWO),
    "lists of tokens": Read("tokens,tags\n\"['Ann', 'left']\",\"['B-PER', 'O']\"\n", ANN),
    "lines in a cell": Read('text,label\n"Ann\nleft","[[0,3,""PER""]]"\n', ["[Ann](PER) \n left"]),
    "Label Studio": Read(
        "annotation_id,annotator,id,label,lead_time,text\n"
        '3,1,7,"[{""start"": 0, ""end"": 3, ""labels"": [""PER""]}]",2,Ann left\n',
        ANN,
    ),
    "an entity in each row": Read(
        "ticket_id,text,start,end,label\n1,Ann left Oslo,9,13,LOC\n2,Oslo,0,4,LOC\n3,so,,,\n"
        "1,Ann left Oslo,0,3,PER\n1,Ann left Oslo,0,3,PER\n4,Oslo,,,\n",
        ["[Ann](PER) left [Oslo](LOC)", "[Oslo](LOC)", "so", "Oslo"],
    ),
    "ids of entities, and numbers of pandas": Read(
        "id\ttext\tstart_offset\tend_offset\tlabel\tdoc\n0\tAnn left Oslo\t0.0\t3.0\tPER\ta\n"
        "1\tAnn left Oslo\t9.0\t13.0\tLOC\ta\n2\t[1]\tnan\tnan\tnan\tb\n",
        ["[Ann](PER) left [Oslo](LOC)", "[ 1 ]"],
    ),
    "an entity in each row, of a chosen column": Read(
        "ticket;begin;end;type\nAnn left;0;3;PER\nOslo;0;4;LOC\n",
        TWO,
        options={"text_column": "ticket"},
    ),
    "chosen names of texts": Read(
        'id,body,marks\n1,Ann left,"[[0,3,""PER""]]"\n',
        ANN,
        options={"text_column": "body", "spans_column": "marks"},
    ),
}
PUBTATOR = "1|t|Ann left\n1|a|To Oslo\n1\t0\t3\tAnn\tPER\tQ1\n1\t12\t16\tOslo\tLOC\n"
WEBANNO = """#FORMAT=WebAnno TSV 3.2
#T_SP=de.tudarmstadt.ukp.dkpro.core.api.lexmorph.type.pos.POS|PosValue
#T_SP=de.tudarmstadt.ukp.dkpro.core.api.ner.type.NamedEntity|identifier|value


#Text=Ann Lee left.
1-1/0-3/Ann/N/_/PER[1]/
1-2/4-7/Lee/N/_/PER[1]/
1-3/8-12/left/V/_/_/
1-4/12-13/./P/_/_/

#Text=Oslo
2-1/14-18/Oslo/N/Q1/LOC/
""".replace("/", "\t")
OTHERS = {
    "tabs and a header": Read(
        "sentence_idx\tword\ttag\n1\tAnn\tB-PER\n1\tleft\tO\n2\tOslo\tB-LOC\n", TWO
    ),
    "elements": Read("<PER>Ann</PER> left\n", ANN, format="inline"),
    "enamex": Read('<ENAMEX TYPE="PER">Ann</ENAMEX> left\n', ANN, format="inline"),
    "PubTator": Read(PUBTATOR, ["[Ann](PER) left To [Oslo](LOC)"], format="pubtator"),
    "relations of PubTator": Read(
        f"{PUBTATOR}1\tCID\tQ1\tQ2\n\n2|t|Oslo\n2\t0\t4\tOslo\tLOC\tQ3\n",
        ["[Ann](PER) left To [Oslo](LOC)", "[Oslo](LOC)"],
        "skipped.relation 1",
        format="pubtator",
    ),
    "WebAnno": Read(WEBANNO, ["[Ann Lee](PER) left .", "[Oslo](LOC)"], format="webanno"),
    "entities of XML": Read("<ORG>A&amp;B</ORG> &lt; 3\n", ["[A&B](ORG) < 3"], format="inline"),
}
SHAPES = {
    **COLUMNS,
    **{name: shape._replace(format="table") for name, shape in (TABLES | TEXTS).items()},
    **OTHERS,
}

# Files that are easily read wrong: they are read so, or refused.
LEE = ["[Ann](person) left [Lee](person)"]
LATE = "x O\n\n" * 300
N = [*ANN, *["x"] * 300]
PLACES = ["[Ann](person) [Oslo](place) x"]
LAYER = "#FORMAT=WebAnno TSV 3.2\n#T_SP=de.x.{}\n\n#Text=Ann left\n1-1\t0-3\tAnn\t{}\t{}\t\n"
LAYER += "1-2\t4-8\tleft\t{}\t{}\t\n"
DOUBTFUL = {
    "header of text and label": Read("text,label\nAnn,person\nleft,O\nLee,person\n", LEE),
    "header in another language": Read("Wort\tTyp\nAnn\tperson\nleft\tO\nLee\tperson\n", LEE),
    "header of a type": Read("word,class\nAnn,person\nleft,O\nLee,person\n", LEE),
    "header with an id": Read("id,Token,Entity Type\n1,Ann,person\n2,left,O\n3,Lee,person\n", LEE),
    "a label among B_PER": Read(
        f"Ann B_PER\nLee I_PER\nleft O\n\n{LATE}Oslo LOC\n", ["[Ann Lee](PER) left", *N[1:], TWO[1]]
    ),
    "a label among PER-B": Read(f"Ann PER-B\nleft O\n\n{LATE}Oslo LOC\n", [*N, TWO[1]]),
    "underscore outside": Read("Ann\tperson\nleft\tO\nand\t_\n", ["[Ann](person) left and"]),
    "labels before a column of O": Read("Ann\tperson\tO\nleft\tO\tO\nLee\tperson\tO\n", LEE),
    "labels before zeros, with a token column": Read(
        "Ann\tperson\t0\nleft\tO\t0\nLee\tperson\t0\n", LEE, options={"token_column": 1}
    ),
    "missing value of pandas": Read("word,tag\nAnn,PER\nleft,O\nand,nan\n", [ANN[0] + " and"]),
    "missing sentence of pandas": Read(
        "sent,token,label\nSentence: 1,Ann,B-PER\nNaN,left,O\nNaN,too,O\nSentence: 2,Oslo,B-LOC\n",
        ["[Ann](PER) left too", TWO[1]],
    ),
    "index that begins again": Read(
        "0\tAnn\tB-PER\n1\tleft\tO\n0\tOslo\tI-PER\n1\tx\tO\n", [*ANN, "[Oslo](PER) x"]
    ),
    "two columns of labels": Read("Ann\tperson\tO\nOslo\tO\tplace\nx\tO\tO\n", PLACES),
    "no tag": Read("Ann\tB-PER\nleft\t\n\nOslo\tB-LOC\n", ["nothing but an error"]),
    "no tag in a table": Read("word,tag\nAnn,B-PER\nleft,\n", ["nothing but an error"]),
    "key that no cell has": Read(
        "1\tAnn\t_\tname=B-PER\n2\tleft\t_\t_\n", ANN, options={"tag_column": "4:nam"}
    ),
    "key of a cell beside O": Read("1\tAnn\t_\tname=B-PER\n2\tleft\t_\tO\n", ANN),
    "two tags of a key": Read(
        "1\tAnn\t_\tname=B-PER|name=B-LOC\n", ["an error"], options={"tag_column": "4:name"}
    ),
    "labels named so beside O": Read("word,tag,iob\nAnn,person,O\nleft,O,O\nLee,person,O\n", LEE),
    "a label as hepatitis-B": Read("x\thepatitis-B\ny\tO\nz\thepatitis-B\n", ["an error"]),
    "comment with tabs": Read(
        "# a\tb\tc\td\n1\tAnn\t_\tname=B-PER\n2\tleft\t_\t_\n",
        ANN,
        options={"tag_column": "4:name"},
    ),
    "sentences counted in each document": Read(
        "document,sentence,word,tag\na,1,Ann,B-PER\na,1,left,O\nb,1,Oslo,B-LOC\nb,2,x,O\n",
        [*TWO, "x"],
    ),
    "documents by another name": Read(
        "file,sentence,word,tag\na,1,Ann,B-PER\na,1,left,O\nb,1,Oslo,B-LOC\n", TWO
    ),
    "blank rows beside names of sentences": Read(
        "sentence,word,tag\n1,Ann,B-PER\n1,left,O\n\n1,Oslo,B-LOC\n", TWO
    ),
    "a flag before the tokens": Read(
        "0 Ann B-PER\n0 Lee I-PER\n1 left O\n", ["[Ann Lee](PER) left"]
    ),
    "numbers as tokens": Read("7\tO\n7\tO\n8\tB-X\n", ["7 7 [8](X)"]),
    "a flag in one sentence": Read(
        "Ann\t1\tB-PER\nLee\t0\tI-PER\nleft\t0\tO\n", ["[Ann Lee](PER) left"]
    ),
    "table with annotators": Read('text,entities,annotator\nAnn left,"[[0,3,""PER""]]",bob\n', ANN),
    "table with answers": Read('text,label,answer\nAnn left,"[[0,3,""PER""]]",accept\n', ANN),
    "elements and brackets": Read(
        "<PER>Ann</PER> left [Oslo](LOC)\n", ["[Ann](PER) left [Oslo](LOC)"]
    ),
    "elements in other lines than brackets": Read(
        "<PER>Ann</PER> left\n[Oslo](LOC)\n", ["[Ann](PER) left", "[Oslo](LOC)"]
    ),
    "PubTator without blank lines": Read(
        "1|t|Ann left\n2|t|Oslo\n2\t0\t4\tOslo\tLOC\n", ["Ann left", "[Oslo](LOC)"]
    ),
    "PubTator of another document": Read("1|t|Ann left\n2\t0\t3\tAnn\tPER\n", ["an error"]),
    "PubTator with two abstracts": Read("1|t|Ann left\n1|a|Oslo\n1|a|Bo\n", ["Ann left Oslo Bo"]),
    "escaped label of WebAnno": Read(
        LAYER.format("NamedEntity|identifier|value", "_", r"creative\_work", "_", "_"),
        ["[Ann](creative_work) left"],
    ),
    "no label of WebAnno": Read(
        LAYER.format("NamedEntity|identifier|value", "*", "*", "_", "_"), ["an error"]
    ),
    "parts of speech of WebAnno": Read(
        LAYER.format("pos.POS|coarseValue|PosValue", "PROPN", "NNP", "VERB", "VBD"), ["an error"]
    ),
    "a built-in layer of WebAnno": Read(
        LAYER.replace("de.x.", "").format(
            "de.tudarmstadt.ukp.dkpro.core.api.lexmorph.type.pos.POS|PosValue", "N", "_", "V", "_"
        ),
        ["an error"],
    ),
    "several features of WebAnno": Read(
        LAYER.format("Own|confidence|kind", "high", "PER", "_", "_"), ANN
    ),
}


def read(path: Path, nlp: Language, options: Mapping[str, Any]) -> tuple[str, list[str], str]:
    """Return the format, the sentences, and all that the log says."""
    log = ConversionLog()
    format = detect_format(path, columns=[*options.values()])
    sentences = []
    for doc in FORMATS[format](path, nlp, log, **options):
        words = [token.text for token in doc]
        for ent in reversed(doc.ents):
            words[ent.start : ent.end] = [f"[{' '.join(words[ent.start : ent.end])}]({ent.label_})"]
        sentences.append(" ".join(words))
    counts = [f"{kind} {number}" for kind, number in log.counts.items()]
    return format, sentences, " ".join([*log.notes, *log.tag_schemes.values(), *counts])


@pytest.mark.parametrize("name", SHAPES)
def test_shape_is_read(name: str, tmp_path: Path, nlp: Language) -> None:
    shape = SHAPES[name]
    encoding = "utf-16" if shape.format in ("table", "pubtator") else "utf-8"
    (tmp_path / "a").write_text(shape.content, encoding=encoding)
    format, sentences, said = read(tmp_path / "a", nlp, shape.options)
    assert (format, sentences) == (shape.format, shape.sentences)
    assert shape.said in said
    # Nothing else is said.
    assert shape.said or not re.search("column|skipped|written|taken off", said)


@pytest.mark.parametrize("name", DOUBTFUL)
def test_shape_is_not_read_wrong(name: str, tmp_path: Path, nlp: Language) -> None:
    shape = DOUBTFUL[name]
    (tmp_path / "a").write_text(shape.content)
    try:
        _, sentences, _ = read(tmp_path / "a", nlp, shape.options)
    except InputError:
        return
    assert sentences == shape.sentences


def test_table_of_mixed_encodings_is_not_read_wrong(tmp_path: Path, nlp: Language) -> None:
    for content, words in (
        ("word,tag\nZoë,B-PER\n\nAnn".encode() + b"\xe9,B-PER\n", ["[Zoë](PER)", "[Anné](PER)"]),
        (b"word,tag\nAnn,B-PER\nleft,O\n\x96,O\n", ["[Ann](PER) left \u2013"]),  # of Windows
    ):
        (tmp_path / "a").write_bytes(content)
        try:
            _, sentences, _ = read(tmp_path / "a", nlp, {})
        except InputError:
            continue
        assert sentences == words


REFUSED = {
    "two columns of tags": ("Ann\tB-PER\tO\nOslo\tI-ORG\tB-LOC\n", "2 and 3. .*--tag-column 3, or"),
    "two tags in a cell": ("Ann\tB-PER|B-ORG\n", r".*'B-PER\|B-ORG'.*one label"),
    "a sentence in a cell": ("2\tLena slept .\tB-PER O O\n", "label has no whitespace, got 'B-PER"),
    "Rasa": ("## intent:fly\n- to [Oslo](city)\n", "training data of Rasa"),
    "UIMA": (
        '<?xml version="1.0"?>\n<xmi:XMI xmlns:xmi="http://x">\n',
        "UIMA XMI. .*WebAnno TSV 3",
    ),
    "GATE": ("<?xml version='1.0'?>\n<GateDocument>\n", "GATE XML.*inline XML"),
    "BioC": ('<?xml version="1.0"?>\n<!DOCTYPE collection SYSTEM "BioC.dtd">', "BioC. .*PubTator"),
    "XML": ('<?xml version="1.0"?>\n<p>[Ann](PER)</p>', "got XML. Export another format"),
    "columns without tags": ("Ann\tN\nleft\tV\n", "nearest format is conll.*Ann.*\n  Tim\tB-PER"),
    "CSV without names": (
        "a,b\n1,2\n",
        "nearest format is table.*columns 'a', 'b'.*\n  sentence,word,tag",
    ),
    "text": ("Ann left.\nShe came back.\n", "nearest format is inline.*no entity.*\n  .Tim Cook."),
    "nothing": ("\n \n", "expected a corpus, got no text"),
    "a name that is not there": (
        "Ann\tB-PER\n",
        "expected a column 'NER', got .'Ann', 'B-PER'.",
        "NER",
    ),
    "PubTator without a title": (f"{PUBTATOR}\n2|a|Oslo\n", "expected a title"),
    "an offset of PubTator": (PUBTATOR.replace("12", "x"), "expected whole numbers"),
    "WebAnno without entities": (WEBANNO.replace("NamedEntity", "X"), "one layer of entities"),
    "stacked entities of WebAnno": (
        WEBANNO.replace("LOC", "LOC[2]|ORG[3]"),
        "expected entities without a common token",
    ),
    "classes of texts": ("text,label\nAnn left,good\n", "nearest format is table"),
    "an entity in a row without its end": (
        "text,start,end,label\nOslo,0,4,LOC\nAnn left,0,,PER\n",
        "expected whole numbers",
    ),
    "offsets of tokens": (
        "sent_id,text,start,end,label\n1,Ann,0,3,B-PER\n1,left,4,8,O\n",
        "expected a token and a tag",
    ),
    "an open element": ("<PER>Ann</PER> and <ORG>x\n", "expected <ORG>text</ORG>"),
    "an element of HTML": ("<s><PER>Ann</PER></s>\n", "names a label, got <s>"),
    "bare B and I": ("Ann\tB\nLee\tI\nleft\tO\n", "no column of tags.*'Ann.*B'"),
    "half of UTF-16": (b"\xff\xfeA\x00\n", "expected UTF-16, as its mark says"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_shape_is_refused_with_a_way_through(name: str, tmp_path: Path, nlp: Language) -> None:
    content, says, *column = REFUSED[name]
    data = content if isinstance(content, bytes) else content.encode()
    (tmp_path / "a").write_bytes(data)
    with pytest.raises(InputError, match=re.compile(rf"/a(, line [0-9]+)?: .*{says}", re.S)):
        read(tmp_path / "a", nlp, {"tag_column": column[0]} if column else {})


TICKETS = {
    "ticket_id,text,PRODUCT,CUSTOMER": '1,"The X200, of Ann",X200,Ann\n2,My X300,X300,\n',
    "ticket_id,text,mention,label": "1,The X200 of Ann,X200,PRODUCT\n2,Ann left,Ann,PERSON\n",
    "id,ticket,labels": '1,The X200 of Ann,X200\n2,"Nothing, here.",\n',
}


@pytest.mark.parametrize("suffix", ["csv", "tsv"])
@pytest.mark.parametrize("header", TICKETS)
def test_unknown_table_names_its_columns_and_shows_one_that_is_read(
    header: str, suffix: str, tmp_path: Path, nlp: Language
) -> None:
    lines = f"{header}\n{TICKETS[header]}"
    path = tmp_path / f"a.{suffix}"
    path.write_text(lines.replace(",", "\t") if suffix == "tsv" else lines)
    chosen = {"text_column": header.split(",")[1], "spans_column": header.split(",")[2]}
    for options in ({}, chosen) if suffix == "csv" else ({},):
        with pytest.raises(InputError, match="nearest format is table") as caught:
            read(path, nlp, options)
        message = str(caught.value)
        assert f"columns {', '.join(map(repr, header.split(',')))}." in message
        assert "--text-column and --spans-column name other columns" in message
    shown = [line.strip() for line in message.splitlines() if line.startswith("  ")]
    for rows, sentences in (
        (shown[:2], ["[Tim Cook](PERSON) left ."]),
        (shown[2:], ["[Tim](PERSON) left"]),
    ):
        path.write_text("\n".join(rows))
        assert read(path, nlp, {})[:2] == ("table", sentences)


def test_shape_space_after_no_joins_tokens(tmp_path: Path, nlp: Language) -> None:
    rows = "1 Ann _ B-PER/2-3 del SpaceAfter=No _/2 de _ O/3 el _ O/4 . SpaceAfter=No O/5 ! _ O"
    (tmp_path / "a").write_text(rows.replace(" ", "\t").replace("/", "\n"))
    (doc,) = FORMATS["conll"](tmp_path / "a", nlp)
    assert doc.text == "Ann de el.! " and [ent.text for ent in doc.ents] == ["Ann"]


def test_shape_of_a_spreadsheet_is_that_of_csv(
    tmp_path: Path, nlp: Language, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.xlsx"
    path.write_bytes(b"PK\x03\x04")
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(InputError, match=r"a\.xlsx: .*pip install openpyxl.*as CSV"):
        read(path, nlp, {})
    rows = [
        ("sentence", "word", "tag"),
        (1, "Ann", "B-PER"),
        (1, "left", "O"),
        (2, "Oslo", "B-LOC"),
    ]
    sheet = SimpleNamespace(iter_rows=lambda values_only: iter(rows))
    book = SimpleNamespace(load_workbook=lambda *_, **__: SimpleNamespace(worksheets=[sheet]))
    monkeypatch.setitem(sys.modules, "openpyxl", book)
    assert read(path, nlp, {})[:2] == ("table", TWO)
    rows[:] = [("text", "entities"), ("Ann left", '[[0, 3, "PER"]]'), (None, None)]
    assert read(path, nlp, {})[:2] == ("table", ANN)
    rows[:] = [("id", "ticket", "labels"), (1, "Ann left", "Ann"), (2, "Oslo", None)]
    with pytest.raises(InputError, match=r"columns 'id', 'ticket', 'labels'\. Write the entities"):
        read(path, nlp, {})


def test_pubtator_and_webanno_keep_concepts_and_spaces(tmp_path: Path, nlp: Language) -> None:
    (tmp_path / "a").write_text(PUBTATOR)
    (doc,) = FORMATS["pubtator"](tmp_path / "a", nlp)
    assert [ent.kb_id_ for ent in doc.ents] == ["Q1", ""] and doc.user_data["meta"] == {"id": "1"}
    (tmp_path / "a").write_text(WEBANNO)
    docs = FORMATS["webanno"](tmp_path / "a", nlp)
    assert [doc.text for doc in docs] == ["Ann Lee left.", "Oslo"]
