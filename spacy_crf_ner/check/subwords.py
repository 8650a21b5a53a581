"""The subwords of a transformer: how many it reads at once, and of which docs that is too few."""

from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Sequence, Set

from spacy.tokens import Doc, Span

# In these families the first positions are those of padding.
SHIFTED = ("roberta", "camembert", "mpnet", "longformer")


class Subwords(NamedTuple):
    """What is known of a transformer without loading it.

    limit: How many subwords it reads at once.
    special: How many of these are not of the text.
    cuts: Whether the tokenizer drops what is too long; else training fails.
    pieces: How many subwords each of some words has; a word that follows a space begins with it.
    windows: The stretches of a doc that are read at once.
    """

    limit: int
    special: int
    cuts: bool
    pieces: Callable[[Sequence[str]], List[int]]
    windows: Callable[[Doc], List[Span]]

    def long_words(self, doc: Doc) -> Iterator[int]:
        """Yield the tokens that are too long for the transformer by themselves."""
        words = _words(doc[:])
        long = [i for i, word in enumerate(words) if _most(word) + self.special > self.limit]
        for i, n in zip(long, self.pieces([words[i] for i in long])):
            if n + self.special > self.limit:
                yield i

    def unread(self, doc: Doc) -> List[int]:
        """List the tokens that are beyond the limit in each window that has them."""
        unread: Set[int] = set()
        read: Set[int] = set()
        for window in self.windows(doc):
            tokens = range(window.start, window.end)
            lost = self._lost(window)
            unread.update(i for i, gone in zip(tokens, lost) if gone)
            read.update(i for i, gone in zip(tokens, lost) if not gone)
        return sorted(unread - read)

    def _lost(self, window: Span) -> List[bool]:
        words = _words(window)
        if sum(map(_most, words)) + self.special <= self.limit:
            return [False] * len(words)
        # Half of what is not of the text stands in front of it; the rest is cut at the limit.
        at, lost = (self.special + 1) // 2, []
        for n in self.pieces(words):
            lost.append(n > 0 and at >= self.limit)
            at += n
        return lost


def load_subwords(
    name: str, tokenizer_config: Dict[str, Any], windows: Callable[[Doc], List[Span]]
) -> Subwords:
    """Load the tokenizer of a transformer, and the length that this reads.

    name: Local folder, or a name on the hub.
    tokenizer_config: What the tokenizer is loaded with.
    windows: The stretches of a doc that are read at once.

    Raises ValueError where there is no tokenizer of that name.
    """
    # Here, as it takes seconds.
    from transformers import AutoConfig, AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(  # type: ignore[no-untyped-call]
            name, **tokenizer_config
        )
        model = AutoConfig.from_pretrained(name)
    except (OSError, ValueError, ImportError) as error:
        raise ValueError(
            f"transformer {name!r}: expected a tokenizer and config.json in a local folder or in "
            f"what was downloaded from the hub, got {_first_line(error)} Name a local folder with "
            "--transformer."
        ) from error
    positions = _positions(model)

    def pieces(words: Sequence[str]) -> List[int]:
        if not words:
            return []
        ids = tokenizer(list(words), add_special_tokens=False, verbose=False)["input_ids"]
        return [len(of_word) for of_word in ids]

    return Subwords(
        limit=min(int(tokenizer.model_max_length), positions),
        special=tokenizer.num_special_tokens_to_add(),
        cuts=tokenizer.model_max_length <= positions,
        pieces=pieces,
        windows=windows,
    )


def _positions(config: Any) -> int:
    """How many positions a transformer has; as good as all, where it has no such number."""
    absolute = getattr(config, "position_embedding_type", "absolute") == "absolute"
    n = getattr(config, "max_position_embeddings", None)
    if not absolute or not isinstance(n, int) or n <= 0:
        return 10**9
    shifted = any(family in config.model_type for family in SHIFTED)
    return n - (config.pad_token_id + 1) if shifted else n


def _words(span: Span) -> List[str]:
    """The words with the space in front of them, which to some tokenizers is part of them."""
    texts = [token.text for token in span]
    spaces = ["", *(token.whitespace_ for token in span)]
    return [space + text for space, text in zip(spaces, texts)]


def _most(word: str) -> int:
    """A bound on the subwords of a word: one a byte, and one in front."""
    return len(word.encode("utf-8", "replace")) + 1


def _first_line(error: Exception) -> str:
    line = str(error).strip().split("\n")[0]
    return line if line.endswith(".") else f"{line}."
