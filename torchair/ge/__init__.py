"""Ascend IR: graph, builder, prototypes, attributes. `torchair.ge.<Op>(...)` adds an op to the graph being
built.
"""

from typing import Any

from torchair.ge import attr
from torchair.ge.build import Cast, Clone, Const, add_op, builder, custom_op, is_op
from torchair.ge.graph import Tensor
from torchair.ge.types import DataType, Format, TensorSpec

__all__ = [
    "Cast",
    "Clone",
    "Const",
    "DataType",
    "Format",
    "Tensor",
    "TensorSpec",
    "add_op",
    "attr",
    "custom_op",
]


def __getattr__(name: str) -> Any:
    """`ge.Acos` is the builder of the op `Acos`."""
    if not name.startswith("_") and is_op(name):
        return builder(name)
    raise AttributeError(
        f"module 'torchair.ge' has no attribute {name!r}, and there is no IR op of that name"
    )
