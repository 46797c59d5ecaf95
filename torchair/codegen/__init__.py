"""FX' -> Program. `build` is the one way in; each kind has a file of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import fx

from torchair.codegen import eager, inductor
from torchair.codegen.program import Program
from torchair.core.errors import BadOption

__all__ = ["Program", "build"]
