"""Which sizes to make gears of, from how often each was seen.

A call between two gears is padded up to the next; what that costs is the elements it adds. A call that no
gear serves runs dynamically, which is taken to cost as much as the most padding that is allowed (`waste`
times its size), and a quarter of its size at least: gears are worth having also where little may be padded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate

SMALLEST = 2  # torch makes no symbol of a size of 0 or 1
DISTINCT = 128  # sizes that are told apart when gears are chosen
WORTH = 0.005  # of all work: what a gear must save
DYNAMIC = 0.25  # of a call: what it costs at least to run dynamically


def choose(counts: Mapping[int, int], most: int, waste: float, *, may_pad: bool) -> tuple[int, ...]:
    """At most so many gears, ascending; none where none is worth it."""
    seen = sorted((size, count) for size, count in counts.items() if size >= SMALLEST and count)
    if not seen or most < 1:
        return ()
    if not may_pad:
        best = sorted(seen, key=lambda pair: pair[0] * pair[1], reverse=True)[:most]
        return tuple(sorted(size for size, _ in best))
    return _cheapest(_merged(seen), most, waste)


def serving(size: int, gears: Sequence[int], waste: float, *, may_pad: bool) -> int | None:
    """The gear that serves a call of this size; None where it runs dynamically."""
    if size in gears:
        return size
    larger = min((gear for gear in gears if gear > size), default=None)
    if not may_pad or size < 1 or larger is None or larger - size > waste * size:
        return None
    return larger


def cost(counts: Mapping[int, int], gears: Sequence[int], waste: float, *, may_pad: bool) -> float:
    """What these calls cost with these gears, as a share of their elements."""
    total = sum(size * count for size, count in counts.items())
    added = 0.0
    for size, count in counts.items():
        gear = serving(size, gears, waste, may_pad=may_pad)
        added += count * (_dynamic(size, waste) if gear is None else gear - size)
    return added / total if total else 0.0


def _dynamic(size: int, waste: float) -> float:
    return max(waste, DYNAMIC) * size


def _merged(seen: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Few enough to compare all with all: neighbours become the larger of them."""
    step = -(-len(seen) // DISTINCT)
    chunks = [seen[at : at + step] for at in range(0, len(seen), step)]
    return [(chunk[-1][0], sum(count for _, count in chunk)) for chunk in chunks]


def _cheapest(seen: Sequence[tuple[int, int]], most: int, waste: float) -> tuple[int, ...]:
    """Dynamic programming: with one gear more, what calls up to each size cost if that size is the last."""
    dynamic = [0.0, *accumulate(count * _dynamic(size, waste) for size, count in seen)]
    padded = [_padded_up_to(seen[: last + 1], waste) for last in range(len(seen))]
    price = WORTH * sum(size * count for size, count in seen)
    ends: list[Choice] = [(padded[last][0] + price, (size,)) for last, (size, _) in enumerate(seen)]
    best: Choice = (dynamic[-1], ())
    for _ in range(min(most, len(seen))):
        here = min((paid + dynamic[-1] - dynamic[last + 1], gears) for last, (paid, gears) in enumerate(ends))
        if here[0] >= best[0]:
            break
        best = here
        ends = [
            min((ends[at][0] + padded[last][at + 1] + price, (*ends[at][1], size)) for at in range(last))
            if last
            else NEVER
            for last, (size, _) in enumerate(seen)
        ]
    return best[1]


Choice = tuple[float, tuple[int, ...]]
"""What is paid, and for which gears."""
NEVER: Choice = (math.inf, ())


def _padded_up_to(seen: Sequence[tuple[int, int]], waste: float) -> list[float]:
    """What it costs to pad the calls from each size on to the last one."""
    gear = seen[-1][0]
    costs = [
        count * (gear - size if gear - size <= waste * size else _dynamic(size, waste))
        for size, count in reversed(seen)
    ]
    return list(accumulate(costs))[::-1]
