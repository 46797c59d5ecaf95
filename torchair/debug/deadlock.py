"""Can two kernels of a recorded graph wait for each other's cores for ever?

A communication kernel of scheduling mode 1 starts only when all its vector cores are free at once, and holds
them until its peers on other devices answer. Two such kernels that nothing orders may each get a part of the
cores. The analyser reads the task trace of a device graph (Chrome trace events) and looks for such pairs:
streams started by other streams count as part of these, and order is what streams, events and memory flags
say (vector clocks); times in the trace mean nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from torchair.core.tables import text_lines
from torchair.debug.files import write_text

Event = dict[str, Any]
Clock = dict[str, int]

# What waits -> what it waits for. Both names end in the handle that they share.
WAITS_FOR = {"event_wait": "event_record", "mem_wait": "mem_write"}
SYNCHRONISATION = (*WAITS_FOR, *WAITS_FOR.values())
HANDLE = re.compile(r"_(0x[0-9a-f]+|\d+)$")
EXCLUSIVE = 1  # the scheduling mode in which all cores must be free at once
STRETCHED = 49.5  # the duration shown for a risky task
COLUMNS = ("stream", "task", "name", "cores", "stream", "task", "name", "cores", "sum", "total")

# Vector cores of a task: type -> (blocks, ratio of vector to cube cores) -> cores. Other types need none.
NEEDS: dict[str, Callable[[int, int], int]] = {
    "KERNEL_AIVEC": lambda blocks, ratio: blocks,
    "KERNEL_MIX_AIV": lambda blocks, ratio: blocks,
    "KERNEL_MIX_AIC": lambda blocks, ratio: 2 * blocks if ratio else 0,
}


@dataclass(frozen=True)
class Task:
    """One task of the trace: where it runs, and after how many others of its stream."""

    stream: str
    place: int
    id: str
    name: str
    cores: int
    mode: int

    @property
    def competes(self) -> bool:
        """May it hold cores while it waits for others?"""
        name = self.name.lower()
        return self.mode == EXCLUSIVE and any(part in name for part in ("aiv_", "dispatch", "combine"))


@dataclass(frozen=True)
class Conflict:
    """Two tasks that may run at the same time and together need more cores than there are."""

    first: Task
    second: Task
    total: int

    @property
    def row(self) -> tuple[str, ...]:
        """The cells of its line in the table."""
        cells = [
            x for task in (self.first, self.second) for x in (task.stream, task.id, task.name, task.cores)
        ]
        return tuple(str(cell) for cell in (*cells, self.first.cores + self.second.cores, self.total))


# The analysis: events in, events and conflicts out


def merge_streams(events: Iterable[Any]) -> list[Event]:
    """The events stream by stream in the order of task ids; streams that a `STREAM_ACTIVE` task starts
    continue the stream of that task. What is not a task of a stream is left out.
    """
    streams: dict[str, list[Event]] = {}
    for event in events:
        if isinstance(event, dict) and "tid" in event and isinstance(event.get("name"), str):
            streams.setdefault(str(event["tid"]), []).append(event)
    for tasks in streams.values():
        tasks.sort(key=lambda task: _number(_args(task).get("Task Id")))
    host = {stream: stream for stream in streams}
    for task in [task for tasks in streams.values() for task in tasks]:
        started, starter = _started(task), _root(host, str(task["tid"]))
        # A stream that starts the one it continues would never begin; such a trace is left as it is.
        if started in streams and _root(host, started) != starter:
            host[started] = starter
            streams[starter] += streams.pop(started)
    return [{**task, "tid": stream} for stream, tasks in streams.items() for task in tasks]


def is_synchronisation(name: str) -> bool:
    """Does a task of this name record, write or wait?"""
    return name.lower().startswith(SYNCHRONISATION)


def is_communication(name: str) -> bool:
    """Does a task of this name talk to other devices?"""
    name = name.lower()
    return name.startswith(("aiv_", "hccl_aiv")) or "dispatch" in name or "combine" in name


def keep_relevant(events: Iterable[Event]) -> list[Event]:
    """The tasks that order others or may compete with others."""
    return [e for e in events if is_synchronisation(e["name"]) or is_communication(e["name"])]


def tasks_of(events: Iterable[Event]) -> list[Task]:
    """The facts of each event; events of one stream are in their order."""
    places: dict[str, int] = {}
    tasks: list[Task] = []
    for event in events:
        args, stream = _args(event), str(event["tid"])
        places[stream] = places.get(stream, 0) + 1
        need = NEEDS.get(str(args.get("Task Type")).upper(), lambda blocks, ratio: 0)
        cores = need(_number(args.get("Numblocks")), _number(args.get("Task Ration")))
        mode, id = _number(args.get("Schem Mode"), -1), str(args.get("Task Id", ""))
        tasks.append(Task(stream, places[stream], id, event["name"], cores, mode))
    return tasks


def clocks_of(tasks: Sequence[Task]) -> dict[Task, Clock]:
    """For each task, how many tasks of every stream are over before it ends."""
    records: dict[tuple[str, str], list[Task]] = {}
    for task in tasks:
        if (sign := _sign(task.name)) is not None:
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
    """The pairs that may starve each other on a device with so many vector cores."""
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
    """The events with risky tasks renamed and stretched, to be seen at a glance."""
    events = list(events)
    risky = {task for conflict in conflicts for task in (conflict.first, conflict.second)}
    return [
        {**event, "name": f"dead_lock_{event['name']}", "dur": STRETCHED} if task in risky else event
        for event, task in zip(events, tasks_of(events), strict=True)
    ]


# The check of a file


def check_trace(path: Path, cores: int) -> list[Conflict]:
    """Analyse the trace of a device graph, print what was found and write the filtered and the marked trace
    beside it.
    """
    content = json.loads(path.read_text(encoding="utf-8"))
    events = content.get("traceEvents") if isinstance(content, dict) else content
    if not isinstance(events, list):
        raise ValueError("it holds no list of trace events")
    relevant = keep_relevant(merge_streams(events))
    _write(path.with_name(f"{path.stem}_filtered.json"), content, relevant)
    for task in tasks_of(relevant):
        if is_communication(task.name) and not is_synchronisation(task.name) and task.mode != EXCLUSIVE:
            print(f"{task.stream} task {task.id} {task.name}: Schem Mode is not 1, its cores are not checked")
    conflicts = conflicts_of(relevant, cores)
    if not conflicts:
        print(f"no deadlock found in {path.name}")
        return []
    marked = path.with_name(f"{path.stem}_filtered_deadlock_check.json")
    _write(marked, content, mark(relevant, conflicts))
    print(f"pairs of tasks that may starve each other: {len(conflicts)}, marked in {marked.name}")
    print(*text_lines(COLUMNS, [conflict.row for conflict in conflicts]), sep="\n")
    return conflicts


def _write(path: Path, content: Any, events: list[Event]) -> None:
    whole = {**content, "traceEvents": events} if isinstance(content, dict) else events
    write_text(path, json.dumps(whole, indent=1))


# Parts


def _args(event: Event) -> dict[str, Any]:
    args = event.get("args")
    return args if isinstance(args, dict) else {}


def _number(value: Any, default: int = 0) -> int:
    """Traces write numbers as numbers or as text."""
    try:
        return int(float(value))
    except (TypeError, ValueError, OverflowError):
        return default


def _started(task: Event) -> str | None:
    """The stream that a `STREAM_ACTIVE` task starts."""
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


def _sign(name: str) -> tuple[str, str] | None:
    """Kind and handle of a synchronisation task; None when it names no handle."""
    name = name.lower()
    found = HANDLE.search(name)
    kind = next((kind for kind in SYNCHRONISATION if name.startswith(kind)), None)
    return None if kind is None or found is None else (kind, found.group(1))


def _awaited(task: Task, records: dict[tuple[str, str], list[Task]]) -> list[Task]:
    """The tasks that give the sign `task` waits for; a later one of its own stream cannot be meant."""
    kind, handle = _sign(task.name) or ("", "")
    found = records.get((WAITS_FOR.get(kind, ""), handle), [])
    return [other for other in found if other.stream != task.stream or other.place < task.place]


def _advance(clock: Clock, other: Clock) -> bool:
    """Take over what `other` knows; did that change anything?"""
    later = {stream: place for stream, place in other.items() if place > clock.get(stream, 0)}
    clock.update(later)
    return bool(later)
