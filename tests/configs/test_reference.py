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


def test_options_page_has_effect_and_test() -> None:
    listed = page().partition("## Other names")[0].splitlines()
    lines = {line.split(" | ")[0].strip("| `"): line for line in listed if line.startswith("| `")}
    cells = {
        path: lines[path].replace("\\|", "").strip("| ").split(" | ") for path, _ in walk(CompilerConfig)
    }
    assert [cells[path][3:5] for path in (
        "experimental_config.jit_compile",
        "export.export_mode",
        "experimental_config.aclgraph._super_kernel_optimize",
        "experimental_config.keep_inference_input_mutations",
        "mode",
    )] == [
        ["hint", "–"], ["not yet", "–"], ["–", "hint"], ["acts", "acts in `reduce-overhead`"], ["acts"] * 2
    ]  # fmt: skip
    for path, row in walk(CompilerConfig):
        assert ("hint" in cells[path][3:5]) == row.hint, path
        assert (cells[path][-1] == f"`{row.effect}`") == bool(row.effect), path


def test_the_page_lists_other_names() -> None:
    line = "| `experimental_config.enable_single_stream` | `ge_config.enable_single_stream` |"
    assert line in page().splitlines()
