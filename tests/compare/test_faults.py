"""Faults are put in one at a time: `compare` names the node and the culprit, and writes a script that shows
the fault again.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

import torchair
from tests.compare.faults import QUICK, REST, Fault
from tests.support.slow import slow
from torchair.compare.compare import compare

CASES = [*(pytest.param(fault, id=name) for name, fault in QUICK.items())]
CASES += [pytest.param(*slow(fault).values, id=name, marks=pytest.mark.full) for name, fault in REST.items()]


def loaded(path: Path) -> Any:
    """A script as a module, by a name that Dynamo finds."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("fault", CASES)
def test_the_culprit_is_named(fault: Fault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = fault.model()
    config = torchair.CompilerConfig()
    config.mode = fault.mode
    fault.inject(monkeypatch)
    found = compare(model, config=config, **inputs)
    assert not found.ok
    assert found.first is not None
    told = found.first
    assert (told.culprit.kind, told.node) == (fault.kind, fault.node), str(found)
    assert fault.name in told.culprit.name
    assert fault.module in told.module
    assert ".py:" in told.source
    assert not told.errors.ok
    wrong = next(row for row in found.stages if not row.ok)
    assert (told.stage, told.kind) == (wrong.stage, wrong.kind)
    assert str(told.culprit) in str(found)
    # Nothing is right any more behind it, and nothing was wrong before it.
    assert all(row.ok for row in found.stages[: found.stages.index(wrong)])

    path = found.save(tmp_path / "shows_it_again.py")
    assert path.stat().st_mode & 0o777 == 0o600
    script = loaded(path)
    assert path.read_text().count("torch.ops.") < 12, "a few calls, not the model"
    again = compare(script.graph, *script.INPUTS, config=script.CONFIG)
    assert again.first is not None
    assert again.first.culprit.kind == fault.kind
    monkeypatch.undo()
    assert compare(script.graph, *script.INPUTS, config=script.CONFIG).ok
