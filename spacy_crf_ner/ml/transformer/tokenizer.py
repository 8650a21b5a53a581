"""Tokenizers of transformers: texts to subwords, and the characters of each."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...extras import required
from ..checksummed import readable
from .subwords import Encoded

# The size of the texts whose subwords are kept in training, where epochs repeat the texts: about 60
# MB. The arrays of a text take as much memory as 250 characters.
MAX_KEPT = 2**24
PER_TEXT = 250


class Tokenizer:
    """A tokenizer of the library tokenizers, from the content that this library stores.

    A window has `longest` subwords at most, special ones included.
    """

    def __init__(self, content: str, pad_id: int, longest: int) -> None:
        with required("runtime"):
            from tokenizers import Tokenizer as Library
        with readable("a tokenizer"):
            self._tokenizer: Any = Library.from_str(content)
        self.pad_id, self.longest = pad_id, longest
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._kept: dict[str, Encoded] = {}
        self._size = 0

    def encode(self, texts: Sequence[str]) -> list[Encoded]:
        """Divide texts into subwords."""
        return [
            Encoded(
                np.array(each.ids, dtype=np.int32),
                np.array(each.type_ids, dtype=np.int32),
                np.array(each.offsets, dtype=np.int32).reshape(-1, 2),
            )
            for each in self._tokenizer.encode_batch([*texts])
        ]

    def encode_again(self, texts: Sequence[str]) -> list[Encoded]:
        """Divide texts into subwords; keep them for the next time."""
        new = [text for text in dict.fromkeys(texts) if text not in self._kept]
        self._kept.update(zip(new, self.encode(new)))
        self._size += sum(PER_TEXT + len(text) for text in new)
        found = [self._kept[text] for text in texts]
        if self._size > MAX_KEPT:
            self._kept, self._size = {}, 0
        return found

    @property
    def state(self) -> dict[str, Any]:
        """What makes an equal tokenizer."""
        content = self._tokenizer.to_str()
        return {"content": content, "pad_id": self.pad_id, "longest": self.longest}

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to copy, without the texts."""
        return {**self.__dict__, "_kept": {}, "_size": 0}
