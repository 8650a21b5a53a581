"""The command `convert`."""

import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from ..input_error import InputError
from .console import print_conversion_log, print_counts, reading_progress
from .options import MAX_LOSS, Lang, MaxLoss, Repair
from .startup import leave_out_torch

# As in `data`, which takes a second to import.
FORMATS = (
    "auto, inline, conll, table, pubtator, webanno, jsonl, doccano, label_studio, brat, "
    "hugging_face, spacy"
)
SPLIT_BY = ("documents", "sentences")


def convert(
    inputs: Annotated[
        list[Path],
        typer.Argument(
            metavar="INPUT",
            default_factory=list,
            show_default=False,
            help="Corpus: files, or folders with train, dev, test.",
        ),
    ],
    output: Annotated[
        Path,
        typer.Argument(
            metavar="OUTPUT",
            help="Folder for train.spacy, dev.spacy, test.spacy; or a new file, .spacy, .jsonl or "
            ".parquet.",
        ),
    ],
    hub: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Instead of INPUT: a dataset on the Hugging Face hub, user/name, or "
            "user/name:config.",
        ),
    ] = None,
    format: Annotated[str, typer.Option(help=f"One of {FORMATS}.")] = "auto",
    lang: Lang = "en",
    n_sents: Annotated[
        int,
        typer.Option(min=0, help="Sentences per doc; 0: all between two -DOCSTART- lines."),
    ] = 1,
    syllables: Annotated[
        str, typer.Option(help="Vietnamese: keep, split, join the syllables of a word.")
    ] = "keep",
    labels: Annotated[
        str | None,
        typer.Option(
            help="Labels that this corpus annotates, comma-separated, if it is trained on with "
            "others; what is outside may then be an entity of another label.",
        ),
    ] = None,
    spans_key: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            help="Entities may overlap: store all in doc.spans[KEY], instead of doc.ents; also the "
            "key to read from .spacy files.",
        ),
    ] = None,
    split: Annotated[
        str,
        typer.Option(
            metavar="TRAIN,DEV,TEST",
            help="Shares for a corpus without parts; train and dev if only dev is missing.",
        ),
    ] = "0.8,0.1,0.1",
    split_by: Annotated[
        str,
        typer.Option(
            metavar="|".join(SPLIT_BY),
            help="Keep the sentences of a document in one part, or of a block of neighbors where "
            "the corpus marks no documents; or draw sentences at random, so that documents are in "
            "several parts, and scores too high.",
        ),
    ] = SPLIT_BY[0],
    seed: Annotated[int, typer.Option(help="Seed of the split.")] = 0,
    repair: Repair = False,
    max_loss: MaxLoss = MAX_LOSS,
    alignment: Annotated[
        str,
        typer.Option(
            metavar="strict|expand|contract|split|missing",
            help="If an entity begins or ends inside a token: stop with an error, expand or "
            "contract it to whole tokens, split the token, or treat its tokens as not annotated.",
        ),
    ] = "strict",
    discontinuous: Annotated[
        str,
        typer.Option(
            metavar="strict|hull|parts|skip",
            help="Of an entity of several parts: stop with an error, make one from its first to "
            "its last character, or one of each part, or treat its tokens as not annotated.",
        ),
    ] = "strict",
    tag_column: Annotated[
        str | None,
        typer.Option(
            help="Column of the tags: its number, from 1, or -1, the last; or its name. 10:name is "
            "the value of name in cells as name=B-PER|Gloss=x. hugging_face: its name; ner_tags by "
            "default. In JSON: a key.",
        ),
    ] = None,
    token_column: Annotated[
        str | None,
        typer.Option(help="Column of the tokens: its number, or its name; 1 or tokens by default."),
    ] = None,
    text_column: Annotated[
        str | None, typer.Option(help="Column, or key, of the texts; text by default.")
    ] = None,
    spans_column: Annotated[
        str | None, typer.Option(help="Column, or key, of the entities of a text.")
    ] = None,
    parquet: Annotated[
        bool,
        typer.Option("--parquet", help="Write .parquet files for the library datasets."),
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the corpus that is in the folder OUTPUT.")
    ] = False,
) -> None:
    """Convert a corpus to the binary files that `spacy train` reads.

    Words in file names determine the parts: train.txt, my_dev.conll. A single
    file, or files with other names, are one corpus, which is split at random
    by whole documents; the same seed gives the same split. If only dev is
    missing, it is split off train. If OUTPUT is a file, it gets the whole corpus.

    If there are mistakes, the command lists them with file and line, and writes
    nothing. With --repair, it fixes mistakes or leaves out the sentence or
    entity, and counts both.

    \b
    Formats, detected by content unless --format is given:
      inline        [Tim Cook](PERSON) visited [Hanoi](GPE).     one sentence per
                    line; or <PERSON>Tim Cook</PERSON>
      conll         Hanoi NNP B-GPE     one token per line, a blank line after
                    a sentence; any number of columns with tabs or spaces between;
                    tags in IOB1, IOB2 (BIO), BILUO, BIOES, BMES, or labels alone;
                    also spaCy's .iob: Hanoi|NNP|B-GPE
      table         sentence,word,tag     CSV or .xlsx with a token in each row;
                    or text,entities with a text and [[0, 5, "GPE"]]
      pubtator      1|t|Hanoi     titles and abstracts, and lines of entities
      webanno       #FORMAT=WebAnno TSV 3.3     from WebAnno and INCEpTION
      jsonl         {"text": "Hanoi.", "spans": [{"start": 0, "end": 5, "label":
                    "GPE"}]}     from spaCy and Prodigy; also arrays, objects,
                    other keys, and {"tokens": [...], "ner_tags": [...]}
      doccano       {"text": "Hanoi.", "label": [[0, 5, "GPE"]]}     JSONL export
      label_studio  [{"data": {"text": "Hanoi."}, "annotations": ...}]     JSON or
                    JSON-MIN export
      brat          T1<tab>GPE 0 5<tab>Hanoi     a folder of name.txt and name.ann
      hugging_face  {"tokens": ["Hanoi"], "ner_tags": [1]}     a folder of
                    save_to_disk, .parquet or .arrow, from the library datasets
      spacy         corpus.spacy     spaCy's binary format

    \b
    Examples:
      spacy-crf-ner convert ner_dataset.csv corpus --n-sents 10
      spacy-crf-ner convert eng.train eng.testa eng.testb corpus --n-sents 0
      spacy-crf-ner convert export.jsonl corpus --repair --alignment expand
      spacy-crf-ner convert tweets.conllu corpus --token-column 2 --tag-column 4
      spacy-crf-ner convert corpus/dev.spacy dev.jsonl
      spacy-crf-ner convert corpus for_datasets --parquet
      spacy-crf-ner convert places.jsonl places --labels GPE,LOC
      spacy-crf-ner convert nested.jsonl nested --spans-key sc
    """
    leave_out_torch()
    from .. import data

    log = data.ConversionLog(repair, alignment, spans_key, max_loss, discontinuous)
    if hub is None and not inputs:
        raise InputError(
            f"OUTPUT is missing: got {output} alone. Name the input, then the output, as in "
            "spacy-crf-ner convert corpus.jsonl corpus."
        )
    is_special = output.exists() and not (output.is_file() or output.is_dir())
    if str(output) == "-" or is_special or output.parts[:2] == ("/", "dev"):
        raise InputError(
            f"{output}: expected a folder or the name of a file, got a stream. Convert to a file, "
            "as all.jsonl, and pass it on: cat all.jsonl."
        )
    if hub is not None and inputs:
        raise InputError("convert: expected INPUT, or --hub NAME, got both of them.")
    given = {
        "token_column": token_column,
        "tag_column": tag_column,
        "text_column": text_column,
        "spans_column": spans_column,
    }
    columns = {name: _column(value) for name, value in given.items() if value is not None}
    nlp = data.blank_pipeline(lang, segment=syllables == "keep")
    with TemporaryDirectory() as scratch, reading_progress() as on_progress:
        if hub is not None:
            inputs = [Path(scratch, hub.replace("/", "--"))]
            data.download(hub, inputs[0])
        if format == "auto":
            format = data.detect_format(*inputs, columns=[*columns.values()])
        typer.echo(f"Format: {format}")
        options = data.ConvertOptions(
            format=format,
            columns=columns,
            n_sents=n_sents,
            syllables=syllables,
            labels=None if labels is None else _labels(labels),
            split=data.Split(_shares(split), seed, split_by),
            parquet=parquet,
            overwrite=overwrite,
        )
        counts = data.convert(inputs, output, options, nlp=nlp, log=log, on_progress=on_progress)
    print_counts(counts)
    print_conversion_log(log)


def _column(text: str) -> int | str:
    return int(text) if re.fullmatch(r"-?\d+", text) else text


def _labels(text: str) -> list[str]:
    labels = [label.strip() for label in text.split(",")]
    if not all(labels):
        raise InputError(f"--labels: expected labels such as PERSON,ORG, got {text!r}.")
    return labels


def _shares(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(share) for share in text.split(","))
    except ValueError as error:
        raise InputError(f"--split: expected shares such as 0.8,0.1,0.1, got {text!r}.") from error
