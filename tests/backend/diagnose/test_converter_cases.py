"""The converter self-test: all declared cases hold, and a converter that breaks its word is found."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

import pytest
import torch

import torchair.convert.special.declared_cases  # noqa: F401 - fills the table of built-in cases
from tests.structure.tree import ROOT
from tests.support.process import python
from tests.support.slow import slow
from torchair import ge
from torchair.backend.diagnose.converter_cases import run_declared, why_fails
from torchair.convert.base.case_spec import (
    F32,
    F64,
    Support,
    T,
    declare_supported,
    declared,
    forget_supported,
    target_name,
)
from torchair.convert.base.registry import register_fx_node_ge_converter, unregister
from torchair.tools import converter_test

ATAN2 = torch.ops.aten.atan2.default
NAMES = sorted({target_name(target) for target, _ in declared()})
# Cases in bundles: a bundle is one test.
BUNDLES = [NAMES[start : start + 12] for start in range(0, len(NAMES), 12)]
FORMS = [pytest.param(False, id="static"), pytest.param(True, id="dynamic", marks=pytest.mark.full)]


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    yield
    unregister(ATAN2)
    forget_supported(ATAN2)


@pytest.mark.parametrize("dynamic", FORMS)
@pytest.mark.parametrize(
    "names",
    [names if place % 2 else slow(names) for place, names in enumerate(BUNDLES)],
    ids=lambda names: f"{names[0]}..{names[-1]}",
)
def test_declared_cases_hold(names: list[str], dynamic: bool) -> None:
    outcomes = [run_declared(name, dynamic=dynamic) for name in names]
    wrong = [outcome for outcome in itertools.chain(*outcomes) if outcome.why]
    assert not wrong, "\n".join(f"{w.name} {w.case!r}: {w.why}" for w in wrong)


def test_many_converters_have_cases() -> None:
    assert len(NAMES) > 150
    assert len(list(declared())) > 600


@pytest.mark.parametrize("codegen", ["reference", "eager"])
def test_wrong_values_are_found(codegen: str) -> None:
    @register_fx_node_ge_converter(ATAN2)
    def wrong(self, other):
        return ge.Atan2(other, self)

    why = why_fails(ATAN2, Support(F32(2, 3), F32(2, 3)), codegen=codegen)
    assert re.fullmatch(r"result 0: \d of 6 values are not close", why)


@pytest.mark.parametrize("holds", [True, False], ids=["single", "double"])
def test_doubles_are_compared_as_doubles(holds: bool) -> None:
    """An error of 1e-6 is none in 32 bits."""

    @register_fx_node_ge_converter(ATAN2)
    def inexact(self, other):
        return ge.Mul(ge.Atan2(self, other), ge.Const(1 + 1e-6, dtype=self.dtype))

    kind = F32 if holds else F64
    assert bool(why_fails(ATAN2, Support(kind(2, 3), kind(2, 3)))) != holds


def test_a_converter_that_declines_does_not_pass() -> None:
    """The op would be carried through as it is, with the right numbers."""

    target = torch.ops.aten.linalg_ldl_solve.default

    @register_fx_node_ge_converter(target)
    def declines(LD, pivots, B, *, hermitian=False):
        raise NotImplementedError("not this one")

    try:
        why = why_fails(target, Support(F32(3, 3), T([1, 2, 3], dtype=torch.int32), F32(3, 2)))
    finally:
        unregister(target)
    assert why.startswith("it was not converted: the user's converter declined: not this one")


def test_a_converter_that_raises_is_reported() -> None:
    @register_fx_node_ge_converter(ATAN2)
    def raises(self, other):
        raise ValueError("broken")

    assert "broken" in why_fails(ATAN2, Support(F32(2), F32(2)))


def test_packets_and_python_functions() -> None:
    assert why_fails(torch.ops.aten.add, Support(F32(2), 3)) == ""
    assert why_fails(torch.ops.aten.add, Support(F32(2), F32(3, 2), alpha=2)) == ""


def test_lines_and_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    assert converter_test.main(["aten.atan2"]) == 0
    out = capsys.readouterr().out
    assert out.count("[RUN] aten.atan2.default") == out.count("[PASS] aten.atan2.default") == 2
    assert out.endswith("2 cases, 2 passed, 0 failed\n")

    @declare_supported([Support(F32(2), F32(2))])
    @register_fx_node_ge_converter(ATAN2)
    def wrong(self, other):
        return ge.Add(self, other)

    assert converter_test.main(["atan2"]) == 1
    assert "[FAILED] aten.atan2.default Support(F32(2), F32(2)): result 0: 2 of 2" in capsys.readouterr().out


def test_an_unknown_prefix_is_no_success(capsys: pytest.CaptureFixture[str]) -> None:
    assert converter_test.main(["aten.nobody"]) == 1
    assert "'aten.nobody'" in capsys.readouterr().err


def test_the_documented_command_runs() -> None:
    page = (ROOT / "docs/contributing/add-a-converter.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"^python (-m torchair\.tools\.converter_test .*)$", page, re.MULTILINE)
    done = python(shown.split(), ROOT)
    assert done.returncode == 0, done.stderr
    assert "[PASS]" in done.stdout
