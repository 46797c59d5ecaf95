"""Provide streams and events of the devices."""

from __future__ import annotations

from typing import Any

import torch

from torchair.sim.native import shim
from torchair.sim.npu.device import current_device, index_of

_priorities: dict[tuple[int, int], int] = {}
"""Streams by device and number."""


class Stream(torch.Stream):
    """A queue of work. The triple `stream_id`, `device_index`, `device_type` refers to an existing stream."""

    def __new__(cls, device: Any = None, priority: int = 0, **identity: int) -> Stream:
        if identity:
            return super().__new__(cls, priority=priority, **identity)
        made = super().__new__(cls, f"npu:{index_of(device)}", priority=priority)
        _priorities[made.device_index, made.stream_id] = priority
        return made

    @property
    def priority(self) -> int:
        """The priority; on the hardware, streams with lower numbers run first."""
        return _priorities.get((self.device_index, self.stream_id), 0)

    @property
    def npu_stream(self) -> int:
        """The handle of the stream."""
        return self.stream_id

    def set_data_preprocess_stream(self, is_data_preprocess_stream: bool = False) -> None:
        """Do nothing: this setting is for the hardware."""

    def record_event(self, event: Any = None) -> Any:
        """Record an event at this point of the stream."""
        event = Event() if event is None else event
        event.record(self)
        return event

    def wait_event(self, event: Any) -> None:
        """Let the stream wait for the event."""
        event.wait(self)

    def wait_stream(self, stream: Any) -> None:  # type: ignore[override]
        """Let the stream wait for all current work of the other stream."""
        self.wait_event(stream.record_event())

    def __repr__(self) -> str:
        return f"<torch.npu.Stream device={self.device} npu_stream={self.stream_id:#x}>"


class ExternalStream(Stream):
    """A stream of another library, given by its handle."""

    def __new__(cls, stream_ptr: int, device: Any = None, **more: Any) -> ExternalStream:
        kind = default_stream(device).device_type
        return super().__new__(cls, stream_id=stream_ptr, device_index=index_of(device), device_type=kind)  # type: ignore[return-value]


class Event(torch.Event):
    """A point on a stream."""

    _takes_time: bool

    def __new__(
        cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> Event:
        made = super().__new__(
            cls, device="npu", enable_timing=enable_timing, blocking=blocking, interprocess=interprocess
        )
        made._takes_time = enable_timing
        return made

    @property
    def npu_event(self) -> int:
        """The handle of the event."""
        return self.event_id

    def record(self, stream: Any = None) -> None:
        """Record the event on a stream, by default on the current one."""
        super().record(current_stream() if stream is None else stream)

    def wait(self, stream: Any = None) -> None:
        """Let a stream wait for the event."""
        super().wait(current_stream() if stream is None else stream)

    def elapsed_time(self, end_event: Any) -> float:  # type: ignore[override]
        """Return the milliseconds from this event to another; both need `enable_timing=True`."""
        if not all(getattr(event, "_takes_time", True) for event in (self, end_event)):
            raise RuntimeError("elapsed_time needs two events created with enable_timing=True")
        return shim().elapsed_time(self.event_id, end_event.event_id)

    def __repr__(self) -> str:
        return f"<torch.npu.Event {self.event_id:#x}>"


class ExternalEvent:
    """An event of a graph that is recorded outside of the graph; a waiting graph continues when it is
    recorded.

    A wait may come before the first record. The event must be reset before it is used again.
    """

    def __init__(self) -> None:
        self._event = shim().ExternalEvent()

    def record(self, stream: Any = None) -> None:
        """Record the event, so that waiting streams continue."""
        self._event.record(current_stream() if stream is None else stream)

    def wait(self, stream: Any = None) -> None:
        """Let a stream wait until the event is recorded."""
        self._event.wait(current_stream() if stream is None else stream)

    def reset(self, stream: Any = None) -> None:
        """Reset the event to unrecorded."""
        self._event.reset(current_stream() if stream is None else stream)


def get_stream_from_external(data_ptr: int, device: Any = None) -> ExternalStream:
    """Return a stream of another library, given by its handle."""
    return ExternalStream(data_ptr, device)


def _stream(device: int, number: int) -> Stream:
    return Stream(stream_id=number, device_index=device, device_type=shim().DEVICE_TYPE)


def current_stream(device: Any = None) -> Stream:
    """Return the current stream of this thread."""
    index = index_of(device)
    return _stream(index, shim().current_stream(index))


def default_stream(device: Any = None) -> Stream:
    """Return the default stream."""
    return _stream(index_of(device), 0)


def set_stream(stream: Any) -> None:
    """Select the current stream of this thread, and its device."""
    if stream is None:
        return
    shim().set_stream(stream.device_index, stream.stream_id)


class StreamContext:
    """Context manager that selects a stream. None changes nothing."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self._before: tuple[int, Any, Any] | None = None

    def __enter__(self) -> None:
        if self.stream is None:
            return
        there = self.stream.device_index
        self._before = (current_device(), current_stream(), current_stream(there))
        set_stream(self.stream)

    def __exit__(self, *error: object) -> None:
        if self._before is None:
            return
        device, here, there = self._before
        set_stream(there)
        set_stream(here)
        shim().set_device(device)


def stream(stream: Any) -> StreamContext:
    """Return a context manager that selects a stream."""
    return StreamContext(stream)
