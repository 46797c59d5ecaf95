"""Three hundred kinds of change between two processes: none of them serves a stale result.

The rows are in `changes.py`. All rows of a batch share three processes: one that fills the cache, one where
nothing has changed, and one where everything has.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.inference.changes import ROWS, Row
from tests.process import fresh, python


def plan_of(rows: list[Row], folder: Path, changed: bool, is_plain: bool) -> None:
    """Write the modules of all rows, and what the process does with them."""
    modules = folder / "modules"
    modules.mkdir(exist_ok=True)
    plan = []
    for row in rows:
        for name, text in row.files(changed).items():
            path = modules / name
            path.parent.mkdir(exist_ok=True, parents=True)
            path.write_text(text)
        plan.append(row.plan(changed))
    (folder / "plan.json").write_text(
        json.dumps({"cache": str(folder / "cache"), "plain": is_plain, "rows": plan})
    )


def process(
    rows: list[Row], folder: Path, changed: bool, is_plain: bool, run: Any = python, **options: Any
) -> dict[str, Any]:
    """The results of one process, by row."""
    plan_of(rows, folder, changed, is_plain)
    keep = {"TORCHAIR_PROGRAMS": str(folder / "programs"), "PYTHONDONTWRITEBYTECODE": "1"}
    environment = {key: value for row in rows for key, value in row.environment(changed).items()}
    done = run(["-m", "tests.inference.change_process", str(folder)], **{**environment, **keep, **options})
    assert done.returncode == 0, done.stderr
    return {each["name"]: each for each in json.loads((folder / "results.json").read_text())}


def run(rows, folder, is_plain=False):
    first = process(rows, folder, False, is_plain)
    again = process(rows, folder, False, is_plain, fresh)
    changed = process(rows, folder, True, is_plain)
    return first, again, changed
