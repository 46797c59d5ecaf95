"""`register_fx_node_ge_converter` and `declare_supported` under their known import path."""

from torchair.convert.registry import register_fx_node_ge_converter
from torchair.convert.support import declare_supported

__all__ = ["declare_supported", "register_fx_node_ge_converter"]
