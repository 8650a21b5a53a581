"""Pipelines that only tokenise."""

import spacy
from spacy.language import Language


def blank_pipeline(lang: str, segment: bool = True) -> Language:
    """Make a pipeline that only tokenises.

    lang: Language code of spaCy. Vietnamese ("vi") is segmented by pyvi into words, which may hold
        spaces; where pyvi is not installed, by spaCy's general rules, into syllables.
    segment: False for syllables, with pyvi too.

    Raises ValueError where spaCy does not have the language, or a package that it needs.
    """
    rules = {"nlp": {"tokenizer": {"@tokenizers": "spacy.Tokenizer.v1"}}}
    if lang == "vi" and not segment:
        return spacy.blank("vi", config=rules)
    try:
        return spacy.blank(lang)
    except ImportError as error:
        if lang == "vi":
            return spacy.blank("vi", config=rules)
        raise ValueError(f"lang: expected a language of spaCy, got {lang!r}: {error}") from error
