"""Random programs with streams, events and scopes, as data; and what runs them."""

from __future__ import annotations

import hashlib
import linecache
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from hypothesis import strategies as st

import torchair

LABELS = ("", "a", "b", "c")
"""Of streams; the first is that of the graph."""
INPUTS = 3
OPS = {
    "add": "{x} + {y}",
    "mul": "{x} * {y} * 0.5",
    "mm": "torch.tanh({x} @ {y})",
    "sin": "torch.sin({x}) - {y}",
    "view": "{x}.t() + {y}[:1]",
}
WRITES = {"add_": "{x}.add_({y})", "part_": "{x}[1:].mul_({y}[1:] * 0.5)"}
SCOPES = {
    "": "",
    "cores": "scope.limit_core_num(8, 16)",
    "kernel": "scope.super_kernel('block', 'stream-fusion=1')",
    "timeout": "scope.op_never_timeout(True)",
    "nested": "scope.npu_stream_switch('outer')",
}


@dataclass(frozen=True)
class Call:
    """One op on a stream: variables by number, the last made is the highest."""

    name: str
    stream: int
    first: int
    second: int
    scope: str = ""


@dataclass(frozen=True)
class Sync:
    """A wait of a stream for a point of another, marked by an event of that number, or by a token."""

    kind: Literal["record", "wait"]
    stream: int
    number: int
    way: str


Program = tuple[Call | Sync, ...]


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Ops that wait for all that they must wait for."""
    calls: list[Call] = []
    made = INPUTS
    for _ in range(draw(st.integers(3, 9))):
        name = draw(st.sampled_from([*OPS, *OPS, *WRITES]))
        numbers = st.integers(0, made - 1)
        scope = draw(st.sampled_from([*SCOPES, "", ""]))
        first, second = draw(numbers), draw(numbers)
        if name in WRITES and first == second:
            continue
        calls.append(Call(name, draw(st.integers(0, len(LABELS) - 1)), first, second, scope))
        made += name in OPS
    ways = draw(st.lists(st.sampled_from(["token", "event"]), min_size=1, max_size=4))
    return synchronised(calls, ways)


def synchronised(calls: Sequence[Call], ways: Sequence[str]) -> Program:
    """The calls with a record and a wait for every pair on different streams of which one needs the other."""
    program: list[Call | Sync] = []
    records: dict[int, list[Sync]] = {}
    waits: dict[int, list[Sync]] = {}
    for place, (before, after, _) in enumerate(pairs(calls)):
        way = ways[place % len(ways)]
        records.setdefault(before, []).append(Sync("record", calls[before].stream, place, way))
        waits.setdefault(after, []).append(Sync("wait", calls[after].stream, place, way))
    for place, call in enumerate(calls):
        program += [*waits.get(place, ()), call, *records.get(place, ())]
    return tuple(program)


def pairs(calls: Sequence[Call]) -> list[tuple[int, int, bool]]:
    """Which call must be done before which, on another stream; and whether that one reads what it made."""
    writer: dict[int, int] = {}
    readers: dict[int, list[int]] = {}
    found: list[tuple[int, int, bool]] = []
    made = INPUTS
    for place, call in enumerate(calls):
        makers = [writer[number] for number in (call.first, call.second) if number in writer]
        before = [reader for reader in readers.get(call.first, ()) if call.name in WRITES]
        for number in (call.first, call.second):
            readers.setdefault(number, []).append(place)
        if call.name in WRITES:
            writer[call.first], readers[call.first] = place, []
        else:
            writer[made] = place
            made += 1
        needs = {need: need in makers for need in (*makers, *before)}
        found += [
            (need, place, is_read) for need, is_read in needs.items() if calls[need].stream != call.stream
        ]
    return found


def unordered(program: Program) -> list[bool]:
    """For each pair of calls that nothing orders: does the second read what the first made?"""
    calls = [item for item in program if isinstance(item, Call)]
    clocks: dict[int, set[int]] = {}
    recorded: dict[int, set[int]] = {}
    before: list[set[int]] = []
    for item in program:
        clock = clocks.setdefault(item.stream, set())
        if isinstance(item, Call):
            before.append(set(clock))
            clock.add(len(before) - 1)
        elif item.kind == "record":
            recorded[item.number] = set(clock)
        else:
            clock |= recorded.get(item.number, set())
    return [is_read for first, second, is_read in pairs(calls) if first not in before[second]]


def without(program: Program, number: int) -> Program:
    """With one wait less."""
    waits = [item for item in program if isinstance(item, Sync) and item.kind == "wait"]
    left_out = waits[number % len(waits)]
    return tuple(item for item in program if item is not left_out)


def has_waits(program: Program) -> bool:
    """Is there one to leave out?"""
    return any(isinstance(item, Sync) for item in program)


def source(program: Program) -> str:
    """The text of a function `run` of tensors, with `scope`, `ops`, `torch` and `events`."""
    names = [f"v{number}" for number in range(INPUTS)]
    lines = [f"def run({', '.join(names)}):"]
    for item in program:
        switch = f"scope.npu_stream_switch({LABELS[item.stream]!r})" if item.stream else ""
        if isinstance(item, Call) and item.scope == "nested":
            switch = switch or "scope.npu_stream_switch('default')"
        around = [SCOPES[item.scope] if isinstance(item, Call) else "", switch]
        blocks = ", ".join(text for text in around if text)
        lines.append(f"    with {blocks}:" if blocks else "    if True:")
        lines.append(f"        {_line(item, names)}")
    return "\n".join([*lines, f"    return [{', '.join(names[INPUTS:])}]", ""])


def _line(item: Call | Sync, names: list[str]) -> str:
    if isinstance(item, Sync):
        told = {
            ("record", "token"): "t{} = ops.record()",
            ("record", "event"): "ops.npu_tagged_event_record(events[{}])",
            ("wait", "token"): "ops.wait([t{}])",
            ("wait", "event"): "ops.npu_tagged_event_wait(events[{}])",
        }
        return told[item.kind, item.way].format(item.number)
    text = (OPS | WRITES)[item.name].format(x=names[item.first], y=names[item.second])
    if item.name in OPS:
        names.append(f"v{len(names)}")
        return f"{names[-1]} = {text}"
    return text


def function(program: Program, events: Sequence[Any] = ()) -> Callable[..., tuple[torch.Tensor, ...]]:
    """The program, ready to be called or compiled; errors show its lines."""
    text = source(program)
    name = f"<program {hashlib.sha256(text.encode()).hexdigest()[:8]}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    names: dict[str, Any] = {"torch": torch, "scope": torchair.scope, "ops": torchair.ops, "events": events}
    exec(compile(text, name, "exec"), names)
    return names["run"]


def plain(program: Program) -> Callable[..., tuple[torch.Tensor, ...]]:
    """The same ops one after the other, on one stream."""
    return function(tuple(replace(item, stream=0, scope="") for item in program if isinstance(item, Call)))
