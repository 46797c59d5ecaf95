"""Tables of files in the developer's pages: one row for each file of a folder, none for a file that went."""

from __future__ import annotations

import re

import pytest

from tests.structure.tree import PACKAGE, ROOT, modules

PAGES = sorted((ROOT / "docs/contributing").glob("*.md"))
# A heading that is the path of a folder, and what stands below it.
FOLDER = re.compile(r"^#+ `torchair/([\w/]+)/`\n(.*?)(?=^#|\Z)", re.MULTILINE | re.DOTALL)
ROW = re.compile(r"^\| `(\w+)` \|", re.MULTILINE)
TABLES = {
    folder: ROW.findall(text)
    for page in PAGES
    for folder, text in FOLDER.findall(page.read_text(encoding="utf-8"))
}


def test_these_folders_have_tables() -> None:
    tops = ("capture", "compare", "convert/aten", "engine/kernels", "ops/npu", "passes/fx", "passes/ge")
    folders = {
        path.parent.relative_to(PACKAGE).as_posix()
        for path in modules().values()
        if path.relative_to(PACKAGE).as_posix().startswith(tuple(f"{top}/" for top in tops))
        if path.stem != "__init__"
    }
    assert set(TABLES) == folders


@pytest.mark.parametrize("folder", TABLES)
def test_every_file_has_a_row(folder: str) -> None:
    files = {path.stem for path in (PACKAGE / folder).glob("*.py")} - {"__init__"}
    assert len(set(TABLES[folder])) == len(TABLES[folder])
    assert set(TABLES[folder]) - {"__init__"} == files
