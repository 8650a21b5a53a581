"""Show our docstrings as Markdown: "name: meaning" becomes a list item, brackets stay brackets."""

import re

import griffe

ITEM = re.compile(r"^(\*{0,2}\w+(?:, \*{0,2}\w+)*): ", re.MULTILINE)
CODE_OR_BRACKET = re.compile(r"(`[^`]*`)|\[")


class PlainDocstrings(griffe.Extension):
    def on_instance(self, *, obj: griffe.Object, **kwargs: object) -> None:
        if obj.docstring:
            text = CODE_OR_BRACKET.sub(lambda found: found[1] or r"\[", obj.docstring.value)
            obj.docstring.value = ITEM.sub(r"\n- `\1`: ", text)
