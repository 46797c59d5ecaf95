"""Cases of a table of parameters that only `make test-full` runs."""

from __future__ import annotations

from typing import Any

import pytest


def slow(*values: Any) -> Any:
    """A case that is left to the full run."""
    return pytest.param(*values, marks=pytest.mark.full)


STATIC_FIRST = pytest.mark.parametrize("dynamic", [False, slow(True)], ids=["static", "dynamic"])
"""With symbols, each of these cases is slow; others try symbols in the quick run."""
