"""Tables show every character of their cells."""

from __future__ import annotations

from rich.console import Console

from torchair.core.text_table import markdown_lines, table, text_lines


def test_text_lines_up_and_is_not_cut() -> None:
    long = "why " * 100 + "not"
    assert text_lines(("name", "why"), [("x[mask]", long), ("y", 3)]) == [
        "  name     why",
        f"  x[mask]  {long}",
        "  y        3",
    ]
    assert text_lines(("name", "why"), []) == []


def test_a_narrow_console_folds_and_brackets_are_no_markup() -> None:
    console = Console(width=12, force_terminal=False)
    with console.capture() as caught:
        console.print(table(("[op]", "n"), [("aten[bold]add", 1)], figures=True, box=None))
    assert [line.split() for line in caught.get().splitlines()] == [
        ["[op]", "n"],
        ["aten[bo", "1"],
        ["ld]add"],
    ]


def test_a_cell_of_markdown_is_one_line_without_borders() -> None:
    assert markdown_lines(("a", "b"), [("x|y", "one\n  two"), (1, "")]) == [
        "| a | b |",
        "| --- | --- |",
        "| x\\|y | one two |",
        "| 1 |  |",
    ]
