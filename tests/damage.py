"""Damage to files of saved pipelines: by accident, and by strangers who write digests again."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import srsly

from spacy_crf_ner.ml.checksummed import MARK, seal, unseal
from spacy_crf_ner.pipeline.stored import write_digests


class Intruder:
    """An object that, when it is unpickled, creates a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.mkdir, (self.path,)


# Values that no setting, size or name should have.
HOSTILE = [
    10**12,
    10**30,
    -1,
    0,
    1.5,
    float("nan"),
    "",
    "../../x",
    "/elsewhere",
    "\0",
    None,
    True,
    [],
    {},
]
HOSTILE += [[[]], {"nd": True}, "x" * 1000, b"x", [10**12], 2**31, "__import__('os')"]
ARRAYS = [
    np.zeros(0, dtype="f"),
    np.full((2, 2), np.nan, dtype="f"),
    np.zeros((3, 1, 2), dtype="i8"),
    np.array(["x"]),
    np.zeros((1, 10**6), dtype="f"),
    np.float64(1.0),
]
HOW = ["flip", "truncate", "remove", "insert", "swap", "empty", "delete", *["hostile"] * 5]


def damage(folder: Path, others: list[Path], chance: Random) -> tuple[Path, str]:
    """Damage one file of a pipeline.

    others: Pipelines of other kinds, whose files are swapped in.

    Returns the file, and how: "hostile" has a right digest.
    """
    files = sorted(file for file in folder.rglob("*") if file.is_file() and file.stat().st_size)
    files += 3 * [file for file in files if file.name == "model"]  # what most can go wrong in
    file, how = chance.choice(files), chance.choice(HOW)
    if how == "hostile":
        if _make_hostile(file, chance):
            if (file.parent / "digests.json").exists():
                write_digests(file.parent)
            return file, how
        how = "flip"
    data = bytearray(file.read_bytes())
    at = chance.randrange(len(data))
    if how == "flip":
        data[at] ^= 1 << chance.randrange(8)
    elif how == "truncate":
        del data[at:]
    elif how == "remove":
        del data[at : at + chance.randint(1, 20)]
    elif how == "insert":
        data[at:at] = chance.choice(
            [b"\n", b'"', b"\xff", b"\0", b"}{\r", b"[" * 2000, b"\x93NUMPY"]
        )
    elif how == "swap":
        candidates = [o for other in others for o in other.rglob(file.name) if o.is_file()]
        data = bytearray(chance.choice(candidates).read_bytes())
    elif how == "empty":
        data.clear()
    file.write_bytes(data)
    if how == "delete":
        file.unlink()
    return file, how


def _make_hostile(file: Path, chance: Random) -> bool:
    """Change a value in a file of JSON, a config, or MessagePack; returns whether it did."""
    if file.name == "config.cfg":
        lines = file.read_text().splitlines()
        settings = [i for i, line in enumerate(lines) if " = " in line]
        i = chance.choice(settings)
        key = lines[i].partition(" = ")[0]
        lines[i] = f"{key} = {json.dumps(chance.choice(HOSTILE), default=str)}"
        file.write_text("\n".join(lines))
        return True
    for read, write in ((_read_json, _write_json), (_read_packed, _write_packed)):
        try:
            content = read(file.read_bytes())
        except Exception:
            continue
        if not isinstance(content, dict | list) or not content:
            return False
        container, key = chance.choice([*_places(content)])
        values = HOSTILE + (ARRAYS if write is _write_packed else [])
        value = chance.choice(values)
        if chance.random() < 0.1 and isinstance(container, dict):
            container[chance.choice(["../../x", "/elsewhere", "\0", "new"])] = container.pop(key)
        elif isinstance(container[key], np.ndarray) and chance.random() < 0.5:
            container[key] = _other_array(container[key], chance)
        else:
            container[key] = value
        try:
            file.write_bytes(write(content))
        except (OverflowError, TypeError, ValueError):
            return False
        return True
    return False


def _other_array(array: Any, chance: Random) -> Any:
    """Change the type, the shape or the numbers of an array."""
    changes = [
        lambda: array.astype("f8"),
        lambda: array[:1],
        lambda: array.reshape(-1),
        lambda: np.zeros((*array.shape, 2), dtype="f"),
        lambda: np.full_like(array, np.nan),
        lambda: np.full_like(array, 1e38),
        lambda: array.astype("i4"),
        lambda: np.concatenate([array, array]),
    ]
    return chance.choice(changes)()


def _places(content: Any) -> Iterator[tuple[Any, Any]]:
    for key, value in [*(content.items() if isinstance(content, dict) else enumerate(content))]:
        yield content, key
        if isinstance(value, dict | list):
            yield from _places(value)


def _read_json(data: bytes) -> Any:
    return json.loads(data)


def _write_json(content: Any) -> bytes:
    return json.dumps(content, default=lambda x: repr(x)).encode()


def _read_packed(data: bytes) -> Any:
    """Unpack, also what is inside of sealed bytes, and the JSON files of a tokenizer."""
    content = srsly.msgpack_loads(data)
    return _inner(content, lambda x: _read_packed(unseal(x)) if x[: len(MARK)] == MARK else x)


def _write_packed(content: Any) -> bytes:
    def write(inner: Any) -> bytes:
        return seal(srsly.msgpack_dumps(inner))

    for shims in content["shims"] if isinstance(content, dict) and "shims" in content else ():
        for i, shim in enumerate(shims if isinstance(shims, list) else ()):
            if isinstance(shim, dict):
                shims[i] = write(shim)
    return srsly.msgpack_dumps(content)


def _inner(content: Any, read: Any) -> Any:
    if isinstance(content, dict):
        return {key: _inner(value, read) for key, value in content.items()}
    if isinstance(content, list):
        return [_inner(value, read) for value in content]
    return read(content) if isinstance(content, bytes) else content


def copy_of(folder: Path, target: Path) -> Path:
    """Copy a pipeline; returns the copy."""
    shutil.rmtree(target, ignore_errors=True)
    return Path(shutil.copytree(folder, target))
