"""Streams and events of the devices."""

from __future__ import annotations

from typing import Any

import torch

from torchair.sim.native import shim
from torchair.sim.npu.device import current_device, index_of

_priorities: dict[tuple[int, int], int] = {}
"""Of streams, by device and number."""


class Stream(torch.Stream):
    """A queue of work. The triple `stream_id`, `device_index`, `device_type` names one that is there."""

    def __new__(cls, device: Any = None, priority: int = 0, **identity: int) -> Stream:
        if identity:
            return super().__new__(cls, priority=priority, **identity)
        made = super().__new__(cls, f"npu:{index_of(device)}", priority=priority)
        _priorities[made.device_index, made.stream_id] = priority
        return made

    @property
    def priority(self) -> int:
        """Lower ones come first, on the hardware."""
        return _priorities.get((self.device_index, self.stream_id), 0)

    @property
    def npu_stream(self) -> int:
        """Its handle."""
        return self.stream_id

    def set_data_preprocess_stream(self, is_data_preprocess_stream: bool = False) -> None:
        """A hint for the hardware."""

    def record_event(self, event: Any = None) -> Any:
        """Mark this point of the stream."""
        event = Event() if event is None else event
        event.record(self)
        return event

    def wait_event(self, event: Any) -> None:
        """Go on when the event has come."""
        event.wait(self)

    def wait_stream(self, stream: Any) -> None:  # type: ignore[override]
        """Go on when all that the other stream was given is done."""
        self.wait_event(stream.record_event())

    def __repr__(self) -> str:
        return f"<torch.npu.Stream device={self.device} npu_stream={self.stream_id:#x}>"


class ExternalStream(Stream):
    """A stream that another library made, by its handle."""

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
        """Its handle."""
        return self.event_id

    def record(self, stream: Any = None) -> None:
        """Mark this point of a stream, of the current one for None."""
        super().record(current_stream() if stream is None else stream)

    def wait(self, stream: Any = None) -> None:
        """A stream goes on when the event has come."""
        super().wait(current_stream() if stream is None else stream)

    def elapsed_time(self, end_event: Any) -> float:  # type: ignore[override]
        """Milliseconds from this event to another; both were made to take the time."""
        if not all(getattr(event, "_takes_time", True) for event in (self, end_event)):
            raise RuntimeError("elapsed_time needs two events that were made with enable_timing=True")
        return shim().elapsed_time(self.event_id, end_event.event_id)

    def __repr__(self) -> str:
        return f"<torch.npu.Event {self.event_id:#x}>"


class ExternalEvent:
    """An event of a graph that others record: a graph that waits for it goes on when it is recorded. It may
    be waited for before it was ever recorded, and is reset before it is used again.
    """

    def __init__(self) -> None:
        self._event = shim().ExternalEvent()

    def record(self, stream: Any = None) -> None:
        """Who waits may go on."""
        self._event.record(current_stream() if stream is None else stream)

    def wait(self, stream: Any = None) -> None:
        """A stream goes on when the event is recorded."""
        self._event.wait(current_stream() if stream is None else stream)

    def reset(self, stream: Any = None) -> None:
        """As if it had never been recorded."""
        self._event.reset(current_stream() if stream is None else stream)


def get_stream_from_external(data_ptr: int, device: Any = None) -> ExternalStream:
    """A stream that another library made, by its handle."""
    return ExternalStream(data_ptr, device)


def _stream(device: int, number: int) -> Stream:
    return Stream(stream_id=number, device_index=device, device_type=shim().DEVICE_TYPE)


def current_stream(device: Any = None) -> Stream:
    """The stream that work of this thread goes to."""
    index = index_of(device)
    return _stream(index, shim().current_stream(index))


def default_stream(device: Any = None) -> Stream:
    """The stream that there is without asking."""
    return _stream(index_of(device), 0)


def set_stream(stream: Any) -> None:
    """Work of this thread goes to this stream, and its device, from now on."""
    if stream is None:
        return
    shim().set_stream(stream.device_index, stream.stream_id)


class StreamContext:
    """Within this block, work goes to a stream. None changes nothing."""

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
    """Within this block, work goes to a stream."""
    return StreamContext(stream)
