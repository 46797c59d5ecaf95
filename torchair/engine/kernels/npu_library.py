"""Bind the IR ops of the `npu` library to their definitions in `ops.npu`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from torchair.core import dtypes
from torchair.engine.registry import kernel
from torchair.ge.prototype import prototype
from torchair.ops.npu import ROWS
from torchair.ops.npu.dense.norm import gather_stats
from torchair.ops.numerics.formats import E8M0

_definitions = {row.ir: row.fn for row in ROWS if row.ir and not row.shared}
assert all(_definitions.get(row.ir, row.fn) is row.fn for row in ROWS), "an IR op has one definition"
# On a device these write into an input; the definitions return a new tensor.
_writers = {row.ir for row in ROWS if row.copies or row.writes}
_makes = {row.ir: row.makes for row in ROWS}
assert all(_makes[row.ir] == row.makes for row in ROWS if row.ir), (
    "an IR op has the same output types in all entries"
)


def _typed(ir: str, fn: Callable[..., Any]) -> Callable[..., Any]:
    """Convert powers of two, which are bytes in the definitions, to their own type where the IR op has it."""
    name = dtypes.BY_RUNTIME[E8M0].name
    places = [index for index, output in enumerate(prototype(ir).outputs) if name in output.dtypes]

    @functools.wraps(fn)
    def run(*args: Any, **kwargs: Any) -> Any:
        results = list(fn(*args, **kwargs))
        for index in places:
            if results[index].dtype == torch.uint8:
                results[index] = results[index].view(dtypes.to_torch(E8M0))
        return tuple(results)

    return run if places else fn


for _ir, _fn in _definitions.items():
    kernel(_ir, pure=_ir in _writers, makes=_makes[_ir])(_typed(_ir, _fn))

kernel("SyncBatchNormGatherStats")(gather_stats)


@kernel("Cmo")
def cmo(src, *, max_size, type, offset):
    """Load memory early: a hint without a result."""
    return []
