"""Every GE op that a converter or a pass emits has a prototype and a kernel."""

from __future__ import annotations

import ast

import pytest

import torchair.backend.compile  # noqa: F401  fills the registries as a user's import does
from tests.structure.tree import modules, parse
from torchair import ge
from torchair.engine import registry
from torchair.ge import prototype

EMITTERS = ("torchair.convert", "torchair.passes")
# Ops whose meaning stands in the engine itself: their result is no function of tensors and attributes alone.
BUILT_IN = {"Const", "Data", "NetOutput", "Shape", "TorchOp"}


def emitted_ops() -> dict[str, str]:
    """GE op type -> one place that builds it: every `ge.Name` that is an op and not a class of the IR."""
    return {
        node.attr: f"{name}:{node.lineno}"
        for name in modules()
        if name.startswith(EMITTERS)
        for node in ast.walk(parse(modules()[name]))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "ge"
        and node.attr[0].isupper()
        and not isinstance(getattr(ge, node.attr, None), type)
    }


EMITTED = emitted_ops()


def test_the_scan_sees_converters() -> None:
    assert {"Add", "MatMulV2", "Reshape"} & set(EMITTED), (
        "no well-known op found: the scan looks in the wrong place"
    )


@pytest.mark.parametrize("op", sorted(EMITTED))
def test_has_a_prototype(op: str) -> None:
    assert op in prototype.catalogue(), f"{EMITTED[op]} builds {op}, which opdefs/ does not know"


@pytest.mark.parametrize("op", sorted(EMITTED))
def test_has_a_kernel(op: str) -> None:
    assert op in BUILT_IN or registry.has_kernel(op), (
        f"{EMITTED[op]} builds {op}, which no kernel gives a meaning"
    )


@pytest.mark.parametrize("op", sorted(BUILT_IN))
def test_built_in_ops_are_named_by_the_engine(op: str) -> None:
    engine = [parse(path) for name, path in modules().items() if name.startswith("torchair.engine")]
    assert any(
        isinstance(node, ast.Constant) and node.value == op for tree in engine for node in ast.walk(tree)
    )
    assert not registry.has_kernel(op), f"{op} has a kernel: take it off this list"
