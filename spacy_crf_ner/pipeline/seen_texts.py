"""Hashes of the texts that a component has seen: a guarantee needs others."""

import re
import unicodedata
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from spacy.training import Example

from ..input_error import InputError

Part = Literal["train", "dev"]
PARTS: tuple[Part, ...] = "train", "dev"

SEEN_TEXTS = "seen_texts.json"  # beside what teachers have written: the hashes of each of them

# What ends a sentence, after NFKC: a copy of the characters of spaCy's `Sentencizer`, as hashes
# are saved and must not depend on its version.
_ENDS = (
    r"!.?\u0589\u061f\u06d4\u0700-\u0702\u07f9\u0964\u0965\u104a\u104b\u1362\u1367\u1368\u166e"
    r"\u1735\u1736\u1803\u1809\u1944\u1945\u1aa8-\u1aab\u1b5a\u1b5b\u1b5e\u1b5f\u1c3b\u1c3c"
    r"\u1c7e\u1c7f\u203d\u2e2e\u2e3c\u3002\ua4ff\ua60e\ua60f\ua6f3\ua6f7\ua876\ua877"
    r"\ua8ce\ua8cf\ua92f\ua9c8\ua9c9\uaa5d-\uaa5f\uaaf0\uaaf1\uabeb\U00010a56\U00010a57"
    r"\U00011047\U00011048\U000110be-\U000110c1\U00011141-\U00011143\U000111c5\U000111c6"
    r"\U000111cd\U000111de\U000111df\U00011238\U00011239\U0001123b\U0001123c\U000112a9"
    r"\U0001144b\U0001144c\U000115c2\U000115c3\U000115c9-\U000115d7\U00011641\U00011642"
    r"\U0001173c-\U0001173e\U00011a42\U00011a43\U00011a9b\U00011a9c\U00011c41\U00011c42"
    r"\U00016a6e\U00016a6f\U00016af5\U00016b37\U00016b38\U00016b44\U0001bc9f\U0001da88"
)
_SENTENCE = re.compile(f"[^{_ENDS}]+")
_SYMBOLS = re.compile(r"\W+")


class Known(NamedTuple):
    """What a component knows of the texts that it has seen, as hashes of their sentences."""

    is_complete: bool  # whether they are all that it was trained on
    train: set[int]
    dev: set[int]  # evaluated on before an update, or before it was saved, or calibrated on


class SeenTexts:
    """The hashes of a component, which are saved in its `cfg`; `new` has those that it may lack.

    Each sentence has a hash of 8 bytes. So a text is found again in another format, and as a part
    of a longer text. The texts cannot be restored from the hashes.
    """

    def __init__(self, cfg: dict[str, Any], name: str) -> None:
        self._cfg, self._name = cfg, name
        self.forget()

    def forget(self) -> None:
        """Forget all texts: the weights are others, which may have seen any."""
        self.new: dict[Part, set[int]] = {"train": set(), "dev": set()}
        self._scored: set[int] = set()
        self._learned: set[int] = set()  # of whole texts, which epochs repeat
        self._cfg["seen"] = {"is_complete": False, "train": "", "dev": ""}

    def restart(self) -> None:
        """Forget all texts: the weights are new ones."""
        self.forget()
        self._cfg["seen"]["is_complete"] = True

    def learn(self, examples: Iterable[Example]) -> None:
        """Remember examples of an update; those evaluated before can have chosen how it goes on."""
        self._scored_are_dev()
        texts = [eg.text for eg in examples]
        self.remember("train", (text for text in texts if hash(text) not in self._learned))
        self._learned.update(map(hash, texts))

    def score(self, examples: Iterable[Example]) -> None:
        """Remember examples of an evaluation: it may choose these weights, unless they are new."""
        seen = self._cfg["seen"]
        if self.new["train"] or seen["train"] or not seen["is_complete"]:
            self._scored |= hashes_of(eg.text for eg in examples)

    def remember(self, part: Part, texts: Iterable[str]) -> None:
        """Add texts to a part."""
        self.new[part] |= hashes_of(texts)

    def inherit(self, saved: dict[str, Any]) -> None:
        """Add what a teacher has stored: a student knows more of its texts than of new ones."""
        for part in PARTS:
            self.new[part] |= {*_decode(saved[part]).tolist()}
        if not (saved["is_complete"] is True and saved["train"]):
            self._cfg["seen"]["is_complete"] = False

    def store(self) -> None:
        """Write all hashes to `cfg`, before the component is saved.

        What was evaluated since it was trained can have chosen to save it; but not what was
        evaluated since it was loaded, such as a test corpus.
        """
        if self.new["train"]:
            self._scored_are_dev()
        known = self.known()
        self._cfg["seen"] |= {"train": _encode(known.train), "dev": _encode(known.dev)}

    def known(self) -> Known:
        """Return all hashes; raises InputError if the saved ones are damaged."""
        is_complete, saved = self.saved()
        train, dev = ({*saved[part].tolist()} | self.new[part] for part in PARTS)
        # Weights that were trained without `update` have no hashes.
        return Known(is_complete and bool(train), train, dev)

    def saved(self) -> tuple[bool, dict[Part, NDArray[np.uint64]]]:
        """Return whether `cfg` has all hashes, and those that it has; InputError if damaged."""
        try:
            seen = self._cfg["seen"]
            return seen["is_complete"] is True, {part: _decode(seen[part]) for part in PARTS}
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"[{self._name}] The hashes of the training texts are damaged: {error}. Copy the "
                "pipeline again, or train it again."
            ) from error

    def _scored_are_dev(self) -> None:
        self.new["dev"] |= self._scored
        self._scored = set()


def is_seen(text: str, hashes: set[int]) -> bool:
    """Whether sentences with at least half of the characters of a text are among hashes."""
    return any(
        0 < sum(n for _, n in sentences) <= 2 * sum(n for value, n in sentences if value in hashes)
        for sentences in _readings(text)
    )


def hashes_of(texts: Iterable[str]) -> set[int]:
    """Return the hashes of the sentences of texts."""
    return {value for text in texts for sentences in _readings(text) for value, _ in sentences}


def _readings(text: str) -> Iterator[list[tuple[int, int]]]:
    """Yield the sentences of a text; if it has several lines, also those of each line on its own.

    A sentence is its hash, and its number of characters. Whitespace, punctuation and case do not
    count: converters and tokenizers change them.
    """
    plain = unicodedata.normalize("NFKC", text).casefold()
    yield [_hash(each) for each in _plain_sentences(plain)]
    if "\n" in plain.strip():
        lines = plain.split("\n")
        yield [_hash(each) for line in lines for each in _plain_sentences(line)]


def _plain_sentences(text: str) -> list[str]:
    found = [_SYMBOLS.sub("", each) for each in _SENTENCE.findall(text)]
    return [each for each in found if each] or [*filter(None, ["".join(text.split())])]


def _hash(sentence: str) -> tuple[int, int]:
    digest = blake2b(sentence.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little"), len(sentence)


def _encode(hashes: set[int]) -> str:
    return b64encode(np.array(sorted(hashes), dtype="<u8").tobytes()).decode("ascii")


def _decode(saved: str) -> NDArray[np.uint64]:
    return np.frombuffer(b64decode(saved, validate=True), dtype="<u8")
