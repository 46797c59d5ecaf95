"""The only module that imports torch's private modules: small named functions that the project uses instead.

torch 2.11 to 2.13 differ in places: the difference is handled here, so that nobody else has to know.
"""

# torch's own types describe one of the versions supported here, and leave out much of what is private.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false

from __future__ import annotations

import contextlib
import copyreg
import functools
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import fx
from torch._decomp import decomposition_table
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo import reset as reset_dynamo
from torch._dynamo import utils as dynamo_utils
from torch._dynamo.backends import registry as backends
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.debugging import ExplainWithBackend
from torch._dynamo.backends.registry import register_backend
from torch._dynamo.utils import ReinplaceCounters, ReInplaceTrigger
from torch._dynamo.utils import counters as dynamo_counters
from torch._functorch._aot_autograd.schemas import OutputType, SubclassCreationMeta
from torch._functorch.partitioners import default_partition
from torch._guards import TracingContext, detect_fake_mode, tracing
from torch._higher_order_ops.auto_functionalize import auto_functionalized, auto_functionalized_v2
from torch._inductor import config as inductor_config
from torch._inductor import lowering
from torch._inductor.codecache import cache_dir as inductor_cache_dir
from torch._inductor.codecache import torch_key
from torch._inductor.compile_fx import (
    _recursive_joint_graph_passes,
    compile_fx_inner,
    get_cpp_wrapper_config,
)
from torch._inductor.cpp_builder import get_cpp_compiler
from torch._inductor.cpu_vec_isa import pick_vec_isa
from torch._inductor.cudagraph_utils import BoxedDeviceIndex
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.fx_passes import reinplace as inductor_reinplace
from torch._inductor.fx_passes.post_grad import (
    decompose_auto_functionalized,
    decompose_triton_kernel_wrapper_functional,
    remove_noop_ops,
)
from torch._inductor.fx_passes.reinplace import (
    inplaceable_foreach_ops,
    inplaceable_ops,
)
from torch._inductor.pattern_matcher import PatternMatcherPass, fwd_only, register_replacement
from torch._inductor.utils import BoxedBool
from torch._inductor.virtualized import V
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.autograd import profiler
from torch.fx._graph_pickler import GraphPickler
from torch.fx._graph_pickler import Options as PickleOptions
from torch.fx.experimental.proxy_tensor import make_fx, snapshot_fake
from torch.fx.experimental.symbolic_shapes import (
    GuardOnDataDependentSymNode,
    ShapeEnv,
    free_symbols,
    statically_known_true,
)
from torch.fx.passes.fake_tensor_prop import FakeTensorProp
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._python_dispatch import _disable_current_modes as disable_modes
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.reference import PythonReferenceAnalysis

__all__ = [
    "DATA_ERRORS", "REBASES_WINDOWS", "STORAGE_WRAPPER_USES", "BoxedBool", "BoxedDeviceIndex",
    "ExplainWithBackend", "FakeTensorMode", "HigherOrderOperator", "OpOverload", "OpOverloadPacket",
    "PatternMatcherPass", "PythonReferenceAnalysis", "ReInplaceTrigger", "ReinplaceCounters",
    "ShapeEnv", "TorchDispatchMode", "TracingContext", "V", "aot_autograd", "aot_compilation",
    "argument_names", "auto_functionalized", "auto_functionalized_v2", "backend_names", "borrow_tensor",
    "build_facts", "capturing_getter", "clear_blas_workspaces", "compile_fx_inner", "compiled_callable",
    "decomposition_of", "decomposition_table", "default_partition", "detect_fake_mode", "disable_modes",
    "dump_graph", "dynamo_counters", "dynamo_utils", "enable_python_dispatcher", "end_pool_allocation",
    "fake_tensor_prop", "fake_tracing", "faking", "find_overload", "forget_data_sizes", "free_symbols",
    "fwd_only", "generated_source", "get_cpp_compiler", "get_cpp_wrapper_config", "inductor_cache_dir",
    "inductor_config", "inductor_decompositions", "inductor_reinplace", "is_profiling", "is_unbacked",
    "joint_graph_passes", "known_options", "library_path", "load_graph", "lower_bound",
    "lower_functionalized", "lowering_table", "make_fx", "native_runner", "neg_view", "pick_vec_isa",
    "profiler", "raw_stream_getter", "regenerated_outputs", "register_backend", "register_replacement",
    "remove_noops", "reset_dynamo", "resolve_overload", "same_addresses", "select_decomp_table",
    "snapshot_fake", "stable_cache_keys", "static_input_indices", "statically_known_true", "storage_id",
    "storage_use_count", "symbol_facts", "sympy_interp", "torch_key", "tracing", "tree_flatten",
    "tree_unflatten", "unclaimed_symbols", "unfunctionalized", "with_shape_env", "without_modes",
    "writes_in_place", "written_by_plain_call",
]  # fmt: skip


# Inductor, as codegen uses it


def backend_names() -> dict[str, str]:
    """The names that `torch.compile(backend=...)` knows by now or by an entry point, and whose they are."""
    known = {name: str(getattr(fn, "__module__", "")) for name, fn in backends._COMPILER_FNS.items()}
    return {entry.name: entry.value for entry in entry_points(group="torch_dynamo_backends")} | known


def known_options(options: dict[str, Any]) -> dict[str, Any]:
    """Those Inductor options that this version of torch has."""
    return {name: value for name, value in options.items() if name in inductor_config._config}


@contextlib.contextmanager
def fake_tracing(fake_mode: FakeTensorMode | None) -> Iterator[None]:
    """A compile context of our own: Inductor's caches find the shapes in it, and nobody hears of strides.
    Constants may be real tensors, and there is somebody to ask about symbols even where there are none.
    """
    with contextlib.ExitStack() as patches:
        if fake_mode is not None:
            patches.enter_context(mock.patch.object(fake_mode, "allow_non_fake_inputs", True))
        if fake_mode is not None and fake_mode.shape_env is None:
            patches.enter_context(mock.patch.object(fake_mode, "shape_env", ShapeEnv()))
        patches.enter_context(tracing(TracingContext(fake_mode)))
        patches.enter_context(V.set_fake_mode(fake_mode))
        yield


def memory_format_named(name: str) -> torch.memory_format:
    """`contiguous_format` and its like."""
    return getattr(torch, name)


def _reduce_memory_format(kind: torch.memory_format) -> tuple[Any, ...]:
    return memory_format_named, (str(kind).removeprefix("torch."),)


@contextlib.contextmanager
def stable_cache_keys() -> Iterator[None]:
    """Inside, another program finds what this one puts into Inductor's cache. The key is a pickle with memory
    formats in it, and pickle writes such a value as `torch.contiguous_format` of whatever module it finds
    first that has a `torch`: a module of the user's, if that was the first to import torch. One build at a
    time.
    """
    copyreg.pickle(torch.memory_format, _reduce_memory_format)
    try:
        yield
    finally:
        copyreg.dispatch_table.pop(torch.memory_format, None)


def joint_graph_passes(gm: fx.GraphModule, device: torch.device | None) -> fx.GraphModule:
    """The passes Inductor runs on a whole graph before `compile_fx_inner`."""
    takes_device = "input_device" in inspect.signature(_recursive_joint_graph_passes).parameters
    return _recursive_joint_graph_passes(gm, **({"input_device": device} if takes_device else {}))


def writes_in_place(target: Any) -> bool:
    """Does this op write into an argument, or may Inductor make it do so?"""
    if isinstance(target, OpOverload) and target._schema.is_mutable:
        return True
    if isinstance(target, HigherOrderOperator):
        return True
    return target in inplaceable_ops or target in inplaceable_foreach_ops


@contextlib.contextmanager
def aot_compilation() -> Iterator[None]:
    """Inside, Inductor makes a shared library instead of a Python wrapper."""
    # Before 2.13, `compile_fx_inner` leaves these options (compiled kernels are kept, …) to its caller.
    with V.set_aot_compilation(True), inductor_config.patch(get_cpp_wrapper_config()):
        yield


def native_runner(path: Path, instances: int, device: torch.device) -> Any:
    """The loader of an AOTInductor library; `instances` calls can run at the same time."""
    if device.type == "cpu":
        return torch._C._aoti.AOTIModelContainerRunnerCpu(str(path), instances)
    if device.type == "cuda":
        cls = torch._C._aoti.AOTIModelContainerRunnerCuda
        return cls(str(path), instances, f"cuda:{device.index or 0}", str(path.parent))
    raise LookupError(f"no AOTInductor runner for {device.type}")


def borrow_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor over the same memory that does not keep that memory alive."""
    storage = tensor.untyped_storage()
    borrowed = torch._C._construct_storage_from_data_pointer(
        storage.data_ptr(), tensor.device, storage.nbytes()
    )
    empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return empty.set_(borrowed, tensor.storage_offset(), tensor.size(), tensor.stride())


def compiled_callable(compiled: Any) -> Callable[[list[Any]], Sequence[Any]]:
    """The generated function inside Inductor's result, without the bookkeeping around it."""
    return getattr(compiled, "current_callable", None) or compiled


def generated_source(compiled: Any) -> str:
    """The text of the wrapper that Inductor generated; empty where it generated none."""
    return getattr(compiled, "source_code", "") or ""


def library_path(compiled: Any) -> str:
    """The shared library that `compile_fx_inner` made inside `aot_compilation`."""
    return compiled.filename if hasattr(compiled, "filename") else compiled


def _fused_bernoulli(self: torch.Tensor, p: float = 0.5, *, generator: Any = None) -> Any:
    """A comparison that fuses with its neighbours, where Inductor would call the op on the CPU."""
    if generator is not None:
        return NotImplemented
    return (torch.rand_like(self, dtype=torch.float32) < p).to(self.dtype)


def _var_mean(x: torch.Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    """Inductor makes the mean of nothing 0 where the variance is asked for at the same time."""
    if 0 not in [x.shape[axis] for axis in dim or range(x.dim()) if isinstance(x.shape[axis], int)]:
        return NotImplemented
    variance = torch.ops.aten.var.correction(x, dim, correction=correction, keepdim=keepdim)
    return variance, torch.ops.aten.mean.dim(x, dim, keepdim)


def _masked_scatter(x: torch.Tensor, mask: torch.Tensor, source: torch.Tensor) -> Any:
    """Of an empty source Inductor's code for a GPU reads the first element all the same."""
    if any(isinstance(size, int) and size == 0 for size in source.shape):
        return torch.ops.aten.clone.default(x.expand(torch.broadcast_shapes(x.shape, mask.shape)))
    return _INDUCTOR_MASKED_SCATTER(x, mask, source)


_INDUCTOR_MASKED_SCATTER: Callable[..., Any] = select_decomp_table()[torch.ops.aten.masked_scatter.default]


def inductor_decompositions() -> dict[Any, Callable[..., Any]]:
    """Inductor's table, without what it computes wrongly."""
    return {
        **select_decomp_table(),
        torch.ops.aten.var_mean.correction: _var_mean,
        torch.ops.aten.masked_scatter.default: _masked_scatter,
    }


def lowering_table(kind: str) -> dict[Any, Callable[..., Any]]:
    """Inductor's decompositions for a code generator. What is run op by op stays whole: torch's own kernels,
    with their rounding and their random numbers.
    """
    if kind not in ("inductor", "native"):
        return {}
    table = inductor_decompositions()
    if not inductor_config.fallback_random:
        table[torch.ops.aten.bernoulli.p] = _fused_bernoulli
    return table


REBASES_WINDOWS = "graph_input_storage_offsets" in inspect.getsource(lowering.as_strided)
"""Does Inductor know that the pointer to an input includes its offset, while `as_strided` counts without?"""


def lower_bound(value: torch.SymInt) -> int:
    """The least value the shape environment allows for `value`."""
    bound = value.node.shape_env.bound_sympy(value.node.expr).lower
    return int(bound) if bound.is_integer and bound.is_finite else -1


def build_facts() -> list[str]:
    """What shapes Inductor's code besides the graph: its sources and options, the processor, the GPU."""
    options = inductor_config.save_config_portable()
    gpu = torch.cuda.get_device_properties(torch.cuda.current_device()) if torch.cuda.is_available() else None
    machine = f"{pick_vec_isa()} {gpu} {torch.get_num_threads()} {get_cpp_compiler()}"
    return [torch_key().hex(), str(sorted(options.items())), machine]


def symbol_facts(fake_mode: FakeTensorMode | None) -> list[str]:
    """Each symbol with its hint and range: Inductor decides by them."""
    env = fake_mode.shape_env if fake_mode is not None else None
    if env is None:
        return []
    hints = env.backed_var_to_val if hasattr(env, "backed_var_to_val") else env.var_to_val
    return sorted(f"{symbol} {hints.get(symbol)} {bounds}" for symbol, bounds in env.var_to_range.items())


# Capture: what a recording needs to know about storages, streams and the allocator


def storage_id(tensor: torch.Tensor) -> int:
    """Identity of the tensor's storage object; equal for views of one another, fake tensors included."""
    return tensor.untyped_storage()._cdata


neg_view: Callable[[torch.Tensor], torch.Tensor] = torch._neg_view
"""The tensor, negated when it is read."""

storage_use_count: Callable[[int], int] = torch._C._storage_Use_Count
"""How many references a storage (by its `storage_id`) has: tensors, views, numpy arrays, autograd."""


def _wrapper_uses() -> int:
    probe = torch.empty(1)
    return torch._C._storage_Use_Count(storage_id(probe)) - 1


STORAGE_WRAPPER_USES = _wrapper_uses()
"""References that a storage's Python object adds once somebody asked for it; it then stays for good."""


def _same_addresses(tensors: list[Any], addresses: Sequence[int | None], indices: Sequence[int]) -> bool:
    return all(tensors[index].data_ptr() == addresses[index] for index in indices)


same_addresses: Callable[[list[Any], list[int | None], list[int]], bool] = getattr(
    torch._C, "_tensors_data_ptrs_at_indices_equal", _same_addresses
)
"""Are the tensors at these indices where `addresses`, a list as long as `tensors`, says? In C++ where torch
was built with CUDA.
"""


def raw_stream_getter(device_type: str) -> Callable[[int], int] | None:
    """A quick function from device index to the current stream's handle; None where there is no such call."""
    return _raw_call(device_type, "getCurrentRawStream")


def capturing_getter(device_type: str) -> Callable[[], bool] | None:
    """A quick function that tells whether the current stream is being captured; None where there is none."""
    return _raw_call(device_type, "isCurrentStreamCapturing")


def _raw_call(device_type: str, name: str) -> Any:
    """A device's own C call, without the Python around it; None where there is none."""
    owner = torch._C if device_type == "cuda" else getattr(getattr(torch, device_type, None), "_C", None)
    return getattr(owner, f"_{device_type}_{name}", None)


def clear_blas_workspaces(device_type: str) -> None:
    """Let go of the matmul workspaces that hang on streams: a recording then takes its own from its pool."""
    clear = getattr(torch._C, f"_{device_type}_clearCublasWorkspaces", None)
    if clear is not None:
        clear()


def end_pool_allocation(device_type: str, index: int, pool: Any) -> None:
    """After a capture that broke off: allocations stop going to its pool (they may have stopped already)."""
    end = getattr(torch._C, f"_{device_type}_endAllocateToPool", None)
    if end is not None:
        with contextlib.suppress(RuntimeError):
            end(index, pool)


def is_profiling() -> bool:
    """Is a profiler on? A named range costs microseconds even when nobody listens."""
    return profiler._is_profiler_enabled


# Symbols: sizes as nodes of a graph


@contextlib.contextmanager
def faking(fake_mode: FakeTensorMode) -> Iterator[None]:
    """Run under a fake mode. Symbolic sizes need torch's Python dispatcher too: some composite ops in C++
    refuse them.
    """
    symbolic = fake_mode.shape_env is not None
    with fake_mode, enable_python_dispatcher() if symbolic else contextlib.nullcontext():
        yield


DATA_ERRORS = (DataDependentOutputException, DynamicOutputShapeException, GuardOnDataDependentSymNode)
"""What fake tensors raise where only real data could answer."""


# Its decomposition returns attention weights in place of the log-sum-exp, and loses the fused kernel.
_KEPT_WHOLE = (torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,)


def decomposition_of(op: Any) -> Callable[..., Any] | None:
    """How torch itself takes an operator apart: its registered decomposition, or its composite definition."""
    if op in _KEPT_WHOLE:
        return None
    found = decomposition_table.get(op)
    if found is None and isinstance(op, torch._ops.OpOverload) and op._can_decompose():
        found = op.decompose
    return found


def is_unbacked(number: Any) -> bool:
    """A symbolic size that only the data decides."""
    return isinstance(number, torch.SymInt | torch.SymFloat | torch.SymBool) and not number.node.has_hint()


# FX passes of Inductor that we use as they are


def fake_tensor_prop(gm: fx.GraphModule, fake_mode: FakeTensorMode | None, inputs: Sequence[Any]) -> None:
    """Compute `meta["val"]` of every node anew; some composite ops in C++ refuse symbols, as in `faking`."""
    symbolic = fake_mode is not None and fake_mode.shape_env is not None
    with enable_python_dispatcher() if symbolic else contextlib.nullcontext():
        FakeTensorProp(gm, mode=fake_mode).propagate_dont_convert_inputs(*inputs)


def remove_noops(gm: fx.GraphModule, fake_mode: FakeTensorMode | None) -> None:
    """Inductor's no-op remover."""
    with V.set_fake_mode(fake_mode):
        remove_noop_ops(gm.graph)


def lower_functionalized(gm: fx.GraphModule, fake_mode: FakeTensorMode | None) -> None:
    """Higher-order nodes around mutating ops become the op itself, behind the clones that `meta` asks for."""
    with V.set_fake_mode(fake_mode):
        decompose_auto_functionalized(gm.graph)
        decompose_triton_kernel_wrapper_functional(gm.graph)


def find_overload(name: str) -> OpOverload | None:
    """`npu.scatter_update_.default` -> the operator, or None where no library has defined it."""
    namespace, packet, overload = name.split(".")
    found = getattr(getattr(torch.ops, namespace), packet, None)
    return getattr(found, overload, None)


def resolve_overload(packet: OpOverloadPacket, args: Sequence[Any], kwargs: dict[str, Any]) -> OpOverload:
    """The overload of a packet that a call with these (real) arguments means."""
    name = torch._C._jit_resolve_packet(packet._qualified_op_name, *args, **kwargs)
    return getattr(packet, name or "default")


# AOTAutograd


def static_input_indices(count: int) -> tuple[int, ...]:
    """Which inputs of the graph being compiled have a constant address: parameters, buffers, marked
    tensors.
    """
    context = TracingContext.try_get()
    if context is None or context.fw_metadata is None:
        return ()
    return tuple(index for index in context.fw_metadata.static_input_indices if index < count)


def argument_names(gm: fx.GraphModule) -> tuple[str, ...]:
    """What the user calls each input of a graph of Dynamo's: `x`, `kv[0]`, `layers.0.weight`."""
    graph = getattr(gm, "graph", None)
    inputs = graph.find_nodes(op="placeholder") if isinstance(graph, fx.Graph) else ()
    sources = [getattr(node, "_dynamo_source", None) for node in inputs]
    names = [getattr(source, "name", "") for source in sources]
    texts = [str(name() if callable(name) else name) for name in names]
    plain = [re.sub(r"\._(?:modules|parameters|buffers)\['([^']+)'\]", r".\1", text) for text in texts]
    return tuple(re.sub(r"^L\['([^']+)'\]", r"\1", text).removeprefix("self.") for text in plain)


def regenerated_outputs(count: int) -> dict[int, int]:
    """Outputs of the forward graph being compiled that AOTAutograd makes anew as views of inputs, and those
    inputs. Of what the graph returns there sizes, strides and offset are asked, and where these are symbols
    also by which views it came from its base.
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


@contextlib.contextmanager
def with_shape_env(fake_mode: FakeTensorMode) -> Iterator[None]:
    """Some ops (loops) ask a fake mode for its symbols even where all sizes are numbers: lend it a set."""
    own = fake_mode.shape_env
    fake_mode.shape_env = own if own is not None else ShapeEnv()
    try:
        yield
    finally:
        fake_mode.shape_env = own


def dump_graph(gm: fx.GraphModule) -> bytes:
    """A graph of ATen calls with fake values, for another process."""
    return GraphPickler.dumps(gm, PickleOptions(ops_filter=None))


def load_graph(data: bytes, fake_mode: FakeTensorMode) -> fx.GraphModule:
    """What `dump_graph` wrote; its values belong to `fake_mode`."""
    loaded = GraphPickler.loads(data, fake_mode)
    assert isinstance(loaded, fx.GraphModule), "`dump_graph` wrote a graph module"
    return loaded


def written_by_plain_call(count: int) -> tuple[int, ...] | None:
    """Inputs that the inference graph being compiled writes, if calling it with `count` inputs of Dynamo's
    graph takes no more than raising their versions. None if AOTAutograd has work to do around a call: inputs
    merged or added, outputs that are views of inputs, subclasses, autocast, …
    """
    context = TracingContext.try_get()
    facts = context.fw_metadata if context is not None else None
    if facts is None or len(facts.input_info) != count or torch._C._is_any_autocast_enabled():
        return None
    metas = (*facts.subclass_inp_meta, *facts.subclass_fw_graph_out_meta)
    around = (
        facts.num_mutated_inp_runtime_indices,
        facts.num_outputs_aliased,
        facts.num_intermediate_bases,
        facts.dynamic_outputs,
        facts.tokens,
        facts.grad_enabled_mutation is not None,
        getattr(facts, "num_graphsafe_rng_states", 0),
        any(type(meta) is SubclassCreationMeta for meta in metas),
    )
    return None if any(around) else tuple(facts.mutated_graph_handled_indices_seen_by_autograd)


def without_modes(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, run outside of every dispatch mode: tensors it makes are real, whatever is being
    traced.
    """

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with disable_modes():
            return function(*args, **kwargs)

    return run


@contextlib.contextmanager
def unclaimed_symbols(fake_mode: FakeTensorMode) -> Iterator[None]:
    """Inside, data-dependent sizes may be made that no traced node will claim: the next trace does not miss
    them.
    """
    env = fake_mode.shape_env
    with env.ignore_fresh_unbacked_symbols() if env is not None else contextlib.nullcontext():
        yield


def forget_data_sizes(fake_mode: FakeTensorMode) -> None:
    """Fake tensors remember the symbol of their `nonzero` or `item`; from here on each gets a new one, with
    a node that makes it.
    """
    fake_mode.epoch += 1


def parse_schema(text: str) -> Any:
    """An operator's schema from its text: arguments with names, defaults and what they alias."""
    return torch._C.parse_schema(text)


def unfunctionalized(twin: Callable[..., Any]) -> Callable[..., Any]:
    """A functionalisation kernel that calls `twin` on the plain tensor: nothing is cloned."""

    def run(input: torch.Tensor, *rest: Any) -> None:
        torch._sync(input)
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.Functionalize)):
            twin(torch._from_functional_tensor(input), *rest)

    return run
