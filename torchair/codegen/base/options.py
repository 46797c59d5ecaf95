"""What code generators are told beside the graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class CodegenOptions:
    """How to compile; what is here by default is an inference graph behind guards."""

    static: Sequence[int] = ()
    """Inputs of constant address."""
    frozen: bool = False
    """They are promised never to move; nobody looks again."""
    guarded: bool = True
    """Something in front of the call checks shapes."""
    decomposed: bool = True
    """Inductor's decompositions are applied."""
    backward: bool = False
    inference: bool = True
    tuned: bool = False
    """Choose kernels for speed, and try out those that are worth it."""
    cached: bool = True
    """What Inductor made before is taken from disk."""
    folder: str = ""
    """Where compiled code is kept, and looked for; Inductor's own directory if none is named."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Options of Inductor, beside those that every build sets."""
    kept_only: bool = False
    """A native library is taken from disk, and none is made."""
