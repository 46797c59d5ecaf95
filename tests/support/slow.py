"""Cases that only `make test-full` runs: those that say so, one of two forms of what comes in both, and of
the tests with many cases most. And which tests begin.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import pytest


def slow(*values: Any) -> Any:
    """A case that is left to the full run."""
    return pytest.param(*values, marks=pytest.mark.full)


STATIC_FIRST = pytest.mark.parametrize("dynamic", [False, slow(True)], ids=["static", "dynamic"])
"""With symbols, each of these cases is slow; others try symbols in the quick run."""
SHARES = {
    "tests/backend/diagnose/test_converter_cases.py": 4,
    "tests/backend/export/": 3,
    "tests/backend/pipeline/test_inline_regions.py": 4,
    "tests/backend/pipeline/test_partitioned.py": 4,
    "tests/backend/runtime/test_compiled_graph.py": 4,
    "tests/backend/": 2,
    "tests/cli/test_compare.py": 3,
    "tests/codegen/": 4,
    "tests/compare/": 3,
    "tests/convert/": 12,
    "tests/debug/dumps/test_graph_file.py": 4,
    "tests/debug/": 2,
    "tests/fxgraph/test_layout.py": 4,
    "tests/fxgraph/": 3,
    "tests/inference/": 2,
    "tests/integration/test_borrowed_inputs.py": 1,
    "tests/integration/test_capture_acceptance.py": 1,
    "tests/integration/test_chip_checks.py": 12,
    "tests/integration/test_engine_side_options.py": 4,
    "tests/integration/test_long_runs.py": 1,
    "tests/integration/test_output_identity.py": 1,
    "tests/integration/test_program_swaps.py": 1,
    "tests/integration/test_recorded_layouts.py": 1,
    "tests/integration/test_stage_failures.py": 4,
    "tests/integration/": 2,
    "tests/models/": 3,
    "tests/names/test_typed.py": 3,
    "tests/ops/": 12,
    "tests/passes/": 3,
    "tests/scope/test_scopes.py::test_both_modes": 4,
    "tests/scope/test_scopes.py::test_pieces_do": 3,
    "tests/sim/inside/test_compiled.py": 2,
    "tests/sim/inside/test_models.py": 2,
    "tests/sim/inside/test_steps.py": 10,
    "tests/sim/test_scripts.py": 6,
}
"""Of the cases of one test whose name begins so, the quick run takes one in so many, and at least one. The
first name that fits counts.
"""


def leave_most_cases(items: Sequence[pytest.Item]) -> None:
    """Which cases those are depends on their names alone: the same everywhere, and no pattern in them."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if getattr(item, "callspec", None) is not None and item.get_closest_marker("full") is None:
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for name, group in cases.items():
        share = next((share for folder, share in SHARES.items() if name.startswith(folder)), 1)
        group.sort(key=lambda item: zlib.crc32(item.nodeid.encode()))
        for item in group[-(-len(group) // share) :]:
            item.add_marker(pytest.mark.full)


LONGEST = (
    "tests/sim/test_inside.py::test_with_the_device",
    "tests/structure/test_docs.py::test_python_examples_run",
)
"""These begin, so that at the end no process waits for another that is in the middle of one."""


def put_longest_first(items: list[pytest.Item]) -> None:
    """The others stay in their order."""
    items.sort(key=lambda item: not item.nodeid.startswith(LONGEST))


def leave_most_methods(case: type, ends: tuple[str, ...], share: int) -> None:
    """The same for the methods of a test case that torch's machinery made: of those whose names end so, the
    quick run takes one in so many, of others none.
    """
    names = [name for name in vars(case) if name.startswith("test")]
    chosen = sorted(
        (name for name in names if name.endswith(ends)), key=lambda name: zlib.crc32(name.encode())
    )
    for name in set(names) - set(chosen[: -(-len(chosen) // share)]):
        setattr(case, name, pytest.mark.full(getattr(case, name)))


def leave_one_form(items: Sequence[pytest.Item]) -> None:
    """Of a case with known sizes and with symbols (`dynamic`), the quick run takes one form: in one of three
    cases symbols, which take much longer.
    """
    forms: dict[tuple[str, tuple[Any, ...]], dict[bool, pytest.Item]] = {}
    for item in items:
        call = getattr(item, "callspec", None)
        dynamic = call.params.get("dynamic") if call is not None else None
        if isinstance(dynamic, bool) and item.get_closest_marker("full") is None:
            others = tuple((name, id(value)) for name, value in call.params.items() if name != "dynamic")
            forms.setdefault((item.nodeid.partition("[")[0], others), {})[dynamic] = item
    for number, pair in enumerate(pair for pair in forms.values() if len(pair) == 2):
        pair[number % 3 > 0].add_marker(pytest.mark.full)
