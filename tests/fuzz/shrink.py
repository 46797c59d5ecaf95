"""From a program that fails to a smaller one that fails in the same way."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from tests.fuzz.programs import NAME, Feed, Program, extent, is_legal


def smaller(program: Program) -> Iterator[Program]:
    """Programs with one thing less."""
    for i in range(len(program.feeds) * (len(program.feeds) > 1)):
        yield replace(program, feeds=without(program.feeds, i))
    for i in reversed(range(len(program.lines))):
        yield replace(program, lines=without(program.lines, i))
    for i in range(len(program.returns) * (len(program.returns) > 1)):
        yield replace(program, returns=without(program.returns, i))
    for way in ("careless", "keep", "simulated", "dynamic"):
        if getattr(program, way):
            yield replace(program, **{way: False})
    for i in range(len(program.inputs)):
        yield from (replace(program, feeds=feeds) for feeds in plainer(program.feeds, i))
    yield from without_input(program)


def without(values: tuple[Any, ...], i: int) -> tuple[Any, ...]:
    return values[:i] + values[i + 1 :]


def without_input(program: Program) -> Iterator[Program]:
    """The last input is moved to the place of one that is not used."""
    *others, last = program.inputs
    used = NAME.findall(program.source().split("\n", 1)[1])
    for i in [i for i, name in enumerate(program.inputs) if name not in used and others][:1]:
        to = partial(re.sub, rf"\b{last}\b", f"x{i}")
        feeds = [(feed, list(feed.views)) for feed in program.feeds]
        for _, views in feeds:
            views[i] = views[-1]
        yield replace(
            program,
            lines=tuple(
                replace(
                    line,
                    text=to(line.text),
                    target=to(line.target),
                    sources=tuple(map(to, line.sources)),
                    reaches=to(line.reaches),
                )
                for line in program.lines
            ),
            returns=tuple(map(to, program.returns)),
            feeds=tuple(replace(feed, views=tuple(views[:-1])) for feed, views in feeds),
        )


def plainer(feeds: tuple[Feed, ...], i: int) -> Iterator[tuple[Feed, ...]]:
    """Input `i` without gradients in all calls, or dense, or at the start of its storage in one of them."""
    if any(feed.views[i].grad for feed in feeds):
        yield tuple(changed(feed, i, grad=False) for feed in feeds)
    for at, feed in enumerate(feeds):
        view = feed.views[i]
        dense = tuple(math.prod(view.size[d + 1 :]) for d in range(len(view.size)))
        fits = extent(view.size, dense) + view.offset <= feed.buffers[view.buffer].length
        changes = {"stride": dense} if fits else {}, {"offset": 0}
        for change in changes:
            other = changed(feed, i, **change)
            if other != feed:
                yield feeds[:at] + (other,) + feeds[at + 1 :]


def changed(feed: Feed, i: int, **change: Any) -> Feed:
    views = list(feed.views)
    views[i] = replace(views[i], **change)
    return replace(feed, views=tuple(views))


def shrink(program: Program, fails: Callable[[Program], bool], budget: int = 120) -> Program:
    """Take things away as long as the program is legal and still fails."""
    for candidate in smaller(program):
        if budget <= 0:
            break
        if all(is_legal(candidate, feed) for feed in candidate.feeds):
            budget -= 1
            if fails(candidate):
                return shrink(candidate, fails, budget)
    return program
