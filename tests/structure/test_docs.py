"""Documentation that cannot grow old: generated pages are current, names have a text, examples run."""

from __future__ import annotations

import importlib
import re
import shlex
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from docs import generate, site_hooks
from tests.structure.pages import ALL_PAGES, DOCS, FENCE, REFERENCE, Block, anchors, blocks, label
from tests.structure.tree import ROOT
from tests.support.process import python
from tests.support.slow import slow
from torchair.configs.compiler_config import CompilerConfig
from torchair.configs.option import walk
from torchair.core.diagnostics import STRICT

# Pages for readers who do: each shows code. Elsewhere the pages that show code run, too.
PAGES_WITH_CODE = {"getting-started", "tutorials", "how-to"}
PAGES_THAT_RUN = [
    page
    for page in ALL_PAGES
    if page.parent != REFERENCE / "api"  # signatures
    if any(block.language == "python" for block in blocks(page))
]
# They wait for compilers, or compile a whole model.
SLOW_PAGES = ("find-wrong-numbers", "serve-an-llm", "tune-performance", "use-size-buckets")
# The torch whose ops the ops page lists; others have a few more or fewer.
REFERENCE_TORCH = "2.13"
LINK = re.compile(r"(?<!\\)\]\(([^)\s]+)\)")
PATH = re.compile(r"`((?:torchair|tests|docs|benchmarks)/[\w./]+)`")
# Commands that end within seconds and change nothing.
CHEAP = {("make", "help")}


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
    (stem,) = (stem for stem, (_, modules) in generate.API_PAGES.items() if module in modules)
    page = (REFERENCE / f"api/{stem}.md").read_text(encoding="utf-8")
    assert f"\n## Module {module}\n" in page
    assert found.__doc__
    for name in generate.public_names(found):
        full = f"{module}.{name}"
        assert f'      heading: "{full}"\n' in page or f"\n### {full}\n" in page
        value = getattr(found, name)
        assert not callable(value) or value.__doc__, f"{full} has no docstring"


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
    assert "DegradedWarning" not in run_blocks(blocks(page), tmp_path)


def run_blocks(found: list[Block], tmp_path: Path) -> str:
    """Run the Python blocks as one script and return its standard error."""
    lines: list[str] = []
    for block in found:
        if block.language == "python":
            lines += [""] * (block.line - len(lines)) + block.text.splitlines()
    script = tmp_path / f"{found[0].page.stem}.py"
    script.write_text("\n".join(lines) + "\n", encoding="utf-8")
    # What an earlier run kept would be taken, and not compiled before the reader's eyes.
    own = {STRICT: "1", "TORCHAIR_PROGRAMS": str(tmp_path / "programs")}
    done = python(["-W", "error:::__main__", str(script)], tmp_path, **own)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stderr


def test_pages_for_doing_show_code() -> None:
    silent = [
        label(page)
        for page in ALL_PAGES
        if page.parent.name in PAGES_WITH_CODE and page not in PAGES_THAT_RUN
    ]
    assert not silent


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
    missing = []
    for link in LINK.findall(FENCE.sub("", text)):
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        if not link.startswith(("http://", "https://")) and (
            not target.exists() or (anchor and anchor not in anchors(text_of(target)))
        ):
            missing.append(link)
    missing += [path for path in PATH.findall(text) if not (ROOT / path).exists()]
    assert not missing


def text_of(page: Path) -> Path:
    """The file with the text of a page: some pages show a file of the repository root."""
    page = page.resolve()
    name = page.relative_to(DOCS).as_posix() if page.is_relative_to(DOCS) else ""
    return ROOT / site_hooks.ROOT_FILES[name] if name in site_hooks.ROOT_FILES else page


def test_every_page_is_on_the_site() -> None:
    """The navigation names each page once, and no page that is not there."""
    named = re.findall(r"[\w/.-]+\.md\b", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert sorted(named) == sorted(page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md"))


def test_pages_of_root_files_exist() -> None:
    for page, source in site_hooks.ROOT_FILES.items():
        assert (DOCS / page).is_file()
        assert (ROOT / source).is_file()
