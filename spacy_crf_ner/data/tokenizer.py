"""Pipelines that only tokenize."""

import spacy
from spacy.language import Language

from ..input_error import InputError


def blank_pipeline(lang: str, segment: bool = True) -> Language:
    """Make a pipeline that only tokenizes.

    lang: spaCy's code of a language. pyvi segments Vietnamese ("vi") into words, which may contain
        spaces. Without pyvi, spaCy's general rules give syllables.
    segment: False gives syllables also with pyvi.

    Raises InputError if spaCy does not have the language, or needs a package for it.
    """
    rules = {"nlp": {"tokenizer": {"@tokenizers": "spacy.Tokenizer.v1"}}}
    if lang == "vi" and not segment:
        return spacy.blank("vi", config=rules)
    try:
        return spacy.blank(lang)
    except ImportError as error:
        if lang == "vi":
            return spacy.blank("vi", config=rules)
        raise InputError(f"lang: expected a language of spaCy, got {lang!r}: {error}") from error
