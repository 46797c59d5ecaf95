"""Families of `transformers` as tiny random models: both modes give eager's numbers, or fare as stock torch.

The quick run takes a few families of different kinds; `full` takes them all. `docs/reference/models.md` is
the table of the last whole sweep.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import fx
from torch.torch_version import TorchVersion

from tests.models.families import FAMILIES, Unfit, families, tiny
from tests.models.sweep import EQUAL, Result, compare, eager, fallbacks, page, run_family
from tests.structure.tree import ROOT

# A decoder and image patches, which no other test has.
QUICK = ("gpt_neo", "vit")
# Loading hundreds of modules meets whatever their authors deprecate, in whichever module that surfaces.
pytestmark = pytest.mark.filterwarnings("ignore")


def rows() -> list[Any]:
    return [pytest.param(family, marks=() if family in QUICK else (pytest.mark.full,)) for family in FAMILIES]


@pytest.mark.parametrize("family", rows())
def test_transformers_family_equals_eager(family: str) -> None:
    result = run_family(family)
    assert not result.unfit
    assert result.is_good, result
    assert result.graphs > 0, "Dynamo compiled something"
    if family in QUICK:
        assert set(result.modes.values()) == {EQUAL}
        assert not result.fallbacks


def test_families_are_many_and_known() -> None:
    assert len(FAMILIES) >= 120
    missing = set(FAMILIES) - set(families())
    assert not missing or TorchVersion(transformers.__version__) < "5.22", missing
    assert set(QUICK) <= set(FAMILIES)


def test_page_has_a_row_per_family() -> None:
    text = (ROOT / "docs/reference/models.md").read_text(encoding="utf-8")
    missing = [family for family in FAMILIES if f"\n| {family} |" not in text]
    assert not missing, "run `python -m tests.models.sweep --write docs/reference/models.md`"


def test_wrong_numbers_are_unequal() -> None:
    """The comparison compares: a backend that changes one output is found out."""

    def wrong(gm: fx.GraphModule, inputs: list[Any]) -> Any:
        return lambda *args: [value + 1e-2 if value.is_floating_point() else value for value in gm(*args)]

    found = tiny("vit")
    assert compare(found, eager(found), "aot_eager") == EQUAL
    assert compare(found, eager(found), wrong).startswith("unequal: ")


def test_sweep_reports_error() -> None:
    def broken(gm: fx.GraphModule, inputs: list[Any]) -> Any:
        raise ValueError("no luck")

    found = tiny("vit")
    said = compare(found, eager(found), broken)
    assert said.startswith("error: ")
    assert "no luck" in said


def test_what_needs_another_library_is_unfit() -> None:
    with pytest.raises(Unfit):
        tiny("timm_backbone")


def test_page_counts_families_not_calls() -> None:
    twice = Result("a", modes={"m": EQUAL}, fallbacks=[("op", "why"), ("op", "why")])
    once = Result("b", modes={"m": "error: x"}, fallbacks=[("op", "why")])
    assert fallbacks([twice, once]) == [("op", 2, "why")]
    assert not once.is_good
    assert "| `op` | 2 | why |" in page([twice, once])


def test_seeds_are_fixed() -> None:
    first, second = tiny("vit"), tiny("vit")
    torch.testing.assert_close(eager(first), eager(second), rtol=0, atol=0)
