"""Tables: rendered by `rich` for a console or as text, and as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from torchair.core.lazy_module import LazyModule

if TYPE_CHECKING:
    from rich import console as rich_console
    from rich import table as rich_table
    from rich import text as rich_text
else:
    rich_console, rich_table = LazyModule("rich.console"), LazyModule("rich.table")
    rich_text = LazyModule("rich.text")

UNCUT = 100_000  # wider than any line


def table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], *, figures: bool = False, **look: Any
) -> rich_table.Table:
    """Return a table for a console. Brackets in cells are not markup, and wide cells are folded, not
    truncated. With `figures`, all columns except the first contain numbers.
    """
    made = rich_table.Table(**look)
    for place, column in enumerate(columns):
        side = "right" if figures and place else "left"
        made.add_column(rich_text.Text(column), justify=side, overflow="fold")
    for row in rows:
        made.add_row(*(rich_text.Text(str(cell)) for cell in row))
    return made


def as_text(*shown: rich_console.RenderableType, width: int = UNCUT) -> str:
    """Return the text that a console of this width shows, without colors."""
    console = rich_console.Console(width=width, force_terminal=False)
    with console.capture() as caught:
        console.print(*shown)
    return caught.get()


def text_lines(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    """Return a table as lines of text without borders, with two spaces before each cell. Without rows, return
    no lines.
    """
    if not rows:
        return []
    text = as_text(table(columns, rows, box=None, padding=(0, 0, 0, 2)))
    return [line.rstrip() for line in text.splitlines()]


def markdown_lines(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    """Return a table as lines of Markdown. Bars in cells are escaped."""
    ruled = (columns, ["---"] * len(columns), *rows)
    return [f"| {' | '.join(_markdown_cell(cell) for cell in row)} |" for row in ruled]


def _markdown_cell(value: Any) -> str:
    """Return the value on one line."""
    return " ".join(str(value).replace("|", "\\|").split())
