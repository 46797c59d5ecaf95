"""Hunt for programs that our backend gets wrong: `python -m tests.fuzz --count 5000 --shard 1/16`.

Each failure is printed with its seed, and the first ones of a kind as a script; `--only SEED` runs one again.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections import Counter
from random import Random

import torch

from tests.fuzz.oracle import Count, Failure, check
from tests.fuzz.programs import MODES, Program, any_program
from tests.fuzz.shrink import shrink

SHOWN = 2  # failures of one kind that are shrunk and printed
PER_SEED = 1_000_000  # programs of one seed


def options(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="programs over all shards")
    parser.add_argument(
        "--engine", default="eager", choices=["reference", "eager", "inductor", "native", "auto"]
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shard", default="1/1", help="I/N: every Nth program, from the Ith on")
    parser.add_argument("--mode", choices=MODES, help="default: either")
    parser.add_argument("--dynamic", choices=["yes", "no"], help="default: either")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--stop-after", type=int, metavar="N", help="failures")
    parser.add_argument("--only", type=int, metavar="SEED", help="one program, by the seed of its failure")
    parser.add_argument("--shown", type=int, default=SHOWN, help="failures of a kind that are printed whole")
    return parser.parse_args(arguments)


def seeds(given: argparse.Namespace) -> range | list[int]:
    if given.only is not None:
        return [given.only]
    shard, shards = map(int, given.shard.split("/"))
    first = given.seed * PER_SEED
    return range(first + shard - 1, first + given.count, shards)


def tell(failure: Failure, program: Program, seed: int, given: argparse.Namespace, whole: bool) -> None:
    way = f"{program.mode}, {'dynamic' if program.dynamic else 'static'}"
    print(f"FAIL seed {seed} ({given.engine}, {way}): {failure}", flush=True)
    if whole:

        def fails(candidate: Program) -> bool:
            found = check(candidate, given.engine, Count(), given.device)
            return found is not None and found.kind == failure.kind

        print(shrink(program, fails).script(given.engine, given.device), flush=True)


def hunt(given: argparse.Namespace) -> Count:
    """Compare programs with eager, and print those that differ."""
    count, kinds, began = Count(), Counter[str](), time.perf_counter()
    dynamic = given.dynamic and given.dynamic == "yes"
    for seed in seeds(given):
        program = any_program(Random(seed), given.mode, dynamic)
        failure = check(program, given.engine, count, given.device)
        if failure is None:
            continue
        kinds[failure.kind] += 1
        tell(failure, program, seed, given, whole=kinds[failure.kind] <= given.shown)
        if given.stop_after and count.failures >= given.stop_after:
            break
    print(f"{count} {dict(kinds)}, {time.perf_counter() - began:.0f} s")
    return count


if __name__ == "__main__":
    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    sys.exit(1 if hunt(options()).failures else 0)
