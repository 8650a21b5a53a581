"""Self-contained HTML pages from Jinja2 templates, with all values escaped."""

from base64 import b64encode
from hashlib import sha256
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ..atomic import atomic_write

_ENVIRONMENT = Environment(
    loader=PackageLoader("spacy_crf_ner", "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def render(template: str, script: str = "", **values: Any) -> str:
    """Render a page that extends `base.html.j2`, with a script from a file, if any.

    Strings among the values are escaped; `Markup` is not. The content security policy of the page
    allows only this script, and no downloads.
    """
    text = _ENVIRONMENT.get_template(script).render() if script else ""
    digest = b64encode(sha256(text.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    return _ENVIRONMENT.get_template(template).render(policy=policy, script=Markup(text), **values)


def write_page(path: Path, html: str) -> None:
    """Write a page, and create its folder; lone surrogates, as in some file names, become "?"."""
    with atomic_write(path) as unfinished:
        unfinished.write_bytes(html.encode("utf-8", "replace"))
