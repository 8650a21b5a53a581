"""The Viterbi trellis of a text: scores, backpointers, path and marginals, as plain values.

Axes: T tokens, C tags.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from spacy.language import Language

from ..pipeline.calibration import calibration_of
from ..pipeline.lookup import recognizer, recognizer_name, upstream_only
from ..pipeline.queries import Transitions

MIN_MARGINAL = 0.01  # for a relevant tag


def explain(
    nlp: Language, text: str, n: int = 5, name: str | None = None, label: str | None = None
) -> dict[str, Any]:
    """Show how a `crf_ner` component finds the entities of a text.

    The components before it run; those after it do not.

    Args:
        text: One doc, of any number of sentences.
        n: Maximum number of labelings.
        name: The component in the pipeline; None for the only one.
        label: The label whose chain to show, at the outermost level, if entities may overlap.

    Returns:
        Plain values, with None for illegal scores, for T tokens and C tags:

        - "text", "component", "label", "tokens" (T), "tags" (C): what is shown.
        - "labels", "calibration": of the component; the second in words.
        - "transitions" (C, C), indexed `[from, to]`, "start" and "end" (C): the learned scores; all
            zeros if the decoder is a softmax.
        - "emissions" (T, C): the score of each tag at each token.
        - "scores" (T, C): the score of the best path that ends in this tag at this token:
            `scores[t][j] = max_i(scores[t-1][i] + transitions[i][j]) + emissions[t][j]`, and
            `start[j] + emissions[0][j]` at the first token.
        - "backpointers" (T, C): the tag i of that maximum, as an index into "tags".
        - "path" (T): the tags of the best path, found along the backpointers from the end.
        - "score": the score of the path, including the end score; None without tokens.
        - "marginals" (T, C): the posterior probability of each tag, at the temperature.
        - "labelings": the n most probable labelings, the best first: "probability", its logarithm
            "log_probability", and "entities", each with "start", "end" (characters), "text" and
            "label", of all labels. No thresholds apply.

    Raises:
        InputError: If the pipeline has no such component, or several and none is named; for n below
            1; and for a label where entities do not overlap, or none where they do.
    """
    name = recognizer_name(nlp, name)
    pipe = recognizer(nlp, name)
    with upstream_only(nlp, name):
        doc = nlp(text)
    (ranked,) = pipe.nbest([doc], n)
    trellis = pipe.trellis(doc, label)
    transitions = _select(pipe.transitions(), trellis.tags)
    learned, score = transitions.to_dict(), None
    if len(doc):
        score = float(trellis.best[-1, trellis.path[-1]] + transitions.end[trellis.path[-1]])
    return {
        "text": doc.text,
        "component": name,
        "label": label,
        "labels": list(pipe.labels),
        "calibration": calibration_of(pipe),
        "tokens": [token.text for token in doc],
        "tags": list(trellis.tags),
        "transitions": learned["scores"],
        "start": learned["start"],
        "end": learned["end"],
        "emissions": trellis.emissions.tolist(),
        "scores": _or_none(trellis.best, np.isfinite(trellis.best)),
        "backpointers": _or_none(trellis.backpointers, trellis.backpointers >= 0),
        "path": trellis.path.tolist(),
        "score": score,
        "marginals": trellis.marginals.tolist(),
        "labelings": [
            {
                "probability": p,
                "log_probability": log_p,
                "entities": [
                    {"start": e.start_char, "end": e.end_char, "text": e.text, "label": e.label_}
                    for e in ents
                ],
            }
            for ents, p, log_p in ranked
        ],
    }


def relevant_tags(explanation: dict[str, Any]) -> list[list[int]]:
    """Select the tags to show at each token: T lists of indices into "tags", ascending.

    These are the tag of the path, tags with a marginal of at least 0.01, and all tags that
    backpointers of selected tags point to.
    """
    relevant: list[list[int]] = []
    reached: set[int] = set()
    for t in range(len(explanation["tokens"]) - 1, -1, -1):
        probable = {c for c, p in enumerate(explanation["marginals"][t]) if p >= MIN_MARGINAL}
        kept = reached | probable | {explanation["path"][t]}
        relevant.append(sorted(kept))
        pointers = explanation["backpointers"][t]
        reached = {pointers[c] for c in kept if pointers[c] is not None}
    return relevant[::-1]


def visible(token: str) -> str:
    """Make a token visible: show whitespace as a Python string."""
    return token if token.strip() else repr(token)


def entities_in_words(labeling: dict[str, Any]) -> str:
    """Format the entities of a labeling on one line."""
    return ", ".join(f"{ent['text']} ({ent['label']})" for ent in labeling["entities"]) or "none"


def _select(transitions: Transitions, tags: tuple[str, ...]) -> Transitions:
    """Select the transitions between some tags."""
    own = [transitions.tags.index(tag) for tag in tags]
    arrays: Iterator[Any] = (each[np.ix_(*[own] * each.ndim)] for each in transitions[1:])
    return Transitions(tags, *arrays)


def _or_none(values: NDArray[Any], legal: NDArray[np.bool_]) -> list[Any]:
    """Convert values to lists, with None for illegal ones."""
    return list(np.where(legal, values, np.array(None)).tolist())
