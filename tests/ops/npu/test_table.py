"""The tables of the npu library: complete, in the terms of the IR, never in the way of the real plug-in."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import torch

import torchair
from tests.structure.tree import ROOT
from tests.support.process import python
from torchair.convert.base import registry
from torchair.ge.prototype import prototype
from torchair.ops import npu
from torchair.ops.npu.common import library
from torchair.ops.npu.common.op_spec import TYPES, parameters

WITH_IR = [row for row in npu.ROWS if row.ir]
LABELS = [f"{row.op}-{row.ir}" for row in WITH_IR]
# Ops whose parts are converted one by one.
TRACED = {library.full_name(op) for op in npu.COMPOSITE}


def plain(value):
    return list(value) if isinstance(value, tuple) else value


@pytest.mark.parametrize("name", sorted(npu.schemas()))
def test_every_schema_is_an_op_of_torch_with_a_converter(name):
    namespace, packet, variant = name.split(".")
    found = getattr(getattr(getattr(torch.ops, namespace), packet), variant)
    assert str(found._schema) == npu.schemas()[name] or found._schema == library.parse_schema(
        npu.schemas()[name]
    )
    assert name in TRACED or registry.has_converter(found)


@pytest.mark.parametrize("row", WITH_IR, ids=LABELS)
def test_defaults_are_those_of_the_prototype(row):
    known = prototype(row.ir).attr_by_name
    for name, parameter in inspect.signature(row.fn).parameters.items():
        if name == TYPES:
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.default is not parameter.empty:
            assert plain(parameter.default) == known[name].default, name
        elif parameter.kind is parameter.KEYWORD_ONLY:
            assert known[name].required, name


@pytest.mark.parametrize("row", WITH_IR, ids=LABELS)
def test_inputs_are_those_of_the_prototype(row):
    assert parameters(row.fn)[0] == prototype(row.ir).input_names


@pytest.mark.parametrize("row", npu.IN_PLACE, ids=[row.op for row in npu.IN_PLACE])
def test_in_place_ops_name_arguments_and_results_of_their_twin(row):
    own = {argument.name for argument in library.schema_of(row.op).arguments}
    results = len(library.schema_of(row.twin).returns)
    assert set(row.writes) <= own
    assert all(index < results for index in row.writes.values())
    assert all(part in own if isinstance(part, str) else part < results for part in row.returns)


def test_reachable_under_both_names():
    assert torchair.ops.npu_rms_norm is torch.ops.npu.npu_rms_norm
    with pytest.raises(AttributeError, match="npu_no_such_op"):
        _ = torchair.ops.npu_no_such_op


def output_of(code: str, *path: Path) -> str:
    done = python(["-c", code], PYTHONPATH=":".join(map(str, (*path, ROOT))))
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_only_our_own_ops_are_defined_where_the_plug_in_is_installed(tmp_path):
    (tmp_path / "torch_npu.py").write_text("")
    code = (
        "import torch, torchair.ops\n"
        "print(hasattr(torch.ops.npu, 'npu_rms_norm'))\n"
        "print(hasattr(torch.ops.air, 'npu_fused_infer_attention_score'))\n"
    )
    assert output_of(code, tmp_path).split() == ["False", "True"]
    assert output_of(code).split() == ["True", "True"]


def test_an_op_that_exists_is_left_alone():
    code = (
        "import torch\n"
        "lib = torch.library.Library('npu', 'FRAGMENT')\n"
        "lib.define('npu_swiglu(Tensor self, int dim=-1) -> Tensor')\n"
        "lib.impl('npu_swiglu', lambda self, dim=-1: self + 41, 'CPU')\n"
        "import torchair.ops\n"
        "print(torch.ops.npu.npu_swiglu(torch.ones(1)).item(), hasattr(torch.ops.npu, 'npu_gelu'))\n"
    )
    assert output_of(code) == "42.0 True"
