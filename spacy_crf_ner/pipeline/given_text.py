"""Does a Doc have the text that it was made from? Offsets in it are those of its own text."""

from spacy.tokens import Doc

CHANGED = (
    "the tokenizer changes the text, so offsets would be wrong. Use a tokenizer that keeps every "
    "character: in words, or as the spaces between them"
)


def changes_text(doc: Doc, text: str) -> bool:
    """Whether a Doc has another text than it was made from; whitespace at the end does not count.

    A tokenizer that does not tell spaces apart from none adds one at the end.
    """
    return doc.text.rstrip() != text.rstrip()
