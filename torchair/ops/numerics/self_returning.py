"""List torchair's operators that return the argument they write into. torch functionalizes only such ops of
ATen; the others run as their ATen calls. Modules that define such an op add it here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

DIRECT: dict[Any, Callable[..., Any]] = {}
"""The ATen calls of each op. They are the kernels for all devices."""
