"""Collectives: three processes run the same programs eagerly and in graphs, in both modes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import distributed as dist

from tests.ops.compiled import compiles
from tests.support.process import ROOT
from tests.support.slow import slow
from torchair.core.errors import AirError
from torchair.ops.distributed import collectives, distributed_calls

RANKS = 3


@pytest.mark.parametrize("ways", [1, slow(4)])
def test_collective_programs_equal_eager_on_three_ranks(tmp_path: Path, ways: int) -> None:
    """Equal to eager, without graph breaks and without a word of warning; `collective_programs` has them."""
    store = str(tmp_path / "store")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.convert.special.collective_programs", store, str(rank), str(ways)],
            cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(RANKS)
    ]  # fmt: skip
    said = [process.communicate(timeout=800)[1] for process in started]
    assert [process.returncode for process in started] == [0] * RANKS, "\n".join(said)


@pytest.fixture
def alone(tmp_path: Path):
    """A group of one process."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield "", [0], 1
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("dtype", "op"),
    [(torch.uint8, "SUM"), (torch.uint8, "MIN"), (torch.float64, "SUM"), (torch.float16, "AVG")],
    ids=str,
)
def test_what_no_op_of_the_ir_reduces(alone, dtype: torch.dtype, op: str) -> None:
    """Nothing is told: another type holds it, a sum is divided, or torch's own op loses nothing."""

    def reduced(x):
        y, part = x.clone(), x.clone()
        dist.all_reduce(y, op=getattr(dist.ReduceOp, op))
        dist.reduce_scatter_tensor(part, x, op=getattr(dist.ReduceOp, op))
        return y, part

    compiles(reduced, (torch.tensor([3, 0, 200]).to(dtype),), "max-autotune", False)


def test_operators_run_eagerly(alone) -> None:
    define, x = torch.ops.npu_define, torch.arange(6.0).reshape(2, 3)
    assert torch.equal(define.allgather([torch.empty(2, 3)], x, *alone)[0], x)
    assert torch.equal(define.allgather_in_tensor(torch.empty(1, 2, 3), x, *alone), x[None])
    assert torch.equal(define._allgather_in_tensor_shape(x, [3, 2], *alone), x.reshape(3, 2))
    assert torch.equal(define.allgather_in_tensor_uneven(x, 6, [6], *alone, [0]), x)
    assert torch.equal(define.all_to_all_single_npu(x, [6], [0], [6], [0], *alone), x)
    assert torch.equal(define.all_to_all_single_npu(x, [3], [3], [3], [0], *alone), x[1:])
    assert torch.equal(
        define.all_to_all_single_npu(x, [3], [0], [3], [3], *alone), torch.stack([x[0] * 0, x[0]])
    )
    assert torch.equal(define.broadcast(x.t(), 0, *alone), x.t())
    assert torch.equal(define.broadcast(x, None, *alone, 0), x)
    assert torch.equal(define.reduce_scatter_tensor_uneven(x, [6], 6, "max", *alone, [0]), x)


def test_wrong_groups_and_ranks_are_named(alone) -> None:
    define, x = torch.ops.npu_define, torch.ones(2)
    with pytest.raises(AirError, match=r"no process group of the ranks \[0, 1\]"):
        define.broadcast(x, 0, "", [0, 1], 2)
    with pytest.raises(AirError, match="rank 5 is not in the group"):
        define.broadcast(x, 5, *alone)
    with pytest.raises(AirError, match="does not support the reduction 'avg'"):
        define.reduce_scatter_tensor_uneven(x, [2], 2, "avg", *alone, [0])
    with pytest.raises(AssertionError, match="2 tensors for 1 ranks"):
        define.allgather([x, x], x, *alone)


def test_fake_results_are_like_real_ones(alone) -> None:
    define, x = torch.ops.npu_define, torch.arange(6.0).reshape(2, 3)
    for call in (
        lambda x: define.allgather_in_tensor(torch.empty(6), x.t(), *alone),
        lambda x: define.allgather_in_tensor_uneven(x, 6, [6], *alone, [0]),
        lambda x: define.all_to_all_single_npu(x, [3], [3], [3], [3], *alone),
        lambda x: define.broadcast(x.t(), 0, *alone),
        lambda x: define.reduce_scatter_tensor_uneven(x, [6], 6, "sum", *alone, [0]),
    ):
        real, fake = call(x), call(x.to("meta"))
        assert (real.shape, real.stride(), real.dtype) == (fake.shape, fake.stride(), fake.dtype)


def test_names_of_torch_are_known() -> None:
    """Who is not there is of another torch."""
    known = vars(dist.distributed_c10d)
    assert {name for name in distributed_calls.TRACED if name not in known} <= {"all_gather_single"}


def test_every_operator_has_a_schema() -> None:
    assert {schema.partition("(")[0] for schema in collectives.SCHEMAS} == set(collectives._OPS)
