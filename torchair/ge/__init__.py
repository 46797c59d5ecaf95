"""Ascend IR: graph, builder, prototypes, attributes.

`torchair.ge.<Op>(...)` adds an op to the graph being built.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torchair.core.registries.lazy_registry import lazy_getattr
from torchair.ge import attr
from torchair.ge.builder.build import Cast, Clone, Const, add_op, builder, custom_op, is_op
from torchair.ge.graph import Tensor
from torchair.ge.header_parser import register_reg_op
from torchair.ge.prototype import register_prototype
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
    "builder",
    "custom_op",
    "register_kernel",
    "register_prototype",
    "register_reg_op",
]

if TYPE_CHECKING:
    register_kernel: Callable[..., Any]

# The kernel registries are in a layer above the IR.
_HOMES = {"register_kernel": "torchair.engine.user_kernels"}


def __getattr__(name: str) -> Any:
    """Return the builder of an op: `ge.Acos` builds the op `Acos`."""
    if name in _HOMES:
        return lazy_getattr(__name__, _HOMES, name)
    if not name.startswith("_") and is_op(name):
        return builder(name)
    raise AttributeError(
        f"module 'torchair.ge' has no attribute {name!r}, and there is no IR op of that name"
    )
