"""IR ops that have no kernel stay in the graph, and the FX node is run by its torch op."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import torchair
from tests.support.compile import compile_fn
from tests.support.process import python
from tests.support.slow import slow
from torchair import ge
from torchair.ge.builder.torch_kernel_binding import HIDDEN
from torchair.ge.proto.write import to_graph_def

CALLS: list[str] = []


@torch.library.custom_op("without_kernel_test::scaled", mutates_args=())
def scaled(x: Tensor, k: float) -> Tensor:
    CALLS.append("scaled")
    return x * k


@scaled.register_fake
def _(x: Tensor, k: float) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("without_kernel_test::pair", mutates_args=())
def pair(x: Tensor, n: int) -> tuple[Tensor, Tensor]:
    CALLS.append("pair")
    return x * n, x.sum(0)


@pair.register_fake
def _(x: Tensor, n: int) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), x.new_empty(x.shape[1:])


ops = torch.ops.without_kernel_test
ge.register_prototype("WithoutKernelScaled(x, y?; k: Float) -> z")
ge.register_prototype("WithoutKernelPair(x; n: Int = 1) -> a, b")


@torchair.register_fx_node_ge_converter(ops.scaled.default)
def _(x: Any, k: float, meta_outputs: Any = None) -> Any:
    return ge.custom_op("WithoutKernelScaled", x, None, k)


@torchair.register_fx_node_ge_converter(ops.pair.default)
def _(x: Any, n: Any, meta_outputs: Any = None) -> Any:
    """Several ops, of which one has no kernel, and one that no prototype describes."""
    n = 0 if isinstance(n, ge.Tensor) else n
    a, b = ge.custom_op("WithoutKernelPair", ge.Cast(x, dst_type=ge.DataType.DT_FLOAT16), n)
    described = ge.custom_op("WithoutKernelUndeclared", inputs={"x": b}, outputs=["y"])
    return ge.Cast(a, dst_type=ge.DataType.DT_FLOAT), ge.Cast(described, dst_type=ge.DataType.DT_FLOAT)


class Model(torch.nn.Module):
    def forward(self, x: Tensor) -> Any:
        a, b = pair(scaled(x.sin(), 2.0), x.shape[0])
        return a + 1, b * 2


def compile_model(codegen: str, dynamic: bool, **dump: str) -> Any:
    """Compile `Model` with the check between passes; `dump` are options of `debug.graph_dump`."""
    options: dict[str, Any] = {f"debug.graph_dump.{name}": value for name, value in dump.items()}
    options["engine_config.verify"] = True
    return compile_fn(Model(), options, codegen=codegen, reset=True, dynamic=dynamic, fullgraph=True)


@pytest.mark.parametrize("dynamic", [slow(False), True], ids=["static", "dynamic"])
@pytest.mark.parametrize("codegen", ["eager", "reference", slow("inductor")])
def test_the_torch_op_runs_once_and_nothing_is_rounded(codegen: str, dynamic: bool) -> None:
    run = compile_model(codegen, dynamic)
    for shape in ((4, 6), (5, 3)):
        x = torch.randn(*shape)
        expected = Model()(x)
        run(x)
        CALLS.clear()
        # The ops of the IR would go through FLOAT16.
        torch.testing.assert_close(run(x), expected)
        assert CALLS == ["scaled", "pair"]


@pytest.mark.parametrize("kind", ["py", "pbtxt", "txt"])
def test_dumps_show_the_users_ops(kind: str, tmp_path: Path) -> None:
    compile_model("eager", True, type=kind, path=str(tmp_path))(torch.randn(4, 6))
    texts = [path.read_text() for path in tmp_path.glob(f"*original*.{kind}")]
    assert texts
    for name in ("WithoutKernelScaled", "WithoutKernelPair", "WithoutKernelUndeclared"):
        assert any(name in text for text in texts)
    assert not any("TorchOp" in text for text in texts)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_a_file_has_them_and_runs(dynamic: bool, tmp_path: Path) -> None:
    x = torch.randn(4, 6)
    torchair.dynamo_export(x, model=Model(), export_path=str(tmp_path), dynamic=dynamic)
    text = (tmp_path / "dynamo.pbtxt").read_text()
    assert 'op: "WithoutKernelPair"' in text
    loaded = torchair.load_air(tmp_path / "export.air")
    written = to_graph_def(loaded.graph)
    descriptors = [desc.name for op in written.op for desc in (*op.input_desc, *op.output_desc)]
    assert not any(name.startswith(HIDDEN) for name in descriptors), "only the call speaks of them"
    types = [op.type for op in loaded.graph.ops]
    assert types.count("WithoutKernelScaled") == types.count("WithoutKernelPair") == 1
    torch.testing.assert_close(loaded(x), Model()(x))
    if dynamic:
        other = torch.randn(7, 2)
        torch.testing.assert_close(loaded(other), Model()(other))


ELSEWHERE = """
import torch, torchair
from torchair import ge
try:
    torchair.load_air("export.air")
    raise SystemExit("it runs")
except NotImplementedError as error:
    assert "WithoutKernelTwice" in str(error) and "elsewhere_test.twice.default" in str(error), error
    assert "register_kernel('WithoutKernelTwice'" in str(error), error
ge.register_prototype("WithoutKernelTwice(x) -> y")
ge.register_kernel("WithoutKernelTwice", lambda x: x * 2)
x = torch.randn(3)
torch.testing.assert_close(torchair.load_air("export.air")(x), x * 2 + 1)
"""


def test_loaded_op_without_kernel_gives_hint(tmp_path: Path) -> None:
    class Twice(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return twice(x) + 1

    @torchair.op("elsewhere_test::twice", ge_op="WithoutKernelTwice")
    def twice(x: Tensor) -> Tensor:
        return x * 2

    torchair.dynamo_export(torch.randn(3), model=Twice(), export_path=str(tmp_path))
    done = python(["-c", ELSEWHERE], tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
