"""What conversion did: which ops were converted, which taken apart, which carried through as they are, and
why.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from torchair.ge.schema.op_dtypes import NOT_TAKEN

CARRIED = "what it waits for is carried through"
"""Why a converter declines an op that only ends another one."""


@dataclass(frozen=True)
class Reason:
    """An op, why it went this way, and where it stands in the user's code."""

    op: str
    why: str
    source: str = ""

    @property
    def is_of_type(self) -> bool:
        """Has the IR op no type that holds the values? Torch's own op computes them, and nothing is lost
        here; only another engine could not be given the graph.
        """
        return NOT_TAKEN.search(self.why) is not None

    @property
    def is_told_by_another(self) -> bool:
        """Is it carried through only because another one is?"""
        return CARRIED in self.why


@dataclass
class ConversionReport:
    """Converted ops by name and count; the others one by one, with reasons."""

    # Did a graph become IR? It may have had no op to convert.
    is_of_ir: bool = False
    converted: Counter[str] = field(default_factory=Counter)
    decomposed: list[Reason] = field(default_factory=list)
    fallbacks: list[Reason] = field(default_factory=list)
    # Stages that failed and were gone around.
    detours: list[Reason] = field(default_factory=list)

    def merge(self, other: ConversionReport) -> None:
        """Add what another graph reported."""
        self.converted.update(other.converted)
        self.decomposed.extend(other.decomposed)
        self.fallbacks.extend(other.fallbacks)
        self.detours.extend(other.detours)
