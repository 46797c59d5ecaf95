"""A model as one graph of the IR, with what it was called with and what it returned around the graph."""

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
    """One call of a model: the graph, its flat arguments, and the results that stood for those of the graph.
    They are empty: nothing was computed, and nothing of the user's was written.
    """

    graph: Graph
    ctx: Context
    args: list[Any] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)
    result: Any = None
    fakes: dict[int, torch.Tensor] = field(default_factory=dict)
    """What stood for a tensor of the call, by its identity: read by the graph, or only looked at."""
    facts: list[Any] = field(default_factory=list)
    """Conditions on sizes that tracing took for granted, beside the guards of the symbols."""


def trace(
    model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], dynamic: bool, settings: Settings
) -> TracedModel:
    """Convert a model that is one graph. What has no converter is refused: no other engine knows it."""
    found: list[TracedModel] = []
    tensors = [leaf for leaf in tree_leaves((args, dict(kwargs))) if isinstance(leaf, torch.Tensor)]

    def convert(
        gm: fx.GraphModule, inputs: Sequence[Any], settings: Settings, request: CompileFxArgs
    ) -> _Standing:
        if request.buckets is not None:
            raise NotPossible(
                "a file has fixed sizes or any, and no gears", next="export without set_dim_gears"
            )
        squeezed = _not_one(gm)
        found.append(_converted(gm, inputs, settings, request.arg_names))
        found[-1].fakes = looked_at(found[-1].ctx.info.fake_mode, tensors)
        found[-1].facts = squeezed
        return _Standing(found[-1])

    def backend(gm: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        return compile_dynamo(gm, inputs, settings, {}, convert)

    torch.compiler.reset()
    try:
        # Numbers among the arguments are constants of the graph. Dynamo leaves recurrent layers out of its
        # graphs unless told otherwise, and here all must be in one.
        whole = dynamo_config.patch(specialize_float=True, specialize_int=True, allow_rnn=True)
        with torch.no_grad(), whole, decisions() as decided, _plain_attention():
            result = torch.compile(model, backend=backend, fullgraph=True, dynamic=dynamic)(*args, **kwargs)
    except BackendCompilerFailed as error:
        # What is said here is said to the user as it is.
        inner = error.inner_exception
        raise (inner if isinstance(inner, AirError) else error) from None
    finally:
        torch.compiler.reset()
    if not found:
        raise NotPossible("the model has no op of a tensor: there is no graph to write")
    found[0].result = result
    found[0].facts += decided
    return found[0]


@contextmanager
def _plain_attention() -> Iterator[None]:
    """Layers of torch as ops of their own, not as the one fused op that they are in inference."""
    own = mha.get_fastpath_enabled()
    mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        mha.set_fastpath_enabled(own)


def _not_one(gm: fx.GraphModule) -> list[Any]:
    """A size of 1 would be squeezed away, and was not."""
    squeezes = [node for node in gm.graph.nodes if getattr(node.target, "overloadpacket", None) is SQUEEZE]
    found: list[Any] = []
    for node in squeezes:
        shape, dims = node.args[0].meta["val"].shape, node.args[1] if len(node.args) > 1 else None
        asked = range(len(shape)) if dims is None else [dims] if isinstance(dims, int) else dims
        found += [(shape[dim] != 1).node.expr for dim in asked if is_symbol(shape[dim])]
    return found


def _converted(
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
            f"{len(lacking)} ops of the model are no ops of the IR, and no other engine knows them",
            got="\n         ".join(lacking),
            next="register_fx_node_ge_converter gives an op a converter",
        )
    run(HAND_OVER_PASSES, graph, context)
    return TracedModel(graph, ctx)


class ResultIndex(int):
    """A number that the graph returns: its place among the results."""

    place: int


class _Standing:
    """Stands for the compiled graph: gives results of the right form, and keeps what it was called with."""

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
            assert meta is not None, "what is returned has been inferred"
            return torch.empty([hint(size) for size in meta.shape], dtype=meta.dtype, device=meta.device)
