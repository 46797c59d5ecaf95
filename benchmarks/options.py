"""What the command line says, in one value."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Options:
    """How much to measure, and what of it."""

    rounds: int = 15
    sample_seconds: float = 0.05
    models: list[str] | None = None
    backends: list[str] | None = None
    json: Path | None = None

    def wants(self, model: str) -> bool:
        return not self.models or model in self.models
