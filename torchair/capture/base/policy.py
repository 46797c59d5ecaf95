"""When and how a graph is recorded: plain values from the settings, and the reasons not to record."""

from __future__ import annotations

from dataclasses import dataclass

from torchair.capture.base.inputs import InputInfo, Role
from torchair.configs.binding import check, from_row
from torchair.core.errors import BadOptionType
from torchair.devices import Device, PoolToken


@dataclass(frozen=True)
class Policy:
    """How one FX graph is recorded, and how many recordings are kept."""

    capture: bool = True
    """False: run the program directly (`force_eager`)."""
    why_direct: str = "capture is switched off"
    """The reason that reports give if `capture` is False."""
    capture_limit: int = from_row("debug.aclgraph.static_capture_size_limit")
    """Maximum number of keys; beyond it the least recently used one is dropped."""
    clone_input: bool = from_row("debug.aclgraph.clone_input")
    """Copy plain inputs into static buffers. False: use the first call's tensors as buffers while the caller
    does not hold them.
    """
    clone_output: bool = from_row("debug.aclgraph.enable_output_clone")
    """Always return copies of the outputs."""
    frozen_parameter: bool = from_row("experimental_config.frozen_parameter")
    """Parameters never move, so their addresses are not compared."""
    force_recapture: bool = from_row("capture.force_recapture")
    """Record again on every call."""
    pool: PoolToken | None = from_row("aclgraph_config.use_custom_pool")
    """Memory pool shared with other graphs."""
    reuse_pool: bool = from_row("reuse_graph_pool_in_same_fx")
    """Recordings of one FX graph share their workspace in one pool."""
    error_mode: str = from_row("capture.capture_error_mode")
    """Which calls of the CUDA runtime break a capture: in any thread (`global`), in this thread, or none
    (`relaxed`).
    """
    memory_budget: int | None = from_row("engine_config.memory_budget")
    """Maximum bytes of the recordings of one FX graph; the least recently used ones are dropped."""
    skip_validation: bool = from_row("capture.unsafe_skip_npugraph_capture_validation")
    """Compare nothing before a replay: the caller guarantees that nothing moved."""
    patience: int = 0
    """Number of calls of one key that run directly before it is recorded."""
    warm_up: int = 0
    """Number of calls of any key that run directly while earlier recordings are created."""
    counts: bool = True
    """On a device without graphs, count calls as if it had graphs."""
    eager: bool = False
    """Capture mode in which the user asked not to record."""
    statistics: bool = from_row("capture.record_statistics_debug_info")
    """Log minimum, maximum, norm and mean of tensors at level DEBUG."""

    def __post_init__(self) -> None:
        check(self)
        if self.pool is not None and not _is_pool_token(self.pool):
            raise BadOptionType(
                f"use_graph_pool must be a pool token, got {self.pool!r}",
                got=f"{type(self.pool).__name__}; a token is a pair of ints , at least one of them 0",
                next="pass the result of torch.<device>.graph_pool_handle()",
            )


def _is_pool_token(token: object) -> bool:
    return (
        isinstance(token, tuple)
        and len(token) == 2
        and all(isinstance(part, int) for part in token)
        and token[0] * token[1] == 0
    )


def skip_reason(inputs: InputInfo, policy: Policy, row: Device) -> str | None:
    """Return the reason to run this graph directly, or None if it can be recorded."""
    if not policy.capture:
        return policy.why_direct
    missing = row.why_no_graphs()
    if missing is not None:
        return missing
    if host := inputs.having(Role.HOST):
        return f"input {inputs.title(host[0])} is a CPU tensor; move it to {row.type}"
    if inputs.obstacles:
        return inputs.obstacles[0]
    if inputs.random and not row.has_fresh_random():
        return f"the graph draws random numbers, and a replay of a {row.type} graph would repeat them"
    return None
