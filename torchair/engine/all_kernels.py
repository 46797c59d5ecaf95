"""Import every module that declares kernels.

The first look-up in `registry` imports this module to fill the registry; capture mode never does.
"""

from importlib import import_module
from pkgutil import iter_modules

from torchair.engine import kernels

for family in iter_modules(kernels.__path__, f"{kernels.__name__}."):
    import_module(family.name)

COMPLETE = True
