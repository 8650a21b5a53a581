"""A check of a corpus: every doc is read once, and seen by all rules."""

from typing import Dict, Iterable, List, Optional

from spacy.tokens import Doc

from ..tags import SCHEMES
from .doc_rules import Single
from .doc_view import read
from .duplicates import Duplicates
from .finding import SEVERITIES
from .incorrect_spans import WrongSpans
from .labels import Labels
from .length import Length
from .report import Report
from .rule import DEV, TRAIN, Rule
from .statistics import Statistics
from .subwords import Subwords
from .surface_forms import Surfaces


def check(
    train: Iterable[Doc],
    dev: Optional[Iterable[Doc]] = None,
    *,
    scheme: str = "biluo",
    incorrect_spans_key: Optional[str] = None,
    window: Optional[int] = None,
    subwords: Optional[Subwords] = None,
    places: int = 5,
) -> Report:
    """Find what is wrong with a corpus, before it is trained on.

    train: Docs with gold entities; read once, and not kept.
    dev: The same; None for none.
    scheme: How tags spell entities: "biluo", "bio" or "io".
    incorrect_spans_key: Of the spans in `doc.spans` that are known to be wrong; None for none.
    window: Tokens that a transformer reads at once; longer docs are noted. None for no transformer.
    subwords: Of the transformer, as `read_settings` reads it; None to not look at them.
    places: How many of each finding, at most.

    Returns the statistics of each part, and the findings, errors first.
    Raises ValueError for an unknown scheme, and a negative number of places.
    """
    if scheme not in SCHEMES:
        raise ValueError(f"scheme: expected one of {sorted(SCHEMES)}, got {scheme!r}.")
    if places < 0:
        raise ValueError(f"places: expected 0 or more, got {places}.")
    parts = {TRAIN: train} if dev is None else {TRAIN: train, DEV: dev}
    statistics: Dict[str, Statistics] = {part: Statistics() for part in parts}
    rules: List[Rule] = [Labels(list(parts)), Single(scheme)]
    if incorrect_spans_key is not None:
        rules.append(WrongSpans(incorrect_spans_key))
    rules += [Length(window, subwords), Duplicates(), Surfaces()]
    for part, docs in parts.items():
        for number, doc in enumerate(docs):
            reading = read(part, number, doc)
            statistics[part].add(reading)
            for rule in rules:
                rule.see(reading)
    findings = [finding for rule in rules for finding in rule.findings(places)]
    findings.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    return Report(statistics, findings)
