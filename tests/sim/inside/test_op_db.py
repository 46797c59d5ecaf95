"""Every operator of torch's table, in every dtype, on the device as on the host: results, views, in place,
`out=`, gradients, saved and loaded. What differs has a row in `misses.py`.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.testing._internal.common_device_type import ops
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_utils import TestCase

from tests.convert.opinfo import name_of
from tests.sim.inside.machinery import on_device
from tests.sim.inside.misses import ASPECTS, MISSES, RANDOM, SKIPPED, UNDEFINED, rows_of
from tests.sim.inside.op_pair import Pair, sampled

SAMPLES = 4
QUICK = ("_float32", "_int64")
SHARE = 12
CASES = {(name_of(op), dtype) for op in op_db for dtype in op.supported_dtypes("npu")}


def aspects_of(op: Any, dtype: torch.dtype) -> list[str]:
    """What an operator has in a dtype."""
    has = {
        "forward": True,
        "in_place": op.get_inplace() is not None,
        "out": op.supports_out,
        "resized_out": op.supports_out,
        "backward": dtype in op.supported_backward_dtypes("npu"),
    }
    return [aspect for aspect in ASPECTS if has[aspect]]


def said(check: Callable[[], None]) -> str:
    """What is wrong, empty where nothing is."""
    try:
        check()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


class TestOpDb(TestCase):
    @ops(op_db)
    def test_as_on_the_host(self, device: str, dtype: torch.dtype, op: Any) -> None:
        name = name_of(op)
        pair = Pair(op, torch.device(device), name in RANDOM, op.name in UNDEFINED)
        misses = {aspect: row for row in rows_of(name, dtype) for aspect in row.aspects}
        for aspect in aspects_of(op, dtype):

            def check(aspect: str = aspect) -> None:
                for sample in sampled(op, device, dtype, SAMPLES, requires_grad=aspect == "backward"):
                    getattr(pair, aspect)(sample)

            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of operators that are deprecated, of samples
                wrong = said(check)
            row = misses.get(aspect)
            if row is None or (row.by_rounding and not wrong):
                assert not wrong, f"{aspect}: {wrong}"
            else:
                assert re.search(row.says, wrong), f"{aspect}: not the miss that {row} says, but {wrong!r}"


MADE = on_device(TestOpDb, globals(), QUICK, SHARE)


def test_nearly_all_are_equal() -> None:
    missed = {case for case in CASES if rows_of(*case) or case[0] in SKIPPED}
    assert len(CASES) > 5000
    assert len(missed) / len(CASES) <= 0.03, f"{len(missed)} of {len(CASES)}"
    assert len(CASES) == MADE


def test_every_miss_is_of_an_operator_and_has_a_reason() -> None:
    names = {name for name, _ in CASES}
    for row in MISSES:
        assert row.op in names
        assert row.why
        assert set(row.aspects) <= set(ASPECTS)
    assert names >= RANDOM | set(SKIPPED)
    assert len(UNDEFINED) == 8


@pytest.mark.parametrize(
    "call",
    [
        lambda x: torch.ops.aten.miopen_batch_norm(x, x, None, None, None, True, 0.1, 0.1),
        lambda x: torch.ops.aten._flash_attention_forward(x, x, x, None, None, 1, 1, 0.0, False, False),
    ],
    ids=["miopen_batch_norm", "flash_attention"],
)
def test_an_operator_that_the_host_has_not(call: Callable[[torch.Tensor], Any]) -> None:
    with pytest.raises(NotImplementedError, match=r"aten::\w+ has no kernel on the simulated npu device"):
        call(torch.ones(2, 3, device="npu"))


@pytest.mark.parametrize(
    "call",
    [
        torch.Tensor.to_sparse,
        torch.Tensor.to_mkldnn,
        lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
        lambda x: torch.sparse_coo_tensor(torch.zeros(1, 2, dtype=torch.int64, device="npu"), x, (2, 3)),
        lambda x: torch.nested.nested_tensor([x, x]).unbind(),
    ],
    ids=["sparse", "mkldnn", "quantized", "sparse_coo_tensor", "nested"],
)
@pytest.mark.filterwarnings("ignore")
def test_other_layouts_are_refused(call: Callable[[torch.Tensor], Any]) -> None:
    with pytest.raises(NotImplementedError, match="only plain strided tensors"):
        call(torch.ones(2, 3, device="npu"))
