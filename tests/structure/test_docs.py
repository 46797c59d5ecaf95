"""Documentation that cannot grow old: generated pages are current, names have a text, examples run."""

from __future__ import annotations

import importlib
import re
import shlex
import subprocess
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from docs import generate
from tests.structure.tree import ROOT
from tests.support.process import python
from tests.support.slow import slow
from torchair.configs.compiler_config import CompilerConfig
from torchair.configs.option import walk
from torchair.core.diagnostics import STRICT

REFERENCE = ROOT / "docs/reference"
# About files and words, not about code to run.
PAGES_WITHOUT_CODE = ("architecture", "families", "glossary")
READMES = [ROOT / "README.md", ROOT / "README.zh.md"]
PAGES_THAT_RUN = [
    *READMES,
    *sorted((ROOT / "docs/guide").glob("*.md")),
    *(page for page in sorted((ROOT / "docs/develop").glob("*.md")) if page.stem not in PAGES_WITHOUT_CODE),
]
SLOW_PAGES = ("accuracy", "performance", "llama")  # they wait for compilers, or compile a whole model
# The torch whose ops the ops page lists; others have a few more or fewer.
REFERENCE_TORCH = "2.13"
ALL_PAGES = [*READMES, *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")
PATH = re.compile(r"`((?:torchair|tests|docs|benchmarks)/[\w./]+)`")
# Commands that end within seconds and change nothing.
CHEAP = {("make", "help")}


@dataclass(frozen=True)
class Block:
    """One fenced block: the page, the line it starts on, its language and text."""

    page: Path
    line: int
    language: str
    text: str


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(page, text.count("\n", 0, m.start()) + 1, m.group(1), m.group(2)) for m in FENCE.finditer(text)
    ]


def label(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def commands() -> list[list[str]]:
    """Every shell command shown, one per line, comments left out."""
    lines = [
        line
        for page in ALL_PAGES
        for b in blocks(page)
        if b.language == "bash"
        for line in b.text.splitlines()
    ]
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z_-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


@pytest.mark.parametrize("page", generate.PAGES)
def test_generated_page_is_current(page: str) -> None:
    if page == "ops.md" and not torch.__version__.startswith(REFERENCE_TORCH):
        pytest.skip(f"the ops page is that of torch {REFERENCE_TORCH}, this is {torch.__version__}")
    assert (REFERENCE / page).read_text(encoding="utf-8") == generate.PAGES[page](), "run `make docs`"


@pytest.mark.parametrize("error", [error.__name__ for error in generate.error_classes()])
def test_error_has_a_heading_and_a_cure(error: str) -> None:
    page = (REFERENCE / "errors.md").read_text(encoding="utf-8")
    section = re.search(rf"^## {error}\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    assert section
    assert re.search(r"\*\*Cure\.\*\* \S.{20,}", section.group(1))


def test_no_cure_without_an_error() -> None:
    assert set(generate.CURES) == {error.__name__ for error in generate.error_classes()}


@pytest.mark.parametrize("module", generate.PUBLIC_MODULES)
def test_public_names_are_documented(module: str) -> None:
    found = importlib.import_module(module)
    page = (REFERENCE / "api.md").read_text(encoding="utf-8")
    assert f"\n## {module}\n" in page
    assert found.__doc__
    for name in generate.public_names(found):
        assert f"\n### {module}.{name}\n" in page
        value = getattr(found, name)
        assert not callable(value) or value.__doc__, f"{module}.{name} has no docstring"


@pytest.mark.parametrize("path", [path for path, _ in walk(CompilerConfig)])
def test_option_is_documented(path: str) -> None:
    assert f"`{path}`" in (REFERENCE / "options.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "page", [slow(page) if page.stem in SLOW_PAGES else page for page in PAGES_THAT_RUN], ids=label
)
def test_python_examples_run(page: Path, tmp_path: Path) -> None:
    """All blocks of a page are one script, with the page's own line numbers.

    It runs in a process of its own: examples register ops, converters and kernels for good.
    """
    lines: list[str] = []
    for block in blocks(page):
        if block.language == "python":
            lines += [""] * (block.line - len(lines)) + block.text.splitlines()
    assert lines, f"{label(page)} shows no Python"
    script = tmp_path / f"{page.stem}.py"
    script.write_text("\n".join(lines) + "\n", encoding="utf-8")
    # What an earlier run kept would be taken, and not compiled before the reader's eyes.
    own = {STRICT: "1", "TORCHAIR_PROGRAMS": str(tmp_path / "programs")}
    done = python(["-W", "error:::__main__", str(script)], tmp_path, **own)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    assert "DegradedWarning" not in done.stderr


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_shell_examples_exist(command: list[str]) -> None:
    program, *rest = command
    words = [word for word in rest if not word.startswith("-") and "=" not in word]
    if program == "make":
        assert words
        assert set(words) <= make_targets()
    elif rest[:1] == ["-m"]:
        assert find_spec(rest[1]), f"no module {rest[1]}"
    elif program in {"bash", "python3", "source"}:
        assert (ROOT / rest[0]).is_file(), f"no file {rest[0]}"
    else:
        assert program in {"git", "cd", "pip"}, f"{command}: show make targets or python -m"


@pytest.mark.parametrize("command", sorted(CHEAP), ids=" ".join)
def test_cheap_commands_run(command: tuple[str, ...]) -> None:
    assert list(command) in commands(), "nobody shows this any more"
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", ALL_PAGES, ids=label)
def test_links_and_paths_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    links = [link for link in LINK.findall(text) if not link.startswith(("http://", "https://"))]
    missing = [link for link in links if not (page.parent / link).exists()]
    missing += [path for path in PATH.findall(text) if not (ROOT / path).exists()]
    assert not missing
