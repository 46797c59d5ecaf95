"""The tasks of a trace, timed anew so that a wait ends where the record it waits for ends.

The engine's traces give each stream a clock of its own. Here streams keep the order, the lengths and the gaps
of their tasks; only waits become as long as they have to be, and push back what follows them.
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
    """Write the trace with its new times, by default as `<name>.aligned.json` beside it; `ValueError` where
    tasks wait for each other.
    """
    content, events = read_trace(path)
    output = output or path.with_suffix(".aligned.json")
    others = [event for event in events if not is_task(event)]
    write_trace(output, content, others + align(merge_streams(events, gap)))
    return output


def align(events: Sequence[Event]) -> list[Event]:
    """The same tasks at their new times; events of one stream are in their order."""
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
            raise ValueError(f"these wait for each other: {names}")
    return [timed[place] for place in range(len(events))]


def _awaited(events: Sequence[Event]) -> dict[int, int]:
    """The place of each wait -> that of the record it waits for: of those with its handle the one of the same
    number, else the last.
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
        raise ValueError(f"{key} of {event['name']} is no number: {value!r}")
    return value
