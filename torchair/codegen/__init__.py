"""FX' -> Program. `build` is the one way in; each kind has a file of its own."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from torch import fx

from torchair.codegen import eager, inductor, library, native
from torchair.codegen.how import How
from torchair.codegen.program import Boxed
from torchair.core.errors import BadOption
from torchair.core.program import Program
from torchair.core.torch_private.inductor import code_kept_in

__all__ = ["BUILDING", "RESERVED", "How", "build"]

BUILDING = threading.RLock()
DEFAULT = How()
RESERVED = frozenset(
    name
    for options in (inductor.OPTIONS, inductor.KEEP, inductor.GUARDED, library.OPTIONS)
    for name in options
)
"""Options of Inductor that builds set themselves."""


def build(kind: str, gm: fx.GraphModule, inputs: Sequence[Any], how: How = DEFAULT) -> Program:
    """Compile an ATen graph; `gm` is left as it is."""
    match kind:
        case "eager":
            return eager.build(gm, inputs)
        case "fx":
            return as_it_is(gm)
        case "inductor":
            # Inductor's options are the process's: one build at a time.
            with BUILDING, code_kept_in(how.folder):
                return inductor.build(gm, inputs, how)
        case "native":
            with BUILDING, code_kept_in(how.folder):
                return native.build(gm, inputs, how)
    raise BadOption(f"there is no code generator {kind!r}", near="eager, inductor, native")


def as_it_is(gm: fx.GraphModule) -> Program:
    """The last resort: the graph runs as FX runs it."""
    return Boxed("fx", gm.code, lambda args: gm(*args))
