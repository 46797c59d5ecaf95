"""Align the tasks of a trace in time, so that a wait ends when the record it waits for ends.

The engine's traces use a separate clock for each stream. Alignment keeps the order, durations and gaps of the
tasks in a stream; only waits become as long as necessary and delay the tasks after them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torchair.debug.traces.deadlock import (
    WAITS_FOR,
    Event,
    is_task,
    merge_streams,
    read_trace,
    sign_of,
    write_trace,
)

Sign = tuple[str, str]


def align_trace(path: Path, output: Path | None = None, gap: float = 0.0) -> Path:
    """Write the trace with its new times, by default as `<name>.aligned.json` next to it.

    Raises ValueError if tasks wait for each other.
    """
    content, events = read_trace(path)
    output = output or path.with_suffix(".aligned.json")
    others = [event for event in events if not is_task(event)]
    write_trace(output, content, others + align(merge_streams(events, gap)))
    return output


def align(events: Sequence[Event]) -> list[Event]:
    """Return the same tasks with new times; events of one stream are in their order."""
    awaited, timed = _awaited(events), dict[int, Event]()
    streams: dict[str, list[int]] = {}
    for place, event in enumerate(events):
        streams.setdefault(str(event["tid"]), []).append(place)
    done = dict.fromkeys(streams, 0)
    while len(timed) < len(events):
        count = len(timed)
        for stream, places in streams.items():
            for at in range(done[stream], len(places)):
                record = awaited.get(places[at])
                if record is not None and record not in timed:
                    break
                before = places[at - 1] if at else None
                delay = 0.0 if before is None else _end(timed[before]) - _end(events[before])
                awaited_one = None if record is None else timed[record]
                timed[places[at]] = _timed(events[places[at]], delay, awaited_one)
                done[stream] = at + 1
        if len(timed) == count:
            stuck = [(s, p[done[s]]) for s, p in streams.items() if done[s] < len(p)]
            names = ", ".join(f"{events[place]['name']} of {stream}" for stream, place in stuck)
            raise ValueError(f"cannot align the trace, because these tasks wait for each other: {names}")
    return [timed[place] for place in range(len(events))]


def _awaited(events: Sequence[Event]) -> dict[int, int]:
    """Map the place of each wait to the place of its record: among records with the same handle, the one with
    the same number, otherwise the last.
    """
    places: dict[Sign, list[int]] = {}
    for place, event in enumerate(events):
        if (sign := sign_of(event["name"])) is not None:
            places.setdefault(sign, []).append(place)
    found: dict[int, int] = {}
    for (kind, handle), waits in places.items():
        records = places.get((WAITS_FOR.get(kind, ""), handle), [])
        for number, wait in enumerate(waits if records else ()):
            found[wait] = records[min(number, len(records) - 1)]
    return found


def _timed(event: Event, delay: float, record: Event | None) -> Event:
    start = _number(event, "ts") + delay
    length = _number(event, "dur") if record is None else max(_end(record) - start, 0.0)
    return {**event, "ts": start, "dur": length}


def _end(event: Event) -> float:
    return _number(event, "ts") + _number(event, "dur")


def _number(event: Event, key: str) -> float:
    value = event.get(key, 0)
    if not isinstance(value, int | float):
        raise ValueError(f"{key} of {event['name']} is not a number: {value!r}")
    return value
