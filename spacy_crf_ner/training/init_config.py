"""Starter configs: a shipped config, adapted to a language, hardware and purpose."""

from math import ceil
from pathlib import Path
from typing import Any

from spacy.cli.init_config import RECOMMENDATIONS
from spacy.util import (
    dot_to_object,
    get_lang_class,
    load_config,
    load_model_from_config,
    set_dot_to_object,
)
from spacy.vocab import Vocab
from thinc.api import Config

from ..docbin import read_docbin
from ..input_error import InputError
from ..pipeline.training_steps import TrainingSteps, count_batches, given_steps, training_steps
from ..pipeline.transformer_config import bundled_config, set_learn_rate, width_of
from .config_file import set_corpora

TOK2VECS = ("transformer", "cnn", "char")
PURPOSES = ("efficiency", "accuracy")

Settings = dict[str, Any]  # by dotted names, as in `spacy train`

LEARN_RATE = "training.optimizer.learn_rate.initial_rate"
# A step on a GPU costs little more with four times as many words. Half the steps then read twice
# as many words. By the rule of the square root, the learning rate would double: we stay below.
# This was not measured; `benchmarks/gpu.py --only scores` does.
ON_GPU = {
    "training.batcher.size": 4,
    "training.batcher.buffer": 4,
    "training.max_steps": 0.5,
    "training.patience": 0.5,
    "training.optimizer.learn_rate.total_steps": 0.5,
    "training.eval_frequency": 0.5,
    LEARN_RATE: 1.5,
}

# The shipped configs are for efficiency. For accuracy: four times the steps.
LONGER: Settings = {
    "training.max_steps": 4000,
    "training.optimizer.learn_rate.total_steps": 4000,
    "training.eval_frequency": 200,
}
ACCURACY: dict[str, Settings] = {
    "transformer": {},
    # Width and depth as in spaCy's own configs for accuracy, and more rows.
    "cnn": {
        "components.ner.model.tok2vec.width": 256,
        "components.ner.model.tok2vec.depth": 8,
        "components.ner.model.tok2vec.embed_size": 10000,
        "components.ner.model.hidden_width": 200,
    },
    # Twice the widths, except that of affixes, and twice the rows of words.
    "char": {
        "components.ner.model.tok2vec.*.words.char_width": 100,
        "components.ner.model.tok2vec.*.words.char_embed": 60,
        "components.ner.model.tok2vec.*.words.word_width": 200,
        "components.ner.model.tok2vec.*.words.word_rows": 10000,
        "components.ner.model.tok2vec.*.words.shape_width": 50,
        "components.ner.model.hidden_width": 200,
    },
}
OVERLAPPING: Settings = {
    "components.ner.overlap": True,
    "components.ner.spans_key": "sc",
}
OVERLAPPING_WEIGHTS = {"ents_f": None, "ents_p": None, "ents_r": None, "spans_sc_f": 1.0}
# The setting that enables static vectors.
VECTORS = {
    "cnn": "components.ner.model.tok2vec.pretrained_vectors",
    "char": "components.ner.model.tok2vec.*.words.static_vectors",
}


def init_config(
    lang: str,
    tok2vec: str = "cnn",
    *,
    transformer: str | None = None,
    vectors: str | None = None,
    gpu: bool = False,
    optimize: str = "efficiency",
    max_nesting: int = 0,
    shared: bool = False,
) -> Config:
    """Make a config that is complete but for `paths.train` and `paths.dev`.

    Raises InputError for an unknown language or choice, for vectors beside a transformer, and for
    another shared tok2vec.

    Args:
        tok2vec: The layer below the BiLSTM-CRF: "transformer"; "cnn", spaCy's HashEmbedCNN; or
            "char", a CNN over characters.
        transformer: A local folder or a name on the hub, for the tok2vec "transformer"; None for
            the one that spaCy recommends for the language. A wider one has a lower learning rate;
            one on the hub is taken to be as wide as BERT-base.
        vectors: Static vectors, a folder or a package, for "cnn" and "char"; None for none.
        gpu: Let torch allocate GPU memory, and take four times as many words in a batch, half as
            many steps, and a learning rate 1.5 times as high.
        optimize: "efficiency", or "accuracy": a larger model, trained for longer.
        max_nesting: If entities overlap, the number of layers in which those of one label are
            nested; 0 for flat entities.
        shared: Whether the transformer is a component, `tok2vec`, that others can listen to.
    """
    asked = ("tok2vec", tok2vec, TOK2VECS), ("optimize", optimize, PURPOSES)
    for setting, value, choices in asked:
        if value not in choices:
            raise InputError(f"{setting}: expected one of {[*choices]}, got {value!r}.")
    try:
        language = get_lang_class(lang)
    except ImportError as error:
        raise InputError(
            f"lang: expected a language of spaCy, such as en, got {lang!r}. All are listed at "
            "https://spacy.io/usage/models."
        ) from error
    settings: Settings = {
        "nlp.lang": language.lang,
        "system.gpu_allocator": "pytorch" if gpu else None,
    }
    if tok2vec == "transformer":
        transformer = transformer or recommended_transformer(language.lang or lang, optimize)
        settings["paths.transformer"] = transformer
    elif shared:
        raise InputError(f"shared: expected a transformer, got {tok2vec!r}. Only it can be shared.")
    if vectors is not None:
        if tok2vec not in VECTORS:
            raise InputError(
                f"vectors: expected none beside a transformer, got {vectors!r}. Only {[*VECTORS]} "
                "take static vectors."
            )
        settings.update({"paths.vectors": vectors, VECTORS[tok2vec]: True})
    if optimize == "accuracy":
        settings.update(LONGER | ACCURACY[tok2vec])
    if max_nesting:
        settings.update(OVERLAPPING | {"components.ner.max_nesting": max_nesting})
    config = load_config(bundled_config(tok2vec), overrides=settings)
    if tok2vec == "transformer":
        set_learn_rate(config, config["paths"]["transformer"])
    if shared:
        _share_transformer(config, width_of(config["paths"]["transformer"]))
    if gpu:
        for name, factor in ON_GPU.items():
            value = dot_to_object(config, name)
            set_dot_to_object(config, name, type(value)(round(value * factor, 8)))
    if max_nesting:
        config["training"]["score_weights"].update(OVERLAPPING_WEIGHTS)
    if language.lang != "vi":  # the shipped configs split Vietnamese into syllables
        config["nlp"]["tokenizer"] = language.default_config["nlp"]["tokenizer"]
    try:
        return load_model_from_config(config, auto_fill=True).config
    except ImportError as error:
        raise InputError(f"lang: {lang!r} needs a package that is missing. {error}") from error


def fit_to_corpus(config: Config, corpus: Path) -> TrainingSteps:
    """Set the paths of a corpus in a shipped config, and steps for its size; see `fit_steps`.

    Raises InputError for a folder without train.spacy and dev.spacy, and for broken or empty files.
    """
    paths = {part: corpus / f"{part}.spacy" for part in ("train", "dev")}
    for path in paths.values():
        if not path.exists():
            raise InputError(
                f"{corpus}: expected train.spacy and dev.spacy, got no {path.name}. Convert the "
                "corpus with spacy-crf-ner convert."
            )
    _doc_lengths(paths["dev"])
    set_corpora(config, paths)
    return fit_steps(config, paths["train"])


def fit_steps(
    config: Config, train: Path, steps: int | None = None, processes: int = 1
) -> TrainingSteps:
    """Set the steps of a shipped config, and with them warm-up and evaluations.

    They are for the size of a corpus, a .spacy file, or the given ones; at most those of
    `max_epochs`, if it is over 0. In a step, each of several processes learns from a batch. Raises
    InputError for a broken or empty file.
    """
    training = config["training"]
    batches = ceil(count_batches(training["batcher"], _doc_lengths(train)) / processes)
    epochs = training["max_epochs"]
    if isinstance(epochs, int) and epochs > 0:  # spaCy refuses what is no number
        steps = min(steps or epochs * batches, epochs * batches)
    if steps is None:
        fitted = training_steps(batches, training["max_steps"])
    else:
        fitted = given_steps(batches, steps)
    training["max_steps"] = fitted.steps
    training["eval_frequency"] = fitted.eval_frequency
    training["patience"] = 0  # the rate falls to 0 over all steps
    rates = training["optimizer"]["learn_rate"]
    rates["total_steps"], rates["warmup_steps"] = fitted.steps, fitted.warmup_steps
    return fitted


def _doc_lengths(path: Path) -> list[int]:
    lengths = [len(doc) for doc in read_docbin(path, Vocab())[1]]
    if not any(lengths):
        raise InputError(f"{path}: expected docs with tokens, got none. Convert the corpus.")
    return lengths


def _share_transformer(config: Config, width: int) -> None:
    """Move the transformer of `ner` to a component of its own, which `ner` listens to."""
    layers = config["components"]["ner"]["model"]["tok2vec"]["*"]
    of_component = {"factory": "shared_tok2vec", "model": layers["transformer"]}
    config["components"] = {"tok2vec": of_component, **config["components"]}
    config["nlp"]["pipeline"] = [*config["components"]]
    layers["transformer"] = {
        "@architectures": "spacy.Tok2VecListener.v1",
        "width": width,
        "upstream": "*",
    }


def recommended_transformer(lang: str, optimize: str) -> str:
    """Return the transformer that `spacy init config` takes for a language, by its hub name."""
    of_lang = RECOMMENDATIONS.get(lang, {}).get("transformer")  # some have none
    recommended = of_lang or RECOMMENDATIONS["__default__"]["transformer"]
    return str(recommended[optimize]["name"])
