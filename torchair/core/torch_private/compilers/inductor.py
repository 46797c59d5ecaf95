"""Inductor: its compiler, options, decompositions, passes and caches. Modules that take a second to import
are loaded at first use, because programs that are already compiled do not need them.
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
    """Call Inductor's compiler for a functional graph."""
    return _compile_fx.compile_fx_inner(*args, **kwargs)


def select_decomp_table() -> dict[Any, Callable[..., Any]]:
    """Return Inductor's own decompositions. Some of them need a module that they do not import."""
    importlib.import_module("torch._inductor.lowering")
    return _decomposition.select_decomp_table()


def reinplace_module() -> Any:
    """Return the module of Inductor's reinplacing pass."""
    return importlib.import_module("torch._inductor.fx_passes.reinplace")


@contextlib.contextmanager
def remembered_writes() -> Iterator[None]:
    """Keep loops that read the result of a mutating op after that op. To fuse loops for the CPU, Inductor
    gives a loop the ranges of its neighbor. It then computes the reads again, but forgets the write in
    between (torch 2.13), so the loop could move before the op.
    """
    node_class = _scheduler.SchedulerNode
    own = node_class.recompute_size_and_body

    def recompute(node: Any, *args: Any, **kwargs: Any) -> None:
        own(node, *args, **kwargs)
        node.set_read_writes(node.read_writes.rename(node.mutation_renames))

    with mock.patch.object(node_class, "recompute_size_and_body", recompute):
        yield


def changed_options() -> dict[str, Any]:
    """Return Inductor's options that differ from their defaults in this process."""
    rows, portable = inductor_config._config, inductor_config.save_config_portable()
    return {
        name: value
        for name, value in portable.items()
        if not inductor_config._is_default(name) and value != rows[name].default
    }


def all_options() -> str:
    """Return Inductor's options in this process, including those from the environment."""
    return str(sorted(inductor_config.save_config_portable().items()))


def set_options(options: dict[str, Any]) -> None:
    """Set Inductor's options for the whole process."""
    inductor_config.load_config(options)


def known_options(options: dict[str, Any]) -> dict[str, Any]:
    """Return those Inductor options that this version of torch has."""
    return {name: value for name, value in options.items() if name in inductor_config._config}


@contextlib.contextmanager
def fake_tracing(fake_mode: FakeTensorMode | None) -> Iterator[None]:
    """Enter a separate compile context. Inductor's caches find the shapes in it, and strides are not
    reported. Constants may be real tensors, and there is a shape environment even without symbols.
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
    """Return the memory format with this name, for example `contiguous_format`."""
    return getattr(torch, name)


def _reduce_memory_format(kind: torch.memory_format) -> tuple[Any, ...]:
    return memory_format_named, (str(kind).removeprefix("torch."),)


@contextlib.contextmanager
def stable_cache_keys() -> Iterator[None]:
    """Make the keys of Inductor's cache equal in all programs. A key is a pickle that contains memory
    formats. pickle writes such a value as an attribute of the first module that has a `torch`, which may be a
    user's module. Only one build at a time may use this. The keys of Triton's kernels contain the version of
    the assembler, which a process determines once. It is determined here after Inductor has selected the
    assembler, as when a program is loaded.
    """
    _tasks._set_triton_ptxas_path()
    copyreg.pickle(torch.memory_format, _reduce_memory_format)
    try:
        yield
    finally:
        copyreg.dispatch_table.pop(torch.memory_format, None)


def joint_graph_passes(gm: fx.GraphModule, device: torch.device | None) -> fx.GraphModule:
    """Run the passes that Inductor runs on a whole graph before `compile_fx_inner`."""
    takes_device = "input_device" in inspect.signature(_compile_fx._recursive_joint_graph_passes).parameters
    return _compile_fx._recursive_joint_graph_passes(gm, **({"input_device": device} if takes_device else {}))


def code_folder(folder: str) -> dict[str, str]:
    """Return the environment variables that make Inductor and Triton use this directory."""
    return {"TORCHINDUCTOR_CACHE_DIR": folder, "TRITON_CACHE_DIR": os.path.join(folder, "triton")}


@contextlib.contextmanager
def code_kept_in(folder: str) -> Iterator[None]:
    """Make Inductor store and load compiled code in this directory, or its own one if the path is empty. The
    environment is global, so only one thread at a time may use this.
    """
    with changed(code_folder(folder) if folder else {}):
        yield


@contextlib.contextmanager
def aot_compilation() -> Iterator[None]:
    """Make Inductor compile a shared library instead of a Python wrapper."""
    # Before 2.13, `compile_fx_inner` leaves these options (compiled kernels are kept, …) to its caller.
    with V.set_aot_compilation(True), inductor_config.patch(_compile_fx.get_cpp_wrapper_config()):
        yield


def native_runner(path: Path, instances: int, device: torch.device) -> Any:
    """Return the loader of an AOTInductor library; `instances` calls can run concurrently."""
    if device.type == "cpu":
        return torch._C._aoti.AOTIModelContainerRunnerCpu(str(path), instances)
    if device.type == "cuda":
        cls = torch._C._aoti.AOTIModelContainerRunnerCuda
        return cls(str(path), instances, f"cuda:{device.index or 0}", str(path.parent))
    raise LookupError(f"torch has no AOTInductor runner for {device.type}")


def compiled_callable(compiled: Any) -> Callable[[list[Any]], Sequence[Any]]:
    """Return the generated function of Inductor's result, without its wrapper."""
    return getattr(compiled, "current_callable", None) or compiled


def generated_source(compiled: Any) -> str:
    """Return the source of the wrapper that Inductor generated; empty if there is none."""
    return getattr(compiled, "source_code", "") or ""


def library_path(compiled: Any) -> str:
    """Return the path of the shared library that `compile_fx_inner` compiled inside `aot_compilation`."""
    return compiled.filename if hasattr(compiled, "filename") else compiled


def _fused_bernoulli(self: torch.Tensor, p: float = 0.5, *, generator: Any = None) -> Any:
    """Decompose into a comparison that fuses with its neighbors. Inductor would call the op on the CPU."""
    if generator is not None:
        return NotImplemented
    return (torch.rand_like(self, dtype=torch.float32) < p).to(self.dtype)


def _var_mean(x: torch.Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    """Decompose for empty dims: Inductor returns 0 as the mean of no elements if the variance is computed
    with it.
    """
    if 0 not in [x.shape[axis] for axis in dim or range(x.dim()) if isinstance(x.shape[axis], int)]:
        return NotImplemented
    variance = torch.ops.aten.var.correction(x, dim, correction=correction, keepdim=keepdim)
    return variance, torch.ops.aten.mean.dim(x, dim, keepdim)


def _masked_scatter(x: torch.Tensor, mask: torch.Tensor, source: torch.Tensor) -> Any:
    """Decompose for an empty source: Inductor's code for a GPU would read its first element."""
    if any(isinstance(size, int) and size == 0 for size in source.shape):
        return torch.ops.aten.clone.default(x.expand(torch.broadcast_shapes(x.shape, mask.shape)))
    return select_decomp_table()[torch.ops.aten.masked_scatter.default](x, mask, source)


def load_compilers() -> None:
    """Import what a compile imports, and determine what it needs to know of the machine. No threads or
    drivers are started, so the process may fork.
    """
    for name in _COMPILERS:
        importlib.import_module(f"torch._inductor.{name}")
    _codecache.torch_key()
    if torch.cuda.is_available():  # programs are most likely for the GPU and do not need it
        return
    with contextlib.suppress(Exception):  # without a compiler; a compile that needs one reports it
        pick_vec_isa()


def inductor_decompositions() -> dict[Any, Callable[..., Any]]:
    """Return Inductor's decompositions, with fixes for those that compute wrong results."""
    return {
        **select_decomp_table(),
        torch.ops.aten.var_mean.correction: _var_mean,
        torch.ops.aten.masked_scatter.default: _masked_scatter,
    }


def lowering_table(kind: str) -> dict[Any, Callable[..., Any]]:
    """Return Inductor's decompositions for a code generator. Graphs that run op by op are not decomposed:
    they use torch's own kernels, with their rounding and random numbers.
    """
    if kind not in ("inductor", "native"):
        return {}
    table = inductor_decompositions()
    if not inductor_config.fallback_random:
        table[torch.ops.aten.bernoulli.p] = _fused_bernoulli
    return table


@functools.cache
def rebases_windows() -> bool:
    """Return whether Inductor knows that the pointer to an input includes its offset, while `as_strided`
    counts without it.
    """
    return "graph_input_storage_offsets" in inspect.getsource(_lowering.as_strided)


def build_facts() -> list[str]:
    """Return what affects Inductor's code in addition to the graph: its sources and options, the processor,
    the GPU.
    """
    gpu = torch.cuda.get_device_properties(torch.cuda.current_device()) if torch.cuda.is_available() else None
    machine = f"{pick_vec_isa()} {gpu} {torch.get_num_threads()} {get_cpp_compiler()}"
    return [_codecache.torch_key().hex(), all_options(), machine]


def lower_functionalized(gm: fx.GraphModule, fake_mode: FakeTensorMode | None) -> None:
    """Replace higher-order nodes around mutating ops by the ops themselves, after the clones that `meta`
    requests.
    """
    with V.set_fake_mode(fake_mode):
        _post_grad.decompose_auto_functionalized(gm.graph)
        _post_grad.decompose_triton_kernel_wrapper_functional(gm.graph)
