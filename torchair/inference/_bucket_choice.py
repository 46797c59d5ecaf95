"""Choose the sizes of gears from how often each size occurred.

A call between two gears is padded up to the next one, and costs the elements that this adds. A call without
a gear runs dynamically. Its assumed cost is the maximum padding (`waste` times its size), and at least a
quarter of its size, so that gears are useful even if little may be padded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate

SMALLEST = 2  # torch specializes on sizes 0 and 1
DISTINCT = 128  # maximum number of distinct sizes from which gears are chosen
WORTH = 0.005  # share of all work that a gear must save
DYNAMIC = 0.25  # minimum cost of a dynamic call, as a share of its size


def choose(counts: Mapping[int, int], most: int, waste: float, *, may_pad: bool) -> tuple[int, ...]:
    """Return at most `most` gears, ascending; none if no gear reduces the cost enough."""
    seen = sorted((size, count) for size, count in counts.items() if size >= SMALLEST and count)
    if not seen or most < 1:
        return ()
    if not may_pad:
        best = sorted(seen, key=lambda pair: pair[0] * pair[1], reverse=True)[:most]
        return tuple(sorted(size for size, _ in best))
    return _cheapest(_merged(seen), most, waste)


def serving(size: int, gears: Sequence[int], waste: float, *, may_pad: bool) -> int | None:
    """Return the gear that serves a call of this size; None if it runs dynamically."""
    if size in gears:
        return size
    larger = min((gear for gear in gears if gear > size), default=None)
    if not may_pad or size < 1 or larger is None or larger - size > waste * size:
        return None
    return larger


def cost(counts: Mapping[int, int], gears: Sequence[int], waste: float, *, may_pad: bool) -> float:
    """Return the cost of these calls with these gears, as a share of their elements."""
    total = sum(size * count for size, count in counts.items())
    added = 0.0
    for size, count in counts.items():
        gear = serving(size, gears, waste, may_pad=may_pad)
        added += count * (_dynamic(size, waste) if gear is None else gear - size)
    return added / total if total else 0.0


def _dynamic(size: int, waste: float) -> float:
    return max(waste, DYNAMIC) * size


def _merged(seen: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Limit the number of sizes to `DISTINCT`: neighbors are merged into the largest of them."""
    step = -(-len(seen) // DISTINCT)
    chunks = [seen[at : at + step] for at in range(0, len(seen), step)]
    return [(chunk[-1][0], sum(count for _, count in chunk)) for chunk in chunks]


def _cheapest(seen: Sequence[tuple[int, int]], most: int, waste: float) -> tuple[int, ...]:
    """Find the cheapest gears by dynamic programming.

    Step n computes the cost of all calls up to each size, if that size is the largest of n gears.
    """
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
"""The cost, and the gears."""
NEVER: Choice = (math.inf, ())


def _padded_up_to(seen: Sequence[tuple[int, int]], waste: float) -> list[float]:
    """Return the cost of padding all calls from each size on to the last size."""
    gear = seen[-1][0]
    costs = [
        count * (gear - size if gear - size <= waste * size else _dynamic(size, waste))
        for size, count in reversed(seen)
    ]
    return list(accumulate(costs))[::-1]
