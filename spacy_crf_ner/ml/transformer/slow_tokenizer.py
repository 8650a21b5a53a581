"""Slow tokenizers, such as PhoBERT's: where their subwords are in a text, and how they are saved.

A fast tokenizer says of each subword which characters it is. With a slow one spacy-transformers
compares strings, `H@@ à` with `Hà`. That misses subwords that are not in the vocabulary, as those
of an emoji, and takes an @ of the text for part of a continuation mark. Here each subword is found
by its length in the word that the tokenizer made it of. And a pipeline that was loaded cannot be
saved by spacy-transformers, as one of the tokenizer's files is gone; here it is written anew.
"""

import re
from itertools import accumulate, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, List, Optional, Tuple

from spacy_transformers.layers.hf_shim import HFShim

CONTINUES = "@@"  # at the end of a subword that is not the last of its word
# What PhoBERT's tokenizer takes for a word; a line feed after it is part of it.
WORD = re.compile(r"\S+\n?")


class SlowTokenizerShim(HFShim):
    """spacy-transformers' shim, which saves a slow tokenizer also after it was loaded."""

    def to_bytes(self) -> bytes:
        """Write tokenizer and weights; the merges from memory, where their file is gone."""
        tokenizer = self._hfmodel.tokenizer
        file = getattr(tokenizer, "merges_file", None)
        with TemporaryDirectory() as folder:
            if file is not None and not Path(file).exists():
                ranks = tokenizer.bpe_ranks
                # The last column is a frequency, which the tokenizer does not read.
                lines = (f"{left} {right} 0\n" for left, right in sorted(ranks, key=ranks.get))
                tokenizer.merges_file = str(Path(folder) / Path(file).name)
                Path(tokenizer.merges_file).write_text("".join(lines), encoding="utf-8")
            state: bytes = super().to_bytes()  # type: ignore[no-untyped-call]
        return state


def offsets(tokenizer: Any, text: str) -> Optional[List[Tuple[int, int]]]:
    """Find (first character, last + 1) of each subword; None where they do not spell the text.

    Special ones have the characters (0, 0); those after the text are left out.
    """
    found: List[Tuple[int, int]] = []
    for match in WORD.finditer(text):
        pieces = tokenizer.tokenize(match[0])
        spelled = [piece.removesuffix(CONTINUES) for piece in pieces[:-1]] + pieces[-1:]
        if "".join(spelled) != match[0]:
            return None
        found += pairwise(accumulate(map(len, spelled), initial=match.start()))
    # The special tokens in front of the text have no characters.
    before = tokenizer.build_inputs_with_special_tokens([-1]).index(-1)
    return [(0, 0)] * before + found
