"""Printing and saving on the device: once when called, never while a graph is captured, at every replay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch_npu

import torchair
from torchair.ops import npu_print


def test_eager(capsys: Any, tmp_path: Path) -> None:
    x = torch.arange(3.0, device="npu")
    npu_print("x", x, torch.ones(2), tensor_detail=True)
    torch_npu.print_npugraph_tensor(x, tensor_name="x")
    torch_npu.save_npugraph_tensor(x, save_path=str(tmp_path / "x.pt"))
    text = "tensor([0 1 2], shape=[3], dtype=torch.float32)"
    assert capsys.readouterr().out.splitlines() == [
        f"x {text} tensor([1 1], shape=[2], dtype=torch.float32)",
        f"x={text}",
    ]
    saved = torch.load(tmp_path / "x_device_0_0.pt")
    assert (saved.device.type, saved.tolist()) == ("cpu", [0.0, 1.0, 2.0])


def test_graph_by_hand(capsys: Any, tmp_path: Path) -> None:
    x, graph = torch.zeros(2, device="npu"), torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        npu_print("x", x)
        x += 1
        npu_print("x", x)
        torch_npu.print_npugraph_tensor(x)
        torch_npu.save_npugraph_tensor(x, save_path=str(tmp_path / "x.pt"))
        torch_npu.save_npugraph_tensor([x, x * 2], save_path=str(tmp_path / "pair.pt"), overwrite=True)
    assert capsys.readouterr().out == ""
    assert not list(tmp_path.iterdir()), "nothing is done until a graph is replayed"
    for step in range(3):
        graph.replay()
        torch.npu.synchronize()
        assert capsys.readouterr().out.splitlines() == [
            f"x [{step} {step}]",
            f"x [{step + 1} {step + 1}]",
            f"tensor([{step + 1} {step + 1}], shape=[2], dtype=torch.float32)",
        ]
        assert torch.load(tmp_path / "x_device_0_0.pt").tolist() == [step + 1] * 2
        assert [each[0].item() for each in torch.load(tmp_path / "pair_device_0.pt")] == [
            step + 1,
            2 * step + 2,
        ]
    assert len(list(tmp_path.iterdir())) == 2, "every replay writes the files of its capture"


@pytest.mark.parametrize("mode", ["npugraph_ex", "max-autotune"])
def test_compiled(mode: str, capsys: Any) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        h = x * 3
        npu_print("h", h, x.shape[0])
        torch_npu.print_npugraph_tensor(h, tensor_name="h")
        npu_print("x", x)
        npu_print("x", x)
        return h + 1

    config = torchair.CompilerConfig()
    config.mode, config.engine_config.codegen = mode, "eager"
    run = torch.compile(fn, backend=torchair.get_npu_backend(compiler_config=config), fullgraph=True)
    capsys.readouterr()
    for step in range(5):
        assert run(torch.full((2,), float(step), device="npu")).tolist() == [3.0 * step + 1] * 2
        h = f"[{3 * step} {3 * step}]"
        assert capsys.readouterr().out.splitlines() == [
            f"h {h} 2",
            f"h=tensor({h}, shape=[2], dtype=torch.float32)",
            *[f"x [{step} {step}]"] * 2,
        ]


def test_saves_of_a_recorded_graph_have_one_name(tmp_path: Path) -> None:
    path = str(tmp_path / "h.pt")

    def fn(x: torch.Tensor) -> torch.Tensor:
        torch_npu.save_npugraph_tensor(x * 2, save_path=path)
        return x + 1

    run = torch.compile(fn, backend="npugraph_ex", fullgraph=True, dynamic=False)
    for step in range(6):
        run(torch.full((1,), float(step), device="npu"))
    files = sorted(tmp_path.iterdir())
    assert len(files) < 6, "replays write over the file of their capture"
    assert torch.load(files[-1]).item() == 10.0


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda x: torch_npu.save_npugraph_tensor(x, save_path=1), TypeError),
        (lambda x: torch_npu.save_npugraph_tensor(x, save_path="folder/"), ValueError),
        (lambda x: torch_npu.save_npugraph_tensor([]), ValueError),
        (lambda x: torch_npu.save_npugraph_tensor([x, x.cpu()]), ValueError),
        (lambda x: torch_npu.print_npugraph_tensor([x]), TypeError),
        (lambda x: torch_npu.print_npugraph_tensor(x, tensor_name=1), TypeError),
    ],
)
def test_what_is_refused(call: Any, error: Any) -> None:
    with pytest.raises(error):
        call(torch.ones(1, device="npu"))
