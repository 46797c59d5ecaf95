"""What conversion did: which ops were converted, which taken apart, which carried through as they are, and why."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Reason:
    """An op, why it went this way, and where it stands in the user's code."""

    op: str
    why: str
    source: str = ""


@dataclass
class Report:
    """Counts by op name; fall-backs with reasons."""

    converted: Counter[str] = field(default_factory=Counter)
    decomposed: Counter[str] = field(default_factory=Counter)
    fallbacks: list[Reason] = field(default_factory=list)

    def merge(self, other: Report) -> None:
        """Add what another graph reported."""
        self.converted.update(other.converted)
        self.decomposed.update(other.decomposed)
        self.fallbacks.extend(other.fallbacks)
