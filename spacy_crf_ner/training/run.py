"""Train a pipeline on a corpus: the check, the steps, the training and the calibration."""

import os
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from spacy.language import Language
from spacy.tokens import DocBin
from spacy.training.loop import DIR_MODEL_BEST, clean_output_dir
from spacy.vocab import Vocab
from thinc.api import Config

from ..atomic import atomic_write, check_folder_name
from ..check import CheckSettings, read_settings
from ..docbin import read_docbin
from ..evaluation.guarantees import save_fitted
from ..input_error import InputError
from ..ml.hardware import device_name, use_gpu
from ..pipeline.load import load
from ..pipeline.lookup import FACTORY, recognizer_names
from .calibration import calibrate_on_dev, is_calibrated_when_saved, without_calibration
from .config_file import (
    check_corpora,
    check_patience,
    errors_of_spacy,
    set_corpora,
    set_steps,
    with_overrides,
)
from .corpus_parts import Given, Parts, check_parts, convert_corpus, write_part
from .cross_validation import train_with_folds
from .distributed import loop
from .distributed.checkpoint import STATE
from .distributed.process_group import AUTO, choose_gpu
from .init_config import fit_steps
from .options import STEPS, Options, make_config

OnMessage = Callable[[str], None]


class Trained(NamedTuple):
    """A trained pipeline.

    Attributes:
        model: Its folder.
        test: The test part of the corpus, in any format, if there is one.
        folds: How reliable the confidences are, "before" and "after" the calibration, pooled over
            folds; None without folds.
    """

    model: Path
    test: Path | None = None
    folds: dict[str, Any] | None = None


def train(
    train: Given,
    dev: Given | None = None,
    output: str | Path | None = None,
    *,
    config: str | Path = "transformer",
    transformer: str | None = None,
    steps: int | None = None,
    folds: int = 0,
    seed: int | None = None,
    gpu: str | int = AUTO,
    labels: Sequence[str] | None = None,
    overrides: Mapping[str, Any] = {},
    resume: bool = False,
    calibrate: bool = True,
    on_message: OnMessage = print,
) -> Language:
    """Train a pipeline with a `crf_ner`, calibrate it, and return the best one.

    It checks the corpus first, and prints the table of `spacy train`. One process trains; for
    several, run `torchrun -m spacy_crf_ner train`.

    Args:
        train: Docs with entities, examples, or pairs (text, [(start, end, label)]) with offsets of
            characters; or the path of a corpus in any format of `convert`. If dev is given, only
            the part train of a folder is read, if it has one.
        dev: The same, to choose the best pipeline and to calibrate it. None if `train` is the path
            of a corpus that has a part for it, or is to be split; or for folds.
        output: Folder for model-best, model-last and the state to resume from; replaces earlier
            ones. None keeps nothing.
        config: A config file, or the name of a shipped config: "transformer", "cnn", "char". The
            steps of a shipped one are for the size of the corpus; a file is used as it is.
        transformer: A folder or a name on the hub, in place of the transformer of the config;
            "auto" for the one that spaCy recommends for the language.
        steps: The number of steps; None for those of the config.
        folds: If not 0, for a small corpus: train on all docs of train and dev. Scores and
            calibration are those of pipelines that are each trained without one of these folds.
        seed: The seed of weights, dropout and the order of docs; None for the seed of the config.
        gpu: The number of a GPU, -1 for the CPU, or "auto": a GPU if torch and CuPy can use one.
        labels: The labels to predict; None for those of train.
        overrides: Settings of the config by dotted names, such as "training.dropout".
        resume: Continue the training that was interrupted, whose state is in `output`.
        calibrate: Whether to calibrate the confidences of the best pipeline on dev.
        on_message: Called with what is good to know, a sentence at a time.

    Raises:
        InputError: For a corpus with errors; for a config, a setting, a transformer or a GPU that
            cannot be used; if there is nothing to resume from; and in one of several processes.
        FileNotFoundError: For the path of a corpus that does not exist.
    """
    if _processes() > 1:
        raise InputError(
            "train: expected one process, got several. Run torchrun -m spacy_crf_ner train."
        )
    options = Options(
        *(config, transformer, steps, folds, seed, gpu, labels, overrides, resume),
        calibrate=calibrate,
    )
    with TemporaryDirectory() as scratch:
        trained = train_pipeline(train, dev, Path(output or scratch), options, on_message)
        assert trained is not None
        return load(str(trained.model))


def train_pipeline(
    train: Given | None,
    dev: Given | None,
    output: Path,
    options: Options,
    on_message: OnMessage,
) -> Trained | None:
    """Train as `train` does, or together with the other processes that torchrun started.

    `train` is None for the corpora that the config names, which are not checked. Returns None in
    ranks other than 0, which write nothing. Raises InputError and FileNotFoundError as `train`, and
    RankError if another rank ended or hangs.
    """
    check_folder_name(output)
    for given in (train, dev):
        if isinstance(given, str | Path):
            Path(given).stat()  # before a transformer is loaded
    if options.folds and (options.resume or train is None or _processes() > 1):
        raise InputError(
            "folds: expected a corpus, one process, and a new training. Each fold is a training of "
            "its own, which cannot be resumed."
        )
    is_first = os.environ.get("RANK", "0") == "0"
    say = on_message if is_first else lambda _: None
    gpu_id = choose_gpu(options.gpu)
    if gpu_id >= 0:
        use_gpu(gpu_id)
    say(f"Device: {device_name(gpu_id)}")
    with errors_of_spacy(str(options.config)), TemporaryDirectory() as scratch:
        config = make_config(options)
        if train is None:
            check_corpora(config)
            config = _with_steps(config, None, options, say)
            model = _train(config, output, gpu_id, options)
            return None if model is None else Trained(model)
        config.to_disk(Path(scratch, "config.cfg"))
        settings = read_settings(Path(scratch, "config.cfg"))
        parts = _find_parts(train, dev, Path(scratch), settings, options)
        for note in parts.notes:
            say(note)
        config = _with_steps(config, parts.train, options, say)
        if settings.max_steps is not None:
            settings = settings._replace(max_steps=config["training"]["max_steps"])
        # One with a source may be of any kind.
        kinds = {FACTORY, "ner", None}
        finds_entities = any(x.get("factory") in kinds for x in config["components"].values())
        if is_first and finds_entities:
            say(check_parts(parts, settings, _advice(train, dev, parts, options, config)))
        if parts.dev is None:
            docs = [*read_docbin(parts.train, Vocab())[1]]
            nlp, reliability = train_with_folds(config, docs, options.folds, gpu_id, say)
            clean_output_dir(output)
            (output / STATE).unlink(missing_ok=True)
            with atomic_write(output / DIR_MODEL_BEST) as unfinished:
                nlp.to_disk(unfinished)
            return Trained(output / DIR_MODEL_BEST, _keep_test(parts, output), reliability)
        set_corpora(config, {"train": parts.train, "dev": parts.dev})
        model = _train(config, output, gpu_id, options)
        return None if model is None else Trained(model, _keep_test(parts, output))


def _train(config: Config, output: Path, gpu_id: int, options: Options) -> Path | None:
    """Train in this rank; return the best pipeline, None in ranks other than 0.

    It is calibrated, unless the options say otherwise.
    """
    if not options.calibrate:
        without_calibration(config)
    last = loop.train(config, output, gpu_id=gpu_id, resume=options.resume, timeout=options.timeout)
    if last is None:
        return None
    best = output / DIR_MODEL_BEST
    if options.calibrate and not is_calibrated_when_saved(config):
        nlp = load(str(best))
        if recognizer_names(nlp):
            save_fitted(best, calibrate_on_dev()(nlp), best)
    return best


def _find_parts(
    train: Given, dev: Given | None, folder: Path, settings: CheckSettings, options: Options
) -> Parts:
    """Find or write train and dev; with folds, all docs are train."""
    how = settings.lang, settings.spans_key
    if dev is not None or (options.folds and not isinstance(train, str | Path)):
        files = {"train": train} if dev is None else {"train": train, "dev": dev}
        paths = {part: write_part(given, part, folder, *how) for part, given in files.items()}
        parts = Parts(paths["train"], paths.get("dev"))
    elif isinstance(train, str | Path):
        parts = convert_corpus(Path(train), folder / "corpus", *how, bool(options.folds))
    else:
        raise InputError(
            "dev: expected docs that choose the best pipeline, got none. Give some, or folds=5."
        )
    if not options.folds or parts.dev is None:
        return parts
    vocab, both = Vocab(), folder / "all.spacy"
    docs = (doc for path in (parts.train, parts.dev) for doc in read_docbin(path, vocab)[1])
    DocBin(docs=docs, store_user_data=True).to_disk(both)
    return parts._replace(train=both, dev=None)


def _with_steps(config: Config, train: Path | None, options: Options, say: OnMessage) -> Config:
    """Set the steps: of a shipped config, for the size of a corpus, unless they are given."""
    given = options.overrides.get(STEPS)
    steps = options.steps or given
    is_number = steps is None or isinstance(steps, int)  # spaCy refuses others
    if options.is_shipped and train is not None and is_number and steps != 0:
        fitted = fit_steps(config, train, steps, _processes())
        is_given = steps is not None or config["training"]["max_epochs"]
        say(f"Training: {fitted}; {'as given' if is_given else 'for the size of the corpus'}")
    elif options.steps is not None:
        set_steps(config, options.steps)
    config = with_overrides(config, options.overrides)
    check_patience(config)
    if not (options.is_shipped and train is not None):
        how = f"as {options.config} says" if steps is None else "as given"
        say(f"Training: max_steps = {config['training']['max_steps']}, {how}")
    return config


def _advice(
    train: Given, dev: Given | None, parts: Parts, options: Options, config: Config
) -> str | None:
    """Return the command that shows all findings in a corpus of files."""
    given = [each for each in (train, dev) if each is not None]
    if not all(isinstance(each, str | Path) for each in given):
        return None
    lang = ["--lang", options.overrides["nlp.lang"]] if "nlp.lang" in options.overrides else []
    words = ["spacy-crf-ner", "check", *given, "--config", options.config, *lang]
    if options.transformer or "paths.transformer" in options.overrides:
        words += ["--transformer", config["paths"]["transformer"]]
    if not parts.is_made or options.folds:
        return shlex.join(map(str, words))
    converted = shlex.join(map(str, ["spacy-crf-ner", "convert", *given, "corpus", *lang]))
    words[2:3] = ["corpus"]
    return f"{converted} && {shlex.join(map(str, words))}"


def _keep_test(parts: Parts, output: Path) -> Path | None:
    """Move a test part that was split off to the output."""
    if not parts.is_made or parts.test is None:
        return parts.test
    kept = output / parts.test.name
    with atomic_write(kept, folder_by_file=True) as unfinished:
        shutil.move(parts.test, unfinished)
    return kept


def _processes() -> int:
    """Return the number of processes that torchrun has started."""
    return int(os.environ.get("WORLD_SIZE", 1))
