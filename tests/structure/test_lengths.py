"""Functions are read at a glance, and a constructor takes few things: one that wants many does too much, or
is a record (a dataclass).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.structure.tree import parse

ROOT = Path(__file__).parents[2] / "torchair"
LINES = 50
ARGUMENTS = 4
WIDE = {
    "AirError",  # what, where, got, near, next: section by section, by name
    "graph",  # torch.npu's own signature
    "LinearA8W8Quant",  # torch_npu's own signature
    "LinearWeightQuant",  # torch_npu's own signature
}


def definitions(kind: type[ast.AST], root: Path = ROOT) -> Iterator[tuple[Path, ast.AST]]:
    for path in sorted(root.rglob("*.py")):
        if not path.name.endswith("_pb2.py"):
            yield from ((path, n) for n in ast.walk(parse(path)) if isinstance(n, kind))


def long_functions(root: Path = ROOT) -> list[str]:
    return [
        f"{path.name}: {node.name}"
        for path, node in definitions(ast.FunctionDef, root)
        if isinstance(node, ast.FunctionDef) and lines_of(node) >= LINES
    ]


def lines_of(function: ast.FunctionDef) -> int:
    """Count the lines of a function without its docstring."""
    first = function.body[0]
    documented = ast.get_docstring(function) is not None
    docstring = (first.end_lineno or 0) - first.lineno + 1 if documented else 0
    return (function.end_lineno or 0) - function.lineno - docstring


def wide_constructors(root: Path = ROOT) -> list[str]:
    return [
        f"{path.name}: {node.name}"
        for path, node in definitions(ast.ClassDef, root)
        if isinstance(node, ast.ClassDef) and node.name not in WIDE
        for inner in node.body
        if isinstance(inner, ast.FunctionDef) and inner.name == "__init__"
        if len(inner.args.posonlyargs + inner.args.args[1:] + inner.args.kwonlyargs) > ARGUMENTS
    ]


def test_functions_are_short() -> None:
    assert not long_functions()


def test_constructors_take_few_arguments() -> None:
    assert not wide_constructors()


def test_both_are_found(tmp_path: Path) -> None:
    body = "\n".join(f"    x = {line}" for line in range(LINES))
    wide = "class Wide:\n    def __init__(self, a, b, c, *, d, e): ..."
    (tmp_path / "bad.py").write_text(f"def long():\n{body}\n\n\n{wide}\n")
    assert long_functions(tmp_path) == ["bad.py: long"]
    assert wide_constructors(tmp_path) == ["bad.py: Wide"]
