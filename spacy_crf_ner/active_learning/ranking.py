"""Score texts, or spans of them, by what annotating them is expected to teach a pipeline."""

import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

from spacy.language import Language
from spacy.pipeline import Sentencizer
from spacy.tokens import Doc, Span

from ..annotate import runner
from ..annotate.chunking import MAX_CHARACTERS, NO_SPACES, chunk_text
from ..annotate.settings import Settings
from ..data.offsets import trim_whitespace
from ..docbin import copy_norms
from ..input_error import InputError
from ..pipeline.given_text import CHANGED, changes_text
from ..pipeline.interval_scheduling import Candidate
from ..pipeline.lookup import recognizer, recognizer_name, upstream_only
from .selection import Selection, Unit, random_key

if TYPE_CHECKING:
    from ..pipeline.crf_ner import CRFEntityRecognizer

UNITS = ("docs", "sentences", "spans")
STRATEGIES = ("entropy", "errors", "random")
UNCERTAIN = 0.05  # the lowest probability of a span to ask about
MIN_TOKENS = 5  # a shorter sentence is joined with its neighbor: alone, nobody can judge it


class Options(NamedTuple):
    """What to choose.

    Attributes:
        n: The number of tasks, with the random ones.
        unit: "docs", "sentences", or "spans", which are questions about single spans.
        strategy: "entropy" of all labelings per token; expected number of "errors" per token; or
            "random". For questions about spans, the first two are the same: probabilities near 0.5
            are first.
        budget: The tokens of all tasks together, at most; None for no limit.
        max_per_surface: At most this many tasks have the same most uncertain span, compared by
            `surface_of`; 0 for no limit.
        random_share: The share of tasks that are a random sample, for evaluation.
        seed: Seed of the sample, and of the strategy "random".
        exclude: What is not asked again, see `exclusion.annotated_ids`.
        component: The name of the `crf_ner` component; None for the only one.
    """

    n: int = 200
    unit: str = "docs"
    strategy: str = "entropy"
    budget: int | None = None
    max_per_surface: int = 3
    random_share: float = 0.1
    seed: int = 0
    exclude: frozenset[str] = frozenset()
    component: str | None = None

    def selection(self) -> Selection:
        """Make an empty selection.

        A budget can make the sample smaller. Then more units can be tasks, so more are ranked.
        """
        sample = round(self.n * self.random_share)
        ranked = self.n if self.budget is not None and sample < self.n else self.n - sample
        return Selection(ranked, sample, self.max_per_surface, self.seed)


def check_options(options: Options) -> None:
    """Raise InputError for options that are out of range or contradict each other."""
    for name, known in {"unit": UNITS, "strategy": STRATEGIES}.items():
        if (got := getattr(options, name)) not in known:
            raise InputError(f"{name}: expected one of {', '.join(known)}, got {got!r}.")
    least = {"n": 1, "max_per_surface": 0} | ({} if options.budget is None else {"budget": 1})
    for name, low in least.items():
        if getattr(options, name) < low:
            raise InputError(f"{name}: expected {low} or more, got {getattr(options, name)}.")
    if not 0 <= options.random_share <= 1:
        raise InputError(f"random_share: expected a share from 0 to 1, got {options.random_share}.")


def rank_texts(
    nlp: Language,
    texts: Sequence[str | bytes],
    options: Options,
    settings: Settings = Settings(),  # noqa: B008
) -> tuple[list[list[Unit]], list[runner.AnnotatedText]]:
    """Score the units of texts.

    Args:
        texts: Strings, or Docs as bytes, whose tokens are kept.

    Returns:
        The units of each text, and each text with the error of the pipeline, if there is one.

    Raises:
        InputError: For questions about spans of overlapping entities.
        OSError: For an error of the machine, not of a text; also MemoryError, and errors of a GPU.
    """
    name = recognizer_name(nlp, options.component)
    pipe = recognizer(nlp, name)
    if options.unit == "spans" and pipe.entities_key is not None:
        raise InputError(
            f"[{name}] unit: expected docs or sentences for overlapping entities, got spans. "
            "Answers about single spans are partial annotation, which is for flat entities."
        )
    documents = [runner.AnnotatedText(text) for text in texts]
    pieces: list[runner.AnnotatedText] = []
    origins: list[tuple[int, int]] = []  # of each piece: its document, and its first character
    with runner.limited_memory(nlp), upstream_only(nlp, name):
        for i, document in enumerate(documents):
            for start, content in divide(nlp, document, options.unit):
                pieces.append(runner.AnnotatedText(content))
                origins.append((i, start))
        work = partial(_measure, nlp, pipe)
        measured = runner.process(nlp, pieces, work, settings)
    found: list[list[Unit]] = [[] for _ in documents]
    for piece, (i, start), own in zip(pieces, origins, measured):
        documents[i].error = documents[i].error or piece.error
        if piece.error is None:
            try:
                if len(piece.text) > nlp.max_length:  # it could not be read again with its answer
                    expected = f"expected at most {nlp.max_length:,} characters, as in answers"
                    raise ValueError(f"{expected}, got {len(piece.text):,}. Ask for sentences")
                found[i] += _units(piece.text, start, own, options)
            except ValueError as error:
                documents[i].error = documents[i].error or runner.failure(error)
    for document, units in zip(documents, found):
        document.words = sum(len(unit.tokens) for unit in units)
        if document.error is not None:
            units.clear()
    return found, documents


def identify(text: str, question: Sequence[Any] = ()) -> str:
    """Return the id of a text, or of a question about a span: start, end and label."""
    return hashlib.sha256(json.dumps([text, *question]).encode()).hexdigest()[:16]


def surface_of(text: str) -> str:
    """Return what is the same in texts that repeat: without case, and any number as 0.

    "Ref 31" and "ref 8" have the same one.
    """
    return re.sub(r"\d+", "0", text.casefold())


def divide(nlp: Language, document: runner.AnnotatedText, unit: str) -> Iterator[tuple[int, Any]]:
    """Yield the texts of a document to score, each with its first character."""
    if unit == "docs":
        yield 0, document.text
        return
    try:
        if isinstance(document.text, bytes):
            doc = Doc(nlp.vocab).from_bytes(document.text)
            found = join_short(sentences(doc))
            yield from ((each.start_char, _alone(each).to_bytes()) for each in found)
            return
        for start, end, *_ in chunk_text(document.text, MAX_CHARACTERS, 0):
            doc = nlp.make_doc(document.text[start:end])
            if changes_text(doc, document.text[start:end]):
                raise ValueError(CHANGED)
            found = join_short(sentences(doc))
            yield from ((start + each.start_char, each.text) for each in found)
    except Exception as error:  # tokenizers raise errors of all types
        document.error = runner.failure(error)


def sentences(doc: Doc) -> list[Span]:
    """Split a Doc into sentences without whitespace at their ends; its own ones are replaced."""
    words = [token.text for token in doc]
    found = (
        trim_whitespace(words, each.start, each.end)
        for each in Sentencizer(overwrite=True)(doc).sents
    )
    return [doc[start:end] for start, end in found if start < end]


def join_short(sentences: Iterable[Span]) -> list[Span]:
    """Join each sentence of fewer than `MIN_TOKENS` tokens with a neighbor.

    This is the one before it, as for "(ref 31)" behind a full stop, or the next one if that has
    been joined already: many short sentences do not make one long text.
    """
    found: list[Span] = []
    is_joined = False  # whether the last one found is
    for sentence in sentences:
        if found and (_is_short(found[-1]) or (_is_short(sentence) and not is_joined)):
            found[-1] = sentence.doc[found[-1].start : sentence.end]
            is_joined = True
        else:
            found.append(sentence)
            is_joined = False
    if len(found) > 1 and _is_short(found[-1]):
        *found, before, last = found
        found.append(last.doc[before.start : last.end])
    return found


def _is_short(span: Span) -> bool:
    return sum(not token.is_space for token in span) < MIN_TOKENS


def _alone(span: Span) -> Doc:
    """Make a Doc of the tokens of a span, without a space at the end."""
    spaces = [*(bool(token.whitespace_) for token in span[:-1]), False]
    return copy_norms(span, Doc(span.vocab, [token.text for token in span], spaces))


class _Measured(NamedTuple):
    """What the model finds in a part; spans are in characters of the piece."""

    tokens: list[tuple[str, bool]]
    entropy: float
    entities: list[Candidate]
    candidates: list[Candidate]


def _measure(
    nlp: Language, pipe: "CRFEntityRecognizer", batch: Sequence[runner.Piece]
) -> list[_Measured]:
    docs, measured = runner.pipe_docs(nlp, batch), []
    for (chunk, _), doc, found in zip(batch, docs, pipe.uncertainty(docs, log_odds=False)):
        start, end, left, _ = chunk
        own = [token for token in doc if start <= token.idx + left < end]
        # Annotators answer about whole texts, so they also see what earlier components found.
        kept = () if pipe.overwrite else doc.ents
        preset = {(ent.start, ent.end, ent.label_): 1.0 for ent in kept}
        entities, candidates = (
            [
                ((doc[i].idx + left, doc[j - 1].idx + len(doc[j - 1]) + left, label), p)
                for (i, j, label), p in each
                if start <= doc[i].idx + left < end
            ]
            for each in ((dict(found.entities) | preset).items(), found.candidates)
        )
        tokens = [(token.text, bool(token.whitespace_)) for token in own]
        entropy = found.entropy * len(own) / max(len(doc), 1)  # without the context of the part
        measured.append(_Measured(tokens, entropy, entities, candidates))
    return measured


def _check_whole_tokens(tokens: Sequence[tuple[str, bool]], found: Iterable[Candidate]) -> None:
    """Raise ValueError for an entity that ends within a token.

    The end of an entity across a cut is in the next part, whose tokens may differ.
    """
    lengths = [(len(word), len(word) + space) for word, space in tokens]
    at = accumulate((length for _, length in lengths), initial=0)
    ends = {first + word for first, (word, _) in zip(at, lengths)}
    for (first, last, _), _ in found:
        if last not in ends:
            raise ValueError(
                f"expected an entity of whole tokens at a cut of the text, got characters {first} "
                f"to {last}"
            )


def _units(text: str, start: int, found: list[_Measured], options: Options) -> Iterator[Unit]:
    """Make the units of a piece of a document, which begins at a character of it.

    Raises ValueError if the piece was cut within a token, and for an entity that ends within one.
    """
    tokens = [token for each in found for token in each.tokens]
    if "".join(word + " " * space for word, space in tokens).rstrip() != text.rstrip():
        raise ValueError(NO_SPACES)
    entities = sorted(each for part in found for each in part.entities)
    candidates = sorted(each for part in found for each in part.candidates)
    if not any(word.strip() for word, _ in tokens):
        return
    if options.unit == "spans":
        asked = [(span, p) for span, p in candidates if UNCERTAIN <= p <= 1 - UNCERTAIN]
        _check_whole_tokens(tokens, asked)
        for span, p in asked:
            first, last, _ = span
            score = _scored(options, identity := identify(text, span), 0.5 - abs(p - 0.5))
            surface = surface_of(text[first:last])
            source = {"offset": start}
            yield Unit(identity, text, tokens, [(span, p)], score, surface, source, span)
        return
    _check_whole_tokens(tokens, entities)
    decoded = {span for span, _ in entities}
    missed = math.fsum(p for span, p in candidates if span not in decoded)
    by_strategy = {
        "entropy": sum(each.entropy for each in found) / len(tokens),
        "errors": (math.fsum(1 - p for _, p in entities) + missed) / len(tokens),
        "random": 0.0,
    }
    uncertain = [(0.5 - abs(p - 0.5), span) for span, p in candidates]
    worst, (first, last, _) = max(uncertain, default=(0.0, (0, 0, "")))
    surface = surface_of(text[first:last]) if worst >= UNCERTAIN else ""
    # Texts that differ in whitespace at their ends are one, as where answers are merged.
    identity = identify(text.strip())
    score = _scored(options, identity, by_strategy[options.strategy])
    yield Unit(identity, text, tokens, entities, score, surface, {"offset": start})


def _scored(options: Options, identity: str, score: float) -> float:
    if options.strategy != "random":
        return score
    return int(random_key(options.seed + 1, identity)[:12], 16) / 16**12
