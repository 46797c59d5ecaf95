"""MatMul(Transpose(a), b) -> MatMul[transpose_x1](a, b): a transpose of the last two dims becomes a flag."""

from __future__ import annotations

from collections.abc import Sequence

from torchair.ge.attr import Bool
from torchair.ge.graph import Desc, Graph, Op, Slot, Tensor, transposed
from torchair.ge.schema.op_dtypes import holds
from torchair.passes.pass_manager import PassContext

_BOTH = {"x1": "transpose_x1", "x2": "transpose_x2"}
_BATCHED = {"x1": "adj_x1", "x2": "adj_x2"}
# Op -> the flag of each input that may be transposed. Quantized products allow it only for weights: the
# layout of row scales depends on the flag of the left operand.
FLAGS = {
    "MatMul": _BOTH,
    "MatMulV2": _BOTH,
    "BatchMatMul": _BATCHED,
    "BatchMatMulV2": _BATCHED,
    "QuantBatchMatmulV3": {"x2": "transpose_x2"},
    "QuantBatchMatmulV4": {"x2": "transpose_x2"},
    "GroupedMatmul": {"weight": "transpose_weight"},
    "GroupedMatmulSwigluQuantV2": {"weight": "transpose_weight"},
    "GroupedMatmulFinalizeRouting": {"w": "transpose_w"},
}


def move_transpose_into_mm(graph: Graph, ctx: PassContext) -> int:
    """Fold transposes into flags; dead-op removal erases a Transpose without readers."""
    return sum(
        fold(op, name, [slot.tensor and turned(slot.tensor) for slot in fed_slots(op, name)], ctx)
        for op in graph.ops
        for name in FLAGS.get(op.type, ())
    )


def fold(op: Op, name: str, sources: Sequence[Tensor | None], ctx: PassContext) -> int:
    """Make an op read these tensors with its transpose flag set, in place of their transposes.

    A list has one flag: all of its tensors are folded, or none.
    """
    found = [source for source in sources if source is not None]
    if not found:
        return 0
    if len(found) != len(sources):
        ctx.skip(op.name, f"only some tensors of {name} are transposed, and they share one flag")
        return 0
    for slot, source in zip(fed_slots(op, name), found, strict=True):
        slot.tensor, slot.desc = source, Desc(slot.name)
    flag = FLAGS[op.type][name]
    op.attrs[flag] = Bool(not (flag in op.attrs and op.attrs[flag].value))
    return len(found)


def fed_slots(op: Op, name: str) -> list[Slot]:
    """Return the connected slots of an input, which may be a list."""
    stems = (slot for slot in op.slots if slot.tensor is not None and slot.name.startswith(name))
    return [slot for slot in stems if (rest := slot.name.removeprefix(name)).isdecimal() or not rest]


def turned(tensor: Tensor) -> Tensor | None:
    """Return `a` if the tensor is `a` with its last two dims swapped.

    Transpose accepts few of the types of weights: others are cast to a type that holds them, and back.
    """
    found = bare(tensor)
    source = transposed(found)
    if source is not None or found.op.type != "Cast":
        return source
    wide = transposed(bare(found.op.inputs[0]))
    return None if wide is None else _undone(wide, found.dtype)


def bare(tensor: Tensor) -> Tensor:
    """Return the tensor before pass-through ops and round-trip casts."""
    op = tensor.op
    if op.type == "Identity" and not op.after:
        return bare(op.inputs[0])
    source = _undone(bare(op.inputs[0]), tensor.dtype) if op.type == "Cast" else None
    return tensor if source is None else bare(source)


def _undone(wide: Tensor, dtype: int) -> Tensor | None:
    """Return the tensor of this type that was cast to the wider type of `wide`."""
    source = wide.op.inputs[0] if wide.op.type == "Cast" else None
    return source if source is not None and source.dtype == dtype and holds(wide.dtype, dtype) else None
