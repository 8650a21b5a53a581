"""What a browser would see of a page, and what it does with it."""

import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

VOID = {"meta", "link", "input", "img", "br", "hr"}


class Page(HTMLParser):
    """Elements, text, the tables of each section, and the articles with their texts and marks."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.open: list[str] = []
        self.section = ""
        self.words: list[tuple[str, str]] = []  # of each text, its section
        self.tables: dict[str, list[list[list[str]]]] = {}
        self.articles: list[dict[str, Any]] = []
        self.feed(html)
        self.close()
        assert not self.open
        self.text = "".join(text for _, text in self.words)
        self.tags = [tag for tag, _ in self.elements]
        self.rows = [row for of in self.tables.values() for table in of for row in table]
        self.sections = {
            each["id"]: "".join(text for of, text in self.words if of == each["id"])
            for each in self.all("section")
        }

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        attributes = {key: value or "" for key, value in attrs}
        self.elements.append((tag, attributes))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "section":
            self.section = attributes["id"]
        if tag == "table":
            self.tables.setdefault(self.section, []).append([])
        if tag == "tr":
            self.tables[self.section][-1].append([])
        if tag in ("th", "td"):
            self.tables[self.section][-1][-1].append("")
        if tag == "article":
            self.articles.append({"attributes": attributes, "sides": [], "marks": []})
        if tag == "p" and attributes.get("class") == "text":
            self.articles[-1]["sides"].append("")
            self.articles[-1]["marks"].append("")

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("style", "script"):
            return
        self.words.append((self.section, data))
        if {"th", "td"} & set(self.open):
            self.tables[self.section][-1][-1][-1] += data
        if "article" in self.open and self.articles[-1]["sides"]:
            self.articles[-1]["sides"][-1] += data
            if "mark" in self.open:
                self.articles[-1]["marks"][-1] += data

    def all(self, tag: str) -> list[dict[str, str]]:
        """The attributes of the elements of a tag."""
        return [attributes for name, attributes in self.elements if name == tag]


def words(text: str) -> str:
    """Its words, with plain hyphens for the dashes of ranges and the signs of numbers."""
    text = text.replace("\N{EN DASH}", "-").replace("\N{MINUS SIGN}", "-")
    return " ".join(text.split())


def cells(table: list[list[str]]) -> list[list[str]]:
    """The words of each cell."""
    return [[words(cell) for cell in row] for row in table]


CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)
browser = pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed")
POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')


def visit(path: Path, folder: Path) -> tuple[str, list[str]]:
    """Open a page, and return its DOM and the messages on the console of the browser."""
    result = subprocess.run(
        [
            str(CHROMIUM), "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run",
            f"--user-data-dir={folder}", "--host-resolver-rules=MAP * ~NOTFOUND",
            "--enable-logging=stderr", "--virtual-time-budget=2000", "--dump-dom", path.as_uri(),
        ],
        capture_output=True, text=True, encoding="utf-8", timeout=120, check=True,
    )  # fmt: skip
    return result.stdout, [line for line in result.stderr.splitlines() if "CONSOLE" in line]


def driven(html: str, script: str) -> str:
    """Let a script of the test run at the end of a page."""
    assert POLICY.search(html)
    return POLICY.sub("", html).replace("</body>", f"<script>{script}</script></body>")
