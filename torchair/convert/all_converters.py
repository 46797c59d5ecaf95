"""Import every module that declares converters.

The first look-up in `registry` imports this module to fill the registry; capture mode never does.
"""

from importlib import import_module
from pkgutil import iter_modules

from torchair.convert import aten, npu
from torchair.convert.base import symbolic
from torchair.convert.special import auto_functionalized, collectives, higher_order, prims, printing

__all__ = ["COMPLETE", "auto_functionalized", "collectives", "higher_order", "prims", "printing", "symbolic"]

for package in (aten, npu):
    for family in iter_modules(package.__path__, f"{package.__name__}."):
        import_module(family.name)

COMPLETE = True
