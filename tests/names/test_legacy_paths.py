"""Import paths that scripts know: the same objects, and one word that a path is old."""

from __future__ import annotations

import importlib
import logging
import sys
from pathlib import Path

import pytest
import torch

import torchair
from tests.convert.harness import converted
from tests.support.process import python
from torchair import ge
from torchair._ge_concrete_graph import fx2ge_converter, supported_declaration, utils
from torchair._ge_concrete_graph.utils import dtype_promote
from torchair.backend.dynamo import entry_points
from torchair.convert.base.registry import unregister
from torchair.core.utils import EVENT_LEVEL
from torchair.inference._cache_compiler import CompiledModel, ModelCacheSaver


@pytest.mark.parametrize("package", ["torchair.ge_concrete_graph", "torchair._ge_concrete_graph"])
def test_converters_find_their_names(package: str) -> None:
    graph = importlib.import_module(f"{package}.ge_graph")
    assert (graph.Tensor, graph.TensorSpec) == (ge.Tensor, ge.TensorSpec)
    assert importlib.import_module(f"{package}.utils") is utils
    assert importlib.import_module(f"{package}.fx2ge_converter") is fx2ge_converter
    assert importlib.import_module(f"{package}.supported_declaration") is supported_declaration


def test_legacy_path_warns_once() -> None:
    script = (
        "import logging, torchair\n"
        "torchair.logger.setLevel(logging.WARNING)\n"
        "from torchair.ge_concrete_graph.ge_graph import Tensor, TensorSpec\n"
        "from torchair.ge_concrete_graph.utils import dtype_promote\n"
        "import torchair.ge_concrete_graph.fx2ge_converter\n"
    )
    done = python(["-c", script])
    assert done.stdout.count("torchair.ge_concrete_graph is deprecated") == 1


def test_dtype_promote_takes_tensors_and_numbers() -> None:
    seen: list[int] = []

    @torchair.register_fx_node_ge_converter(torch.ops.aten.sinc.default)
    def convert(x: ge.Tensor, meta_outputs: ge.TensorSpec) -> ge.Tensor:
        wide, number = dtype_promote(x, 2, target_dtype=ge.DataType.DT_DOUBLE)
        alone = dtype_promote(wide, target_dtype=torch.float32)
        seen.extend((wide.dtype, number.dtype, alone.dtype))
        return alone

    try:
        graph, *_ = converted(torch.sinc, [torch.ones(3)])
    finally:
        unregister(torch.ops.aten.sinc.default)
    double, single = ge.DataType.DT_DOUBLE, ge.DataType.DT_FLOAT
    assert seen == [double, double, single]
    assert [op.type for op in graph.ops].count("Cast") == 2


def test_the_logger_of_core_utils() -> None:
    assert importlib.import_module("torchair.core.utils").logger is torchair.logger
    assert EVENT_LEVEL == 35
    assert logging.getLevelName(EVENT_LEVEL) == "EVENT"


def test_the_optional_library_is_there() -> None:
    names = importlib.import_module("torchair._contrib.custom_torch_ops").NAMES
    assert names
    assert all(hasattr(torch.ops.npu_inference, name) for name in names)


def test_kept_compilations_can_be_removed_and_not_recompiled(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / CompiledModel.FILE).write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    ModelCacheSaver.remove_cache(str(tmp_path / "link"))
    assert (tmp_path / "folder" / CompiledModel.FILE).exists()
    ModelCacheSaver.remove_cache(tmp_path / "folder")
    assert not list(tmp_path.iterdir())
    with pytest.raises(RuntimeError, match="cannot be recompiled"):
        CompiledModel().recompile(torchair.CompilerConfig())


def test_patch_for_hcom_has_no_effect_and_warns(capsys: pytest.CaptureFixture[str]) -> None:
    before = dict(vars(torch.distributed))
    level = torchair.logger.level
    torchair.logger.setLevel(logging.WARNING)
    try:
        torchair.patch_for_hcom()
        torchair.patch_for_hcom()
    finally:
        torchair.logger.setLevel(level)
    assert capsys.readouterr().out.count("patch_for_hcom() is not needed") == 1
    assert dict(vars(torch.distributed)) == before


def test_the_namespace_of_collectives_is_open_to_users() -> None:
    library = torch.library.Library("npu_define", "DEF")
    library.define("mine(Tensor x) -> Tensor")
    library.impl("mine", lambda x: x + 1, "CPU")
    assert torch.ops.npu_define.mine(torch.zeros(1)).item() == 1
    library._destroy()


def test_the_path_of_the_entry_points_before_the_move_is_deprecated() -> None:
    sys.modules.pop("torchair.backend.doors", None)
    with pytest.warns(DeprecationWarning, match="torchair.backend.dynamo.entry_points"):
        old = importlib.import_module("torchair.backend.doors")
    assert old.npu is entry_points.npu
