"""Every GE op that a converter or a pass emits has a prototype and a kernel."""

from __future__ import annotations

import ast

import pytest
import torch

import torchair.backend.pipeline.compile  # fills the registries as a user's import does
from tests.convert.harness import check, converted
from tests.structure.tree import modules, parse
from torchair import ge
from torchair.convert.base.emitted_ops import emitted_by_target, emitted_ops
from torchair.engine import registry
from torchair.ge import prototype

EMITTERS = ("torchair.convert", "torchair.passes")
# Ops whose meaning stands in the engine itself: their result is no function of tensors and attributes alone.
BUILT_IN = {"Const", "Data", "NetOutput", "PrintV2", "Shape", "StringFormat", "TorchOp"}


def written_ops() -> dict[str, str]:
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


def registered_ops() -> dict[str, str]:
    """GE op type -> one target whose converter builds it, also where the name is put together from parts."""
    return {op: f"the converter of {target}" for target, ops in emitted_by_target().items() for op in ops}


EMITTED = registered_ops() | written_ops()


def test_both_scans_see_converters() -> None:
    well_known = {"Add", "MatMul", "Reshape", "SoftmaxV2", "Conv2D"}
    assert well_known <= set(written_ops())
    assert well_known <= set(registered_ops())
    assert {"ForeachAddList", "ForeachExp"} <= set(registered_ops()), "names put together from parts"


def test_emitted_ops_looks_into_closures_and_tables() -> None:
    def made(op, table):
        return lambda x: table[x](op(x))

    fn = made(ge.Acos, {"a": ge.Asin, "b": (ge.Cos, ge.Sin)})
    fn.__module__ = "torchair.convert.test"
    assert emitted_ops(fn) == ["Acos", "Asin", "Cos", "Sin"]


@pytest.mark.parametrize("op", sorted(EMITTED))
def test_has_a_prototype(op: str) -> None:
    assert op in prototype.catalogue(), f"{EMITTED[op]} builds {op}, which opdefs/ does not know"


@pytest.mark.parametrize("op", sorted(EMITTED))
def test_has_a_kernel(op: str) -> None:
    assert op in BUILT_IN or registry.has_kernel(op), (
        f"{EMITTED[op]} builds {op}, which no kernel gives a meaning"
    )


@pytest.mark.parametrize("op", sorted(BUILT_IN))
def test_built_in_ops_have_no_kernel(op: str) -> None:
    assert not registry.has_kernel(op), f"{op} has a kernel: take it off this list"


def test_built_in_ops_run() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        torchair.ops.npu_print(x, tensor_detail=True)
        return torch.linalg.matrix_exp(x @ x.T) + x.shape[1] * 2

    x = torch.randn(3, 4)
    graph, report, *_ = converted(fn, [x], dynamic=True)
    assert {op.type for op in graph.ops} >= BUILT_IN
    check(fn, x, dynamic=True, allow=[reason.op for reason in report.fallbacks])
