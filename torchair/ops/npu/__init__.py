"""Provide the `npu` operator library, one module per family, unless `torch_npu` provides the ops."""

from __future__ import annotations

from typing import Any

import torch

from torchair.ops.npu.attention import cache, flash, infer_attention, mla, recurrent, rotary, sparse
from torchair.ops.npu.common.gradients import GRADIENTS
from torchair.ops.npu.common.library import (
    define_composite,
    define_gradients,
    define_in_place,
    define_plain,
    define_rows,
    function,
    keep_calls,
    schemas,
)
from torchair.ops.npu.common.op_spec import InPlaceOp, NpuOp
from torchair.ops.npu.dense import activation, matmul, norm, quant, sampling
from torchair.ops.npu.moe import communication, disaggregated, dispatch, grouped, moe_all_to_all, routing

# Every family has ROWS: calls of one IR op. Some have PLAIN: ops of several IR ops, defined by functions of
# torch's arguments; COMPOSITE: ops that are traced as their parts; IN_PLACE: ops that write into arguments;
# ACTING: ops with side effects.
FAMILIES = (
    norm, activation, rotary, quant, matmul, grouped, cache, recurrent, sampling, infer_attention, flash,
    sparse, mla, routing, dispatch, communication, moe_all_to_all, disaggregated,
)  # fmt: skip
ROWS: tuple[NpuOp, ...] = tuple(row for family in FAMILIES for row in family.ROWS)
PLAIN = {name: fn for family in FAMILIES for name, fn in getattr(family, "PLAIN", {}).items()}
IN_PLACE: tuple[InPlaceOp, ...] = tuple(row for family in FAMILIES for row in getattr(family, "IN_PLACE", ()))

COMPOSITE = {name: fn for family in FAMILIES for name, fn in getattr(family, "COMPOSITE", {}).items()}

define_rows(ROWS)
define_plain(PLAIN)
define_composite(COMPOSITE)
define_in_place(IN_PLACE)
define_gradients(GRADIENTS)
keep_calls([op for family in FAMILIES for op in getattr(family, "ACTING", ())])

# Namespaces of `torchair.ops.<name>`; in the first one, the sequence lengths of attention are tensors.
NAMESPACES = ("air", "npu", "npu_inference")


def find(name: str) -> Any:
    """Return the op of this name, or raise AttributeError if the library has none."""
    for namespace in NAMESPACES:
        if f"{namespace}.{name}.default" in schemas():
            return getattr(getattr(torch.ops, namespace), name)
    raise AttributeError(f"torchair.ops has no attribute {name!r}, and the npu library has no such op")


__all__ = ["FAMILIES", "IN_PLACE", "PLAIN", "ROWS", "find", "function", "schemas"]
