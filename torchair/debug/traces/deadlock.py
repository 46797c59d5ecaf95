"""Find kernels of a recorded graph that may wait for each other's cores forever.

A communication kernel of scheduling mode 1 starts only when all its vector cores are free at the same time.
It holds them until its peers on other devices answer. Two such kernels without an order between them may each
get a part of the cores. The analyzer reads the task trace of a device graph (Chrome trace events) and
searches for such pairs. Streams that other streams start count as parts of these. The order of tasks follows
from streams, events and memory flags (vector clocks); times in the trace are ignored.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from torchair.core.text_table import text_lines
from torchair.debug.dumps.files import write_text

Event = dict[str, Any]
Clock = dict[str, int]

# Waiting task type -> the type it waits for. Both names end in the handle that they share.
WAITS_FOR = {"event_wait": "event_record", "mem_wait": "mem_write"}
SYNCHRONISATION = (*WAITS_FOR, *WAITS_FOR.values())
HANDLE = re.compile(r"_(0x[0-9a-f]+|\d+)$")
EXCLUSIVE = 1  # the scheduling mode in which all cores must be free at the same time
MOVED = "Moved From"  # key of a task that continues another stream: its original stream
STRETCHED = 49.5  # the duration shown for a task at risk
COLUMNS = ("stream", "task", "name", "cores", "stream", "task", "name", "cores", "sum", "total")

# Vector cores of a task: type -> (blocks, ratio of vector to cube cores) -> cores. Other types need none.
NEEDS: dict[str, Callable[[int, int], int]] = {
    "KERNEL_AIVEC": lambda blocks, ratio: blocks,
    "KERNEL_MIX_AIV": lambda blocks, ratio: blocks,
    "KERNEL_MIX_AIC": lambda blocks, ratio: 2 * blocks if ratio else 0,
}


@dataclass(frozen=True)
class Task:
    """One task of the trace: its stream, and the number of tasks before it on the stream."""

    stream: str
    place: int
    id: str
    name: str
    cores: int
    mode: int
    communicates: bool = False
    """Whether the engine marks the task as communication, whatever its name."""

    @property
    def competes(self) -> bool:
        """Return whether the task may hold cores while it waits for others."""
        named = any(part in self.name.lower() for part in ("aiv_", "dispatch", "combine"))
        return self.mode == EXCLUSIVE and (named or self.communicates)


@dataclass(frozen=True)
class Conflict:
    """Two tasks that may run at the same time and together need more cores than the device has."""

    first: Task
    second: Task
    total: int

    @property
    def row(self) -> tuple[str, ...]:
        """Return the cells of its line in the table."""
        cells = [
            x for task in (self.first, self.second) for x in (task.stream, task.id, task.name, task.cores)
        ]
        return tuple(str(cell) for cell in (*cells, self.first.cores + self.second.cores, self.total))


# The analysis: from events to events and conflicts


def is_task(event: Any) -> bool:
    """Return whether the event is a task of a stream."""
    named = isinstance(event, dict) and "tid" in event and isinstance(event.get("name"), str)
    return named and event.get("ph") != "M"


def merge_streams(events: Iterable[Any], gap: float = 0.0) -> list[Event]:
    """Return the events stream by stream, ordered by task id.

    Streams that a `STREAM_ACTIVE` task starts continue the stream of that task, `gap` after its last end.
    Events that are not tasks of a stream are dropped. Merging twice changes nothing, because moved tasks are
    marked.
    """
    streams: dict[str, list[Event]] = {}
    for event in filter(is_task, events):
        streams.setdefault(str(event["tid"]), []).append(event)
    for tasks in streams.values():
        # The tasks of the stream itself come first.
        origins = list(dict.fromkeys(["", *(_args(task).get(MOVED, "") for task in tasks)]))
        places = {origin: place for place, origin in enumerate(origins)}
        tasks.sort(key=lambda t: (places[_args(t).get(MOVED, "")], _number(_args(t).get("Task Id"))))
    host = {stream: stream for stream in streams}
    for task in [task for tasks in streams.values() for task in tasks]:
        started, starter = _started(task), _root(host, str(task["tid"]))
        # A stream that starts the stream it continues would never begin; such a trace stays unchanged.
        if started in streams and _root(host, started) != starter:
            host[started] = starter
            streams[starter] += _moved(streams.pop(started), started, streams[starter], gap)
    return [{**task, "tid": stream} for stream, tasks in streams.items() for task in tasks]


def _moved(tasks: list[Event], origin: str, following: list[Event], gap: float) -> list[Event]:
    """Return the tasks of a stream that continues another, moved after its last end."""
    shift = 0.0
    if all(isinstance(task.get("ts"), int | float) for task in (*tasks, *following)):
        shift = max(task["ts"] + task.get("dur", 0) for task in following) + gap - tasks[0]["ts"]
    return [
        {
            **task,
            **({"ts": task["ts"] + shift} if shift else {}),
            "args": {MOVED: origin, **_args(task)},
        }
        for task in tasks
    ]


def is_synchronization(name: str) -> bool:
    """Return whether a task of this name records, writes or waits."""
    return name.lower().startswith(SYNCHRONISATION)


def is_communication(event: Event) -> bool:
    """Return whether a task communicates with other devices, by its name or the engine's additional data."""
    name = event["name"].lower()
    if is_synchronization(name):
        return False
    known = name.startswith(("aiv_", "hccl_aiv")) or "dispatch" in name or "combine" in name
    return known or _marks_communication(event)


def keep_relevant(events: Iterable[Event]) -> list[Event]:
    """Return the tasks that order others or may compete with others."""
    return [event for event in events if is_synchronization(event["name"]) or is_communication(event)]


def tasks_of(events: Iterable[Event]) -> list[Task]:
    """Return the task of each event; events of one stream are in their order."""
    places: dict[str, int] = {}
    tasks: list[Task] = []
    for event in events:
        args, stream = _args(event), str(event["tid"])
        places[stream] = places.get(stream, 0) + 1
        need = NEEDS.get(str(args.get("Task Type")).upper(), lambda blocks, ratio: 0)
        cores = need(_number(args.get("Numblocks")), _number(args.get("Task Ration")))
        mode, id = _number(args.get("Schem Mode"), -1), str(args.get("Task Id", ""))
        talks = _marks_communication(event)
        tasks.append(Task(stream, places[stream], id, event["name"], cores, mode, talks))
    return tasks


def clocks_of(tasks: Sequence[Task]) -> dict[Task, Clock]:
    """Return, for each task, how many tasks of every stream end before it ends."""
    records: dict[tuple[str, str], list[Task]] = {}
    for task in tasks:
        if (sign := sign_of(task.name)) is not None:
            records.setdefault(sign, []).append(task)
    clocks: dict[Task, Clock] = {task: {task.stream: task.place} for task in tasks}
    changed = True
    while changed:
        changed = False
        latest: dict[str, Task] = {}
        for task in tasks:
            before = _awaited(task, records)
            if task.stream in latest:
                before.append(latest[task.stream])
            latest[task.stream] = task
            for other in before:
                changed |= _advance(clocks[task], clocks[other])
    return clocks


def conflicts_of(events: Iterable[Event], cores: int) -> list[Conflict]:
    """Return the pairs that may starve each other on a device with `cores` vector cores."""
    tasks = tasks_of(events)
    clocks = clocks_of(tasks)

    def ordered(first: Task, second: Task) -> bool:
        return clocks[second].get(first.stream, 0) >= first.place

    return [
        Conflict(first, second, cores)
        for first, second in combinations([task for task in tasks if task.competes], 2)
        if first.stream != second.stream
        and first.cores + second.cores > cores
        and not ordered(first, second)
        and not ordered(second, first)
    ]


def mark(events: Iterable[Event], conflicts: Sequence[Conflict]) -> list[Event]:
    """Return the events with tasks at risk renamed and stretched, so that they stand out in a viewer."""
    events = list(events)
    risky = {task for conflict in conflicts for task in (conflict.first, conflict.second)}
    return [
        {**event, "name": f"dead_lock_{event['name']}", "dur": STRETCHED} if task in risky else event
        for event, task in zip(events, tasks_of(events), strict=True)
    ]


# Checking a file


def read_trace(path: Path) -> tuple[Any, list[Any]]:
    """Return the contents of a file, and its list of events."""
    content = json.loads(path.read_text(encoding="utf-8"))
    events = content.get("traceEvents") if isinstance(content, dict) else content
    if not isinstance(events, list):
        raise ValueError("it contains no list of trace events")
    return content, events


def write_trace(path: Path, content: Any, events: list[Event]) -> None:
    """Write the content with its events replaced."""
    whole = {**content, "traceEvents": events} if isinstance(content, dict) else events
    write_text(path, json.dumps(whole, indent=1))


def filter_trace(path: Path, output: Path | None = None, gap: float = 0.0) -> Path:
    """Write ordering and competing tasks, by default next to the trace, and print unchecked ones."""
    content, events = read_trace(path)
    relevant = keep_relevant(merge_streams(events, gap))
    output = output or path.with_name(f"{path.stem}_filtered{path.suffix}")
    write_trace(output, content, relevant)
    for event, task in zip(relevant, tasks_of(relevant), strict=True):
        if is_communication(event) and task.mode != EXCLUSIVE:
            print(f"{task.stream} task {task.id} {task.name}: not checked, because its Schem Mode is not 1")
    return output


def check_filtered(path: Path, cores: int, output: Path | None = None, gap: float = 0.0) -> list[Conflict]:
    """Analyze a trace, print the conflicts and, if there are any, write the marked trace."""
    content, events = read_trace(path)
    relevant = merge_streams(events, gap)
    conflicts = conflicts_of(relevant, cores)
    if not conflicts:
        print(f"no deadlock found in {path.name}")
        return []
    marked = output or path.with_name(f"{path.stem}_deadlock_check{path.suffix}")
    write_trace(marked, content, mark(relevant, conflicts))
    print(f"pairs of tasks that may starve each other: {len(conflicts)}, marked in {marked.name}")
    print(*text_lines(COLUMNS, [conflict.row for conflict in conflicts]), sep="\n")
    return conflicts


def check_trace(path: Path, cores: int) -> list[Conflict]:
    """Analyze a device graph's trace, print conflicts, and write the filtered and the marked trace."""
    return check_filtered(filter_trace(path), cores)


# Helpers


def _args(event: Event) -> dict[str, Any]:
    args = event.get("args")
    return args if isinstance(args, dict) else {}


def _number(value: Any, default: int = 0) -> int:
    """Parse a number; traces write numbers as numbers or as text."""
    try:
        return int(float(value))
    except (TypeError, ValueError, OverflowError):
        return default


def _marks_communication(event: Event) -> bool:
    """Return whether the engine's data (JSON, under a key like `extend_info`) mark communication."""
    for key, value in _args(event).items():
        if "".join(filter(str.isalpha, key)).lower().startswith("ext"):
            with contextlib.suppress(ValueError):
                found = json.loads(value) if isinstance(value, str) else value
                if isinstance(found, dict) and found.get("taskType") == "communication":
                    return True
    return False


def _started(task: Event) -> str | None:
    """Return the stream that a `STREAM_ACTIVE` task starts."""
    args = _args(task)
    kind = str(args.get("Task Type", "")).upper()
    if kind != "STREAM_ACTIVE" and not task["name"].upper().startswith("STREAM_ACTIVE"):
        return None
    text = str(args.get("Active Stream Id", ""))
    return text if text.startswith("stream") else f"stream{text}"


def _root(host: dict[str, str], stream: str) -> str:
    while host[stream] != stream:
        stream = host[stream]
    return stream


def sign_of(name: str) -> tuple[str, str] | None:
    """Return kind and handle of a synchronization task; None if its name has no handle."""
    name = name.lower()
    found = HANDLE.search(name)
    kind = next((kind for kind in SYNCHRONISATION if name.startswith(kind)), None)
    return None if kind is None or found is None else (kind, found.group(1))


def _awaited(task: Task, records: dict[tuple[str, str], list[Task]]) -> list[Task]:
    """Return the tasks that signal `task`, without later ones of its own stream."""
    kind, handle = sign_of(task.name) or ("", "")
    found = records.get((WAITS_FOR.get(kind, ""), handle), [])
    return [other for other in found if other.stream != task.stream or other.place < task.place]


def _advance(clock: Clock, other: Clock) -> bool:
    """Merge `other` into the clock and return whether that changed it."""
    later = {stream: place for stream, place in other.items() if place > clock.get(stream, 0)}
    clock.update(later)
    return bool(later)
