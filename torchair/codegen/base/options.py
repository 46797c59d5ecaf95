"""Options of code generators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class CodegenOptions:
    """How to compile a graph. The defaults are for an inference graph whose inputs are guarded."""

    static: Sequence[int] = ()
    """Indices of inputs with constant addresses."""
    frozen: bool = False
    """Static inputs never move, so their addresses are not compared."""
    guarded: bool = True
    """Guards check shapes before each call."""
    decomposed: bool = True
    """Inductor's decompositions have been applied."""
    backward: bool = False
    inference: bool = True
    tuned: bool = False
    """Autotune: choose kernels for speed by measuring candidates."""
    cached: bool = True
    """Use Inductor's cache on disk."""
    folder: str = ""
    """Directory for compiled code; empty for Inductor's own directory."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Options of Inductor in addition to those that every build sets."""
    kept_only: bool = False
    """Load a native library from disk, but never compile one."""
