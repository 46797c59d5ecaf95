"""Checks one function end to end below the backend: traced, converted, interpreted, lowered; all equal to
eager.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.torch_version import TorchVersion

import torchair.convert.aten
import torchair.convert.npu
import torchair.convert.prims
import torchair.convert.symbolic
import torchair.engine.kernels  # noqa: F401 - fills the tables
from torchair.convert.convert import convert
from torchair.convert.report import Report
from torchair.core.torch_private.fake import detect_fake_mode, make_fx
from torchair.core.torch_private.inductor import select_decomp_table
from torchair.engine.infer import inference
from torchair.engine.interpret import interpret
from torchair.engine.lower import lower
from torchair.ge.graph import Graph

OLD = TorchVersion(torch.__version__) < "2.12"
"""Is this a torch whose fake tensors err where those of today's do not?"""


def trace(fn: Callable[..., Any], args: Sequence[Any], dynamic: bool) -> Any:
    """The functional ATen graph of `fn`; with `dynamic` all sizes are symbols."""
    functional = torch.func.functionalize(fn, remove="mutations")
    with torch.no_grad():
        return make_fx(functional, tracing_mode="symbolic" if dynamic else "fake")(*args)


def converted(
    fn: Callable[..., Any], args: Sequence[Any], dynamic: bool = False
) -> tuple[Graph, Report, Any, Any]:
    """The GE graph of a function, the report, the FX graph and its fake mode."""
    gm = trace(fn, args, dynamic)
    inputs = [node.meta["val"] for node in gm.graph.nodes if node.op == "placeholder"]
    fake_mode = detect_fake_mode(inputs) or torch._subclasses.FakeTensorMode()
    device = next((value.device for value in inputs if isinstance(value, torch.Tensor)), torch.device("cpu"))
    graph, report = convert(gm, inference(fake_mode, device), fake_mode)
    return graph, report, gm, fake_mode


def check(
    fn: Callable[..., Any],
    *args: Any,
    dynamic: bool = False,
    allow: Sequence[str] = (),
    check_lowered: bool = True,
    **tolerance: Any,
) -> Report:
    """Assert that reference run and lowered graph are equal to eager, and that nothing outside `allow` falls
    back.
    """
    with torch.no_grad():
        expected = _listed(fn(*[_fresh(arg) for arg in args]))
    graph, report, gm, fake_mode = converted(fn, args, dynamic)
    fell_back = [reason for reason in report.fallbacks if reason.op not in allow]
    assert not fell_back, f"fell back: {fell_back}"
    broken = [
        reason for reason in (*report.decomposed, *report.fallbacks) if "the converter is wrong" in reason.why
    ]
    broken += [
        reason for reason in (*report.decomposed, *report.fallbacks) if "the converter failed" in reason.why
    ]
    assert not broken, f"converters that did not decline but broke: {broken}"
    device = next((arg.device for arg in args if isinstance(arg, torch.Tensor)), torch.device("cpu"))
    compare(interpret(graph, [_fresh(arg) for arg in args], device), expected, **tolerance)
    if check_lowered:
        placeholders = [(node.name, node.meta["val"]) for node in gm.graph.nodes if node.op == "placeholder"]
        lowered = lower(graph, placeholders, fake_mode, device, select_decomp_table())
        with torch.no_grad():
            compare(_listed(lowered(*[_fresh(arg) for arg in args])), expected, **tolerance)
    return report


def compare(got: Sequence[Any], expected: Sequence[Any], **tolerance: Any) -> None:
    """Values, dtypes, shapes and, for dense results, strides."""
    assert len(got) == len(expected), f"{len(got)} results, expected {len(expected)}"
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, equal_nan=True, check_stride=False, **tolerance)


def _fresh(arg: Any) -> Any:
    return arg.clone() if isinstance(arg, torch.Tensor) else arg


def _listed(result: Any) -> list[Any]:
    flat, _ = torch.utils._pytree.tree_flatten(result)
    return flat
