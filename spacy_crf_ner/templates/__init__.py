"""Self-contained HTML pages from Jinja2 templates, with all values escaped."""

import os
from base64 import b64encode
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ..atomic import atomic_write
from ..extras import versions

PAGE_SIZE = 100  # texts of a list that are shown at first

_ENVIRONMENT = Environment(
    loader=PackageLoader("spacy_crf_ner", "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_ENVIRONMENT.globals["page_size"] = PAGE_SIZE


def made() -> str:
    """Return the date, in UTC, and the versions with which a page is made.

    SOURCE_DATE_EPOCH, if it is set, gives the date: then the same page is made again.
    """
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    now = datetime.now(UTC) if epoch is None else datetime.fromtimestamp(int(epoch), UTC)
    found = versions(("spacy-crf-ner", "spacy"))
    return ", ".join([f"{now:%Y-%m-%d}", *(f"{name} {number}" for name, number in found.items())])


def render(template: str, script: str = "", **values: Any) -> str:
    """Render a page that extends `base.html.j2`, with a script from a file, if any.

    Strings among the values are escaped; `Markup` is not. The content security policy of the page
    allows only this script, and no downloads. The page needs a "title", and "facts" for its head.
    """
    text = _ENVIRONMENT.get_template(script).render() if script else ""
    digest = b64encode(sha256(text.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    head = {"policy": policy, "made": made()}
    return _ENVIRONMENT.get_template(template).render(head, script=Markup(text), **values)


def write_page(path: Path, html: str) -> None:
    """Write a page, and create its folder; lone surrogates, as in some file names, become "?"."""
    with atomic_write(path) as unfinished:
        unfinished.write_bytes(html.encode("utf-8", "replace"))
