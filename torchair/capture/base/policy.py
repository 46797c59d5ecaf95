"""When a graph is recorded and how: plain values from the settings, and the reasons not to record."""

from __future__ import annotations

from dataclasses import dataclass

from torchair.capture.base.inputs import InputInfo, Role
from torchair.configs.binding import check, from_row
from torchair.core.errors import BadOptionType
from torchair.devices import Device, PoolToken


@dataclass(frozen=True)
class Policy:
    """How the recordings of one FX graph are made and kept."""

    capture: bool = True
    """False: run the program directly (`force_eager`)."""
    why_direct: str = "capture is switched off"
    """What reports say then."""
    capture_limit: int = from_row("debug.aclgraph.static_capture_size_limit")
    """Keys kept; beyond it the one not used for the longest time is dropped."""
    clone_input: bool = from_row("debug.aclgraph.clone_input")
    """Plain inputs get static buffers. False: the first call's tensors serve while nobody else holds them."""
    clone_output: bool = from_row("debug.aclgraph.enable_output_clone")
    """Always return copies."""
    frozen_parameter: bool = from_row("experimental_config.frozen_parameter")
    """Parameters never move: their addresses are not compared."""
    force_recapture: bool = from_row("capture.force_recapture")
    """Record again on every call."""
    pool: PoolToken | None = from_row("aclgraph_config.use_custom_pool")
    """A memory pool shared with other graphs."""
    reuse_pool: bool = from_row("reuse_graph_pool_in_same_fx")
    """Recordings of one FX graph overlay their workspace in one pool."""
    error_mode: str = from_row("capture.capture_error_mode")
    """Which host calls break a capture: in any thread (`global`), in this one, or none (`relaxed`)."""
    memory_budget: int | None = from_row("engine_config.memory_budget")
    """Bytes that the recordings of one FX graph may take; least recently used ones are dropped."""
    skip_validation: bool = from_row("capture.unsafe_skip_npugraph_capture_validation")
    """Compare nothing before a replay: the caller promises that nothing moved."""
    patience: int = 0
    """Calls of one key that run directly before it is recorded."""
    warm_up: int = 0
    """Calls that run directly, of any key, while the recordings before this one are made."""
    counts: bool = True
    """Where the device has no graphs, calls are counted as if it had."""
    eager: bool = False
    """Capture mode, in which nothing is recorded on request."""
    statistics: bool = from_row("capture.record_statistics_debug_info")
    """What a call tells at DEBUG includes minimum, maximum, norm and mean."""

    def __post_init__(self) -> None:
        check(self)
        if self.pool is not None and not _is_pool_token(self.pool):
            raise BadOptionType(
                f"use_graph_pool must be a pool token, not {self.pool!r}",
                got=f"{type(self.pool).__name__}; a token is a pair of ints of which at least one is 0",
                next="pass what torch.<device>.graph_pool_handle() returned",
            )


def _is_pool_token(token: object) -> bool:
    return (
        isinstance(token, tuple)
        and len(token) == 2
        and all(isinstance(part, int) for part in token)
        and token[0] * token[1] == 0
    )


def skip_reason(inputs: InputInfo, policy: Policy, row: Device) -> str | None:
    """The reason to run this graph directly, or None when it can be recorded."""
    if not policy.capture:
        return policy.why_direct
    missing = row.why_no_graphs()
    if missing is not None:
        return missing
    if host := inputs.having(Role.HOST):
        return f"input {inputs.title(host[0])} is a CPU tensor; move it to the device"
    if inputs.obstacles:
        return inputs.obstacles[0]
    if inputs.random and not row.has_fresh_random():
        return f"the graph draws random numbers, and {row.type} graphs would repeat them"
    return None
