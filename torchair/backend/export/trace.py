"""Trace a model as one graph of the IR, together with its arguments and its result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.backends import mha

from torchair.backend.dynamo.aot import compile_dynamo
from torchair.backend.pipeline.context import CompileFxArgs, Context, Fallbacks
from torchair.backend.pipeline.ir import convert_to_ir, pass_context
from torchair.backend.pipeline.plan import new_context
from torchair.backend.settings.settings import Settings
from torchair.core.diagnostics import Diagnostics
from torchair.core.errors import AirError, NotPossible
from torchair.core.source_location import graph_location
from torchair.core.torch_private.compilers.aot_autograd import BackendCompilerFailed, decisions, dynamo_config
from torchair.core.torch_private.fake.fake_tensors import looked_at, tree_leaves
from torchair.fxgraph.layout import layouts_of
from torchair.fxgraph.symbols import hint, is_symbol
from torchair.ge.graph import AliasResult, ConstantResult, Graph, NumberResult, Result
from torchair.ge.host import Host
from torchair.passes import FX_PASSES, HAND_OVER_PASSES, run

SQUEEZE = torch.ops.aten.squeeze


@dataclass
class TracedModel:
    """One traced call of a model: the graph, its flat arguments, and placeholders for its results.

    The placeholders are uninitialized: nothing was computed, and no user tensor was written.
    """

    graph: Graph
    ctx: Context
    args: list[Any] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)
    result: Any = None
    fakes: dict[int, torch.Tensor] = field(default_factory=dict)
    """The fake tensor of each tensor of the call, by `id`, even if only its metadata was used."""
    facts: list[Any] = field(default_factory=list)
    """Conditions on sizes that tracing assumed, in addition to the guards of the symbols."""


def trace(
    model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], dynamic: bool, settings: Settings
) -> TracedModel:
    """Convert a model that is one graph; raise `NotPossible` for ops without a converter, which other engines
    cannot run.
    """
    found: list[TracedModel] = []
    tensors = [leaf for leaf in tree_leaves((args, dict(kwargs))) if isinstance(leaf, torch.Tensor)]

    def convert(
        gm: fx.GraphModule, inputs: Sequence[Any], settings: Settings, request: CompileFxArgs
    ) -> _RecordingStub:
        if request.buckets is not None:
            raise NotPossible(
                "cannot export a model with gears: a file has fixed or dynamic sizes",
                next="export without set_dim_gears()",
            )
        squeezed = _squeeze_conditions(gm)
        found.append(_convert(gm, inputs, settings, request.arg_names))
        found[-1].fakes = looked_at(found[-1].ctx.info.fake_mode, tensors)
        found[-1].facts = squeezed
        return _RecordingStub(found[-1])

    def backend(gm: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        return compile_dynamo(gm, inputs, settings, {}, convert)

    torch.compiler.reset()
    try:
        # Numbers among the arguments are constants of the graph. By default, Dynamo breaks the graph at
        # recurrent layers, but an export needs a single graph.
        whole = dynamo_config.patch(specialize_float=True, specialize_int=True, allow_rnn=True)
        with torch.no_grad(), whole, decisions() as decided, _plain_attention():
            result = torch.compile(model, backend=backend, fullgraph=True, dynamic=dynamic)(*args, **kwargs)
    except BackendCompilerFailed as error:
        # Raise our own errors without Dynamo's wrapper.
        inner = error.inner_exception
        raise (inner if isinstance(inner, AirError) else error) from None
    finally:
        torch.compiler.reset()
    if not found:
        raise NotPossible(
            "cannot export the model: it has no tensor op, so there is no graph to write",
            next="export a module that computes its outputs from its inputs",
        )
    found[0].result = result
    found[0].facts += decided
    return found[0]


@contextmanager
def _plain_attention() -> Iterator[None]:
    """Trace torch's attention layers as separate ops, instead of the fused op of the inference fast path."""
    own = mha.get_fastpath_enabled()
    mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        mha.set_fastpath_enabled(own)


def _squeeze_conditions(gm: fx.GraphModule) -> list[Any]:
    """Return the condition `size != 1` for each symbolic size that a squeeze did not remove."""
    squeezes = [node for node in gm.graph.nodes if getattr(node.target, "overloadpacket", None) is SQUEEZE]
    found: list[Any] = []
    for node in squeezes:
        shape, dims = node.args[0].meta["val"].shape, node.args[1] if len(node.args) > 1 else None
        asked = range(len(shape)) if dims is None else [dims] if isinstance(dims, int) else dims
        found += [(shape[dim] != 1).node.expr for dim in asked if is_symbol(shape[dim])]
    return found


def _convert(
    gm: fx.GraphModule, inputs: Sequence[Any], settings: Settings, names: tuple[str, ...]
) -> TracedModel:
    degradations = Diagnostics(settings.strict, graph_location(gm))
    request, fallbacks = CompileFxArgs(arg_names=names), Fallbacks(degradations=degradations)
    gm, ctx = new_context(gm, inputs, settings.without_dumps(), request, fallbacks=fallbacks)
    layouts, context = layouts_of(gm), pass_context(ctx)
    run(FX_PASSES, gm, context)
    graph, report = convert_to_ir(gm, ctx, layouts, context)
    if report.fallbacks:
        lacking = dict.fromkeys(f"{r.op}: {r.why} ({r.source})" for r in report.fallbacks)
        raise NotPossible(
            f"cannot export the model: {len(lacking)} of its ops have no converter to the IR",
            got="\n         ".join(lacking),
            next="add a converter with register_fx_node_ge_converter()",
        )
    run(HAND_OVER_PASSES, graph, context)
    return TracedModel(graph, ctx)


class ResultIndex(int):
    """A number that the graph returns, with its index among the results."""

    place: int


class _RecordingStub:
    """Replace the compiled graph while tracing: record the arguments, and return uninitialized results."""

    def __init__(self, traced: TracedModel) -> None:
        self._traced = traced

    @property
    def boxed(self) -> Any:
        return self

    _boxed_call = True

    def fast_path(self, written: bytes) -> None:
        return None

    def __call__(self, args: list[Any]) -> list[Any]:
        traced = self._traced
        traced.args = list(args)
        traced.outputs = [_empty(result, args) for result in traced.graph.results]
        for place, output in enumerate(traced.outputs):
            if isinstance(output, ResultIndex):
                output.place = place
        return list(traced.outputs)


def _empty(result: Result, args: Sequence[Any]) -> Any:
    match result:
        case ConstantResult(value):
            return value
        case AliasResult(_, layout):
            return layout.view(args[result.base], hint)
        case NumberResult(tensor):
            return ResultIndex(hint(tensor.meta.value) if isinstance(tensor.meta, Host) else 0)
        case _:
            meta = result.tensor.meta
            if isinstance(meta, Host):
                return torch.empty(meta.shape, dtype=meta.dtype)
            assert meta is not None, "the results of the graph have been inferred"
            return torch.empty([hint(size) for size in meta.shape], dtype=meta.dtype, device=meta.device)
