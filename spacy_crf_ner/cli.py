"""Commands: what the functions of this package do, on files, from a shell."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any, Callable, List, Optional, Tuple

import srsly
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TimeElapsedColumn,
    track,
)
from rich.table import Table
from spacy.language import Language
from spacy.training import Corpus, Example
from spacy.util import load_config
from thinc.api import Config
from typer.core import TyperGroup

from . import ablation as family
from . import annotate as annotation
from . import calibration, data, evaluation
from . import check as checking
from . import init_config as configs
from . import report as reports
from .distributed.spread import spread
from .explain import explain as explanation_of
from .loading import load
from .plots import require_matplotlib
from .terminal import (
    annotation_bar,
    print_counts,
    print_findings,
    print_journal,
    print_table,
    print_trellis,
    read_docs,
    watcher,
)
from .trellis_page import trellis_page
from .visualize import comparison_page

PRECISIONS = "auto|fp32|bf16|fp16|int8"


def _known_precision(value: Optional[str]) -> Optional[str]:
    if value is not None and value not in PRECISIONS.split("|"):
        raise typer.BadParameter(f"expected one of {PRECISIONS}, got {value}")
    return value


Precision = Annotated[
    Optional[str],
    typer.Option(
        metavar=PRECISIONS,
        callback=_known_precision,
        help="Predict as fast as can be, in this precision; auto: the cheapest that the hardware "
        "does well. Without: as the pipeline was saved.",
    ),
]


class Commands(TyperGroup):
    """Commands that end in one sentence where a file, or what it holds, is not as it should be."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was asked for; exit with 1 on an error that says what is wrong."""
        try:
            return super().invoke(ctx)
        except (ValueError, OSError, annotation.WorkerError) as error:
            typer.echo(f"Error: {error}", err=True)
            raise typer.Exit(1) from error


# Help is plain text: rich would read [Tim Cook](PERSON) as markup.
app = typer.Typer(
    cls=Commands,
    rich_markup_mode=None,
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def commands() -> None:
    """Prepare corpora for spaCy's `crf_ner`, and look at what it finds."""


@app.command()
def convert(
    inputs: Annotated[
        List[Path],
        typer.Argument(metavar="INPUT", help="Corpus: files, or folders with train, dev, test."),
    ],
    output: Annotated[
        Path,
        typer.Argument(
            metavar="OUTPUT",
            help="Folder for train.spacy, dev.spacy, test.spacy; or a new file, .spacy or .jsonl.",
        ),
    ],
    format: Annotated[
        str, typer.Option(help=f"One of auto, {', '.join(data.CONVERTERS)}.")
    ] = "auto",
    lang: Annotated[str, typer.Option(help="Language, for the tokenizer.")] = "en",
    group_sents: Annotated[
        int, typer.Option(min=0, help="Sentences a doc; 0 for all between two -DOCSTART- lines.")
    ] = 1,
    syllables: Annotated[
        str, typer.Option(help=f"Vietnamese: {', '.join(data.SYLLABLES)} the syllables of a word.")
    ] = "keep",
    split: Annotated[
        str, typer.Option(metavar="TRAIN,DEV,TEST", help="Shares of a corpus that has no parts.")
    ] = "0.8,0.1,0.1",
    seed: Annotated[int, typer.Option(help="Seed of the split.")] = 0,
    repair: Annotated[
        bool,
        typer.Option("--repair", help="Mend mistakes, leave out what cannot be mended, and count."),
    ] = False,
    alignment: Annotated[
        str,
        typer.Option(
            metavar="|".join(data.ALIGNMENTS),
            help="An entity that begins or ends inside a token: a mistake; or it gets the whole "
            "token; or loses it; or its tokens count as not annotated.",
        ),
    ] = "strict",
    tag_column: Annotated[
        int, typer.Option(help="Columns: that of the tag, from 1; -1 is the last.")
    ] = -1,
    token_column: Annotated[int, typer.Option(help="Columns: that of the token.")] = 1,
) -> None:
    """Convert a corpus to the binary files that `spacy train` reads.

    Files whose names say train, dev and (not required) test are these parts:
    train.txt, dev.conll, eng.testa. A file that is alone, and files with other
    names, are one corpus, which is split at random, always the same way for the
    same seed. An OUTPUT that is a file gets all of the corpus.

    The first mistake ends the conversion, with its file and line, and nothing is
    written. With --repair it is mended, or the sentence or entity is left out,
    and all that is said in numbers.

    \b
    Formats, told by the content unless --format names one:
      inline        [Tim Cook](PERSON) visited [Hanoi](GPE).     a sentence a line
      conll         Hanoi NNP B-GPE     a token a line, a blank line after a
                    sentence, any number of columns, separated by tabs or spaces;
                    tags in IOB1, IOB2 (BIO), BILUO, BIOES or BMES
      gmb           Sentence: 1,Hanoi,NNP,B-geo     Kaggle's ner_dataset.csv
      jsonl         {"text": "Hanoi.", "spans": [{"start": 0, "end": 5, "label":
                    "GPE"}]}     of spaCy and Prodigy
      doccano       {"text": "Hanoi.", "label": [[0, 5, "GPE"]]}     JSONL export
      label_studio  [{"data": {"text": "Hanoi."}, "annotations": ...}]     JSON or
                    JSON-MIN export
      brat          T1<tab>GPE 0 5<tab>Hanoi     a folder of name.txt and name.ann
      spacy         corpus.spacy     binary, as this command and spaCy write it

    \b
    Examples:
      spacy-crf-ner convert ner_dataset.csv corpus --group-sents 10
      spacy-crf-ner convert eng.train eng.testa eng.testb corpus --group-sents 0
      spacy-crf-ner convert export.jsonl corpus --repair --alignment expand
      spacy-crf-ner convert tweets.conllu corpus --token-column 2 --tag-column 4
      spacy-crf-ner convert corpus/dev.spacy dev.jsonl
    """
    journal = data.Journal(repair, alignment)
    if format == "auto":
        columns = (token_column, tag_column) != (1, -1)
        format = "conll" if columns else data.detect_format(*inputs)
    typer.echo(f"Format: {format}")
    nlp = data.blank_pipeline(lang, segment=syllables == "keep")
    console = Console(stderr=True)
    columns_shown = (*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(
        *columns_shown, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        counts = data.convert(
            inputs,
            output,
            nlp=nlp,
            format=format,
            group=group_sents,
            syllables=syllables,
            shares=_shares(split),
            seed=seed,
            token_column=token_column,
            tag_column=tag_column,
            journal=journal,
            watch=watcher(progress),
        )
    print_counts(counts)
    print_journal(journal)


@app.command()
def check(
    train: Annotated[Path, typer.Argument(help="Corpus to train on: a .spacy file or a folder.")],
    dev: Annotated[
        Optional[Path], typer.Argument(help="Corpus to measure on, to compare with it.")
    ] = None,
    config: Annotated[Optional[Path], typer.Option(help="Config that you will train with.")] = None,
    transformer: Annotated[
        Optional[str], typer.Option(help="Local folder or a name on the hub; not the config's.")
    ] = None,
    lang: Annotated[
        Optional[str], typer.Option(help="Language; that of the config, or else English.")
    ] = None,
    places: Annotated[int, typer.Option(min=0, help="Places shown of each finding.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print nothing but JSON.")] = False,
) -> None:
    """Find what is wrong with a corpus, before you train on it.

    Prints how large it is, and what was found, errors first. The exit code is 1 where
    there is an error, else 0.

    \b
    Example:
      spacy-crf-ner check corpus/train.spacy corpus/dev.spacy --config configs/cnn.cfg
    """
    settings = checking.Settings()
    if config is not None:
        settings = checking.read_settings(config, transformer)
    vocab = data.blank_pipeline(lang or settings.lang).vocab
    report = checking.check(
        read_docs(train, vocab),
        None if dev is None else read_docs(dev, vocab),
        scheme=settings.scheme,
        incorrect_spans_key=settings.incorrect_spans_key,
        window=settings.window,
        subwords=settings.subwords,
        places=places,
    )
    if as_json:
        typer.echo(srsly.json_dumps(report.to_dict(), indent=2))
    else:
        print_findings(report)
    if report.of("error"):
        raise typer.Exit(1)


@app.command()
def predict(
    model: Annotated[str, typer.Argument(help="Pipeline: a folder, or the name of a package.")],
    texts: Annotated[List[str], typer.Argument(help="Texts, each in quotes.")],
    gpu_id: Annotated[int, typer.Option(help="GPU to use, -1 for the CPU.")] = -1,
    precision: Precision = None,
) -> None:
    """Print the entities that a pipeline finds in texts."""
    nlp = load(model, gpu_id, precision)
    table = Table("Text", "Entity", "Label")
    for doc in nlp.pipe(texts):
        ents = [(ent.text, ent.label_) for ent in doc.ents] or [("none", "")]
        for i, (ent, label) in enumerate(ents):
            table.add_row(doc.text if i == 0 else "", ent, label, end_section=i == len(ents) - 1)
    print_table(table)


@app.command()
def annotate(
    model: Annotated[str, typer.Argument(help="Pipeline: a folder, or the name of a package.")],
    inputs: Annotated[
        List[str], typer.Argument(metavar="INPUT", help="Files, globs in quotes, or folders.")
    ],
    output: Annotated[str, typer.Argument(metavar="OUTPUT", help="Folder for the shards.")],
    engine: Annotated[
        str, typer.Option(metavar="local|ray", help="Processes of this machine, or Ray.")
    ] = "local",
    format: Annotated[
        str, typer.Option(metavar="jsonl|parquet|spacy", help="Of the shards.")
    ] = "jsonl",
    text_column: Annotated[str, typer.Option(help="Name of the column of texts.")] = "text",
    id_column: Annotated[
        str, typer.Option(help="Name of that of ids; where there is none, file and line.")
    ] = "id",
    whole_files: Annotated[
        bool,
        typer.Option("--whole-files", help="A .txt file is a document, not each of its lines."),
    ] = False,
    no_text: Annotated[bool, typer.Option("--no-text", help="Do not write the texts.")] = False,
    workers: Annotated[
        int,
        typer.Option(min=0, help="Processes, each with a copy of the model; 0: one a core, to 8."),
    ] = 0,
    gpu_id: Annotated[
        str, typer.Option(help="GPUs, with commas: a worker for each; -1 for the CPU.")
    ] = "-1",
    precision: Precision = None,
    batch_size: Annotated[
        str, typer.Option(help="Documents that are annotated together; auto: by their length.")
    ] = "auto",
    shard_size: Annotated[int, typer.Option(min=1, help="Most documents of a shard.")] = 2000,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with what an earlier run has left.")
    ] = False,
    restart: Annotated[
        bool, typer.Option("--restart", help="Remove what an earlier run has left.")
    ] = False,
    ray_address: Annotated[
        Optional[str], typer.Option(help="Ray: address of a cluster; none starts one here.")
    ] = None,
) -> None:
    """Find the entities of many documents, and write them in shards.

    
    Input, told by the ending, .gz and .zst too but for the last two:
      .txt         a line a document; with --whole-files a file
      .jsonl       an object a line
      .csv, .tsv   the first line has the names of the columns
      .parquet
      .spacy       its tokens are kept, its entities are not read

    Each record of the output has the columns of the input, and "entities": start, end,
    label and confidence of each, in characters. The shards have the order of the input.

    A document that cannot be read or annotated stops no other: it is in errors.jsonl,
    with file, line and reason, and the exit code is 2. Ctrl-C, and whatever else ends
    a run, leaves whole shards: --resume goes on after them.

    
    Examples:
      spacy-crf-ner annotate training/model-best texts/ annotated/
      spacy-crf-ner annotate model "logs/**/*.jsonl.gz" out --text-column message
      spacy-crf-ner annotate model news.parquet out --format parquet --gpu-id 0,1
      spacy-crf-ner annotate model s3://bucket/news/ s3://bucket/out --engine ray
    """
    annotation.require_annotate()
    if engine not in annotation.ENGINES:
        expected = ", ".join(annotation.ENGINES)
        raise ValueError(f"--engine: expected one of {expected}, got {engine!r}. Choose one.")
    if resume and restart:
        raise ValueError("expected one of --resume and --restart, got both. Choose one.")
    settings = annotation.Settings(
        format=format,
        text_column=text_column,
        id_column=id_column,
        whole_files=whole_files,
        keep_text=not no_text,
        shard_size=shard_size,
        batch_size=0 if batch_size == "auto" else _numbers("--batch-size", batch_size)[0],
        precision=precision,
    )
    gpu_ids = [gpu for gpu in _numbers("--gpu-id", gpu_id) if gpu >= 0]
    start: Callable[..., annotation.Summary]
    if engine == "ray":
        if resume:
            raise ValueError(
                "--resume: expected the engine local, got ray, which runs again by itself what "
                "fails within a run. Leave it out, or begin anew by --restart."
            )
        start = partial(annotation.annotate_on_ray, address=ray_address, gpus=bool(gpu_ids))
        again = "--restart begins anew"
    else:
        start = partial(annotation.annotate, gpu_ids=gpu_ids, resume=resume)
        again = "--resume goes on after the finished shards"
    try:
        with annotation_bar() as watch:
            summary = start(
                model, inputs, output, settings, workers=workers, restart=restart, watch=watch
            )
    except KeyboardInterrupt:
        typer.echo(f"Interrupted: {again}.", err=True)
        raise typer.Exit(130) from None
    typer.echo(srsly.json_dumps(summary, indent=2))
    if summary["errors"]:
        raise typer.Exit(2)


@app.command()
def explain(
    model: Annotated[str, typer.Argument(help="Pipeline: a folder, or the name of a package.")],
    text: Annotated[str, typer.Argument(help="Text, in quotes.")],
    html: Annotated[
        Optional[Path], typer.Option(help="HTML file to write, with the trellis as a drawing.")
    ] = None,
    n: Annotated[int, typer.Option(min=1, help="Most probable analyses to show.")] = 5,
    gpu_id: Annotated[int, typer.Option(help="GPU to use, -1 for the CPU.")] = -1,
    precision: Precision = None,
    component: Annotated[
        Optional[str], typer.Option(help="Name of the crf_ner component, where there are several.")
    ] = None,
) -> None:
    """Show how Viterbi decoding finds the entities of a text.

    \b
    Prints, for each token, the tags that matter, * for that of the best path:
      Emission     the score of the tag at this token
      Score        of the best legal path that ends in this tag here
      Backpointer  the tag before on that path
      Marginal     the probability of the tag here, over all paths
    and the most probable analyses. Left out are tags with a marginal below 0.01
    that are not on the path, and lead to none of those that are shown.
    """
    explanation = explanation_of(load(model, gpu_id, precision), text, n, component)
    print_trellis(explanation)
    if html is not None:
        html.parent.mkdir(parents=True, exist_ok=True)
        html.write_text(trellis_page(explanation), encoding="utf-8")
        typer.echo(f"Page: {html}")


@app.command()
def visualize(
    model: Annotated[str, typer.Argument(help="Pipeline: a folder, or the name of a package.")],
    corpus: Annotated[Path, typer.Argument(help="Documents with gold entities: a .spacy file.")],
    page: Annotated[Path, typer.Argument(help="HTML file to write.")],
    gpu_id: Annotated[int, typer.Option(help="GPU to use, -1 for the CPU.")] = -1,
    precision: Precision = None,
) -> None:
    """Draw documents as a page, their gold entities beside the predicted ones."""
    nlp = load(model, gpu_id, precision)
    examples = _examples(nlp, corpus)
    _annotate(nlp, examples)
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(comparison_page(examples, f"{model} on {corpus}"), encoding="utf-8")
    typer.echo(f"Page: {page}")


@app.command()
def calibrate(
    model: Annotated[str, typer.Argument(help="Pipeline: a folder, or the name of a package.")],
    corpus: Annotated[
        Path, typer.Argument(help="Documents with gold entities, not those of the training.")
    ],
    target: Annotated[Path, typer.Argument(help="Folder for the calibrated pipeline: a new one.")],
    gpu_id: Annotated[int, typer.Option(help="GPU to use, -1 for the CPU.")] = -1,
    precision: Precision = None,
    component: Annotated[
        Optional[str], typer.Option(help="Name of the crf_ner component, where there are several.")
    ] = None,
) -> None:
    """Make the confidences of entities say how often they are right.

    One number is fitted to the gold entities, the temperature, which divides all scores.
    No entity changes, but where thresholds drop those of low confidence.

    \b
    Prints, before and after, for the entities that are found:
      ECE    how far confidence and share of right ones lie apart, in 15 bins
      Brier  mean of (confidence - right)^2
    """
    _require_free(target)
    nlp = load(model, gpu_id, precision)
    examples = _examples(nlp, corpus)
    result = calibration.calibrate(nlp, track(examples, "Calibrating"), component)
    nlp.to_disk(target)
    before, after = result["before"], result["after"]
    table = Table("")
    for name in ("before", "after"):
        table.add_column(name, justify="right")
    table.add_row("ECE", _figure(before["ece"]), _figure(after["ece"]))
    table.add_row("Brier", _figure(before["brier"]), _figure(after["brier"]))
    print_table(table)
    typer.echo(
        f"Entities: {before['entities']}, and {before['left_out']} left out where the gold "
        "annotation is missing"
    )
    typer.echo(f"Temperature: {result['temperature']:.3f}")
    typer.echo(f"Pipeline: {target}")


@app.command()
def report(
    model: Annotated[str, typer.Argument(help="Pipeline: a folder, or the name of a package.")],
    corpus: Annotated[Path, typer.Argument(help="Documents with gold entities: a .spacy file.")],
    out: Annotated[Path, typer.Argument(help="Folder for the report; one in it is replaced.")],
    compare: Annotated[
        Optional[str], typer.Option(metavar="MODEL", help="Another pipeline, to compare with.")
    ] = None,
    training_log: Annotated[
        Optional[Path],
        typer.Option(help="What spacy train printed, or the output_file of ConsoleLogger.v3."),
    ] = None,
    component: Annotated[
        Optional[str], typer.Option(help="Name of the crf_ner component, where there are several.")
    ] = None,
    gpu_id: Annotated[int, typer.Option(help="GPU to use, -1 for the CPU.")] = -1,
    precision: Precision = None,
) -> None:
    """Say how good a pipeline is, where it errs, and how sure it can be believed.

    Any pipeline that sets doc.ents will do. What of this is known of a crf_ner
    component alone (confidences, transitions) is left out for others.

    \b
    Writes into the folder:
      report.html  a page of it all, with the errors to browse, for a browser
      report.md    the figures as tables in Markdown, and the surest errors
      report.json  the figures, and all errors, for programs

    \b
    Example:
      spacy-crf-ner report training/model-best corpus/test.spacy report
    """
    reports.require_report()
    reports.require_folder(out)
    training = evaluation.read_training_log(training_log) if training_log else None
    nlp, examples = _predicted(model, corpus, gpu_id, precision)
    with Console().status("Measuring"):
        figures = evaluation.evaluate(
            examples, model=model, data=str(corpus), nlp=nlp, component=component, training=training
        )
    if compare is not None:
        other, others = _predicted(compare, corpus, gpu_id, precision)
        named = component if component in other.pipe_names else None
        with Console().status("Measuring"):
            against = evaluation.evaluate(
                others, model=compare, data=str(corpus), nlp=other, component=named
            )
            figures = evaluation.compare(figures, examples, against, others)
    paths = reports.write_report(figures, out)
    f1, interval = figures["matching"]["strict"]["micro"]["f1"], figures["intervals"]["micro"]["f1"]
    typer.echo(f"Micro F1: {reports.with_interval(f1, interval)}")
    for path in paths:
        typer.echo(path)


@app.command()
def ablation(
    corpus: Annotated[Path, typer.Argument(help="Folder with train.spacy, dev.spacy, test.spacy.")],
    out: Annotated[Path, typer.Argument(help="Folder for the results.")],
    members: Annotated[
        Optional[List[str]], typer.Option("--member", help="One to run; repeat for several.")
    ] = None,
    definition: Annotated[
        Optional[Path],
        typer.Option(
            "--family",
            help="YAML file: the members, their configs and settings.",
            show_default="configs/family.yml",
        ),
    ] = None,
    transformer: Annotated[str, typer.Option(help="Local folder, or a name on the hub.")] = (
        "assets/minilm"
    ),
    steps: Annotated[int, typer.Option(min=1, help="Training steps of each run.")] = 200,
    seeds: Annotated[str, typer.Option(help="Seeds, with commas; a run of each member.")] = "0,1,2",
    small: Annotated[
        bool, typer.Option("--small", help="One seed, 10 steps: does it all run?")
    ] = False,
    gpu_id: Annotated[int, typer.Option(help="GPU to use, -1 for the CPU.")] = -1,
) -> None:
    """Train a family of models on a corpus, and compare them.

    All have the same steps, batches and seeds. A run whose result is known is not
    repeated: stop whenever you like, and go on with the same command.

    \b
    Writes into the folder:
      runs.jsonl  a line a run, as soon as it is measured
      table.md    mean and standard deviation over the seeds
      chart.svg   F1 of each model
    """
    require_matplotlib()
    if small:
        steps, seeds = 10, "0"
    runs = family.plan(
        definition or _shipped_family(),
        corpus,
        transformer=transformer,
        steps=steps,
        seeds=_numbers("--seeds", seeds),
        members=members or (),
    )
    rows = []
    with Progress(
        SpinnerColumn(), *Progress.get_default_columns(), TimeElapsedColumn(), MofNCompleteColumn()
    ) as progress:
        task = progress.add_task("", total=len(runs))
        results = family.results(runs, out, gpu_id)
        for run in runs:
            progress.update(task, description=escape(f"{run.member}, seed {run.seed}"))
            rows.append(next(results))
            progress.advance(task)
    table = family.table(rows)
    (out / "table.md").write_text(table, encoding="utf-8")
    family.chart(rows, out / "chart.svg")
    typer.echo(table)
    typer.echo(f"Folder: {out}")


@app.command("init-config")
def init_config(
    out: Annotated[Path, typer.Argument(help="Config file to write; - prints it.")],
    lang: Annotated[str, typer.Option(help="Language code of spaCy, as en or vi.")] = "en",
    transformer: Annotated[
        Optional[str], typer.Option(help="Over this transformer: a local folder, or a hub name.")
    ] = None,
    cnn: Annotated[
        bool, typer.Option("--cnn", help="Over spaCy's HashEmbedCNN; the default.")
    ] = False,
    char: Annotated[bool, typer.Option("--char", help="Over a CNN of characters.")] = False,
    vectors: Annotated[
        Optional[str],
        typer.Option(help="With --cnn or --char: static vectors too, a folder or a package."),
    ] = None,
    gpu: Annotated[bool, typer.Option("--gpu", help="For training on a GPU.")] = False,
    optimize: Annotated[
        str, typer.Option(help=f"One of {', '.join(configs.PURPOSES)}.")
    ] = "efficiency",
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
) -> None:
    """Write a complete config for `spacy train`.

    It is one of the shipped configs, with these changes:

    \b
    --gpu                GPU memory shared with torch; batches of 2000 words, not 1000
    --optimize accuracy  4000 steps, not 1000, and
      of a transformer     windows of 256 tokens, not 128
      --cnn                width 256, not 96; depth 8, not 4; 10000 rows, not 2000;
                           LSTM of width 200, not 100
      --char               all widths twice as large, that of the LSTM too;
                           10000 rows of words, not 5000
    --vectors            take static vectors as well

    \b
    Example:
      spacy-crf-ner init-config config.cfg --lang en --cnn --optimize accuracy
      spacy train config.cfg --paths.train train.spacy --paths.dev dev.spacy
    """
    if sum((transformer is not None, cnn, char)) > 1:
        raise ValueError("expected one of --transformer, --cnn and --char, got more. Choose one.")
    _require_new(out, force)
    made = configs.init_config(
        lang,
        "transformer" if transformer is not None else "char" if char else "cnn",
        transformer=transformer or "",
        vectors=vectors,
        gpu=gpu,
        optimize=optimize,
    )
    _write_config(made, out)


@app.command()
def distribute(
    config: Annotated[Path, typer.Argument(help="Config for `spacy train`, for one process.")],
    out: Annotated[Path, typer.Argument(help="Config file to write; - prints it.")],
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
) -> None:
    """Make a config for training on several GPUs or machines of one for one process.

    Its settings stay: reader, batcher, logger, optimizer and callbacks are wrapped in those
    that share the work out. Batches are those of each process.

    
    Example, on a machine with four GPUs:
      spacy-crf-ner distribute configs/transformer.cfg distributed.cfg
      torchrun --nproc-per-node 4 -m spacy train distributed.cfg --output training --gpu-id 0 ...
    """
    _require_new(out, force)
    overlay = load_config(configs.shipped("distributed.cfg"))
    _write_config(spread(load_config(config), overlay), out)


def main() -> None:
    """Run the command line."""
    app(prog_name="spacy-crf-ner")


def _shares(text: str) -> Tuple[float, ...]:
    try:
        return tuple(float(share) for share in text.split(","))
    except ValueError as error:
        raise ValueError(f"--split: expected shares such as 0.8,0.1,0.1, got {text!r}.") from error


def _numbers(option: str, text: str) -> List[int]:
    try:
        return [int(number) for number in text.split(",")]
    except ValueError as error:
        raise ValueError(f"{option}: expected numbers such as 0,1,2, got {text!r}.") from error


def _shipped_family() -> Path:
    """The one of the folder in which the command is run, or else that of the package."""
    here = Path("configs/family.yml")
    return here if here.exists() else configs.shipped("family.yml")


def _require_new(file: Path, force: bool) -> None:
    if str(file) != "-" and file.exists() and not force:
        raise ValueError(
            f"{file}: expected a new file, got one that is there. Name another, or add --force."
        )


def _write_config(config: Config, file: Path) -> None:
    if str(file) == "-":
        typer.echo(config.to_str())
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    config.to_disk(file)
    typer.echo(f"Config: {file}")


def _require_free(target: Path) -> None:
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ValueError(
            f"{target}: expected a new or an empty folder, got one that holds something, or a "
            "file. Name another."
        )


def _figure(value: Optional[float]) -> str:
    return "none" if value is None else f"{value:.4f}"


def _examples(nlp: Language, corpus: Path) -> List[Example]:
    """Read gold docs, each beside one without annotation, as `spacy train` does."""
    if corpus.is_file() and corpus.suffix != checking.ENDING:
        raise ValueError(
            f"{corpus}: expected a file {checking.ENDING}, or a folder of such, got another. "
            "Convert the corpus with spacy-crf-ner convert."
        )
    checking.open_corpus(corpus, nlp.vocab)  # its errors are one sentence
    return list(Corpus(corpus)(nlp))


def _predicted(
    model: str, corpus: Path, gpu_id: int, precision: Optional[str]
) -> Tuple[Language, List[Example]]:
    """Load a pipeline, and let it annotate the docs of a corpus that has gold entities."""
    nlp = load(model, gpu_id, precision)
    examples = _examples(nlp, corpus)
    evaluation.require_gold(examples, str(corpus))
    _annotate(nlp, examples)
    return nlp, examples


def _annotate(nlp: Language, examples: List[Example]) -> None:
    """Let a pipeline predict, and show how far it is."""
    docs = nlp.pipe(eg.predicted for eg in examples)
    for doc, eg in zip(track(docs, "Predicting", total=len(examples)), examples):
        eg.predicted = doc
