"""Builders of the ops in custom_reg_op.h.

Importing this declares the ops; each function adds its op to the graph that is being
built. Made by `python -m torchair codegen`: change the header, not this file.
"""

# ruff: noqa: B006
from __future__ import annotations

from torchair import ge
from torchair.ge import Tensor

PROTOTYPES = """
REG_OP(CustomOp)
    .INPUT(input1, TensorType({DT_FLOAT, DT_FLOAT16, DT_BF16, DT_INT32, DT_INT64}))
    .INPUT(input2, TensorType({DT_FLOAT, DT_FLOAT16, DT_BF16, DT_INT32, DT_INT64}))
    .OUTPUT(output, TensorType({DT_FLOAT, DT_FLOAT16, DT_BF16, DT_INT32, DT_INT64}))
    .OP_END_FACTORY_REG(CustomOp)
"""

ge.register_reg_op(PROTOTYPES, __name__)


def CustomOp(
    input1: Tensor,
    input2: Tensor,
    *,
    dependencies: list[Tensor] = [],
    node_name: str | None = None,
) -> Tensor:
    """Add the op `CustomOp` to the graph.

    REG_OP(CustomOp)
        .INPUT(input1, TensorType({DT_FLOAT, DT_FLOAT16, DT_BF16, DT_INT32, DT_INT64}))
        .INPUT(input2, TensorType({DT_FLOAT, DT_FLOAT16, DT_BF16, DT_INT32, DT_INT64}))
        .OUTPUT(output, TensorType({DT_FLOAT, DT_FLOAT16, DT_BF16, DT_INT32, DT_INT64}))
        .OP_END_FACTORY_REG(CustomOp)
    """
    return ge.builder("CustomOp")(
        input1,
        input2,
        dependencies=dependencies,
        node_name=node_name,
    )
