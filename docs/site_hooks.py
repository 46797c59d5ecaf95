"""Hooks of the documentation site: pages whose text is a file at the root of the repository, and bars in the
code of tables.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
# Page → the file that has its text, so that each text exists once.
ROOT_FILES = {
    "changelog.md": "CHANGELOG.md",
    "security.md": "SECURITY.md",
    "contributing/index.md": "CONTRIBUTING.md",
}


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Return the text of the root file, with links relative to the page."""
    name = page.file.src_uri
    if name not in ROOT_FILES:
        return markdown
    text = (ROOT / ROOT_FILES[name]).read_text(encoding="utf-8")
    up = "../" * name.count("/")
    text = re.sub(r"\]\(docs/", f"]({up}", text)
    for target, source in ROOT_FILES.items():
        text = text.replace(f"]({source})", f"]({up}{target})")
    return text


def on_page_content(html: str, **_: Any) -> str:
    """Return the page with plain bars in the code of tables, where Markdown needs and shows an escape."""
    return re.sub(r"<td.*?</td>", lambda cell: cell.group(0).replace("\\|", "|"), html, flags=re.DOTALL)
