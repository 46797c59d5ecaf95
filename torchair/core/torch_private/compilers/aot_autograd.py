"""Dynamo and AOTAutograd: backends, contexts, and their facts about the graph being compiled."""

# torch's own types describe one of the versions supported here, and leave out much of what is private.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false

from __future__ import annotations

import contextlib
import copy
import inspect
import operator
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import entry_points
from types import CodeType
from typing import TYPE_CHECKING, Any

import sympy
import torch
from torch import fx
from torch._C._dynamo import eval_frame
from torch._dynamo import config as dynamo_config
from torch._dynamo import convert_frame, pgo
from torch._dynamo import reset as reset_dynamo
from torch._dynamo import utils as dynamo_utils
from torch._dynamo.backends import registry as backends
from torch._dynamo.backends.registry import register_backend
from torch._dynamo.exc import BackendCompilerFailed, TensorifyScalarRestartAnalysis
from torch._dynamo.guards import DeletedGuardManagerWrapper
from torch._dynamo.symbolic_convert import TensorifyState
from torch._dynamo.utils import ReinplaceCounters, ReInplaceTrigger
from torch._dynamo.utils import counters as dynamo_counters
from torch._dynamo.variables.tensor import SymNodeVariable
from torch._functorch import config as functorch_config
from torch._functorch._aot_autograd.descriptors import SubclassGetAttrAOTInput, SubclassGetAttrAOTOutput
from torch._functorch._aot_autograd.logging_utils import setup_stacktrace_preservation_hooks
from torch._functorch._aot_autograd.schemas import OutputType, SubclassCreationMeta
from torch._guards import TracingContext, tracing
from torch.utils.checkpoint import CheckpointPolicy

from torchair.core.diagnostics import Diagnostics
from torchair.core.lazy_module import LazyModule
from torchair.core.source_location import source_of
from torchair.core.torch_private.operators.schemas import OpOverload

if TYPE_CHECKING:
    from torch._dynamo.backends.common import aot_autograd
    from torch._dynamo.backends.debugging import ExplainWithBackend

__all__ = [
    "BackendCompilerFailed",
    "ExplainWithBackend",
    "FixedNumbers",
    "ReInplaceTrigger",
    "ReinplaceCounters",
    "TracingContext",
    "aot_autograd",
    "argument_names",
    "backend_names",
    "compile_apart",
    "decisions",
    "default_partition",
    "dynamo_counters",
    "dynamo_utils",
    "is_autocasting",
    "isolated_dynamo",
    "keep_source_lines",
    "keeping_checkpoints",
    "mark_dynamic",
    "recompute_checkpoints",
    "regenerated_outputs",
    "register_backend",
    "reset_dynamo",
    "static_input_indices",
    "take_over_sources",
    "tracing",
    "work_around_call",
    "written_inputs",
]


_partitioners: Any = LazyModule("torch._functorch.partitioners")
_remat: Any = LazyModule(
    "torch._functorch._activation_checkpointing.remat_using_tags_for_fwd_loss_bwd_graph_pass"
)
_LATE = {
    "ExplainWithBackend": "torch._dynamo.backends.debugging",
    "aot_autograd": "torch._dynamo.backends.common",
}
"""Names in modules that are loaded at the first compile."""


def __getattr__(name: str) -> Any:
    if name in _LATE:
        return getattr(LazyModule(_LATE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def default_partition(joint: fx.GraphModule, inputs: Any, **options: Any) -> Any:
    """Run torch's default partitioner with two changes. An op that prints a tensor of the forward runs only
    in the forward, although the backward has it, too. So checkpointed values around such an op are not
    recomputed.
    """
    effects = [node for node in joint.graph.nodes if _is_effect(node.target) and node.is_impure()]
    for node in effects:
        if node.all_input_nodes:  # torch places others, such as the ends of scopes
            # Not all nodes of the backward have a tag.
            is_early = node.meta.get("partitioner_tag") == "is_forward"
            node.meta["partitioner_tag"] = f"must_be_in_{'forward' if is_early else 'backward'}"
    asked = [node for node in joint.graph.nodes if effects and _partitioners.must_recompute(node)]
    if asked:
        why = f"{effects[0].target} would run twice"
        Diagnostics().add(
            f"activation checkpointing has no effect, values are kept and not recomputed: {why}",
            at=source_of(effects[0]),
        )
    for node in asked:
        del node.meta["recompute"]
    return _partitioners.default_partition(joint, inputs, **options)


def _is_effect(target: Any) -> bool:
    """Return whether the op is not torch's and has no results, so that it is only called for its effect."""
    is_other = isinstance(target, OpOverload) and target.namespace not in ("aten", "prims", "profiler")
    return is_other and not target._schema.returns


class FixedNumbers:
    """Floats for which AOTAutograd asks Dynamo to trace again, with their values in the graph."""

    Asked = TensorifyScalarRestartAnalysis

    @staticmethod
    def now() -> tuple[str, ...]:
        """Return the floats that were requested in this compile."""
        return tuple(sorted(TensorifyState.force_specializations))

    @staticmethod
    def ask(names: Iterable[str]) -> None:
        """Request these floats, unless they were requested before."""
        new = set(names) - TensorifyState.force_specializations
        for name in new:
            TensorifyState.specialize(name)
        if new:
            raise TensorifyScalarRestartAnalysis


def is_autocasting() -> bool:
    """Return whether autocast is on. Call it before AOTAutograd starts, which disables autocast around its
    compilers.
    """
    return torch._C._is_any_autocast_enabled()


@contextlib.contextmanager
def decisions() -> Iterator[list[Any]]:
    """Yield the conditions on sizes on which the model's Python code branches while Dynamo traces it.
    Dynamo's guards omit those that it decides by itself: that no size is 0 or 1.
    """
    found: list[Any] = []
    own = SymNodeVariable.evaluate_expr

    def evaluate(variable: Any, *args: Any, **kwargs: Any) -> Any:
        value = own(variable, *args, **kwargs)
        if isinstance(value, bool):
            condition = _condition(variable)
            found.append(condition if value else sympy.Not(condition, evaluate=False))
        return value

    SymNodeVariable.evaluate_expr = evaluate
    try:
        yield found
    finally:
        SymNodeVariable.evaluate_expr = own


_RELATIONS = {
    operator.eq: sympy.Eq,
    operator.ne: sympy.Ne,
    operator.gt: sympy.Gt,
    operator.ge: sympy.Ge,
    operator.lt: sympy.Lt,
    operator.le: sympy.Le,
}


def _condition(variable: SymNodeVariable) -> Any:
    """Return the condition as the model has it. Symbols are assumed to be positive, so torch simplifies such
    conditions away.
    """
    node = variable.as_proxy().node
    if variable.sym_num.node.expr.free_symbols or node.target not in _RELATIONS:
        return variable.sym_num.node.expr
    values = [arg.meta["example_value"] if isinstance(arg, fx.Node) else arg for arg in node.args]
    sides = [value.node.expr if isinstance(value, torch.SymInt) else value for value in values]
    return _RELATIONS[node.target](*sides, evaluate=False)


def backend_names() -> dict[str, str]:
    """Return the backends that `torch.compile(backend=...)` knows by registration or entry point, with their
    modules.
    """
    known = {name: str(getattr(fn, "__module__", "")) for name, fn in backends._COMPILER_FNS.items()}
    return {entry.name: entry.value for entry in entry_points(group="torch_dynamo_backends")} | known


def static_input_indices(count: int) -> tuple[int, ...]:
    """Return the indices of inputs of the graph being compiled that have constant addresses: parameters,
    buffers, marked tensors.
    """
    context = TracingContext.try_get()
    if context is None or context.fw_metadata is None:
        return ()
    return tuple(index for index in context.fw_metadata.static_input_indices if index < count)


def argument_names(gm: fx.GraphModule) -> tuple[str, ...]:
    """Return the user's names of the inputs of a Dynamo graph: `x`, `kv[0]`, `layers.0.weight`."""
    graph = getattr(gm, "graph", None)
    inputs = graph.find_nodes(op="placeholder") if isinstance(graph, fx.Graph) else ()
    sources = [getattr(node, "_dynamo_source", None) for node in inputs]
    names = [getattr(source, "name", "") for source in sources]
    texts = [str(name() if callable(name) else name) for name in names]
    return tuple(map(module_title, texts))


def mark_dynamic(tensor: torch.Tensor, dim: int) -> None:
    """Make Dynamo treat this size as a symbol."""
    torch._dynamo.mark_dynamic(tensor, dim)


def module_title(source: str) -> str:
    """Return the user's name of a value of Dynamo: `a` for `L['self']._modules['a']`."""
    plain = re.sub(r"\._(?:modules|parameters|buffers)\['([^']+)'\]", r".\1", source)
    return re.sub(r"^L\['([^']+)'\]", r"\1", plain).removeprefix("self.")


def take_over_sources(made: fx.GraphModule, gm: fx.GraphModule) -> None:
    """Copy the sources of the inputs from a Dynamo graph to a graph with the same inputs in the same order.
    AOTAutograd uses them to find the parameters.
    """
    made.meta.update(gm.meta)
    if hasattr(gm, "_param_name_to_source"):
        made._param_name_to_source = gm._param_name_to_source
    pairs = zip(*(graph.graph.find_nodes(op="placeholder") for graph in (made, gm)), strict=True)
    for new, old in pairs:
        if hasattr(old, "_dynamo_source"):
            new._dynamo_source = old._dynamo_source


def keep_source_lines(result: torch.Tensor) -> None:
    """Trace the backward of this tensor with the source lines of the forward calls."""
    setup_stacktrace_preservation_hooks([result.grad_fn] if result.grad_fn is not None else [])


_RECOMPUTES = "remat_using_tags_for_fwd_loss_bwd_graph"


@contextlib.contextmanager
def keeping_checkpoints() -> Iterator[None]:
    """Keep AOTAutograd from rewriting graphs with a backward for checkpoints; `recompute_checkpoints` does
    this instead. torch would reject graphs that draw random numbers, attention among them.
    """
    patch = {_RECOMPUTES: False} if hasattr(functorch_config, _RECOMPUTES) else {}
    with functorch_config.patch(patch) if patch else contextlib.nullcontext():
        yield


def recompute_checkpoints(gm: fx.GraphModule) -> tuple[fx.GraphModule, str]:
    """Recompute checkpointed values in a graph that contains its backward. Random numbers are kept, because
    recomputed ones would differ. Return the graph, and the reason if this was not possible.
    """
    asked = [node for node in gm.graph.nodes if _partitioners.must_recompute(node)]
    if not asked:
        return gm, ""
    try:
        recompute = _remat.remat_using_tags_for_fwd_loss_bwd_graph
    except ImportError:
        return gm, f"torch {torch.__version__} cannot recompute values in a graph that contains its backward"
    for node in asked:
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            node.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    try:
        return recompute(gm), ""
    except RuntimeError as error:
        return gm, str(error)


def regenerated_outputs(count: int) -> dict[int, int]:
    """Return the outputs of the forward graph being compiled that AOTAutograd creates anew as views of
    inputs, and those inputs. AOTAutograd reads sizes, strides and offset of these outputs and, if those are
    symbols, also their views.
    """
    context = TracingContext.try_get()
    facts = context.fw_metadata if context is not None else None
    if facts is None or len(facts.input_info) != count:
        return {}
    first = facts.num_mutated_inp_runtime_indices
    return {
        first + place: info.base_idx
        for place, info in enumerate(facts.output_info)
        if info.output_type is OutputType.alias_of_input and info.base_idx is not None
    }


def work_around_call(
    gm: fx.GraphModule, count: int
) -> tuple[dict[int, set[int]], dict[int, tuple[int, bool, bool]]] | None:
    """Return what AOTAutograd does with the outputs of the inference graph being compiled: sizes to mark as
    dynamic, and outputs to create anew as views of inputs (or to return the inputs). Return None if it does
    more than that around a call with `count` inputs of Dynamo's graph.
    """
    context = TracingContext.try_get()
    facts = context.fw_metadata if context is not None else None
    if facts is None or len(facts.input_info) != count or _has_subclasses(gm):
        return None
    metas = (*facts.subclass_inp_meta, *facts.subclass_fw_graph_out_meta)
    more = (
        facts.num_mutated_inp_runtime_indices,
        facts.num_intermediate_bases,
        facts.tokens,
        facts.grad_enabled_mutation is not None,
        getattr(facts, "num_graphsafe_rng_states", 0),
        any(type(meta) is SubclassCreationMeta for meta in metas),
    )
    rows = dict(enumerate(facts.output_info))
    kinds = (*_PLAIN_OUTPUTS, OutputType.alias_of_input, OutputType.is_input)
    if any(more) or any(row.output_type not in kinds for row in rows.values()):
        return None
    # AOTAutograd replays views. `as_strided` has different gradients if elements of the input share memory.
    if any(row.output_type is OutputType.alias_of_input and _has_history(row) for row in rows.values()):
        return None
    marks = {place: set(row.dynamic_dims) for place, row in rows.items() if row.dynamic_dims}
    views = {
        place: (int(row.base_idx or 0), row.output_type is OutputType.is_input, row.requires_grad)
        for place, row in rows.items()
        if row.output_type not in _PLAIN_OUTPUTS
    }
    return marks, views


def _has_subclasses(gm: fx.GraphModule) -> bool:
    """Return whether an input or output of this AOTAutograd graph is a part of a tensor subclass. The
    metadata then describes the parts, not the subclass tensor.
    """
    ends = [node.meta.get("desc") for node in gm.graph.find_nodes(op="placeholder")]
    ends += gm.graph.output_node().meta.get("desc") or ()
    return any(isinstance(end, SubclassGetAttrAOTInput | SubclassGetAttrAOTOutput) for end in ends)


def _has_history(info: Any) -> bool:
    """Return whether gradients flow through a view. torch 2.11 does not distinguish views created under
    `no_grad`.
    """
    return getattr(info, "requires_grad_for_backward", info.requires_grad)


_PLAIN_OUTPUTS = (OutputType.non_alias, OutputType.unsafe_view_alias, OutputType.custom_function_view)


def written_inputs() -> tuple[int, ...]:
    """Return the indices of inputs whose versions the inference graph being compiled must bump."""
    facts: Any = TracingContext.get().fw_metadata
    return tuple(facts.mutated_graph_handled_indices_seen_by_autograd)


@contextlib.contextmanager
def isolated_dynamo(backend: Callable[..., Any]) -> Iterator[None]:
    """Forget everything that is compiled with this backend in this context, and nothing else. Earlier
    compilations, the sizes that Dynamo has seen, and its counters are restored. On code that was also
    compiled elsewhere, entries remain that never match.
    """
    sizes, counters = pgo._CODE_STATE, copy.deepcopy(dict(dynamo_counters))
    pgo._CODE_STATE = defaultdict(pgo.CodeState)
    try:
        # Entries of other backends count, too.
        with dynamo_config.patch(recompile_limit=MANY, accumulated_recompile_limit=MANY):
            yield
    finally:
        pgo._CODE_STATE = sizes
        dynamo_counters.clear()
        dynamo_counters.update(counters)
        for seen in list(convert_frame.input_codes.seen):
            code = seen()
            if code is not None:
                _forget(code, backend)


MANY = 1 << 20


def compile_apart(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Call `torch.compile`, with a separate cache if this version of torch supports it."""
    has_own = "isolate_recompiles" in inspect.signature(torch.compile).parameters
    apart: dict[str, Any] = options | ({"isolate_recompiles": True} if has_own else {})
    return torch.compile(function, **apart)


def _forget(code: CodeType, backend: Callable[..., Any]) -> None:
    """Drop the entries of a backend. Dynamo marks single entries as dead, and frees all entries of a code
    object together.
    """
    for entry in eval_frame._debug_get_cache_entry_list(code):
        if _innermost(entry.backend) is backend:
            state: Any = entry.guard_manager.extra_state
            state.invalidate(entry, DeletedGuardManagerWrapper("it was compared"))
    left = eval_frame._debug_get_cache_entry_list(code)
    if left and all(isinstance(entry.guard_manager, DeletedGuardManagerWrapper) for entry in left):
        eval_frame.reset_code(code)


def _innermost(backend: Any) -> Any:
    """Return the user's function without Dynamo's wrappers."""
    while True:
        inner = getattr(backend, "_torchdynamo_orig_backend", None) or getattr(backend, "compiler_fn", None)
        if inner is None:
            return backend
        backend = inner
