"""Events of one FX graph, as fields to query and as a table to print."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from torchair.capture.base.addresses import RecaptureReason
from torchair.core.text_table import text_lines
from torchair.core.torch_private.compilers.aot_autograd import dynamo_counters

GROUP = "npugraph_ex"


class CaptureStats:
    """Events of one runner, mirrored in `torch._dynamo.utils.counters["npugraph_ex"]`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.recaptures: Counter[tuple[RecaptureReason, str]] = Counter()
        self.direct: Counter[str] = Counter()

    def keys(self, count: int) -> None:
        """Set the number of keys that have a recording."""
        dynamo_counters[GROUP][f"captured_{self.name}"] = count

    def recapture(self, cause: RecaptureReason, what: str) -> None:
        """Count a new recording of a known key."""
        self.recaptures[cause, what] += 1
        dynamo_counters[GROUP][f"{cause.value}_{self.name}"] += 1

    def forget(self) -> None:
        """Remove the counters: the graph runs directly from now on."""
        group = dynamo_counters[GROUP]
        for name in ("captured", *(cause.value for cause in RecaptureReason)):
            group.pop(f"{name}_{self.name}", None)


@dataclass(frozen=True)
class InputRow:
    """One input: its role, the bytes copied for it on each call, and the reason."""

    name: str
    role: str
    bytes_per_call: int
    why: str


@dataclass(frozen=True)
class RecordingRow:
    """One recording: its key, number of replays, and the bytes it takes and copies out."""

    key: str
    replays: int
    nbytes: int
    bytes_out_per_call: int
    capture_seconds: float
    private: bool


@dataclass(frozen=True)
class Report:
    """The state of one runner at one time."""

    name: str
    program: str
    device: str
    why_not: str | None
    degradations: tuple[str, ...] = ()
    pool: tuple[int, int] | None = None
    inputs: tuple[InputRow, ...] = ()
    recordings: tuple[RecordingRow, ...] = ()
    recaptures: dict[tuple[RecaptureReason, str], int] = field(default_factory=dict)
    direct: dict[str, int] = field(default_factory=dict)
    dropped: int = 0
    static_bytes: int = 0  # of buffers for inputs
    home_bytes: int = 0  # of memory for outputs that recordings share
    parts: tuple[Report, ...] = ()  # of a graph that is recorded in partitions

    @property
    def bytes_in_per_call(self) -> int:
        """Bytes copied into static buffers on each call."""
        return sum(row.bytes_per_call for row in self.inputs)

    @property
    def bytes_copied_out(self) -> int:
        """Bytes of outputs copied so far, because the caller held earlier ones or asked for copies."""
        return sum(row.replays * row.bytes_out_per_call for row in self.recordings)

    def __str__(self) -> str:
        state = f"not recorded: {self.why_not}" if self.why_not else f"{len(self.recordings)} recordings"
        if self.parts:
            state = self.why_not or ""
        lines = [f"{self.name} ({self.program} on {self.device}): {state}"]
        lines += text_lines(
            ("input", "role", "bytes/call", "why"),
            [(r.name, r.role, r.bytes_per_call, r.why) for r in self.inputs],
        )
        lines += text_lines(
            ("recording", "replays", "bytes", "bytes out/call", "capture ms"),
            [
                (r.key, r.replays, r.nbytes, r.bytes_out_per_call, f"{r.capture_seconds * 1e3:.1f}")
                for r in self.recordings
            ],
        )
        lines += [f"recorded again {n} times: {what}" for (_, what), n in self.recaptures.items()]
        lines += [f"run directly {n} times: {what}" for what, n in self.direct.items()]
        lines += [f"degraded: {text}" for text in self.degradations]
        if self.dropped:
            lines.append(f"dropped {self.dropped} keys with their recordings, least recently used first")
        lines += [str(part) for part in self.parts]
        return "\n".join(lines)
