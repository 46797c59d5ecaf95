"""Re-export `register_fx_node_ge_converter` and `declare_supported` under their documented import path."""

from torchair.convert.base.case_spec import declare_supported
from torchair.convert.base.registry import register_fx_node_ge_converter

__all__ = ["declare_supported", "register_fx_node_ge_converter"]
