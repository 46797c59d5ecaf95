"""Every module that declares converters. Importing this one fills the tables of `registry`, which do it when
somebody first looks: capture mode never does.
"""

from importlib import import_module
from pkgutil import iter_modules

from torchair.convert import aten, collectives, functionalized, higher_order, npu, prims, printing, symbolic

__all__ = ["COMPLETE", "collectives", "functionalized", "higher_order", "prims", "printing", "symbolic"]

for package in (aten, npu):
    for family in iter_modules(package.__path__, f"{package.__name__}."):
        import_module(family.name)

COMPLETE = True
