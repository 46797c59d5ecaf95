"""Hundreds of kinds of change between two processes: none of them serves a stale result.

The rows are in `changes.py`. All rows of a batch share three processes: one that fills the cache, one where
nothing has changed, and one where everything has.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import torchair
from tests.inference.changes import ROWS, Row
from tests.inference.models import Net
from tests.support.process import fresh, python
from torchair.backend.cache.entry import FRAME
from torchair.core.errors import DegradedWarning
from torchair.core.storage.artifact_store import unpacked
from torchair.core.torch_private.dynamo.frames import Frame

Results = dict[str, dict[str, Any]]
SHARE = 40
"""Of so many rows the quick run takes one; those of Dynamo's missing guards are all among them."""
WITHOUT_GUARD = {
    "getenv, changed",
    "environ get, set",
    "environ get with a default, new",
    "a key of environ, new",
    "a name that hides a builtin",
    "an annotation",
    "inspect.isabstract",
    "the first line of code",
    "module: a new name",
    "module: dir",
    "after: a constant put into builtins",
    "after: a method of a class of Python's",
    "call: a default device",
}


def is_quick(number: int, row: Row) -> bool:
    return row.name in WITHOUT_GUARD or number % SHARE == 0


def process(
    rows: Sequence[Row], folder: Path, changed: bool, is_plain: bool, run: Callable[..., Any] = python
) -> Results:
    """The results of one process, by row."""
    for row in rows:
        for name, text in row.files(changed).items():
            path = folder / "modules" / name
            path.parent.mkdir(exist_ok=True, parents=True)
            path.write_text(text)
    plan = {"plain": is_plain, "cache": str(folder / "cache"), "rows": [row.plan(changed) for row in rows]}
    (folder / "plan.json").write_text(json.dumps(plan))
    environment = {key: value for row in rows for key, value in row.environment(changed).items()}
    environment |= {"TORCHAIR_PROGRAMS": str(folder / "programs"), "PYTHONDONTWRITEBYTECODE": "1"}
    done = run(["-m", "tests.inference.change_process", str(folder)], **environment)
    assert done.returncode == 0, done.stderr
    return {each["name"]: each for each in json.loads((folder / "results.json").read_text())}


def faults(rows: Sequence[Row], folder: Path, is_plain: bool, run: Callable[..., Any] = python) -> list[str]:
    """Where a result is not that of eager, and where an entry is not found again."""
    first = process(rows, folder, False, is_plain)
    again = process(rows, folder, False, is_plain, run)
    changed = process(rows, folder, True, is_plain)
    found, real = list[str](), 0
    for row in rows:
        before, same, after = first[row.name], again[row.name], changed[row.name]
        real += after.get("eager") != before.get("eager")
        for results in (before, same, after):
            # Dynamo cannot trace what some rows have changed to.
            if "Unsupported" not in results.get("error", "") and results.get("got") != results["eager"]:
                found.append(f"{row.name}: {results.get('error', 'stale')}")
        if "error" in before:
            found.append(f"{row.name}: it is not compiled: {before['error']}")
        is_kept = row.kept and not before["degraded"]
        expects_entry = [same, after] if row.same else [same]
        if not is_plain and is_kept and any(each["misses"] for each in expects_entry):
            found.append(f"{row.name}: it is compiled again: {[each['misses'] for each in expects_entry]}")
    assert real >= 0.9 * sum(not row.same and not row.name.startswith("option") for row in rows)
    return found


@pytest.mark.parametrize("is_plain", [False, True], ids=["cache_compile", "torch.compile"])
def test_quick_changes_serve_no_stale_result(is_plain: bool, tmp_path: Path) -> None:
    rows = [row for number, row in enumerate(ROWS) if is_quick(number, row)]
    assert {row.name for row in rows} >= WITHOUT_GUARD
    assert faults(rows if not is_plain else rows[::4], tmp_path, is_plain) == []


@pytest.mark.full
@pytest.mark.parametrize("is_plain", [False, True], ids=["cache_compile", "torch.compile"])
def test_all_changes_serve_no_stale_result(is_plain: bool, tmp_path: Path) -> None:
    assert len(ROWS) >= 300
    # The second process has another seed for hashes.
    assert faults(ROWS, tmp_path, is_plain, fresh) == []


def test_an_entry_without_these_facts_is_compiled_again(tmp_path: Path) -> None:
    """An entry of an earlier version of this package, whose frames have fewer fields."""
    net, x = Net().eval(), torch.randn(3, 8)
    config = torchair.CompilerConfig()
    config.engine_config.codegen = "eager"

    def new() -> Any:
        return torchair.inference.cache_compile(
            net.step, config=config, dynamic=False, cache_dir=str(tmp_path / "kept")
        )

    run = new()
    run(x)
    place = run.place()
    entry = unpacked(place.path.read_bytes(), place.key, str(place.path))
    files = dict(entry.files)
    frame = Frame.unpack(files[f"0/{FRAME}"])
    for name in ("unguarded", "called"):
        del vars(frame.guards)[name]
    files[f"0/{FRAME}"] = pickle.dumps(vars(frame), protocol=5)
    place.store.put(place.key, files, entry.facts)
    again = new()
    with pytest.warns(DegradedWarning, match="a cached variant of .* cannot be loaded"):
        got = again(x)
    with torch.no_grad():
        torch.testing.assert_close(got, net.step(x))
    assert again.misses


class Addressed(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (id(torch.nn.Module) % 7 + 1)


def test_a_read_that_cannot_be_compared_is_refused_with_its_line(tmp_path: Path) -> None:
    config = torchair.CompilerConfig()
    config.engine_config.codegen = "eager"
    run: Any = torchair.inference.cache_compile(
        Addressed().forward, config=config, cache_dir=str(tmp_path / "kept")
    )
    x = torch.ones(2)
    expected = r"not cached, .*test_cache_changes.py:\d+: builtins.id .*; read the value before the call"
    with pytest.warns(DegradedWarning, match=expected):
        got = run(x)
    torch.testing.assert_close(got, Addressed()(x))
    assert not (tmp_path / "kept").exists()
