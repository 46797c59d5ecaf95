"""An option is one row: a row stands where its path says, and its default stands nowhere else."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import MISSING, fields

import pytest

from tests.structure.tree import modules, parse
from torchair.backend.settings.settings import Settings
from torchair.capture import Policy
from torchair.configs.compiler_config import OptionTree
from torchair.configs.option import Nested, flat_names, walk
from torchair.debug.dumps.options import DebugOptions
from torchair.passes import CAPTURE_PASSES, DYNAMO_PASSES, FX_PASSES, GE_PASSES, LOWERED_PASSES

GROUPS = "torchair.configs.groups"
# Fields that are no options: they follow from several, or from the graph.
DERIVED = {
    Settings: {"options", "config", "assigned", "waits"},
    Policy: {"capture", "why_direct", "patience", "warm_up", "counts", "eager"},
    DebugOptions: set(),
}
# A default of a parameter that is named like an option, but means something else.
OTHERS = {
    (
        "torchair.core.diagnostics",
        "strict",
    ): "lies below the options: without a compilation nobody asked for it",
    ("torchair.backend.diagnose.converter_cases", "codegen"): "how the tool runs its cases",
}
NAMES = {
    *(path for path, _ in walk(OptionTree)),
    *flat_names(OptionTree, ex=True),
    *(field.name for kind, derived in DERIVED.items() for field in fields(kind) if field.name not in derived),
} - {"mode"}  # of rounding, of files, of pooling


def defaults(tree: ast.AST) -> Iterator[tuple[int, str, ast.expr]]:
    """Line, name and default of every parameter and every annotated field."""
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
            yield node.lineno, node.target.id, node.value
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            given = node.args
            positional = [*given.posonlyargs, *given.args][::-1]
            pairs = [
                *zip(positional, given.defaults[::-1], strict=False),
                *zip(given.kwonlyargs, given.kw_defaults, strict=True),
            ]
            yield from ((item.lineno, item.arg, default) for item, default in pairs if default)


def literals_of_options(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Where something named like an option has a default of its own; None is no default but nothing given."""
    for line, name, default in defaults(tree):
        if name in NAMES and isinstance(default, ast.Constant) and default.value is not None:
            yield line, name


@pytest.mark.parametrize("kind", DERIVED)
def test_fields_have_no_default_but_the_row(kind: type) -> None:
    own = {item.name for item in fields(kind) if "option" not in item.metadata}
    assert own == DERIVED[kind], "read an option with from_row; what is derived is listed here"


def test_a_default_stands_in_one_place() -> None:
    found = {
        (name, option): f"{name}:{line} {option}"
        for name, path in modules().items()
        for line, option in literals_of_options(parse(path))
    }
    assert set(found) == set(OTHERS), "use from_row or default_of"


def test_a_second_default_is_found() -> None:
    text = "class A:\n    error_mode: str = 'x'\ndef f(a=1, *, clone_input=True, pool=None): pass"
    assert {name for _, name in literals_of_options(ast.parse(text))} == {"error_mode", "clone_input"}


@pytest.mark.parametrize(
    "name", [name for name, item in vars(OptionTree).items() if isinstance(item, Nested)]
)
def test_a_group_stands_in_its_own_module(name: str) -> None:
    assert vars(OptionTree)[name].kind.__module__ == f"{GROUPS}.{name}"


def test_no_rows_outside_the_tree() -> None:
    own = {"mode", "post_grad_custom_pre_pass", "post_grad_custom_post_pass"}
    names = {path.partition(".")[0] for path, _ in walk(OptionTree)}
    assert names - own == {name.rpartition(".")[2] for name in modules() if name.startswith(f"{GROUPS}.")}


def test_passes_ask_for_switches_that_exist() -> None:
    known = set(Settings.of({}).switches("eager"))
    for step in (*DYNAMO_PASSES, *FX_PASSES, *CAPTURE_PASSES, *GE_PASSES, *LOWERED_PASSES):
        assert {step.on, step.unless} - {""} <= known, step.title


def test_settings_are_not_made_by_hand() -> None:
    """Fields and `options` would differ: `Settings.of` makes both."""
    assert [item.name for item in fields(Settings) if item.default is MISSING] == ["options"]
