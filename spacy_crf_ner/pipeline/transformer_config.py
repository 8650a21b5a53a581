"""The model and the optimizer of `configs/transformer.cfg`, for pipelines made in Python."""

from pathlib import Path
from typing import Any

import srsly
from spacy.language import Language
from spacy.util import load_config
from thinc.api import Config, Model

CONFIGS = Path(__file__).parents[1] / "configs"
# The learning rate of the config is for this one.
MINILM, MINILM_WIDTH = "sentence-transformers/all-MiniLM-L6-v2", 384
BASE_WIDTH = 768


def bundled_config(name: str) -> Path:
    """Return the path of a config that comes with the package, as "cnn" or "cnn.cfg"."""
    return CONFIGS / f"{name.removesuffix('.cfg')}.cfg"


def transformer_model(name: str) -> dict[str, Any]:
    """Return the setting `model` of `crf_ner` for a transformer, as in `configs/transformer.cfg`.

    It is a BiLSTM-CRF over the transformer and the characters of each word. Example:
    `nlp.add_pipe("crf_ner", config={"model": transformer_model("roberta-base")})`.

    Args:
        name: A local folder, or a name on the Hugging Face hub.
    """
    return dict(_read(name)["components"]["ner"]["model"])


def set_optimizer(nlp: Language, model: Model[Any, Any]) -> None:
    """Replace spaCy's default optimizer in `nlp.config` if the model trains a transformer.

    The default has one learning rate for all weights, which destroys a pretrained transformer; the
    optimizer of `configs/transformer.cfg` has groups. Its rate is constant here: a loop of updates
    has no schedule. A pipeline that is made from a config gets the optimizer of that config later.
    """
    layers = (layer for layer in model.walk() if layer.attrs.get("frozen") is False)
    transformer = next(layers, None)
    if transformer is None:
        return
    training, default = nlp.config["training"], nlp.default_config["training"]
    if training["optimizer"] == default["optimizer"]:
        shim: Any = transformer.shims[0]
        optimizer = _read(shim.name)["training"]["optimizer"]
        rate = optimizer["learn_rate"]["initial_rate"]
        training["optimizer"] = {**optimizer, "learn_rate": rate}


def _read(name: str) -> Config:
    path = bundled_config("transformer")
    config = load_config(path, {"paths.transformer": name}, interpolate=True)
    set_learn_rate(config, name)
    return config


def set_learn_rate(config: Config, transformer: str) -> None:
    """Lower the learning rate of `configs/transformer.cfg` for a transformer that is wider."""
    rates = config["training"]["optimizer"]["learn_rate"]
    scale = min(1.0, MINILM_WIDTH / width_of(transformer))
    rates["initial_rate"] = round(rates["initial_rate"] * scale**2, 6)


def width_of(transformer: str) -> int:
    """Find the width of a transformer's vectors in its folder; on the hub, assume a usual one."""
    if transformer == MINILM:
        return MINILM_WIDTH
    file = Path(transformer) / "config.json"
    stored = srsly.read_json(file) if file.exists() else {}
    widths = (stored.get(name) for name in ("hidden_size", "dim", "d_model", "n_embd"))
    return next((width for width in widths if isinstance(width, int)), BASE_WIDTH)
