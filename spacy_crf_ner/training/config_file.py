"""Find a config for training, read it, and change it."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from spacy.language import DEFAULT_CONFIG, Language
from spacy.util import dict_to_dot, dot_to_object, load_config_from_str, registry, set_dot_to_object
from thinc.api import Config, ConfigValidationError

from ..input_error import InputError, did_you_mean
from ..pipeline.lookup import recognizer
from ..pipeline.transformer_config import CONFIGS, bundled_config

# Sections where spaCy ignores unknown settings.
UNCHECKED = ("paths", "system", "nlp", "training", "initialize")


def find_config(name: str | Path) -> Path:
    """Find a config: a file, or one that comes with the package; InputError for neither."""
    found = Path(name) if Path(name).is_file() else bundled_config(str(name))
    if found.is_file():
        return found
    shipped = sorted(each.stem for each in CONFIGS.glob("*.cfg"))
    raise InputError(
        f"There is no config {str(name)!r}.{did_you_mean(str(name), shipped)} Name a file, which "
        f"spacy-crf-ner init writes, or one of {', '.join(shipped)}."
    )


def read_config(path: Path) -> Config:
    """Read a config, not interpolated. As when it is, `$$` in a value without variables is `$`.

    Raises InputError for a file that is not UTF-8, and spaCy's ConfigValidationError for a file
    that is no config.
    """
    try:
        text = path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: expected a config of spaCy, got a file that is not UTF-8. Create one with "
            "spacy-crf-ner init."
        ) from error
    lines = (x if "${" in x else x.replace("$$", "$") for x in text.splitlines(keepends=True))
    config: Config = load_config_from_str("".join(lines), interpolate=False)
    return config


def with_overrides(config: Config, overrides: Mapping[str, Any]) -> Config:
    """Return a config with other values for some settings, by dotted names.

    Raises InputError for a setting that neither the config nor spaCy has.
    """
    for name in overrides:
        section, _, setting = name.rpartition(".")
        block, default = (get_dotted(each, section) for each in (config, DEFAULT_CONFIG))
        is_section = isinstance(block, dict)
        if not is_section or (section in UNCHECKED and setting not in {**block, **default}):
            hint = did_you_mean(name, dict_to_dot(config))
            raise InputError(f"There is no setting {name} in the config.{hint}")
    changed = config.copy()
    for name, value in overrides.items():
        set_dot_to_object(changed, name, value)
    return changed


def check_patience(config: Config) -> None:
    """Raise InputError for a training that would end before it is evaluated a second time."""
    settings = {**DEFAULT_CONFIG["training"], **config.interpolate()["training"]}
    patience, every = settings["patience"], settings["eval_frequency"]
    if isinstance(patience, int) and isinstance(every, int) and 0 < patience < every:
        raise InputError(
            f"training.patience {patience} is less than training.eval_frequency {every}: the "
            "training would end before its second evaluation. Set it to 0, for all steps, or "
            "evaluate more often."
        )


def set_corpora(config: Config, paths: Mapping[str, Path]) -> None:
    """Let the corpora "train" and "dev" of a config be .spacy files.

    Raises InputError for a corpus whose reader has no path.
    """
    for part, path in paths.items():
        name, block = reader_block(config, part)
        if "path" not in block:
            raise InputError(
                f"[{name}] expected a reader with a path, such as spacy.Corpus.v1, got "
                f"{block.get('@readers')}. Use a config with such a reader."
            )
        text = str(path)
        if "${" in text:  # no variable; other dollars are escaped when a config is written
            text = text.replace("$", "$$")
        if block["path"] != f"${{paths.{part}}}":
            block["path"] = text
        if part in config.get("paths", {}):
            config["paths"][part] = text


@contextmanager
def errors_of_spacy(config: str) -> Iterator[None]:
    """Raise InputError, in one line, for what spaCy cannot use in a config, by its name.

    Such errors have a code, as [E002], or are those of its validation. Others are not changed.
    """
    try:
        yield
    except ConfigValidationError as error:
        found = [f"{' -> '.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors or ()]
        reason = "; ".join(found) or " ".join(str(error).split())
        raise InputError(f"The config {config} cannot be used. {error.title}: {reason}.") from error
    except Exception as error:
        if not re.match(r"\[E\d+\]", str(error)):
            raise
        reason = " ".join(str(error).split("\n\n")[0].split())  # without a list of all names
        raise InputError(f"The config {config} cannot be used. {reason}") from error


def reader_block(config: Config, part: str) -> tuple[str, dict[str, Any]]:
    """Find the reader of "train" or "dev": the name of its block, and the block, {} for none."""
    name = get_dotted(config, f"training.{part}_corpus") or f"corpora.{part}"
    block = get_dotted(config, name)
    return name, block if isinstance(block, dict) else {}


def get_dotted(config: Config, name: str) -> Any:
    """Return the value that a setting has in a config; None for none."""
    try:
        return dot_to_object(config, name)
    except KeyError:
        return None


def set_steps(config: Config, steps: int) -> None:
    """Let a training, and the schedule of its learning rate, end after these steps.

    The warm-up is at most half of them.
    """
    training = config["training"]
    training["max_steps"] = steps
    training["eval_frequency"] = min(training["eval_frequency"], steps)
    rates = get_dotted(config, "training.optimizer.learn_rate")
    if isinstance(rates, dict) and "total_steps" in rates:
        rates["total_steps"] = steps
        if isinstance(rates.get("warmup_steps"), int):
            rates["warmup_steps"] = min(rates["warmup_steps"], steps // 2)


def given_labels(nlp: Language) -> tuple[str, ...]:
    """Return the labels that a config has in `[initialize]` for the `crf_ner`, if there are any."""
    settings = nlp.config.interpolate()["initialize"]["components"].get(recognizer(nlp).name, {})
    labels: Any = settings.get("labels") or []
    return tuple(registry.resolve({"labels": labels})["labels"])


def check_corpora(config: Config) -> None:
    """Raise InputError if spaCy's reader of a corpus of the training has no path."""
    settings = config.interpolate()
    for part in ("train", "dev"):
        name, block = reader_block(settings, part)
        if block.get("@readers") == "spacy.Corpus.v1" and not block.get("path"):
            raise InputError(
                f"[{name}] path: expected a .spacy file, or a folder of them, got none. Name it: "
                f"--paths.{part} corpus/{part}.spacy."
            )
