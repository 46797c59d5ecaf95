"""One direction only: who may import whom, as docs/contributing/architecture.md section 2 says."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from types import ModuleType

import pytest
import torch

from tests.structure.tree import PACKAGE, ROOT, files, imports, modules, own_imports, parse

# Left never imports right. A set is one level; siblings never import each other.
SIBLINGS = {"convert", "passes", "engine", "codegen", "capture"}
DOORS = {
    "inference",
    "npugraph_ex",
    "llm_datadist",
    "tools",
    "_contrib",
    "_ge_concrete_graph",
    "ge_concrete_graph",
}
LEVELS: tuple[set[str], ...] = (
    {"core"},
    {"devices"},
    {"configs"},
    {"fxgraph"},
    {"ops", "scope"},
    {"ge"},
    SIBLINGS,
    {"debug"},
    {"backend"},
    {"compare"},
    DOORS,
    {"sim", "cli"},
    {"__init__", "__main__"},
)
LEVEL = {part: number for number, level in enumerate(LEVELS) for part in level}
# The same inside packages: a part is a module or a subpackage, `*` stands for all parts that are not named.
ORDERS = {
    "torchair.backend": (
        "settings → runtime → service → specialize → pipeline → dynamo"
        " → cache | export | diagnose | library → *"
    ),
    "torchair.capture": "base → recording → strategies",
    "torchair.codegen": "base → eager → inductor → native",
    "torchair.compare": "base → locate → *",
    "torchair.convert": "base → aten → npu → special → *",
    "torchair.core": "* → fingerprint → torch_private → processes | registries → storage → native",
    "torchair.core.torch_private": "fake → operators → device → compilers → dynamo",
    "torchair.debug": "dumps → traces → observer",
    "torchair.ge": "* → schema → builder → proto → files",
    "torchair.inference": "_padding → *",
    "torchair.ops": "io → streams → distributed | numerics → npu",
    "torchair.ops.npu": "common → dense → attention → moe",
    "torchair.passes": "* → ge | fx → patterns",
    "torchair.passes.fx": "analysis → cleanup → inplace → streams",
    "torchair.passes.patterns": "spec → match → sets",
}
MOST_MODULES = 14
# One file per family of ops.
TABLES_OF_OPS = {"torchair/convert/aten", "torchair/engine/kernels"}
PRIVATE_TORCH = "torchair.core.torch_private"
VAGUE_NAMES = {"utils", "helpers", "common", "misc"}
# Documented to users as import paths, so they stay.
VAGUE_BUT_PUBLIC = {
    "torchair/core/utils.py",
    "torchair/_ge_concrete_graph/utils.py",
    "torchair/sim/npu/utils.py",
    "torchair/sim/plugin/utils.py",
}


def part_of(module: str) -> str:
    """`torchair.ge.graph` -> `ge`; the package itself -> `__init__`."""
    return module.split(".")[1] if "." in module else "__init__"


def test_every_part_has_a_level() -> None:
    unknown = sorted({part_of(name) for name in modules()} - set(LEVEL))
    assert not unknown, f"no level for {unknown}: add them to LEVELS and to docs/contributing/architecture.md"


def test_architecture_page_names_the_same_levels() -> None:
    text = (ROOT / "docs/contributing/architecture.md").read_text(encoding="utf-8")
    chain = next(line for line in text.splitlines() if line.startswith("`core →")).strip("`")
    told = [set(re.split(r"\s*[,|]\s*", level.strip())) for level in chain.split("→")]
    assert told == [{"doors"} if level is DOORS else level for level in LEVELS]


def test_left_never_imports_right() -> None:
    wrong = [
        str(item) for item in own_imports() if LEVEL[part_of(item.importer)] < LEVEL[part_of(item.target)]
    ]
    assert not wrong, "\n".join(wrong)


def test_siblings_never_import_each_other() -> None:
    wrong = [
        str(item)
        for item in own_imports()
        if {part_of(item.importer), part_of(item.target)} <= SIBLINGS
        and part_of(item.importer) != part_of(item.target)
    ]
    assert not wrong, "\n".join(wrong)


def places(order: str) -> dict[str, tuple[int, int]]:
    """Return the level of each part of an order, and its place among the siblings there."""
    return {
        part: (number, place)
        for number, level in enumerate(order.split(" → "))
        for place, part in enumerate(level.split(" | "))
    }


def against(order: str, package: str, pairs: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield the imports, as pairs of modules, that go against the order of a package."""
    known, depth = places(order), package.count(".") + 1
    for pair in pairs:
        if all(module.startswith(f"{package}.") for module in pair):
            importer, target = (module.split(".")[depth] for module in pair)
            a, b = (known.get(part, known.get("*")) for part in (importer, target))
            assert None not in (a, b), f"{package} has no place for {importer} or {target}: add it to ORDERS"
            if importer != target and (a[0] < b[0] or (a[0] == b[0] and a[1] != b[1])):
                yield pair


@pytest.mark.parametrize("package", ORDERS)
def test_parts_of_packages_keep_their_order(package: str) -> None:
    pairs = [(item.importer, item.target) for item in own_imports()]
    wrong = [" imports ".join(pair) for pair in against(ORDERS[package], package, pairs)]
    assert not wrong, "\n".join(wrong)


def test_folders_hold_few_modules() -> None:
    count = Counter(
        path.parent.relative_to(ROOT).as_posix() for path in modules().values() if path.stem != "__init__"
    )
    crowded = {folder for folder, number in count.items() if number > MOST_MODULES}
    assert crowded == TABLES_OF_OPS


# A fact about ops or values -> the one module that asks for it.
FACTS = {
    r"\.alias_info\b|\bis_mutable\b": "torchair/fxgraph/effects.py",
    r"is_non_overlapping_and_dense": "torchair/core/native/memory_overlap.py",
    r"^def device_of\(gm|not in \(\"cpu\", \"meta\"\)": "torchair/fxgraph/fake_values.py",
    r"^def find_overload": "torchair/core/torch_private/operators/schemas.py",
    r"^class Program\(|^Program = ": "torchair/core/program.py",
}


@pytest.mark.parametrize("fact", FACTS)
def test_a_fact_stands_in_one_place(fact: str) -> None:
    files = sorted(PACKAGE.rglob("*.py"))
    found = {
        path.relative_to(ROOT).as_posix()
        for path in files
        if re.search(fact, path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert found == {FACTS[fact]}


def test_targets_exist() -> None:
    wrong = [str(item) for item in own_imports() if item.target not in modules()]
    assert not wrong, "\n".join(wrong)


IMPORT = re.compile(r"from (torchair[\w.]*) import ([\w, ]+)")


def test_imports_in_texts_lead_somewhere() -> None:
    """Programs that tests run, generated code and pages name modules in texts."""
    wrong = [
        f"{path.relative_to(ROOT)}: {found[0]}"
        for path in files()
        if path.suffix in (".py", ".md")
        for found in IMPORT.finditer(path.read_text(encoding="utf-8"))
        for name in re.split(r",\s*", found[2].strip(" ,"))
        if not _is_there(found[1], name.partition(" as ")[0])
    ]
    assert not wrong, "\n".join(wrong)


def _is_there(module: str, name: str) -> bool:
    return hasattr(_import(module), name) or _import(f"{module}.{name}") is not None


def test_no_cycles() -> None:
    edges: dict[str, set[str]] = {name: set() for name in modules()}
    for item in own_imports():
        if item.importer != item.target:
            edges[item.importer].add(item.target)
    cycle = find_cycle(edges)
    assert cycle is None, " -> ".join(cycle or [])


def test_no_star_imports() -> None:
    wrong = [str(item) for name in modules() for item in imports(name) if item.star]
    assert not wrong, "\n".join(wrong)


def test_no_own_imports_inside_functions() -> None:
    wrong = [str(item) for item in own_imports() if item.inside_function]
    wrong += [
        f"{name}:{node.lineno} import_module({node.args[0].value!r})"
        for name in modules()
        for node in ast.walk(parse(modules()[name]))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).endswith(("import_module", "__import__"))
        and node.args
        and isinstance(node.args[0], ast.Constant)
        and str(node.args[0].value).startswith("torchair")
    ]
    assert not wrong, "\n".join(wrong)


def test_private_torch_has_one_door() -> None:
    wrong = [
        f"{name}:{line} {private}"
        for name in modules()
        if not name.startswith(PRIVATE_TORCH)
        for line, private in private_torch_uses(name)
    ]
    assert not wrong, "\n".join(wrong)


def test_file_names_say_what_is_inside() -> None:
    names = [path.relative_to(ROOT).as_posix() for path in modules().values() if path.stem in VAGUE_NAMES]
    assert set(names) <= VAGUE_BUT_PUBLIC


def test_folders_are_packages() -> None:
    """A folder without __init__.py is found by the checkout and lost by an installed copy."""
    missing = [
        folder
        for folder in {path.parent for path in PACKAGE.rglob("*.py")}
        if not (folder / "__init__.py").exists()
    ]
    assert not missing


@pytest.mark.parametrize("name", sorted(modules()))
def test_has_a_docstring(name: str) -> None:
    assert ast.get_docstring(parse(modules()[name])), f"{name}: say in 1-5 lines what lives here"


def find_cycle(edges: dict[str, set[str]]) -> list[str] | None:
    """One cycle, or None: depth first, grey nodes on the path."""
    done: set[str] = set()

    def visit(node: str, path: list[str]) -> list[str] | None:
        if node in path:
            return [*path[path.index(node) :], node]
        if node in done:
            return None
        for target in sorted(edges.get(node, ())):
            cycle = visit(target, [*path, node])
            if cycle:
                return cycle
        done.add(node)
        return None

    return next((cycle for node in sorted(edges) if (cycle := visit(node, []))), None)


def private_torch_uses(name: str) -> Iterator[tuple[int, str]]:
    """Imports of, and dotted access to, underscored torch modules (`torch._check` is a function)."""
    for item in imports(name):
        if item.target.split(".")[0] == "torch" and any(
            part.startswith("_") for part in item.target.split(".")
        ):
            yield item.line, item.target
    tree = parse(modules()[name])
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "torch":
            yield from (
                (node.lineno, f"{node.module}.{a.name}")
                for a in node.names
                if is_private_module(f"{node.module}.{a.name}")
            )
        if isinstance(node, ast.Attribute) and (dotted := dotted_name(node)) and is_private_module(dotted):
            yield node.lineno, dotted


def dotted_name(node: ast.expr) -> str | None:
    """`torch._C._aoti` for that expression, None for anything that is not a plain dotted name."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        base = dotted_name(node.value)
        return base and f"{base}.{node.attr}"
    return None


def is_private_module(dotted: str) -> bool:
    """Whether this names a module of torch with an underscored part (`torch._C`, `torch.utils._pytree`)."""
    first, *rest = dotted.split(".")
    if first != "torch" or not any(part.startswith("_") for part in rest):
        return False
    value: object = torch
    for depth, part in enumerate(rest):
        value = getattr(value, part, None) or _import(".".join([first, *rest[: depth + 1]]))
    return isinstance(value, ModuleType) and not inspect.isfunction(value)


def _import(dotted: str) -> object:
    try:
        return importlib.import_module(dotted)
    except ImportError:
        return None


class TestTheChecks:
    """The checks themselves find what they look for."""

    def test_against(self) -> None:
        pairs = [
            ("p.a", "p.b.x"),
            ("p.b.x", "p.a"),
            ("p.b.x", "p.c"),
            ("p.d", "p.c"),
            ("p.b.x", "p.b.y"),
            ("q", "p.c"),
        ]
        assert list(against("a → b | c → *", "p", pairs)) == [("p.a", "p.b.x"), ("p.b.x", "p.c")]

    def test_find_cycle(self) -> None:
        assert find_cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
        assert find_cycle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) is None

    @pytest.mark.parametrize(
        "name", ["torch._C", "torch._dynamo", "torch.utils._pytree", "torch._inductor.compile_fx"]
    )
    def test_private_modules(self, name: str) -> None:
        assert is_private_module(name)

    @pytest.mark.parametrize(
        "name", ["torch.fx", "torch._check", "torch._softmax", "torch.nn.functional", "numpy._core"]
    )
    def test_public_names(self, name: str) -> None:
        assert not is_private_module(name)
