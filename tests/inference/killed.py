"""Processes that fill one cache and are killed at random moments: `python -m tests.inference.killed ROUNDS`.

This process imports everything and compiles nothing, so that each child is a fork that begins where a user's
process would. It prints what it found as JSON.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

import torchair
from tests.inference.models import Net
from torchair.backend.cache.key import FILE
from torchair.core.storage.artifact_store import ArtifactStore
from torchair.inference import cache_compile

PROCESSES, SEED, LIMIT_S = 4, 5, 60.0
GOOD, WRONG, FAILED = 0, 3, 4
SIZES = (2, 3)
LOADED = (
    "torch._dynamo",
    "torchair.backend.dynamo.entry_points",
    "torchair.convert.all_converters",
    "torchair.engine.all_kernels",
)
"""Before the children are forked, so that they are soon where they write."""


def compile_and_check(folder: Path, rows: int) -> int:
    """What each child does: the status says whether the result was right."""
    config = torchair.CompilerConfig()
    config.engine_config.codegen = "eager"
    torch.manual_seed(rows)
    net, x = Net().eval(), torch.randn(rows, 8)
    run = cache_compile(net.both, config=config, dynamic=False, cache_dir=str(folder))
    got = run(x)
    with torch.no_grad():
        return GOOD if torch.allclose(got, net.both(x)) else WRONG


def fork(act: Callable[[], int]) -> int:
    """The child's process id."""
    child = os.fork()
    if child:
        return child
    try:
        status = act()
    except BaseException:
        traceback.print_exc()
        status = FAILED
    os._exit(status)


def ended(children: list[int], kill_at: dict[int, float]) -> dict[int, int]:
    """Statuses of all children, each killed when its time has come; -1 is one that hung."""
    left, found, start = set(children), dict[int, int](), time.monotonic()
    while left:
        now = time.monotonic() - start
        for child in list(left):
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                left.discard(child)
                found.setdefault(child, os.waitstatus_to_exitcode(status))
            elif now > kill_at.get(child, LIMIT_S):
                if child not in kill_at:
                    found[child] = -1
                os.kill(child, signal.SIGKILL)
        time.sleep(0.001)
    return found


def main(rounds: int) -> None:
    """All rounds; what was wrong is printed."""
    torch.set_num_threads(1)
    for module in LOADED:
        importlib.import_module(module)
    dice, faults = random.Random(SEED), list[str]()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "kept"
        start = time.monotonic()
        (whole,) = ended([fork(lambda: compile_and_check(folder, 2))], {}).values()
        longest = time.monotonic() - start
        assert whole == GOOD, "a process that nobody kills is right"
        store, killed = ArtifactStore(folder, FILE), 0
        for number in range(rounds):
            if number % 2:
                for key in list(store.keys()):
                    store.remove(key)
            children = [
                fork(lambda rows=SIZES[place % 2]: compile_and_check(folder, rows))
                for place in range(PROCESSES)
            ]
            limit = longest * (PROCESSES / (os.cpu_count() or 1) + 0.5)
            statuses = ended(children, {child: dice.uniform(0, limit) for child in children})
            killed += sum(status == -signal.SIGKILL for status in statuses.values())
            bad = [status for status in statuses.values() if status not in (GOOD, -signal.SIGKILL)]
            faults += [f"round {number}: a process ended with {status}" for status in bad]
            faults += [f"round {number}: {row.problem}" for row in store.rows() if row.problem]
        for rows in SIZES:
            (status,) = ended([fork(lambda rows=rows: compile_and_check(folder, rows))], {}).values()
            faults += [] if status == GOOD else [f"afterwards: {status}"]
        left = [path.name for path in folder.rglob("*") if path.is_file() and path.name != FILE]
    print(json.dumps({"killed": killed, "faults": faults, "left": left}))


if __name__ == "__main__":
    main(int(sys.argv[1]))
