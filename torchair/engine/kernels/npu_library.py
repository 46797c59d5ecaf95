"""The IR ops of the `npu` library mean what its definitions in `ops.npu` say."""

from __future__ import annotations

from torchair.engine.registry import kernel
from torchair.ops.npu import ROWS
from torchair.ops.npu.norm import gather_stats

_definitions = {row.ir: row.fn for row in ROWS if row.ir and not row.shared}
assert all(_definitions.get(row.ir, row.fn) is row.fn for row in ROWS), "an IR op has one definition"
# On a device these write into an input; the definitions return a new tensor.
_writers = {row.ir for row in ROWS if row.copies or row.writes}
_makes = {row.ir: row.makes for row in ROWS}
assert all(_makes[row.ir] == row.makes for row in ROWS if row.ir), "an IR op makes the same types in all rows"

for _ir, _fn in _definitions.items():
    kernel(_ir, pure=_ir in _writers, makes=_makes[_ir])(_fn)

kernel("SyncBatchNormGatherStats")(gather_stats)


@kernel("Cmo")
def cmo(src, *, max_size, type, offset):
    """A hint to load memory early: it makes nothing."""
    return []
