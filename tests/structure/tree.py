"""The repository as the structure tests see it: its files, its modules and what they import."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "torchair"
_NOT_OURS = {
    ".git",
    ".venv",
    ".inductor_cache",
    ".pytest_cache",
    ".ruff_cache",
    ".hypothesis",
    "__pycache__",
    "build",
}


@dataclass(frozen=True)
class Import:
    """One imported module: who, whom, on which line, and whether the statement stands inside a function."""

    importer: str
    target: str
    line: int
    inside_function: bool = False
    star: bool = False

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.target}"


@cache
def files() -> tuple[Path, ...]:
    """Every file of the project: what git knows or would add; a plain copy without git is walked."""
    if (ROOT / ".git").exists():
        command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.splitlines()
        found = [ROOT / name for name in names]
    else:
        found = [path for path in ROOT.rglob("*") if not _NOT_OURS & set(path.relative_to(ROOT).parts)]
    return tuple(sorted(path for path in found if path.is_file()))


@cache
def modules() -> dict[str, Path]:
    """Dotted module name -> file, for everything in the package."""
    return {_dotted(path): path for path in sorted(PACKAGE.rglob("*.py")) if "__pycache__" not in path.parts}


@cache
def parse(path: Path) -> ast.Module:
    """The syntax tree of one file."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


@cache
def imports(name: str) -> tuple[Import, ...]:
    """All imports of one of our modules, also those inside functions and under TYPE_CHECKING."""
    return tuple(_imports(name, parse(modules()[name]), inside=False))


def own_imports() -> list[Import]:
    """Imports of ours by ours, each resolved to the module that is really meant."""
    return [item for name in modules() for item in imports(name) if _is_own(item.target)]


def _dotted(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _is_own(target: str) -> bool:
    return target == "torchair" or target.startswith("torchair.")


def _imports(name: str, tree: ast.AST, inside: bool) -> Iterator[Import]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(name, alias.name, node.lineno, inside)
        elif isinstance(node, ast.ImportFrom):
            yield from _from_import(name, node, inside)
        yield from _imports(
            name, node, inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        )


def _from_import(name: str, node: ast.ImportFrom, inside: bool) -> Iterator[Import]:
    base = node.module or ""
    if node.level:
        parts = name.split(".") + ([""] if modules()[name].name == "__init__.py" else [])
        base = ".".join([*parts[: len(parts) - node.level], *([base] if base else [])])
    for alias in node.names:
        if alias.name == "*":
            yield Import(name, base, node.lineno, inside, star=True)
            continue
        # `from torchair.ge import graph` means the module torchair.ge.graph where there is one.
        submodule = f"{base}.{alias.name}"
        yield Import(name, submodule if submodule in modules() else base, node.lineno, inside)
