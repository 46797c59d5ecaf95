"""Joins independent programs into one, so that one compilation serves all of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from random import Random

from tests.fuzz.programs import Feed, Line, Program, any_program

FEEDS = 2
"""Calls of a joined program: each new layout of one input compiles all of its programs again."""
OWNED = re.compile(r"(output |\bx|b)(\d+)")
NUMBERED = re.compile(r"\b([vx])(\d+)\b")


def join(programs: Sequence[Program]) -> Program:
    """Join programs that are compiled in the same way.

    Inputs, buffers and results are renumbered. Call `n` of the joined program makes call `n` of each program;
    a program with fewer calls repeats its last one.
    """
    if len(programs) == 1:
        return programs[0]
    lines: list[Line] = []
    returns: list[str] = []
    feeds = [Feed((), ())] * min(FEEDS, max(len(program.feeds) for program in programs))
    for program in programs:
        rename = _renumber(len(feeds[0].views), len(lines))
        lines += [
            Line(
                rename(line.text), rename(line.target), tuple(map(rename, line.sources)), rename(line.reaches)
            )
            for line in program.lines
        ]
        returns += map(rename, program.returns)
        feeds = [_add(feed, program.feeds[min(n, len(program.feeds) - 1)]) for n, feed in enumerate(feeds)]
    return replace(
        programs[0], lines=tuple(lines), returns=tuple(returns), feeds=tuple(feeds), parts=len(programs)
    )


def _renumber(inputs: int, results: int) -> Callable[[str], str]:
    """Return the function that adds these numbers to the names of inputs and of results."""
    added = {"x": inputs, "v": results}
    return lambda text: NUMBERED.sub(lambda found: f"{found[1]}{int(found[2]) + added[found[1]]}", text)


def _add(feed: Feed, more: Feed) -> Feed:
    views = tuple(replace(view, buffer=view.buffer + len(feed.buffers)) for view in more.views)
    return Feed(feed.buffers + more.buffers, feed.views + views)


def suspects(programs: Sequence[Program], places: Iterable[tuple[int, str]]) -> list[int]:
    """Return the numbers of the programs that own what differs: outputs, inputs and buffers by name."""
    feeds = min(FEEDS, max(len(program.feeds) for program in programs))
    found: set[int] = set()
    for call, name in places:
        for kind, number in OWNED.findall(name):
            left = int(number)
            for part, program in enumerate(programs):
                feed = program.feeds[min(call % feeds, len(program.feeds) - 1)]
                owned = {"output ": program.returns, "x": feed.views, "b": feed.buffers}[kind]
                if left < len(owned):
                    found.add(part)
                    break
                left -= len(owned)
    return sorted(found)


def any_batch(seeds: Sequence[int], mode: str | None = None, dynamic: bool | None = None) -> list[Program]:
    """Make the program of each seed; the first seed decides how all of them are compiled."""
    first = any_program(Random(seeds[0]), mode, dynamic)
    others = [any_program(Random(seed), first.mode, first.dynamic) for seed in seeds[1:]]
    ways = {way: getattr(first, way) for way in ("simulated", "keep", "careless")}
    return [first, *(replace(program, **ways) for program in others)]
