"""Ops that compute and communicate: two and three processes against what is written out from all inputs, and
one process without any group.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.convert.harness import converted
from tests.ops.communication_cases import CASES, DISPATCHES
from tests.ops.compiled import MODES, listed
from tests.ops.ranks import case
from tests.structure.tree import ROOT
from tests.support.process import python
from tests.support.slow import slow
from torchair.core.errors import BadGroup, UnsupportedOp
from torchair.passes.ge.dead_code import remove_dead_ops

npu = torch.ops.npu
SOME = 10
"""In the quick run one case of so many is compiled."""
FORMS = ("converted", *MODES)


def agree(got: Any, expected: Any) -> None:
    assert len(got) == len(expected)
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a.double(), b.double(), rtol=1e-2, atol=1e-2)


def processes(folder: Path, ranks: int, every: int, *forms: str) -> list[dict[str, Any]]:
    """What each rank got in all cases; one case of `every` in the other forms, too."""
    script = str(ROOT / "tests" / "ops" / "ranks.py")
    done = python([script, str(folder), str(ranks), str(every), *forms])
    assert done.returncode == 0, done.stderr
    return [torch.load(folder / f"{rank}.pt") for rank in range(ranks)]


@pytest.mark.parametrize(
    ("ranks", "every", "forms"), [(2, SOME, FORMS), slow(2, 1, ("symbols", *FORMS)), slow(3, SOME, FORMS)]
)
def test_communication_ops_equal_on_several_ranks(tmp_path, ranks, every, forms):
    """Fake tensors agree, ops are converted, and both modes give what eager gives, without a warning."""
    got = processes(tmp_path, ranks, every, *forms)
    for name, each in CASES.items():
        for rank, expected in enumerate(each.expected(ranks)):
            agree(got[rank][name], expected)
    assert [told.splitlines()[0] for told in got[0]["errors"]] == [
        "BadGroup: there is no process group named 'nobody'",
        "BadGroup: there is no process group named 'nobody'",
        "BadGroup: the ranks of group '0' differ from those that the op got",
        "BadGroup: the ranks of group '0' differ from those that the op got",
        "BadGroup: cannot split dim 0 into one equal part per rank",
        "UnsupportedOp: reduce_op 'max' of an op that computes and communicates",
    ]


@pytest.mark.parametrize("name", [name for name in CASES if not name.endswith("1 shared")])
def test_communication_ops_run_on_one_rank(name):
    """One rank has no group, and computes its part."""
    assert not torch.distributed.is_initialized()
    agree(case(name, 0, 1, "none", ("converted",)), CASES[name].expected(1)[0])


@pytest.mark.parametrize("mode", MODES)
def test_communication_ops_compile_on_one_rank(mode):
    for name in ("all_to_all_matmul", "distribute_barrier", *list(DISPATCHES)[4:5]):
        case(name, 0, 1, "none", (mode,))


X = torch.ones(4, 4)
COUNTS = [2, 2]
WRONG = {
    "no group": (BadGroup, lambda: npu.npu_all_gather_base_mm(X, X, "0", 2)),
    "counts of other rows": (BadGroup, lambda: npu.npu_alltoallv_gmm(X, X[None], "0", 1, [3], [3])),
    "counts of other experts": (BadGroup, lambda: npu.npu_gmm_alltoallv(X, X[None], "0", 1, COUNTS, COUNTS)),
    "counts as tensors": (
        UnsupportedOp,
        lambda: npu.npu_alltoallv_gmm(X, X[None], "0", 1, [4], [4], send_counts_tensor=torch.tensor([4])),
    ),
    "a maximum": (UnsupportedOp, lambda: npu.npu_mm_reduce_scatter_base(X, X, "0", 1, reduce_op="max")),
    "other axes": (UnsupportedOp, lambda: npu.npu_all_to_all_matmul(X, X, "0", 1, all2all_axes=[0, 1])),
    "a scale of the results": (
        UnsupportedOp,
        lambda: npu.npu_all_gather_quant_mm(X, X, "0", 1, quant_scale=torch.ones(1)),
    ),
    "scales that fit nothing": (
        UnsupportedOp,
        lambda: npu.npu_quant_all_reduce(X.to(torch.int8), torch.ones(4, 3), "0", 1),
    ),
    "experts that cannot be spread": (
        BadGroup,
        lambda: npu.npu_moe_distribute_dispatch(X, X.int(), "0", 2, 0, 3),
    ),
    "two groups": (
        UnsupportedOp,
        lambda: npu.npu_moe_distribute_dispatch(X, X.int(), "0", 1, 0, 4, tp_world_size=2),
    ),
    "too many tokens": (
        BadGroup,
        lambda: npu.npu_moe_distribute_dispatch(X, X.int(), "0", 1, 0, 4, global_bs=3),
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_communication_ops_refuse_wrong_arguments(name):
    error, call = WRONG[name]
    with pytest.raises(error, match=r"\n  (got|near|next) "):
        call()


def test_barrier_without_readers_stays():
    def wait(x):
        npu._npu_distribute_barrier(x, "0", 1)
        return x + 1

    graph, _, _, _ = converted(wait, [X])
    remove_dead_ops(graph, None)
    assert "DistributeBarrier" in [op.type for op in graph.ops]


def test_nothing_is_returned_for_what_is_not_wanted():
    y, gathered = npu.npu_all_gather_base_mm(X, X, "0", 1, gather_output=False)
    assert (y.shape, gathered.numel()) == (X.shape, 0)
    made = listed(npu.npu_alltoallv_gmm(X, X[None], "0", 1, [4], [4]))
    assert [part.numel() for part in made] == [16, 0, 0]
