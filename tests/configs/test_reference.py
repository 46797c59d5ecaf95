"""The options page is what the rows say today."""

from __future__ import annotations

from pathlib import Path

from torchair.configs.compiler_config import CompilerConfig
from torchair.configs.option import walk
from torchair.configs.reference import page

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "options.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m torchair.configs.reference > " + str(
        PAGE
    )


def test_hints_are_marked() -> None:
    lines = page().splitlines()
    for path, row in walk(CompilerConfig):
        line = next(
            line for line in lines if row.help.replace("|", "\\|") in line and path.split(".")[-1] in line
        )
        assert ("**HINT**" in line) == row.hint, path
