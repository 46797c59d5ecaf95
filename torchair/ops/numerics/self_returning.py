"""Operators of ours that return what they write into. torch makes functional only those of ATen that do: for
others they are run as the calls of ATen that they are. Who defines them adds them here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

DIRECT: dict[Any, Callable[..., Any]] = {}
"""What each does to tensors, as calls of ATen. Its kernels are the same for tensors of every device."""
