"""The pages of the documentation and the blocks in them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tests.structure.tree import ROOT

DOCS = ROOT / "docs"
REFERENCE = DOCS / "reference"
READMES = [ROOT / "README.md", ROOT / "README.zh.md"]
ROOT_PAGES = [ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", ROOT / "SECURITY.md"]
ALL_PAGES = [*READMES, *ROOT_PAGES, *sorted(DOCS.rglob("*.md"))]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One fenced block: the page, the line it starts on, its language and text."""

    page: Path
    line: int
    language: str
    text: str


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(page, text.count("\n", 0, m.start()) + 1, m.group(1), m.group(2)) for m in FENCE.finditer(text)
    ]


def label(path: Path) -> str:
    """Return the path below the repository root, as a test id."""
    return path.relative_to(ROOT).as_posix()


def anchors(page: Path) -> set[str]:
    """Return the anchors that the site gives the headings of a page."""
    prose = FENCE.sub("", page.read_text(encoding="utf-8"))
    return {_slug(title) for title in re.findall(r"^#{1,6} (.+)$", prose, re.MULTILINE)}


def _slug(title: str) -> str:
    text = re.sub(r"[^\w\s-]", "", title.replace("`", "")).strip().lower()
    return re.sub(r"[-\s]+", "-", text)
