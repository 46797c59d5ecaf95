"""Run the declared cases of converters: compile each call as a graph of its own, and compare it with eager.

A compile falls back instead of failing, so equal values are not enough: a case also fails if its op was
decomposed, or kept as an eager op.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from torchair.backend.pipeline.compile import compile_fx
from torchair.backend.settings.settings import resolve_settings
from torchair.configs.compiler_config import CompilerConfig
from torchair.convert.base.case_spec import Support, TypedTensor, declared, target_name
from torchair.core.errors import DegradedWarning
from torchair.core.torch_private.fake.fake_tensors import (
    FakeTensorMode,
    ShapeEnv,
    tree_flatten,
    tree_unflatten,
)
from torchair.core.torch_private.operators.schemas import OpOverloadPacket, resolve_overload

SEED = 20240607
RTOL, ATOL = 1e-3, 1e-5
DOUBLES, DOUBLE_TOL = (torch.float64, torch.complex128), 1e-7


@dataclass(frozen=True)
class CaseResult:
    """The result of one case; `why` is empty if it passed."""

    name: str
    case: Support
    why: str = ""


def run_declared(
    prefix: str = "",
    *,
    codegen: str = "eager",
    dynamic: bool = False,
    tell: Callable[[str], None] = lambda line: None,
) -> list[CaseResult]:
    """Run the declared cases of ops with names that start with `prefix`; `tell` gets a line per event."""
    outcomes: list[CaseResult] = []
    for target, case in declared(prefix):
        title = f"{target_name(target)} {case!r}"
        tell(f"[RUN] {title}")
        why = why_fails(target, case, codegen=codegen, dynamic=dynamic)
        tell(f"[FAILED] {title}: {why}" if why else f"[PASS] {title}")
        outcomes.append(CaseResult(target_name(target), case, why))
    failed = sum(bool(outcome.why) for outcome in outcomes)
    tell(f"{len(outcomes)} cases, {len(outcomes) - failed} passed, {failed} failed")
    return outcomes


def why_fails(target: Any, case: Support, *, codegen: str = "eager", dynamic: bool = False) -> str:
    """Return the reason why a case fails; an empty text if it passes."""
    try:
        return _run_case(target, case, codegen, dynamic)
    except Exception as error:
        # Any error is the result of this case, and the next case still runs.
        return f"{type(error).__name__}: {' '.join(str(error).split())}"


@dataclass(frozen=True)
class Called:
    """One case: a graph of the call, its tensors, and the results of eager."""

    op: Any
    gm: fx.GraphModule
    tensors: list[torch.Tensor]
    expected: list[Any]


def called(target: Any, case: Support) -> Called:
    """Create the inputs of a case, and run it in eager mode."""
    torch.manual_seed(SEED)
    flat, structure = tree_flatten((list(case.args), dict(case.kwargs)))
    made = [item.make() if isinstance(item, TypedTensor) else item for item in flat]
    args, kwargs = tree_unflatten(made, structure)
    call = resolve_overload(target, args, kwargs) if isinstance(target, OpOverloadPacket) else target
    with torch.no_grad():
        torch.manual_seed(SEED)
        args, kwargs = tree_unflatten([_fresh(item) for item in made], structure)
        expected = call(*args, **kwargs)
    gm = _graph_of(call, made, structure, expected)
    tensors = [item for item in made if isinstance(item, torch.Tensor)]
    return Called(call, gm, tensors, list(expected) if isinstance(expected, list | tuple) else [expected])


def _run_case(target: Any, case: Support, codegen: str, dynamic: bool) -> str:
    made = called(target, case)
    config = CompilerConfig()
    config.engine_config.codegen = codegen
    with warnings.catch_warnings():
        # Fallbacks are read from the report instead.
        warnings.simplefilter("ignore", DegradedWarning)
        runner = compile_fx(
            made.gm, _symbolic(made.tensors) if dynamic else made.tensors, resolve_settings(config)
        )
    report = runner.conversion
    others = [reason for reason in (*report.fallbacks, *report.decomposed) if reason.op == str(made.op)]
    if others:
        return f"it was not converted: {others[0].why}"
    torch.manual_seed(SEED)
    return difference(runner([tensor.clone() for tensor in made.tensors]), made.expected)


def _fresh(item: Any) -> Any:
    return item.clone() if isinstance(item, torch.Tensor) else item


def _graph_of(call: Any, made: Sequence[Any], structure: Any, expected: Any) -> fx.GraphModule:
    """Build a graph of this call. A tracer would decompose composite ops."""
    graph = fx.Graph()
    inputs = [
        graph.placeholder(f"x{place}") if isinstance(item, torch.Tensor) else item
        for place, item in enumerate(made)
    ]
    args, kwargs = tree_unflatten(inputs, structure)
    node = graph.call_function(call, tuple(args), kwargs)
    results = (
        tuple(graph.call_function(operator.getitem, (node, index)) for index in range(len(expected)))
        if isinstance(expected, list | tuple)
        else (node,)
    )
    graph.output(results)
    return fx.GraphModule(torch.nn.Module(), graph)


def _symbolic(tensors: Sequence[torch.Tensor]) -> list[Any]:
    """Return fake tensors with symbolic sizes; equal sizes share a symbol."""
    fake_mode = FakeTensorMode(shape_env=ShapeEnv())
    return [fake_mode.from_tensor(tensor) for tensor in tensors]


def difference(results: Sequence[Any], expected: Sequence[Any]) -> str:
    """Describe the first difference: number of results, type, dtype, shape or values."""
    if len(results) != len(expected):
        return f"{len(results)} results, eager returns {len(expected)}"
    for index, (got, want) in enumerate(zip(results, expected, strict=True)):
        why = _unequal(got, want)
        if why:
            return f"result {index}: {why}"
    return ""


def _unequal(got: Any, want: Any) -> str:
    if type(got) is not type(want):
        return f"a {type(got).__name__}, eager returns a {type(want).__name__}"
    if not isinstance(want, torch.Tensor):
        return "" if got == want else f"{got!r}, eager returns {want!r}"
    if got.dtype != want.dtype or got.shape != want.shape:
        return f"{got.dtype}{list(got.shape)}, eager returns {want.dtype}{list(want.shape)}"
    if not (want.is_floating_point() or want.is_complex()):
        return "" if torch.equal(got, want) else f"{int((got != want).sum())} of {want.numel()} values differ"
    rtol, atol = (DOUBLE_TOL, DOUBLE_TOL) if want.dtype in DOUBLES else (RTOL, ATOL)
    close = torch.isclose(got, want, rtol=rtol, atol=atol, equal_nan=True)
    return "" if bool(close.all()) else f"{int((~close).sum())} of {want.numel()} values are not close"
