"""Provide `torch.npu` of the simulated device, with the API of the vendor's plug-in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import OutOfMemoryError

from torchair.core.registries.lazy_registry import lazy_getattr
from torchair.sim.module_aliases import missing, report_missing
from torchair.sim.npu import amp, config, graphs, limits, memory, mstx, random, streams, utils
from torchair.sim.npu.amp.autocast_mode import (
    get_amp_supported_dtype,
    get_autocast_dtype,
    is_autocast_enabled,
    is_bf16_supported,
    set_autocast_dtype,
    set_autocast_enabled,
)
from torchair.sim.npu.config import is_jit_compile_false, set_compile_mode, set_option
from torchair.sim.npu.device import (
    can_device_access_peer,
    current_device,
    device,
    device_count,
    device_of,
    get_device_capability,
    get_device_name,
    get_device_properties,
    init,
    is_available,
    is_initialized,
    set_device,
    synchronize,
    utilization,
)
from torchair.sim.npu.graphs import (
    NPUGraph,
    graph,
    graph_pool_handle,
    graph_task_group_begin,
    graph_task_group_end,
    graph_task_update_begin,
    graph_task_update_end,
    is_current_stream_capturing,
    make_graphed_callables,
)
from torchair.sim.npu.handlers import NpuGraphOpHandler, register_npu_graph_handler
from torchair.sim.npu.hints import (
    conv,
    get_sync_debug_mode,
    matmul,
    set_sync_debug_mode,
    super_kernel_scope_begin,
    super_kernel_scope_end,
)
from torchair.sim.npu.limits import (
    get_deterministic_level,
    get_device_limit,
    get_stream_limit,
    reset_stream_limit,
    set_deterministic_level,
    set_device_limit,
    set_stream_limit,
)
from torchair.sim.npu.memory import (
    MemPool,
    caching_allocator_alloc,
    caching_allocator_delete,
    device_memory_used,
    empty_cache,
    get_allocator_backend,
    get_per_process_memory_fraction,
    ipc_collect,
    max_memory_allocated,
    max_memory_cached,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_cached,
    memory_reserved,
    memory_snapshot,
    memory_stats,
    memory_stats_as_nested_dict,
    memory_summary,
    memory_usage,
    reset_accumulated_memory_stats,
    reset_max_memory_allocated,
    reset_max_memory_cached,
    reset_peak_memory_stats,
    set_per_process_memory_fraction,
    use_mem_pool,
)
from torchair.sim.npu.random import (
    default_generators,
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from torchair.sim.npu.streams import (
    Event,
    ExternalEvent,
    ExternalStream,
    Stream,
    StreamContext,
    current_stream,
    default_stream,
    get_stream_from_external,
    set_stream,
    stream,
)
from torchair.sim.npu.tensors import (
    BFloat16Tensor,
    BoolTensor,
    ByteTensor,
    CharTensor,
    DoubleTensor,
    FloatTensor,
    HalfTensor,
    IntTensor,
    LongTensor,
    ShortTensor,
)
from torchair.sim.npu.utils import (
    check_uce_in_memory,
    clear_npu_overflow_flag,
    finalize_dump,
    get_npu_overflow_flag,
    init_dump,
    restart_device,
    set_dump,
    stop_device,
    stress_detect,
)

__all__ = [
    "BFloat16Tensor",
    "BoolTensor",
    "ByteTensor",
    "CharTensor",
    "DoubleTensor",
    "Event",
    "ExternalEvent",
    "ExternalStream",
    "FloatTensor",
    "HalfTensor",
    "IntTensor",
    "LongTensor",
    "MemPool",
    "NPUGraph",
    "NpuGraphOpHandler",
    "OutOfMemoryError",
    "ShortTensor",
    "Stream",
    "StreamContext",
    "amp",
    "caching_allocator_alloc",
    "caching_allocator_delete",
    "can_device_access_peer",
    "check_uce_in_memory",
    "clear_npu_overflow_flag",
    "config",
    "conv",
    "current_device",
    "current_stream",
    "default_generators",
    "default_stream",
    "device",
    "device_count",
    "device_memory_used",
    "device_of",
    "empty_cache",
    "finalize_dump",
    "get_allocator_backend",
    "get_amp_supported_dtype",
    "get_autocast_dtype",
    "get_deterministic_level",
    "get_device_capability",
    "get_device_limit",
    "get_device_name",
    "get_device_properties",
    "get_npu_overflow_flag",
    "get_per_process_memory_fraction",
    "get_rng_state",
    "get_rng_state_all",
    "get_stream_from_external",
    "get_stream_limit",
    "get_sync_debug_mode",
    "graph",
    "graph_pool_handle",
    "graph_task_group_begin",
    "graph_task_group_end",
    "graph_task_update_begin",
    "graph_task_update_end",
    "graphs",
    "init",
    "init_dump",
    "initial_seed",
    "ipc_collect",
    "is_autocast_enabled",
    "is_available",
    "is_bf16_supported",
    "is_current_stream_capturing",
    "is_initialized",
    "is_jit_compile_false",
    "limits",
    "make_graphed_callables",
    "manual_seed",
    "manual_seed_all",
    "matmul",
    "max_memory_allocated",
    "max_memory_cached",
    "max_memory_reserved",
    "mem_get_info",
    "memory",
    "memory_allocated",
    "memory_cached",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "memory_usage",
    "mstx",
    "random",
    "register_npu_graph_handler",
    "reset_accumulated_memory_stats",
    "reset_max_memory_allocated",
    "reset_max_memory_cached",
    "reset_peak_memory_stats",
    "reset_stream_limit",
    "restart_device",
    "seed",
    "seed_all",
    "set_autocast_dtype",
    "set_autocast_enabled",
    "set_compile_mode",
    "set_deterministic_level",
    "set_device",
    "set_device_limit",
    "set_dump",
    "set_option",
    "set_per_process_memory_fraction",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "set_stream_limit",
    "set_sync_debug_mode",
    "stop_device",
    "stream",
    "streams",
    "stress_detect",
    "super_kernel_scope_begin",
    "super_kernel_scope_end",
    "synchronize",
    "use_mem_pool",
    "utilization",
    "utils",
]


_initialized = True
"""Functions that torch calls before it saves the state of the generators."""


def _is_in_bad_fork() -> bool:
    """Return False: a simulated device is in process memory, so a forked process has its own."""
    return False


def _lazy_init() -> None:
    """Do nothing: the device needs no initialization."""


def _lazy_call(call: Callable[[], Any], **options: Any) -> None:
    """Run the call immediately: the device needs no initialization."""
    call()


def __getattr__(name: str) -> Any:
    """Load `torch.npu.npugraph_ex`, capture mode, on first access."""
    if name == "npugraph_ex":
        return lazy_getattr(__name__, {name: "torchair"}, name)
    raise missing(__name__, name)


report_missing(__name__)
