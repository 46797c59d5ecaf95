"""FX' -> Program. `build` is the one way in; each kind has a file of its own."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from torch import fx

from torchair.codegen import eager, inductor, native
from torchair.codegen.program import Boxed
from torchair.core.errors import BadOption
from torchair.core.program import Program

__all__ = ["build"]

BUILDING = threading.RLock()


def build(
    kind: str,
    gm: fx.GraphModule,
    inputs: Sequence[Any],
    *,
    static: Sequence[int] = (),
    frozen: bool = False,
    guarded: bool = True,
    decomposed: bool = True,
    backward: bool = False,
    inference: bool = True,
    tuned: bool = False,
    cached: bool = True,
    kept_only: bool = False,
) -> Program:
    """Compile an ATen graph; `gm` is left as it is.

    static: inputs of constant address. frozen: they are promised never to move; nobody looks again.
    guarded: something in front of the call checks shapes. decomposed: Inductor's decompositions are applied.
    tuned: try kernels out and keep the fastest. cached: what Inductor made before is taken from disk.
    kept_only: a native library is taken from disk, and none is made.
    """
    stage = {"decomposed": decomposed, "backward": backward, "inference": inference}
    match kind:
        case "eager":
            return eager.build(gm, inputs)
        case "fx":
            return as_it_is(gm)
        case "inductor":
            # Inductor's options are the process's: one build at a time.
            with BUILDING:
                return inductor.build(
                    gm, inputs, static=static, guarded=guarded, tuned=tuned, cached=cached, **stage
                )
        case "native":
            with BUILDING:
                return native.build(gm, inputs, static=static, frozen=frozen, kept_only=kept_only, **stage)
    raise BadOption(f"there is no code generator {kind!r}", near="eager, inductor, native")


def as_it_is(gm: fx.GraphModule) -> Program:
    """The last resort: the graph runs as FX runs it."""
    return Boxed("fx", gm.code, lambda args: gm(*args))
