"""In the quick run calls of library ops are lowered with known sizes, and in one test of three with symbols,
which take ten times as long.
"""

from __future__ import annotations

import zlib

import pytest

from tests.ops import compiled


@pytest.fixture(autouse=True)
def _forms(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.config.getoption("markexpr") == "not full" and zlib.crc32(request.node.nodeid.encode()) % 3:
        monkeypatch.setattr(compiled, "FORMS", [False])
