"""Can two kernels of a recorded graph wait for each other's cores for ever?

A communication kernel of scheduling mode 1 starts only when all its vector cores are free at once, and holds
them until its peers on other devices answer. Two such kernels that nothing orders may each get a part of the
cores. The analyser reads the task trace of a device graph (Chrome trace events) and looks for such pairs:
streams started by other streams count as part of these, and order is what streams, events and memory flags
say (vector clocks); times in the trace mean nothing.
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

# What waits -> what it waits for. Both names end in the handle that they share.
WAITS_FOR = {"event_wait": "event_record", "mem_wait": "mem_write"}
SYNCHRONISATION = (*WAITS_FOR, *WAITS_FOR.values())
HANDLE = re.compile(r"_(0x[0-9a-f]+|\d+)$")
EXCLUSIVE = 1  # the scheduling mode in which all cores must be free at once
MOVED = "Moved From"  # key of a task that continues another stream: the stream it stood in
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
    communicates: bool = False
    """Does the engine say that it talks to other devices, whatever its name?"""

    @property
    def competes(self) -> bool:
        """May it hold cores while it waits for others?"""
        named = any(part in self.name.lower() for part in ("aiv_", "dispatch", "combine"))
        return self.mode == EXCLUSIVE and (named or self.communicates)


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


def is_task(event: Any) -> bool:
    """Is it a task of a stream?"""
    named = isinstance(event, dict) and "tid" in event and isinstance(event.get("name"), str)
    return named and event.get("ph") != "M"


def merge_streams(events: Iterable[Any], gap: float = 0.0) -> list[Event]:
    """The events stream by stream in the order of task ids; streams that a `STREAM_ACTIVE` task starts
    continue the stream of that task, `gap` behind what ends last there. What is not a task of a stream is
    left out. A second time changes nothing: tasks that were moved say so.
    """
    streams: dict[str, list[Event]] = {}
    for event in filter(is_task, events):
        streams.setdefault(str(event["tid"]), []).append(event)
    for tasks in streams.values():
        # The stream's own come first.
        origins = list(dict.fromkeys(["", *(_args(task).get(MOVED, "") for task in tasks)]))
        places = {origin: place for place, origin in enumerate(origins)}
        tasks.sort(key=lambda t: (places[_args(t).get(MOVED, "")], _number(_args(t).get("Task Id"))))
    host = {stream: stream for stream in streams}
    for task in [task for tasks in streams.values() for task in tasks]:
        started, starter = _started(task), _root(host, str(task["tid"]))
        # A stream that starts the one it continues would never begin; such a trace is left as it is.
        if started in streams and _root(host, started) != starter:
            host[started] = starter
            streams[starter] += _moved(streams.pop(started), started, streams[starter], gap)
    return [{**task, "tid": stream} for stream, tasks in streams.items() for task in tasks]


def _moved(tasks: list[Event], origin: str, behind: list[Event], gap: float) -> list[Event]:
    """Tasks of a stream that continues another, behind what ends last there."""
    shift = 0.0
    if all(isinstance(task.get("ts"), int | float) for task in (*tasks, *behind)):
        shift = max(task["ts"] + task.get("dur", 0) for task in behind) + gap - tasks[0]["ts"]
    return [
        {
            **task,
            **({"ts": task["ts"] + shift} if shift else {}),
            "args": {MOVED: origin, **_args(task)},
        }
        for task in tasks
    ]


def is_synchronisation(name: str) -> bool:
    """Does a task of this name record, write or wait?"""
    return name.lower().startswith(SYNCHRONISATION)


def is_communication(event: Event) -> bool:
    """Does a task talk to other devices? Its name tells, or what the engine wrote beside it."""
    name = event["name"].lower()
    if is_synchronisation(name):
        return False
    known = name.startswith(("aiv_", "hccl_aiv")) or "dispatch" in name or "combine" in name
    return known or _says_communication(event)


def keep_relevant(events: Iterable[Event]) -> list[Event]:
    """The tasks that order others or may compete with others."""
    return [event for event in events if is_synchronisation(event["name"]) or is_communication(event)]


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
        talks = _says_communication(event)
        tasks.append(Task(stream, places[stream], id, event["name"], cores, mode, talks))
    return tasks


def clocks_of(tasks: Sequence[Task]) -> dict[Task, Clock]:
    """For each task, how many tasks of every stream are over before it ends."""
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


def read_trace(path: Path) -> tuple[Any, list[Any]]:
    """What a file holds, and the list of events in it."""
    content = json.loads(path.read_text(encoding="utf-8"))
    events = content.get("traceEvents") if isinstance(content, dict) else content
    if not isinstance(events, list):
        raise ValueError("it holds no list of trace events")
    return content, events


def write_trace(path: Path, content: Any, events: list[Event]) -> None:
    """Write other events in the place of those in `content`."""
    whole = {**content, "traceEvents": events} if isinstance(content, dict) else events
    write_text(path, json.dumps(whole, indent=1))


def filter_trace(path: Path, output: Path | None = None, gap: float = 0.0) -> Path:
    """Write what orders tasks and what may compete, by default beside the trace; tells which of the latter
    are not checked.
    """
    content, events = read_trace(path)
    relevant = keep_relevant(merge_streams(events, gap))
    output = output or path.with_name(f"{path.stem}_filtered{path.suffix}")
    write_trace(output, content, relevant)
    for event, task in zip(relevant, tasks_of(relevant), strict=True):
        if is_communication(event) and task.mode != EXCLUSIVE:
            print(f"{task.stream} task {task.id} {task.name}: Schem Mode is not 1, its cores are not checked")
    return output


def check_filtered(path: Path, cores: int, output: Path | None = None, gap: float = 0.0) -> list[Conflict]:
    """Analyse a trace, print what was found and, if anything was, write the marked trace, by default beside
    it.
    """
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
    """Analyse the trace of a device graph, print what was found and write the filtered and the marked trace
    beside it.
    """
    return check_filtered(filter_trace(path), cores)


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


def _says_communication(event: Event) -> bool:
    """The engine writes more about a task beside it: JSON, as text or as it is, under a name like
    `extend_info`.
    """
    for key, value in _args(event).items():
        if "".join(filter(str.isalpha, key)).lower().startswith("ext"):
            with contextlib.suppress(ValueError):
                found = json.loads(value) if isinstance(value, str) else value
                if isinstance(found, dict) and found.get("taskType") == "communication":
                    return True
    return False


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


def sign_of(name: str) -> tuple[str, str] | None:
    """Kind and handle of a synchronisation task; None when it names no handle."""
    name = name.lower()
    found = HANDLE.search(name)
    kind = next((kind for kind in SYNCHRONISATION if name.startswith(kind)), None)
    return None if kind is None or found is None else (kind, found.group(1))


def _awaited(task: Task, records: dict[tuple[str, str], list[Task]]) -> list[Task]:
    """The tasks that give the sign `task` waits for; a later one of its own stream cannot be meant."""
    kind, handle = sign_of(task.name) or ("", "")
    found = records.get((WAITS_FOR.get(kind, ""), handle), [])
    return [other for other in found if other.stream != task.stream or other.place < task.place]


def _advance(clock: Clock, other: Clock) -> bool:
    """Take over what `other` knows; did that change anything?"""
    later = {stream: place for stream, place in other.items() if place > clock.get(stream, 0)}
    clock.update(later)
    return bool(later)
