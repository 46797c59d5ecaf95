"""Every module that declares kernels. Importing this one fills the tables of `registry`, which do it when
somebody first looks: capture mode never does.
"""

from importlib import import_module
from pkgutil import iter_modules

from torchair.engine import kernels

for family in iter_modules(kernels.__path__, f"{kernels.__name__}."):
    import_module(family.name)

COMPLETE = True
