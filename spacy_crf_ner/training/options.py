"""What a training is asked for, and its config: a file, or a shipped one for a language."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from thinc.api import Config

from ..input_error import InputError
from ..pipeline.lookup import FACTORY
from .config_file import find_config, get_dotted, read_config, with_overrides
from .distributed.process_group import AUTO, TIMEOUT
from .init_config import TOK2VECS, init_config, recommended_transformer

TRANSFORMER = "${paths.transformer}"
STEPS = "training.max_steps"


@dataclass(frozen=True)
class Options:
    """The settings of `train`; `timeout` is the minutes that a rank waits for another one.

    Raises InputError for no steps, for one fold, for folds without calibration, and for two
    different numbers of steps.
    """

    config: str | Path = "transformer"
    transformer: str | None = None
    steps: int | None = None
    folds: int = 0
    seed: int | None = None
    gpu: str | int = AUTO
    labels: Sequence[str] | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)
    resume: bool = False
    timeout: float = TIMEOUT
    calibrate: bool = True

    def __post_init__(self) -> None:
        for name, value, least in (("steps", self.steps, 1), ("folds", self.folds or None, 2)):
            if value is not None and value < least:
                raise InputError(f"{name}: expected {least} or more, got {value}.")
        if self.folds and not self.calibrate:
            raise InputError("Folds calibrate the pipeline. Train without folds, or calibrate.")
        other = self.overrides.get(STEPS)
        if self.steps is not None and isinstance(other, int) and other != self.steps:
            raise InputError(
                f"steps: expected one number of steps, got {self.steps} and {STEPS} {other}. "
                "Remove one of the two."
            )

    @property
    def is_shipped(self) -> bool:
        """Whether the config is a shipped one, and no file."""
        return not Path(self.config).is_file()


def make_config(options: Options) -> Config:
    """Read a config, not interpolated, and set all that does not depend on the corpus.

    Raises InputError for a config that does not exist, for a transformer that it does not use, and
    for settings that it does not have.
    """
    path, transformer = find_config(options.config), options.transformer
    config = read_config(path)
    if transformer is not None and TRANSFORMER not in config.to_str():
        raise InputError(
            f"The config {options.config} has no {TRANSFORMER}, which --transformer would set. "
            "Choose another config, or name the transformer in it."
        )
    lang = options.overrides.get("nlp.lang", get_dotted(config, "nlp.lang"))
    if options.is_shipped and path.stem in TOK2VECS:
        transformer = options.overrides.get("paths.transformer", transformer)
        chosen = None if transformer == "auto" else transformer or config["paths"]["transformer"]
        config = init_config(lang, path.stem, transformer=chosen)
        config["system"]["gpu_allocator"] = "pytorch"
    elif transformer is not None:
        is_auto = transformer == "auto"
        chosen = recommended_transformer(lang, "efficiency") if is_auto else transformer
        config["paths"]["transformer"] = chosen
    if options.seed is not None:
        config["training"]["seed"] = config.setdefault("system", {})["seed"] = options.seed
    if options.labels is not None:
        of_components = config["initialize"].setdefault("components", {})
        for name, block in config["components"].items():
            if block.get("factory") == FACTORY:
                of_components[name] = {"labels": [*options.labels]}
    return with_overrides(config, options.overrides)
