"""Slow tokenizers, such as PhoBERT's: the characters of their subwords, and how they are saved.

A fast tokenizer returns the characters of each subword. For a slow one spacy-transformers compares
strings, `H@@ à` with `Hà`. That misses subwords that are not in the vocabulary, such as those of an
emoji, and mistakes an @ of the text for a continuation mark. Here each subword is found by its
length in the word that the tokenizer made it from. spacy-transformers also cannot save a pipeline
that was loaded, as one of the tokenizer's files is gone; here that file is written again.
"""

import re
from itertools import accumulate, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, List, Optional, Tuple

from .hf_internals import restore_merges
from .spacy_transformers_internals import HFShim

CONTINUES = "@@"  # at the end of a subword that is not the last of its word
# A word, as PhoBERT's tokenizer splits them; a line feed after it is part of it.
WORD = re.compile(r"\S+\n?")


class SlowTokenizerShim(HFShim):
    """spacy-transformers' shim, which can save a slow tokenizer also after it was loaded."""

    def to_bytes(self) -> bytes:
        """Write tokenizer and weights."""
        with TemporaryDirectory() as folder:
            restore_merges(self._hfmodel.tokenizer, Path(folder))
            state: bytes = super().to_bytes()  # type: ignore[no-untyped-call]
        return state


def offsets(tokenizer: Any, text: str) -> Optional[List[Tuple[int, int]]]:
    """Find (first character, last + 1) of each subword; None where they do not spell the text.

    Special ones have the characters (0, 0); those after the text are left out.
    """
    found: List[Tuple[int, int]] = []
    for match in WORD.finditer(text):
        subwords = tokenizer.tokenize(match[0])
        spelled = [subword.removesuffix(CONTINUES) for subword in subwords[:-1]] + subwords[-1:]
        if "".join(spelled) != match[0]:
            return None
        found += pairwise(accumulate(map(len, spelled), initial=match.start()))
    # The special tokens in front of the text have no characters.
    before = tokenizer.build_inputs_with_special_tokens([-1]).index(-1)
    return [(0, 0)] * before + found
