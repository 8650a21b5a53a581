"""A transformer and its tokenizer as bytes. Nothing in the bytes decides that code is run.

The library transformers can run code that the settings of a transformer name: with
`trust_remote_code`, the modules of `auto_map`, and attention kernels from its hub. Only the process
that loads the bytes can allow this.
"""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import srsly
from transformers.tokenization_utils_base import PreTrainedTokenizerBase

from ...input_error import InputError
from ..checksummed import readable, seal, unseal
from ..stored_weights import build_without_weights, weights_from_bytes, weights_to_bytes
from .spacy_transformers_internals import HFObjects, HFShim

# The environment variable by which a process allows transformers that run code of their own.
TRUST = "SPACY_CRF_NER_TRUST_REMOTE_CODE"
CONFIG, TOKENIZER_CONFIG = "config.json", "tokenizer_config.json"
# The library makes lists of as many elements as there are layers or labels, before any weights.
COUNTED, MAX_COUNT = ("layer", "label", "block"), 10_000
TOKENIZER_CLASS = re.compile(r"\w+Tokenizer(Fast)?")

Files = dict[str, bytes]


def trusts_remote_code() -> bool:
    """Return whether this process allows transformers that run code of their own."""
    return os.environ.get(TRUST) == "1"


def check_no_code(settings: Any, where: str) -> None:
    """Raise InputError for settings of a transformer or a tokenizer that ask to run code.

    Args:
        where: What has these settings, for the message.
    """
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


def transformer_to_bytes(loaded: HFObjects) -> bytes:
    """Write a transformer and its tokenizer; before they are loaded, their settings."""
    if loaded.transformer is None:
        own = loaded._init_tokenizer_config, loaded._init_transformer_config
        return seal(srsly.msgpack_dumps({"settings": [dict(each) for each in own]}))
    content = {
        "config": loaded.transformer.config.to_dict(),
        "use_fast": loaded.tokenizer.is_fast,
        "tokenizer": _tokenizer_files(loaded),
        "weights": weights_to_bytes(loaded.transformer),
    }
    return seal(srsly.msgpack_dumps(content))


def _tokenizer_files(loaded: HFObjects) -> Files:
    """Save a tokenizer, and return its files."""
    tokenizer = loaded.tokenizer
    with TemporaryDirectory() as name:
        folder = Path(name)
        if hasattr(tokenizer, "vocab_file"):  # it is copied from there, and may be gone
            vocabulary = folder / tokenizer.vocab_files_names["vocab_file"]
            vocabulary.write_bytes(loaded.vocab_file_contents)
            tokenizer.vocab_file = str(vocabulary)
        tokenizer.save_pretrained(name)
        return {file.name: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def transformer_from_bytes(data: bytes, shim: HFShim) -> HFObjects:
    """Read what `transformer_to_bytes` wrote; weights are on the CPU.

    Args:
        shim: The shim whose classes make the transformer and the tokenizer.

    Raises:
        InputError: For other bytes, for settings that run code, and for files whose names are not
            plain, before anything of them is used.
    """
    with readable("a transformer and its tokenizer"):
        content = srsly.msgpack_loads(unseal(data))
        if "settings" in content:
            for settings in content["settings"]:
                check_no_code(settings, "The settings of the transformer")
            return HFObjects(None, None, None, *map(dict, content["settings"]))
        try:
            return _read(content, shim)
        except ValueError as error:
            if isinstance(error, InputError) or "trust_remote_code" not in str(error):
                raise
            raise _runs_code("The stored transformer") from error


def _read(content: dict[str, Any], shim: HFShim) -> HFObjects:
    """Read a transformer; `trust_remote_code` is never asked for on the terminal."""
    trust = trusts_remote_code()
    given = {"trust_remote_code": trust, "local_files_only": not trust}
    weights = weights_from_bytes(content["weights"])
    with TemporaryDirectory() as name:
        folder = Path(name)
        _write_config(content["config"], folder)
        config = shim.config_cls.from_pretrained(folder / CONFIG, **given)
        _write_tokenizer(content["tokenizer"], folder)
        use_fast = content["use_fast"] is True
        tokenizer = shim.tokenizer_cls.from_pretrained(name, use_fast=use_fast, **given)
        longest = getattr(tokenizer, "model_max_length", None)
        if not isinstance(tokenizer, PreTrainedTokenizerBase) or not isinstance(longest, int):
            raise InputError(f"The stored tokenizer: {type(tokenizer).__name__} is no tokenizer.")
        vocabulary = None
        if hasattr(tokenizer, "vocab_file"):
            vocabulary = (folder / tokenizer.vocab_files_names["vocab_file"]).read_bytes()

    def build() -> Any:
        return shim.model_cls.from_config(config, trust_remote_code=trust)

    build_without_weights(build, weights)
    transformer = build()
    transformer.load_state_dict(weights)
    return HFObjects(tokenizer, transformer, vocabulary)


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
    srsly.write_json(folder / CONFIG, settings)


def _write_tokenizer(files: Files, folder: Path) -> None:
    """Write the files of a tokenizer into a folder, without settings that are not read here."""
    for name, content in files.items():
        if name != Path(name).name or name in ("", "..", CONFIG) or "\\" in name or "\0" in name:
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
            content = json.dumps(settings).encode()
        (folder / name).write_bytes(content)


def _check_tokenizer_class(settings: dict[str, Any]) -> None:
    """Raise InputError for another class than a tokenizer: the library would let it load itself."""
    name = settings.get("tokenizer_class")
    if name is not None and not TOKENIZER_CLASS.fullmatch(name):
        raise InputError(f"The stored tokenizer: {name!r} is not the class of a tokenizer.")
