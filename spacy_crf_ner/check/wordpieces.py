"""The tokenizer of a transformer, and the words that are too long for it."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from spacy.tokens import Doc, Span

from ..input_error import InputError
from ..ml.transformer.positions import max_positions


class TransformerTokenizer(NamedTuple):
    """What a transformer reads of a Doc, without loading its weights.

    Attributes:
        max_length: Number of subwords that the transformer reads at once.
        n_special: Number of these that are special tokens.
        truncates: Whether longer texts are truncated; otherwise training fails.
        count_wordpieces: Number of subwords of each word; a word after a space begins with the
            space.
        get_windows: Spans of a Doc that the transformer reads at once.
    """

    max_length: int
    n_special: int
    truncates: bool
    count_wordpieces: Callable[[Sequence[str]], list[int]]
    get_windows: Callable[[Doc], list[Span]]

    def long_words(self, doc: Doc) -> Iterator[int]:
        """Yield the tokens that are by themselves too long for the transformer."""
        words = _words(doc[:])
        room = self.max_length - self.n_special
        long = [i for i, word in enumerate(words) if _max_wordpieces(word) > room]
        for i, n in zip(long, self.count_wordpieces([words[i] for i in long])):
            if n > room:
                yield i

    def unread_words(self, doc: Doc) -> list[int]:
        """List the tokens that are truncated in all of their windows."""
        unread: set[int] = set()
        read: set[int] = set()
        for window in self.get_windows(doc):
            for token, is_unread in zip(window, self._truncated(window)):
                (unread if is_unread else read).add(token.i)
        return sorted(unread - read)

    def _truncated(self, window: Span) -> list[bool]:
        words = _words(window)
        if sum(map(_max_wordpieces, words)) + self.n_special <= self.max_length:
            return [False] * len(words)
        # Half of the special tokens come before the text.
        start, truncated = (self.n_special + 1) // 2, []
        for n in self.count_wordpieces(words):
            truncated.append(n > 0 and start >= self.max_length)
            start += n
        return truncated


def load_tokenizer(
    name: str,
    tokenizer_config: dict[str, Any],
    get_windows: Callable[[Doc], list[Span]],
    truncates: bool = False,
) -> TransformerTokenizer:
    """Load the tokenizer of a transformer and the length that the transformer reads.

    Args:
        name: Local folder or hub name.
        tokenizer_config: Keyword arguments of the tokenizer.
        get_windows: Spans of a Doc that the transformer reads at once.
        truncates: Whether its layer truncates longer texts, even if the tokenizer does not.

    Raises:
        InputError: If there is no such tokenizer.
    """
    from transformers import AutoConfig, AutoTokenizer  # takes seconds

    try:
        tokenizer = AutoTokenizer.from_pretrained(name, **tokenizer_config)
        positions = max_positions(AutoConfig.from_pretrained(name))
    except (OSError, ValueError, ImportError) as error:
        got = str(error).strip().split("\n")[0].rstrip(".")
        raise InputError(
            f"transformer {name!r}: expected a tokenizer and config.json in a local folder or in "
            f"the files from the hub, got: {got}. Set a local folder with --transformer."
        ) from error

    def count_wordpieces(words: Sequence[str]) -> list[int]:
        if not words:
            return []
        ids = tokenizer(list(words), add_special_tokens=False, verbose=False)["input_ids"]
        return [len(of_word) for of_word in ids]

    return TransformerTokenizer(
        max_length=min(int(tokenizer.model_max_length), positions),
        n_special=tokenizer.num_special_tokens_to_add(),
        truncates=truncates or tokenizer.model_max_length <= positions,
        count_wordpieces=count_wordpieces,
        get_windows=get_windows,
    )


def _words(span: Span) -> list[str]:
    """Return the words with the space before, which some tokenizers include in the word."""
    spaces = ["", *(token.whitespace_ for token in span)]
    return [space + token.text for space, token in zip(spaces, span)]


def _max_wordpieces(word: str) -> int:
    """Return an upper bound of the number of subwords: one per byte, and one more."""
    return len(word.encode("utf-8", "replace")) + 1
