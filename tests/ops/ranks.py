"""`python tests/ops/ranks.py FOLDER RANKS EVERY FORM...`: one process per rank runs the cases of
`communication_cases.py` eagerly, one of EVERY in other forms, too (`converted`, the same with `symbols`, or a
mode), and writes what it got.
"""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist

from tests.convert.harness import check, converted
from tests.ops.communication_cases import CASES
from tests.ops.compiled import compiles, listed
from torchair.core.errors import DegradedWarning


def run_rank(rank: int, ranks: int, folder: Path, every: int, forms: Sequence[str]) -> None:
    """All cases, on one rank."""
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=90),
    )
    group = dist.group.WORLD.group_name
    got: dict[str, Any] = {
        name: case(name, rank, ranks, group, () if number % every else forms)
        for number, name in enumerate(CASES)
    }
    got["errors"] = errors(group, ranks, rank)
    torch.save(got, folder / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def case(name: str, rank: int, ranks: int, group: str, forms: Sequence[str]) -> list[torch.Tensor]:
    """Eager, as fake tensors, and what else is asked for."""
    fn, args = CASES[name].call(rank, ranks, group)
    got = listed(fn(*args))
    with torch._subclasses.FakeTensorMode() as mode:
        told = listed(fn(*map(mode.from_tensor, args)))
    assert [(x.shape, x.dtype, x.stride()) for x in told] == [(x.shape, x.dtype, x.stride()) for x in got], (
        name
    )
    tolerance = {"rtol": 1e-2, "atol": 1e-2}
    for form in forms:
        if form == "converted":
            graph, report, _, _ = converted(fn, args)
            assert CASES[name].ir in [op.type for op in graph.ops], name
            assert not report.fallbacks, name
            check(fn, *args, **tolerance)
        elif form == "symbols":
            check(fn, *args, dynamic=True, **tolerance)
        else:
            compiles(fn, args, form, False, **tolerance)
    return got


def errors(group: str, ranks: int, rank: int) -> list[str]:
    """What wrong groups and sizes are told."""
    x, w = torch.ones(2, 2), torch.ones(2, 2)
    npu = torch.ops.npu
    calls: list[Any] = [
        lambda: npu.npu_all_gather_base_mm(x, w, "nobody", ranks),
        lambda: npu.npu_mm_all_reduce_base(x, w, "nobody"),
        lambda: npu.npu_all_gather_base_mm(x, w, group, ranks + 1),
        lambda: npu.npu_moe_distribute_dispatch(x, x.int(), group, ranks, (rank + 1) % ranks, 6),
        lambda: npu.npu_mm_reduce_scatter_base(torch.ones(2 * ranks + 1, 2), w, group, ranks),
        lambda: npu.npu_mm_all_reduce_base(x, w, group, reduce_op="max"),
    ]
    told = []
    for call in calls:
        try:
            call()
        except Exception as error:
            told.append(f"{type(error).__name__}: {error}")
    return told


def main(folder: Path, ranks: int, every: int, forms: Sequence[str]) -> int:
    """Fork a process per rank; the first that fails says why."""
    warnings.simplefilter("error", DegradedWarning)
    torch.set_num_threads(1)
    children = []
    for rank in range(ranks):
        child = os.fork()
        if child == 0:
            try:
                run_rank(rank, ranks, folder, every, forms)
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(1)
            os._exit(0)
        children.append(child)
    return max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]), *map(int, sys.argv[2:4]), sys.argv[4:]))
