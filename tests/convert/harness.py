"""Checks one function end to end below the backend: traced, converted, interpreted, lowered; all equal to
eager, in values and, behind the layout contract of the graph, in memory.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.torch_version import TorchVersion

from tests.support.memory import other_memory, seen
from torchair.capture.base.layout_enforcer import LayoutEnforcer
from torchair.convert.base.report import ConversionReport
from torchair.convert.convert import convert
from torchair.core.errors import DegradedWarning
from torchair.core.torch_private.compilers.inductor import select_decomp_table
from torchair.core.torch_private.fake.fake_tensors import detect_fake_mode, make_fx
from torchair.engine.infer import inference
from torchair.engine.interpret import interpret
from torchair.engine.lower import lower
from torchair.fxgraph.layout import layouts_of, new_values
from torchair.fxgraph.layout_check import OutputLayouts
from torchair.fxgraph.symbols import Binding
from torchair.ge.files.verify import verify, verify_emitted
from torchair.ge.graph import Graph

Run = Callable[[list[Any]], list[Any]]
TOO_WIDE = re.compile("does not accept (DOUBLE|COMPLEX128|INT64) as ")
"""Why an op is carried through as it is though it has a converter: no type of the IR op holds all values."""
OLD = TorchVersion(torch.__version__) < "2.12"
"""Is this a torch whose fake tensors err where those of today's do not?"""


def trace(fn: Callable[..., Any], args: Sequence[Any], dynamic: bool) -> Any:
    """The functional ATen graph of `fn`; with `dynamic` all sizes are symbols."""
    functional = torch.func.functionalize(fn, remove="mutations")
    with torch.no_grad():
        return make_fx(functional, tracing_mode="symbolic" if dynamic else "fake")(*args)


def converted(
    fn: Callable[..., Any], args: Sequence[Any], dynamic: bool = False
) -> tuple[Graph, ConversionReport, Any, Any]:
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
    fakes_err: bool = False,
    **tolerance: Any,
) -> ConversionReport:
    """Assert that reference run and lowered graph are equal to eager, in values and in memory, and that
    nothing outside `allow` falls back. `fakes_err`: torch's fake tensors tell other strides or aliases than
    eager has, so the memory of the results is what they tell.
    """
    expected = seen(lambda given: _listed(fn(*given)), args)
    graph, report, gm, fake_mode = converted(fn, args, dynamic)
    verify(graph)
    verify_emitted(graph)
    fell_back = [r for r in report.fallbacks if r.op not in allow and not TOO_WIDE.search(r.why)]
    assert not fell_back, f"fell back: {fell_back}"
    faults = ("the converter is wrong", "the converter failed")
    reasons = (*report.decomposed, *report.fallbacks)
    broken = [reason for reason in reasons if any(fault in reason.why for fault in faults)]
    assert not broken, f"converters that did not decline but broke: {broken}"
    device = next((arg.device for arg in args if isinstance(arg, torch.Tensor)), torch.device("cpu"))
    placeholders = [(node.name, node.meta["val"]) for node in gm.graph.find_nodes(op="placeholder")]
    runs: list[Run] = [lambda given: interpret(graph, given, device)]
    if check_lowered:
        lowered = lower(graph, placeholders, fake_mode, device, select_decomp_table())
        runs.append(lambda given: _listed(lowered(*given)))
    binding = Binding([fake for _, fake in placeholders])
    contract = OutputLayouts(layouts_of(gm), binding, tuple(place for place, _ in new_values(gm)))
    for run in runs:
        with warnings.catch_warnings():
            if fakes_err:  # where torch's own kernel runs, its results are mended
                warnings.simplefilter("ignore", DegradedWarning)
            got = seen(LayoutEnforcer(Unboxed(run), contract), args)
        compare(got.values, expected.values, **tolerance)
        why = other_memory(got, expected, every_dim=True)
        assert bool(why) == fakes_err, why or "fake tensors tell what eager does: `fakes_err` has to go"
    return report


@dataclass(frozen=True)
class Unboxed:
    """A run as a program. What it does not lay out as its graph promised is a warning of the runner's, and so
    an error here; only strides that no element tells are the runner's to set.
    """

    run: Run
    kind = "eager"
    source = ""

    def __call__(self, args: list[Any]) -> list[Any]:
        return self.run(args)


def compare(got: Sequence[Any], expected: Sequence[Any], **tolerance: float) -> None:
    """Values, dtypes and shapes, within a tolerance that fits the dtype."""
    assert len(got) == len(expected), f"{len(got)} results, expected {len(expected)}"
    for a, b in zip(got, expected, strict=True):
        within = _fit(tolerance, b.dtype) if isinstance(b, torch.Tensor) else tolerance
        torch.testing.assert_close(a, b, equal_nan=True, check_stride=False, **within)


def _fit(tolerance: dict[str, float], dtype: torch.dtype) -> dict[str, float]:
    """Doubles never need more than torch's default for them; floats of one byte are compared exactly."""
    if dtype in (torch.float64, torch.complex128):
        return {name: min(value, 1e-7) for name, value in tolerance.items()}
    return {} if dtype.is_floating_point and dtype.itemsize == 1 else tolerance


def _listed(result: Any) -> list[Any]:
    flat, _ = torch.utils._pytree.tree_flatten(result)
    return flat
