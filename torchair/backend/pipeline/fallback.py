"""What one compile goes around, because it failed: passes, nodes, the IR as a whole. Nothing is fatal.

A stage that fails has left a graph that nobody can trust. So a compile begins again from the graph as it was
given, without what failed; each try leaves out more, so there is an end.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torchair.convert.base.report import Reason
from torchair.core.diagnostics import Diagnostics
from torchair.core.errors import BadOption, BadOptionType, BadPath, first_line
from torchair.engine.lower import KernelFailed
from torchair.passes.pass_manager import PassFailed


@dataclass
class Fallbacks:
    """What is left out of one compile, and what was said about it."""

    passes: set[str] = field(default_factory=set)
    nodes: dict[str, str] = field(default_factory=dict)  # carried through as they are, and why
    without_ir: bool = False
    said: list[Reason] = field(default_factory=list)
    degradations: Diagnostics = field(default_factory=Diagnostics)
    last: str = "the graph runs without the passes of the IR"  # what is done at last

    def add(self, error: Exception) -> bool:
        """Go around what raised this; False where there is no way around, or the user can mend it."""
        if isinstance(error, BadOption | BadOptionType | BadPath):
            return False
        if isinstance(error, PassFailed) and error.title not in self.passes:
            self.passes.update(error.titles)
            return self.say(f"pass {error.title}", f"{error.what}; the graph is compiled without it")
        origin = error.op.origin if isinstance(error, KernelFailed) else None
        if origin is not None and origin.top and origin.top not in self.nodes:
            self.nodes[origin.top] = first_line(error)
            return self.say(origin.target, f"{first_line(error)}; the call is carried through as it is")
        if not self.without_ir:
            self.without_ir = True
            what = f"{type(error).__name__}: {first_line(error)}"
            return self.say("graph", f"{what}; {self.last}")
        return False

    def say(self, what: str, why: str) -> bool:
        """Tell the user, and keep it for the report."""
        self.said.append(Reason(what, why))
        self.degradations.add(f"{what}: {why}")
        return True
