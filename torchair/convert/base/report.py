"""Report the conversion: which ops were converted, decomposed, or kept as opaque ops, and why."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from torchair.ge.schema.op_dtypes import NOT_ACCEPTED

CARRIED = "an op that it depends on is opaque"
"""Why a converter declines an op that only completes another one."""


@dataclass(frozen=True)
class Reason:
    """An op, the reason for its treatment, and its line in the user's code."""

    op: str
    why: str
    source: str = ""

    @property
    def is_of_type(self) -> bool:
        """Return whether the IR op has no type for the values.

        torch's own op computes them, and nothing is lost here; but another engine cannot run the graph.
        """
        return NOT_ACCEPTED.search(self.why) is not None

    @property
    def is_told_by_another(self) -> bool:
        """Return whether the op is opaque only because another one is."""
        return CARRIED in self.why


@dataclass
class ConversionReport:
    """Converted ops by name and count; the others individually, with reasons."""

    # Whether a graph became IR. It may have had no op to convert.
    is_of_ir: bool = False
    converted: Counter[str] = field(default_factory=Counter)
    decomposed: list[Reason] = field(default_factory=list)
    fallbacks: list[Reason] = field(default_factory=list)
    # Stages that failed and were skipped.
    detours: list[Reason] = field(default_factory=list)

    def merge(self, other: ConversionReport) -> None:
        """Add the report of another graph."""
        self.converted.update(other.converted)
        self.decomposed.extend(other.decomposed)
        self.fallbacks.extend(other.fallbacks)
        self.detours.extend(other.detours)
