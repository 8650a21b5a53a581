"""Tokenizers that the library tokenizers does not have, such as PhoBERT's.

Those do not say which characters a subword has. Here each word of a text is divided alone, and each
subword is found by its length in the word.
"""

import re
from collections.abc import Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from .subwords import Encoded
from .tokenizer import Tokenizer

CONTINUES = "@@"  # at the end of a subword of PhoBERT that is not the last of its word
# What other tokenizers add to the letters of a subword.
MARKS = re.compile(r"^(##|[▁Ġ])|(@@|</w>)$")
# A word of PhoBERT's tokenizer, with the line feed after it.
WORD = re.compile(r"\S+\n?")


class SlowTokenizer(Tokenizer):
    """A slow tokenizer of the library transformers; `files`, by their names, make an equal one."""

    def __init__(self, tokenizer: Any, longest: int) -> None:
        self._tokenizer = tokenizer
        self.pad_id, self.longest = tokenizer.pad_token_id or 0, longest
        self._kept, self._size = {}, 0
        with TemporaryDirectory() as name:
            tokenizer.save_pretrained(name)  # it copies files of its own folder, which may go
            self.files = {each.name: each.read_bytes() for each in Path(name).iterdir()}

    def encode(self, texts: Sequence[str]) -> list[Encoded]:
        """Divide texts into subwords."""
        return [self._encode(text) for text in texts]

    def _encode(self, text: str) -> Encoded:
        subwords, characters = [], []
        for match in WORD.finditer(text):
            found = self._tokenizer.tokenize(match[0])
            subwords += found
            characters += _characters(found, match)
        ids = self._tokenizer.convert_tokens_to_ids(subwords)
        whole = self._tokenizer.build_inputs_with_special_tokens(ids)
        # The special subwords before and after the text have no characters.
        before = self._tokenizer.build_inputs_with_special_tokens([-1]).index(-1)
        after = len(whole) - before - len(ids)
        pairs = [(0, 0)] * before + characters + [(0, 0)] * after
        return Encoded(
            np.array(whole, dtype=np.int32),
            np.zeros(len(whole), dtype=np.int32),
            np.array(pairs, dtype=np.int32).reshape(-1, 2),
        )


def _characters(subwords: list[str], word: re.Match[str]) -> list[tuple[int, int]]:
    """Find (first character, last + 1) of the subwords of a word.

    If one of them differs from the word, such as an unknown one, each is searched for; those that
    are not found have all characters between their neighbours.
    """
    spelled = [subword.removesuffix(CONTINUES) for subword in subwords[:-1]] + subwords[-1:]
    if "".join(spelled) == word[0]:
        return [*pairwise(accumulate(map(len, spelled), initial=word.start()))]
    starts, ends, end = [], [], word.start()
    for subword in subwords:
        letters = MARKS.sub("", subword)
        start = word.string.find(letters, end, word.end()) if letters else -1
        end = start + len(letters) if start >= 0 else end
        starts.append(start)
        ends.append(end)
    following = word.end()
    for i in reversed(range(len(subwords))):
        if starts[i] < 0:
            starts[i], ends[i] = ends[i], following
        else:
            following = starts[i]
    return [*zip(starts, ends, strict=True)]
