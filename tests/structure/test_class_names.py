"""A class name means one thing: no two modules of the package define a class of the same name."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

from tests.structure.tree import ROOT, modules, parse

# Names that two modules still use. The list may only shrink: remove a name here when one class is renamed.
SHARED = {
    "CompilerConfig",  # public in torchair and in torchair.npugraph_ex
    "Event",  # one of a graph, one of the simulated device, with torch.npu's own name
    "Graph",  # the IR, and a recorded device graph
    "Op",
    "Raw",
    "Rule",
    "Slot",
    "Step",
    "Tensor",
    "Window",
}


def definitions(paths: list[Path]) -> dict[str, list[str]]:
    """Return where each class at module level is defined, as `file:line`."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        for node in parse(path).body:
            if isinstance(node, ast.ClassDef):
                name = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name
                found[node.name].append(f"{name}:{node.lineno}")
    return found


def shared(paths: list[Path]) -> dict[str, list[str]]:
    """Return the names that more than one file defines."""
    return {name: places for name, places in definitions(paths).items() if len(places) > 1}


def own_modules() -> list[Path]:
    return [path for path in modules().values() if not path.name.endswith("_pb2.py")]


def test_class_names_are_unique() -> None:
    found = {name: places for name, places in shared(own_modules()).items() if name not in SHARED}
    assert not found, "rename all but one:\n" + "\n".join(f"{k}: {', '.join(v)}" for k, v in found.items())


def test_allowed_class_names_are_still_shared() -> None:
    gone = SHARED - set(shared(own_modules()))
    assert not gone, f"only one module uses these names; remove them from SHARED: {sorted(gone)}"


def test_shared_class_name_is_found(tmp_path: Path) -> None:
    for name in ("one.py", "two.py"):
        (tmp_path / name).write_text("class Same: ...\n")
    assert shared(sorted(tmp_path.iterdir())) == {"Same": ["one.py:1", "two.py:1"]}
