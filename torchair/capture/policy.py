"""When a graph is recorded and how: plain values from the settings, and the reasons not to record."""

from __future__ import annotations

from dataclasses import dataclass

from torchair.capture.roles import Inputs, Role
from torchair.core.errors import BadOption, BadOptionType
from torchair.devices import Device, PoolToken

ERROR_MODES = ("global", "thread_local", "relaxed")


@dataclass(frozen=True)
class Policy:
    """How the recordings of one FX graph are made and kept."""

    capture: bool = True
    """False: run the program directly (`force_eager`)."""
    capture_limit: int = 64
    """Keys kept; beyond it the one not used for the longest time is dropped."""
    clone_input: bool = True
    """Plain inputs get static buffers. False: the first call's tensors serve while nobody else holds them."""
    clone_output: bool = False
    """Always return copies."""
    frozen_parameter: bool = False
    """Parameters never move: their addresses are not compared."""
    force_recapture: bool = False
    """Record again on every call."""
    pool: PoolToken | None = None
    """A memory pool shared with other graphs."""
    reuse_pool: bool = True
    """Recordings of one FX graph overlay their workspace in one pool."""
    error_mode: str = "thread_local"
    """Which host calls break a capture: in any thread (`global`), in this one, or none (`relaxed`)."""
    memory_budget: int | None = None
    """Bytes that the recordings of one FX graph may take; least recently used ones are dropped."""
    skip_validation: bool = False
    """Compare nothing before a replay: the caller promises that nothing moved."""
    patience: int = 0
    """Calls of one key that run directly before it is recorded."""
    warm_up: int = 0
    """Calls that run directly, of any key, while the recordings before this one are made."""
    counts: bool = True
    """Where the device has no graphs, calls are counted as if it had."""
    eager: bool = False
    """Capture mode, in which nothing is recorded on request."""
    statistics: bool = False
    """What a call tells at DEBUG includes minimum, maximum, norm and mean."""

    def __post_init__(self) -> None:
        if self.capture_limit < 1:
            raise BadOption(f"capture_limit must be at least 1, not {self.capture_limit}")
        if self.error_mode not in ERROR_MODES:
            raise BadOption(f"capture_error_mode must be one of {ERROR_MODES}, not {self.error_mode!r}")
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


def why_not(inputs: Inputs, policy: Policy, row: Device) -> str | None:
    """The reason to run this graph directly, or None when it can be recorded."""
    if not policy.capture:
        return "capture is switched off"
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
