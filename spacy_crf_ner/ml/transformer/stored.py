"""A transformer and its tokenizer as bytes. Nothing in the bytes decides that code is run.

The library transformers can run code that the settings of a transformer name: with
`trust_remote_code`, the modules of `auto_map`, and attention kernels from its hub. Only the process
that loads the bytes can allow this.
"""

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import srsly
import torch
import transformers
from safetensors.torch import load as load_weights
from torch import nn
from transformers import (
    MODEL_FOR_TEXT_ENCODING_MAPPING,
    AutoConfig,
    AutoModel,
    AutoModelForTextEncoding,
    AutoTokenizer,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging

from ...input_error import InputError
from ..checksummed import is_of_machine, readable, seal, unseal
from ..stored_weights import build_without_weights, weights_to_bytes
from .slow_tokenizer import SlowTokenizer
from .tokenizer import Tokenizer

# The environment variable by which a process allows transformers that run code of their own.
TRUST = "SPACY_CRF_NER_TRUST_REMOTE_CODE"
SOURCE = ("cache_dir", "revision", "subfolder", "token")  # settings that say where to load from
CONFIG, TOKENIZER_CONFIG = "config.json", "tokenizer_config.json"
# The library makes lists of as many elements as there are layers or labels, before any weights.
COUNTED, MAX_COUNT = ("layer", "label", "block"), 10_000
TOKENIZER_CLASS = re.compile(r"\w+Tokenizer(Fast)?")
# A plain name of words, numbers or a model of subwords; no code, no weights, no second config.
TOKENIZER_FILE = re.compile(
    r"(?!config)\w[\w.-]*\.(txt|json|jsonl|model|codes|spm|vocab|dic|dict|tsv)", re.IGNORECASE
)
CODE_FILE = re.compile(r"\w+\.py")
# In these model families the first positions belong to padding.
SHIFTED = ("roberta", "camembert", "mpnet", "longformer", "data2vec", "ibert", "luke", "xmod")
UNLIMITED = 10**9  # positions, where they are relative


def trusts_remote_code() -> bool:
    """Return whether this process allows transformers that run code of their own."""
    return os.environ.get(TRUST) == "1"


def check_no_code(settings: Any, where: str) -> None:
    """Raise InputError for settings of a transformer or a tokenizer that ask to run code."""
    if trusts_remote_code():
        return
    for key, value in _items(settings):
        is_hub_kernel = "attn_implementation" in key and "/" in str(value)
        if is_hub_kernel or (key in ("trust_remote_code", "use_pretrained_backbone") and value):
            raise _runs_code(f"{where}: the setting {key!r}")


def _runs_code(what: str) -> InputError:
    return InputError(
        f"{what} runs code that is not part of the library transformers. If you trust that code, "
        f"set the environment variable {TRUST}=1 in the process that loads it."
    )


def _items(settings: Any) -> Iterator[tuple[str, Any]]:
    """Yield all keys and values of nested settings."""
    pairs = settings.items() if isinstance(settings, dict) else ()
    for key, value in pairs:
        yield str(key), value
    for inner in settings.values() if isinstance(settings, dict) else settings:
        if isinstance(inner, dict | list):
            yield from _items(inner)


def load(
    name: str, tokenizer_config: dict[str, Any], transformer_config: dict[str, Any]
) -> tuple[nn.Module, Tokenizer]:
    """Load a pretrained transformer, in float32, and its tokenizer. No pickled weights are loaded.

    It is a folder, or a name on the hub. Raises InputError for one that cannot be loaded, or runs
    code of its own.
    """
    config, tokenizer = load_tokenizer(name, tokenizer_config, transformer_config)
    source = {key: transformer_config[key] for key in SOURCE if key in transformer_config}
    with _loading(name) as given:
        transformer: Any = _auto_class(config).from_pretrained(
            name, config=config, use_safetensors=True, **given, **source
        )
        _check_fit(transformer.float(), tokenizer)
    return transformer, tokenizer


def load_tokenizer(
    name: str, tokenizer_config: dict[str, Any], transformer_config: dict[str, Any]
) -> tuple[Any, Tokenizer]:
    """Load the config of a pretrained transformer, and its tokenizer; see `load`."""
    with _loading(name) as given:
        config = AutoConfig.from_pretrained(name, **{**transformer_config, **given})
        settings = {"use_fast": True, **tokenizer_config, **given}
        return config, _own_tokenizer(AutoTokenizer.from_pretrained(name, **settings), config)


@contextmanager
def _loading(name: str) -> Iterator[dict[str, Any]]:
    """Load from a folder or the hub, with the given arguments; errors are InputErrors."""
    untyped: Any = logging
    shows_progress = untyped.is_progress_bar_enabled()
    untyped.disable_progress_bar()  # weights of a file load in a moment
    try:
        yield {"trust_remote_code": trusts_remote_code()}
    except Exception as error:
        if isinstance(error, InputError) or is_of_machine(error):
            raise
        if "trust_remote_code" in str(error):
            raise _runs_code(f"The transformer {name!r}") from error
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(
            "transformer: expected a folder, or a name on the hub, of a transformer with weights "
            f"as safetensors, got {name!r}, which fails with {reason[:300]} Name another "
            "one, or a local folder, as --transformer assets/minilm, which `make demo` makes in a "
            "clone; or choose a config without one, as cnn."
        ) from error
    finally:
        if shows_progress:
            untyped.enable_progress_bar()


def _check_fit(transformer: Any, tokenizer: Tokenizer) -> None:
    """Raise an error of any kind if a transformer does not encode what its tokenizer makes."""
    ids = [*tokenizer.encode([""])[0].ids, tokenizer.pad_id]
    if len(ids) > tokenizer.longest:
        raise ValueError(
            f"model_max_length: expected {len(ids)} at least, of which {len(ids) - 1} are special "
            f"subwords, got {tokenizer.longest}."
        )
    inputs = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids))}
    with torch.no_grad():
        _ = transformer(**inputs).last_hidden_state


def _auto_class(config: Any) -> Any:
    """Return the class that makes a transformer; of T5, its encoder."""
    # The config of T5's encoder says that it has no decoder.
    is_text_encoder = config.is_encoder_decoder or type(config) in MODEL_FOR_TEXT_ENCODING_MAPPING
    return AutoModelForTextEncoding if is_text_encoder else AutoModel


def _own_tokenizer(tokenizer: Any, config: Any) -> Tokenizer:
    """Convert a tokenizer of the library transformers.

    Many on the hub do not know how many subwords the transformer reads, and others have a wrong
    number.
    """
    longest = min(int(tokenizer.model_max_length), max_positions(config))
    if not tokenizer.is_fast:
        return SlowTokenizer(tokenizer, longest)
    return Tokenizer(tokenizer.backend_tokenizer.to_str(), tokenizer.pad_token_id or 0, longest)


def max_positions(config: Any) -> int:
    """Return the number of positions of a transformer; `UNLIMITED` if they are relative."""
    n = getattr(config, "max_position_embeddings", None)
    relative = getattr(config, "position_embedding_type", "absolute") != "absolute"
    relative |= not getattr(config, "position_biased_input", True)  # DeBERTa
    if relative or not isinstance(n, int) or n <= 0:
        return UNLIMITED
    is_shifted = any(family in config.model_type for family in SHIFTED)
    return n - (config.pad_token_id + 1) if is_shifted else n


def write(module: Any, tokenizer: Tokenizer) -> bytes:
    """Write a transformer and its tokenizer, without the name of the folder it was loaded from."""
    slow = isinstance(tokenizer, SlowTokenizer)
    content = {
        "config": json.dumps(_without_origin(module.transformer.config.to_dict()), default=str),
        "tokenizer": None if slow else tokenizer.state,
        "files": tokenizer.files if isinstance(tokenizer, SlowTokenizer) else None,
        "weights": weights_to_bytes(module),
    }
    return seal(srsly.msgpack_dumps(content))


def _without_origin(settings: Any) -> Any:
    """Copy nested settings, without the folder and the dtype of the weights that were loaded."""
    if not isinstance(settings, dict):
        return settings
    return {
        key: _without_origin(value)
        for key, value in settings.items()
        if key not in ("_name_or_path", "dtype", "torch_dtype")
    }


def read(data: bytes, build: Callable[[nn.Module], nn.Module]) -> tuple[nn.Module, Tokenizer]:
    """Read what `write` wrote; weights are on the CPU. `build` makes the module from a transformer.

    Raises InputError for other bytes, for settings that run code, and for files whose names are not
    plain, before anything of them is used.
    """
    with readable("a transformer and its tokenizer"):
        content = srsly.msgpack_loads(unseal(data))
        try:
            return _read(content, build)
        except ValueError as error:
            if isinstance(error, InputError) or "trust_remote_code" not in str(error):
                raise
            raise _runs_code("The stored transformer") from error


def _read(
    content: dict[str, Any], build: Callable[[nn.Module], nn.Module]
) -> tuple[nn.Module, Tokenizer]:
    """Read a transformer; `trust_remote_code` is never asked for on the terminal."""
    trust = trusts_remote_code()
    given = {"trust_remote_code": trust, "local_files_only": not trust}
    weights = load_weights(content["weights"])
    with TemporaryDirectory() as name:
        folder = Path(name)
        _write_config(json.loads(content["config"]), folder)
        config = AutoConfig.from_pretrained(folder / CONFIG, **given)
        if content["files"] is None:
            tokenizer = Tokenizer(**content["tokenizer"])
        else:
            if not content["files"]:
                raise InputError("The stored tokenizer cannot be read: it has no files.")
            _write_tokenizer(content["files"], folder)
            # Without a config, the library would look for one among the files.
            slow = AutoTokenizer.from_pretrained(name, config=config, use_fast=False, **given)
            if not isinstance(slow, PreTrainedTokenizerBase):
                raise InputError(f"The stored tokenizer: {type(slow).__name__} is no tokenizer.")
            tokenizer = _own_tokenizer(slow, config)

    def made() -> nn.Module:
        return build(_auto_class(config).from_config(config, trust_remote_code=trust))

    build_without_weights(made, weights)
    module: Any = made()
    module.load_state_dict(weights)
    _check_fit(module.transformer, tokenizer)
    return module, tokenizer


def _write_config(settings: Any, folder: Path) -> None:
    """Write the config of a transformer, if it asks for no code and for no endless list."""
    check_no_code(settings, "The stored transformer")
    for key, value in _items(settings):
        counts = any(part in key for part in COUNTED)
        if counts and isinstance(value, int) and value > MAX_COUNT:
            raise InputError(
                f"The stored transformer: {key} is {value}, but at most {MAX_COUNT} is possible."
            )
    _check_tokenizer_class(settings)
    settings.pop("configuration_files", None)  # other configs, to be read in its place
    # srsly writes small numbers, such as an epsilon, as 0.
    (folder / CONFIG).write_text(json.dumps(settings), encoding="utf-8")


def _write_tokenizer(files: dict[str, bytes], folder: Path) -> None:
    """Write the files of a tokenizer into a folder, without settings that are not read here."""
    for name, content in files.items():
        is_other = name.lower() == TOKENIZER_CONFIG and name != TOKENIZER_CONFIG
        is_code = CODE_FILE.fullmatch(name) is not None
        if is_code and not trusts_remote_code():
            raise _runs_code(f"The stored tokenizer: the file {name!r}")
        if is_other or not (is_code or TOKENIZER_FILE.fullmatch(name)):
            raise InputError(
                f"The stored tokenizer: {name!r} is not the plain name of a file of a tokenizer. "
                "Nothing was written there. Do not use this pipeline: it may be an attack."
            )
        if name == TOKENIZER_CONFIG:
            settings = json.loads(content)  # srsly refuses the large numbers in many of them
            check_no_code(settings, "The stored tokenizer")
            # Names of files elsewhere would be read from there; names of chats become files.
            for key in [key for key in settings if key.endswith("_file") or key == "chat_template"]:
                del settings[key]
            _check_tokenizer_class(settings)
            _check_own_class(settings)
            content = json.dumps(settings).encode()
        (folder / name).write_bytes(content)


def _check_tokenizer_class(settings: dict[str, Any]) -> None:
    """Raise InputError for another class than a tokenizer: the library would let it load itself."""
    name = settings.get("tokenizer_class")
    if name is not None and not TOKENIZER_CLASS.fullmatch(name):
        raise InputError(f"The stored tokenizer: {name!r} is not the class of a tokenizer.")


def _check_own_class(settings: dict[str, Any]) -> None:
    """Raise InputError for a class that is code of its own: the library would try another one."""
    name = settings.get("tokenizer_class") or ""
    if "auto_map" in settings and not (trusts_remote_code() or hasattr(transformers, name)):
        raise _runs_code(f"The stored tokenizer: the class {name!r}")
