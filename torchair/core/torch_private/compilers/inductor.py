"""Inductor: its compiler, options, decompositions, passes and caches. What takes a second to import is loaded
when it is used: programs that were compiled before need none of it.
"""

# torch's own types describe one of the versions supported here, and leave out much of what is private.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false

from __future__ import annotations

import contextlib
import copyreg
import functools
import importlib
import inspect
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import fx
from torch._inductor import config as inductor_config
from torch._inductor.cpp_builder import get_cpp_compiler
from torch._inductor.cpu_vec_isa import pick_vec_isa
from torch._inductor.cudagraph_utils import BoxedDeviceIndex
from torch._inductor.runtime.runtime_utils import cache_dir as inductor_cache_dir
from torch._inductor.utils import BoxedBool
from torch._inductor.virtualized import V

from torchair.core.environment import changed
from torchair.core.lazy_module import LazyModule
from torchair.core.torch_private.compilers.aot_autograd import TracingContext, tracing
from torchair.core.torch_private.fake.fake_tensors import FakeTensorMode, ShapeEnv

__all__ = [
    "BoxedBool",
    "BoxedDeviceIndex",
    "V",
    "all_options",
    "aot_compilation",
    "build_facts",
    "changed_options",
    "code_folder",
    "code_kept_in",
    "compile_fx_inner",
    "compiled_callable",
    "fake_tracing",
    "generated_source",
    "get_cpp_compiler",
    "inductor_cache_dir",
    "inductor_config",
    "inductor_decompositions",
    "joint_graph_passes",
    "known_options",
    "library_path",
    "load_compilers",
    "lower_functionalized",
    "lowering_table",
    "memory_format_named",
    "native_runner",
    "pick_vec_isa",
    "rebases_windows",
    "reinplace_module",
    "remembered_writes",
    "select_decomp_table",
    "set_options",
    "stable_cache_keys",
]

_COMPILERS = ("compile_fx", "graph", "codegen.cpp", "codegen.cpp_wrapper_cpu", "codegen.triton")
_compile_fx: Any = LazyModule("torch._inductor.compile_fx")
_codecache: Any = LazyModule("torch._inductor.codecache")
_tasks: Any = LazyModule("torch._inductor.runtime.compile_tasks")
_lowering: Any = LazyModule("torch._inductor.lowering")
_decomposition: Any = LazyModule("torch._inductor.decomposition")
_post_grad: Any = LazyModule("torch._inductor.fx_passes.post_grad")
_scheduler: Any = LazyModule("torch._inductor.scheduler")


def compile_fx_inner(*args: Any, **kwargs: Any) -> Any:
    """Inductor's compiler for a functional graph."""
    return _compile_fx.compile_fx_inner(*args, **kwargs)


def select_decomp_table() -> dict[Any, Callable[..., Any]]:
    """Inductor's own decompositions. Some of them count on a module that they do not import."""
    importlib.import_module("torch._inductor.lowering")
    return _decomposition.select_decomp_table()


def reinplace_module() -> Any:
    """The module of Inductor's pass that writes in place."""
    return importlib.import_module("torch._inductor.fx_passes.reinplace")


@contextlib.contextmanager
def remembered_writes() -> Iterator[None]:
    """Inside, loops that read what an op has written stay behind that op. Where Inductor gives a loop the
    ranges of its neighbour, to fuse them for the CPU, it finds out anew what is read, and forgets that it was
    written in between (2.13): the loop may move in front of the op.
    """
    node_class = _scheduler.SchedulerNode
    own = node_class.recompute_size_and_body

    def recompute(node: Any, *args: Any, **kwargs: Any) -> None:
        own(node, *args, **kwargs)
        node.set_read_writes(node.read_writes.rename(node.mutation_renames))

    with mock.patch.object(node_class, "recompute_size_and_body", recompute):
        yield


def changed_options() -> dict[str, Any]:
    """Inductor's options that are not as by default in this process."""
    rows, portable = inductor_config._config, inductor_config.save_config_portable()
    return {
        name: value
        for name, value in portable.items()
        if not inductor_config._is_default(name) and value != rows[name].default
    }


def all_options() -> str:
    """Inductor's options in this process: those that it read from the environment too."""
    return str(sorted(inductor_config.save_config_portable().items()))


def set_options(options: dict[str, Any]) -> None:
    """Set them, for the whole process."""
    inductor_config.load_config(options)


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
    time. And the keys of Triton's kernels have the version of the assembler, which a process asks once: after
    Inductor has said which one that is, as where a program is loaded.
    """
    _tasks._set_triton_ptxas_path()
    copyreg.pickle(torch.memory_format, _reduce_memory_format)
    try:
        yield
    finally:
        copyreg.dispatch_table.pop(torch.memory_format, None)


def joint_graph_passes(gm: fx.GraphModule, device: torch.device | None) -> fx.GraphModule:
    """The passes Inductor runs on a whole graph before `compile_fx_inner`."""
    takes_device = "input_device" in inspect.signature(_compile_fx._recursive_joint_graph_passes).parameters
    return _compile_fx._recursive_joint_graph_passes(gm, **({"input_device": device} if takes_device else {}))


def code_folder(folder: str) -> dict[str, str]:
    """The environment in which Inductor and Triton keep what they make in this directory."""
    return {"TORCHINDUCTOR_CACHE_DIR": folder, "TRITON_CACHE_DIR": os.path.join(folder, "triton")}


@contextlib.contextmanager
def code_kept_in(folder: str) -> Iterator[None]:
    """Inside, compiled code is kept in, and taken from, this directory; where it always is if that is empty.
    The environment is the process's: one at a time.
    """
    with changed(code_folder(folder) if folder else {}):
        yield


@contextlib.contextmanager
def aot_compilation() -> Iterator[None]:
    """Inside, Inductor makes a shared library instead of a Python wrapper."""
    # Before 2.13, `compile_fx_inner` leaves these options (compiled kernels are kept, …) to its caller.
    with V.set_aot_compilation(True), inductor_config.patch(_compile_fx.get_cpp_wrapper_config()):
        yield


def native_runner(path: Path, instances: int, device: torch.device) -> Any:
    """The loader of an AOTInductor library; `instances` calls can run at the same time."""
    if device.type == "cpu":
        return torch._C._aoti.AOTIModelContainerRunnerCpu(str(path), instances)
    if device.type == "cuda":
        cls = torch._C._aoti.AOTIModelContainerRunnerCuda
        return cls(str(path), instances, f"cuda:{device.index or 0}", str(path.parent))
    raise LookupError(f"no AOTInductor runner for {device.type}")


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
    return select_decomp_table()[torch.ops.aten.masked_scatter.default](x, mask, source)


def load_compilers() -> None:
    """Import what a compile would import, and ask what it would ask of the machine. No thread is started and
    no driver: the process may fork.
    """
    for name in _COMPILERS:
        importlib.import_module(f"torch._inductor.{name}")
    _codecache.torch_key()
    if torch.cuda.is_available():  # programs are for the GPU then, most likely, and nobody asks
        return
    with contextlib.suppress(Exception):  # without a compiler: who needs one will say so
        pick_vec_isa()


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


@functools.cache
def rebases_windows() -> bool:
    """Does Inductor know that the pointer to an input includes its offset, while `as_strided` counts
    without?
    """
    return "graph_input_storage_offsets" in inspect.getsource(_lowering.as_strided)


def build_facts() -> list[str]:
    """What shapes Inductor's code besides the graph: its sources and options, the processor, the GPU."""
    gpu = torch.cuda.get_device_properties(torch.cuda.current_device()) if torch.cuda.is_available() else None
    machine = f"{pick_vec_isa()} {gpu} {torch.get_num_threads()} {get_cpp_compiler()}"
    return [_codecache.torch_key().hex(), all_options(), machine]


def lower_functionalized(gm: fx.GraphModule, fake_mode: FakeTensorMode | None) -> None:
    """Higher-order nodes around mutating ops become the op itself, behind the clones that `meta` asks for."""
    with V.set_fake_mode(fake_mode):
        _post_grad.decompose_auto_functionalized(gm.graph)
        _post_grad.decompose_triton_kernel_wrapper_functional(gm.graph)
