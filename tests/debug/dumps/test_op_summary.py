"""The summary of operators: its rows are the graph, its statuses the registry; and what runs behind it."""

from __future__ import annotations

import csv
import operator
import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import torchair
from tests.debug.seen import Seen
from tests.models.zoo import ROWS
from torchair.convert.base.registry import converter, unregister
from torchair.core.errors import DegradedWarning
from torchair.core.registries.lazy_registry import LazyRegistry
from torchair.debug.dumps import op_summary
from torchair.debug.dumps.op_summary import kind_of, status_of

aten = torch.ops.aten
HEADER = ["目标函数", "函数类型", "支持状态", "调用次数", "输入统计", "输出统计"]


@torch.library.custom_op("airtest::summed", mutates_args=())
def summed(x: torch.Tensor, k: int = 1) -> torch.Tensor:
    return x * k


@summed.register_fake
def _(x: torch.Tensor, k: int = 1) -> torch.Tensor:
    return torch.empty_like(x)


def config(folder: Path, **options: Any) -> torchair.CompilerConfig:
    made = torchair.CompilerConfig()
    made.debug.fx_summary.type = "csv"
    made.debug.fx_summary.path = str(folder)
    made.engine_config.codegen = "eager"
    for name, value in options.items():
        setattr(made.debug.fx_summary, name, value)
    return made


def rows(path: Path) -> dict[str, dict[str, str]]:
    """The report, read as a spreadsheet does."""
    data = path.read_bytes()
    assert data.startswith(b"\xef\xbb\xbf")
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file)
        assert reader.fieldnames == HEADER
        listed = list(reader)
    found = {row["目标函数"]: row for row in listed}
    assert len(found) == len(listed), "one row per target"
    return found


def work(x: torch.Tensor) -> torch.Tensor:
    a, b = (summed(x, k=2) + 1).split(2)
    return torch.sin(a) + torch.sin(a) + torch.sin(b[:1]) + 1


def test_a_row_per_target(tmp_path: Path) -> None:
    backend = Seen(config(tmp_path))
    x = torch.randn(4, 3)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(work, backend=backend, dynamic=False)(x), work(x))
    (path,) = tmp_path.iterdir()
    assert re.fullmatch(rf"summary_rank_0_pid_{os.getpid()}_ts_\d{{20}}\.csv", path.name)
    assert path.stat().st_mode & 0o777 == 0o640
    found = rows(path)
    assert {name: (row["函数类型"], row["支持状态"], row["调用次数"]) for name, row in found.items()} == {
        "airtest.summed.default": ("aten", "未注册", "1"),
        "aten.add.Tensor": ("aten", status_of(aten.add.Tensor), "4"),
        "aten.split.Tensor": ("aten", status_of(aten.split.Tensor), "1"),
        "aten.sin.default": ("aten", "已支持", "3"),
        "aten.slice.Tensor": ("aten", status_of(aten.slice.Tensor), "1"),
        "getitem": ("builtin", "已支持", "2"),
    }
    sines = found["aten.sin.default"]
    assert sines["输入统计"] == "2次：(torch.float32(2, 3))\n1次：(torch.float32(1, 3))"
    assert sines["输出统计"] == "2次：torch.float32(2, 3)\n1次：torch.float32(1, 3)"
    assert found["airtest.summed.default"]["输入统计"] == "1次：(torch.float32(4, 3), 2)"
    assert found["aten.split.Tensor"]["输出统计"] == "1次：[torch.float32(2, 3), torch.float32(2, 3)]"


@pytest.mark.full
def test_a_model_of_somebody_else_with_symbols(tmp_path: Path) -> None:
    """One row per op of what AOTAutograd handed over, counts included."""
    seen: list[str] = []

    def look(gm: torch.fx.GraphModule, *_: Any) -> None:
        seen.extend(
            str(node.target) for node in gm.graph.nodes if isinstance(node.target, torch._ops.OpOverload)
        )

    asked = config(tmp_path, skip_compile=False)
    asked.post_grad_custom_pre_pass = look
    row = next(row for row in ROWS if row.name == "llama")
    inputs = row.feed(row.shapes[0])
    with torch.no_grad(), torch._dynamo.config.patch(row.dynamo):
        torch.compile(row.model(), backend=Seen(asked), dynamic=True)(**inputs)
    (path,) = tmp_path.iterdir()
    counted = {name: int(row["调用次数"]) for name, row in rows(path).items() if row["函数类型"] != "builtin"}
    assert counted == Counter(seen)


def test_sub_graphs_are_counted(tmp_path: Path) -> None:
    def branches(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos().sin(), (x,))

    with torch.no_grad():
        torch.compile(branches, backend=Seen(config(tmp_path)))(torch.ones(3))
    (path,) = tmp_path.iterdir()
    found = rows(path)
    assert found["aten.sin.default"]["调用次数"] == "2"
    assert found["cond"]["支持状态"] != "未注册"


def test_a_second_try_has_no_second_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("no conversion today")

    monkeypatch.setattr("torchair.backend.pipeline.ir.convert", fail)
    with pytest.warns(DegradedWarning, match="no conversion today"):
        torch.compile(lambda x: x + 1, backend=Seen(config(tmp_path, skip_compile=False)))(torch.ones(2))
    assert len(list(tmp_path.iterdir())) == 1


def test_each_graph_has_a_report_and_training_has_two(tmp_path: Path) -> None:
    x = torch.randn(4, requires_grad=True)
    torch.compile(lambda x: x.sin().sum(), backend=Seen(config(tmp_path)))(x).backward()
    torch.testing.assert_close(x.grad, x.detach().cos())
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("skip", [True, False])
def test_op_summary_skips_or_compiles_afterwards(
    tmp_path: Path, skip: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Skipping never converts: a graph that cannot be converted runs all the same, without a warning."""
    converted: list[Any] = []
    convert = torchair.backend.pipeline.ir.convert
    monkeypatch.setattr(
        "torchair.backend.pipeline.ir.convert", lambda *a, **k: converted.append(1) or convert(*a, **k)
    )
    gm = torch.fx.symbolic_trace(lambda x: [aten.sin.default(x)])
    runner = torchair.get_compiler(config(tmp_path, skip_compile=skip))(gm, [torch.ones(2)]).runner
    torch.testing.assert_close(runner.run(torch.ones(2)), [torch.ones(2).sin()])
    assert bool(converted) is not skip
    assert runner.why_not == ("capture is switched off" if skip else "cpu has no device graphs")


def test_op_summary_in_capture_mode_warns(tmp_path: Path) -> None:
    asked = config(tmp_path)
    asked.mode = "reduce-overhead"
    with pytest.warns(UserWarning, match="config.debug.fx_summary.type:csv"), pytest.deprecated_call():
        backend = torchair.get_npu_backend(compiler_config=asked)
    with pytest.warns(DegradedWarning, match="debug.fx_summary.path"):
        torch.compile(lambda x: x + 1, backend=backend)(torch.ones(2))
    assert not list(tmp_path.iterdir())


def test_op_summary_in_unwritable_folder_warns(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    run = torch.compile(lambda x: x + 1, backend=Seen(config(tmp_path / "file/below")))
    with pytest.warns(DegradedWarning, match="cannot write a summary of operators: NotADirectory"):
        torch.testing.assert_close(run(torch.ones(2)), torch.full((2,), 2.0))


@pytest.fixture
def users() -> Iterator[Any]:
    """The op whose converters a test registers."""
    yield torch.ops.airtest.summed.default
    unregister(torch.ops.airtest.summed.default)


def stub(x: Any, k: int = 1) -> Any:
    raise NotImplementedError("not yet")


def partly(x: Any, k: int = 1) -> Any:
    if k != 1:
        raise NotImplementedError("only 1")
    return x


@pytest.mark.parametrize(
    ("function", "status"),
    [
        (stub, "未支持"),
        (partly, "部分支持"),
        (lambda x, k=1: x, "已支持"),
        (operator.neg, "未知状态，请查看源码"),
    ],
    ids=["stub", "partly", "whole", "unknown"],
)
def test_op_summary_status_follows_registry(users: Any, function: Any, status: str) -> None:
    assert status_of(users) == "未注册"
    torchair.register_fx_node_ge_converter(users)(function)
    assert status_of(users) == status


def test_a_condition_beside_a_converter_makes_it_partial(monkeypatch: pytest.MonkeyPatch) -> None:
    table: LazyRegistry[Any, Any] = LazyRegistry("torchair.convert.all_converters")
    monkeypatch.setattr("torchair.convert.base.registry._builtin", table)
    converter(aten.sin.default, only=lambda x: "never")(lambda x: x)
    assert status_of(aten.sin.default) == "部分支持"


def test_op_summary_kind_names_the_namespace() -> None:
    assert kind_of(operator.getitem) == "builtin"
    assert kind_of(torch.ops.prims.convert_element_type.default) == "prims"
    assert kind_of(aten.sin.default) == "aten"
    assert tuple(HEADER) == op_summary.HEADER
