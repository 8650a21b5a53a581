"""The characters of the subwords of a slow tokenizer, such as PhoBERT's.

A fast tokenizer returns the characters of each subword. For a slow one spacy-transformers compares
strings, `H@@ à` with `Hà`. That misses subwords that are not in the vocabulary, such as those of an
emoji, and mistakes an @ of the text for a continuation mark. Here each subword is found by its
length in the word that the tokenizer made it from.
"""

import re
from itertools import accumulate, pairwise
from typing import Any

CONTINUES = "@@"  # at the end of a subword that is not the last of its word
# A word of PhoBERT's tokenizer, with the line feed after it.
WORD = re.compile(r"\S+\n?")


def offsets(tokenizer: Any, text: str) -> list[tuple[int, int]] | None:
    """Find (first character, last + 1) of each subword; None if they do not make up the text.

    Special subwords have (0, 0); those after the text are omitted.
    """
    found: list[tuple[int, int]] = []
    for match in WORD.finditer(text):
        subwords = tokenizer.tokenize(match[0])
        spelled = [subword.removesuffix(CONTINUES) for subword in subwords[:-1]] + subwords[-1:]
        if "".join(spelled) != match[0]:
            return None
        found += pairwise(accumulate(map(len, spelled), initial=match.start()))
    # The special tokens in front of the text have no characters.
    before = tokenizer.build_inputs_with_special_tokens([-1]).index(-1)
    return [(0, 0)] * before + found
