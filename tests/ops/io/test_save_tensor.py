"""Files of tensors: their names, what is in them, when they are written, and what is refused."""

from __future__ import annotations

import gc
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import torchair
from tests.support.slow import slow
from torchair.devices import get_device
from torchair.ops.io.save_tensor import file_for, save_tensor

CPU, NPU = torch.device("cpu"), torch.device("privateuseone:1")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    ("path", "device", "overwrite", "want"),
    [
        ("h.pt", CPU, False, ["h_0.pt", "h_1.pt"]),
        ("h.pt", CPU, True, ["h.pt", "h.pt"]),
        ("h", NPU, False, ["h_device_1_0.pt", "h_device_1_1.pt"]),
        ("h.bin", NPU, True, ["h_device_1.bin", "h_device_1.bin"]),
        ("a.b.npy", CPU, False, ["a.b_0.npy", "a.b_1.npy"]),
    ],
)
def test_file_for_numbers_existing_files(
    path: str, device: torch.device, overwrite: bool, want: list[str], tmp_path: Path
) -> None:
    given = str(tmp_path / "deep" / path)
    assert [file_for(device, given, overwrite) for _ in want] == [tmp_path / "deep" / name for name in want]


def test_name_without_a_path() -> None:
    assert re.fullmatch(r"tensor_\d{8}_\d{6}_\d{6}_device_1_0\.pt", str(file_for(NPU, None, False)))
    assert re.fullmatch(r"tensor_\d{8}_\d{6}_\d{6}\.pt", str(file_for(CPU, None, True)))


def test_what_is_in_the_files(tmp_path: Path) -> None:
    base = torch.arange(1000.0)
    path = str(tmp_path / "new" / "x.pt")
    save_tensor(base[:2], save_path=path)
    save_tensor([base[:2], base[2:3]], save_path=path)
    assert names(tmp_path / "new") == ["x_0.pt", "x_1.pt"], "no part of a file is left"
    first, second = (tmp_path / "new" / name for name in names(tmp_path / "new"))
    assert torch.load(first).tolist() == [0.0, 1.0]
    assert torch.load(first).untyped_storage().nbytes() == 8, "and nothing of the memory around it"
    assert [x.tolist() for x in torch.load(second)] == [[0.0, 1.0], [2.0]]


@pytest.mark.parametrize(
    ("input", "path", "error"),
    [
        (torch.ones(1), 5, TypeError),
        (torch.ones(1), "", ValueError),
        (torch.ones(1), "folder/", ValueError),
        (torch.ones(1), "..", ValueError),
        ([], "x.pt", ValueError),
        ([torch.ones(1), torch.ones(1, device="meta")], "x.pt", ValueError),
        (3, "x.pt", TypeError),
        ([3], "x.pt", TypeError),
    ],
)
def test_what_is_refused(input: Any, path: Any, error: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error):
        save_tensor(input, save_path=path)
    assert names(tmp_path) == []


def test_a_file_that_cannot_be_written_leaves_what_was_there(tmp_path: Path, monkeypatch: Any) -> None:
    path = str(tmp_path / "x.pt")
    save_tensor(torch.ones(1), save_path=path, overwrite=True)

    def fail(value: Any, file: Any) -> None:
        file.write(b"half of it")
        raise OSError("the disk is full")

    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(OSError, match="full"):
        save_tensor(torch.zeros(1), save_path=path, overwrite=True)
    assert names(tmp_path) == ["x.pt"]
    assert torch.load(path).tolist() == [1.0]


@pytest.mark.parametrize("mode", ["npugraph_ex", "max-autotune"])
@pytest.mark.parametrize("codegen", ["eager", slow("inductor")])
def test_every_run_of_a_graph_saves(mode: str, codegen: str, tmp_path: Path) -> None:
    each, last, dead = (str(tmp_path / f"{name}.pt") for name in ("each", "last", "dead"))

    def fn(x: torch.Tensor) -> torch.Tensor:
        h = x * 2
        save_tensor(h, save_path=each)
        save_tensor([x, h], save_path=last, overwrite=True)
        save_tensor(x + 100, save_path=dead, overwrite=True)
        return h + 1

    config = torchair.CompilerConfig()
    config.mode, config.engine_config.codegen = mode, codegen
    backend = torchair.get_npu_backend(compiler_config=config)
    run = torch.compile(fn, backend=backend, fullgraph=True, dynamic=False)
    for step in range(3):
        run(torch.full((1,), float(step)))
        assert [x.item() for x in torch.load(last)] == [step, 2 * step]
        assert torch.load(dead).item() == step + 100
    assert names(tmp_path) == ["dead.pt", "each_0.pt", "each_1.pt", "each_2.pt", "last.pt"]
    assert [torch.load(tmp_path / f"each_{n}.pt").item() for n in range(3)] == [0.0, 2.0, 4.0]


@pytest.mark.cuda
def test_every_replay_on_a_gpu_writes_the_file_of_its_capture(tmp_path: Path) -> None:
    x, graph = torch.zeros(2, device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        save_tensor(x * 2, save_path=str(tmp_path / "x.pt"))
    torch.cuda.synchronize()
    assert names(tmp_path) == []
    for step in range(3):
        x.fill_(step)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.load(tmp_path / "x_device_0_0.pt").tolist() == [2.0 * step] * 2
    assert names(tmp_path) == ["x_device_0_0.pt"]


def on_gpu(fn: Callable[..., Any]) -> Any:
    config = torchair.CompilerConfig()
    config.mode, config.engine_config.codegen = "npugraph_ex", "eager"
    torch.compiler.reset()
    return torch.compile(fn, backend=torchair.get_npu_backend(compiler_config=config), fullgraph=True)


@pytest.mark.cuda
def test_what_a_replay_cannot_write_is_raised_by_the_next_one(tmp_path: Path) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        save_tensor(x, save_path=str(tmp_path / "deep" / "x.pt"), overwrite=True)
        return x + 1

    run, x = on_gpu(fn), torch.zeros(2, device="cuda")
    for _ in range(3):
        run(x)
    torch.cuda.synchronize()
    (tmp_path / "deep" / "x_device_0.pt").unlink()
    (tmp_path / "deep").rmdir()
    (tmp_path / "deep").touch()  # no directory
    run(x)
    torch.cuda.synchronize()
    with pytest.raises(OSError, match="deep"):
        run(x)
    (tmp_path / "deep").unlink()
    run(x)
    torch.cuda.synchronize()
    assert names(tmp_path / "deep") == ["x_device_0.pt"]


@pytest.mark.cuda
def test_what_replays_print_with_goes_with_their_graph(tmp_path: Path) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        save_tensor(x, save_path=str(tmp_path / "x.pt"), overwrite=True)
        return x + 1

    x, row = torch.zeros(2, device="cuda"), get_device(torch.device("cuda"))
    kept = []
    for _ in range(4):
        run = on_gpu(fn)
        for _ in range(3):
            run(x)
        del run
        torch.compiler.reset()
        gc.collect()
        kept.append(len(row._host_calls) + len(row._freed_calls))  # type: ignore[attr-defined]
    assert kept[-1] == kept[-2], kept


FIRST = """
import torch, torchair
{call}
def fn(x):
    {call}
    return x + 1
config = torchair.CompilerConfig()
config.mode = {mode!r}
config.engine_config.codegen = "eager"
fn = torch.compile(fn, backend=torchair.get_npu_backend(compiler_config=config), fullgraph=True)
for _ in range(3):
    fn(x)
"""


@pytest.mark.parametrize("mode", ["max-autotune", slow("npugraph_ex")])
def test_who_asks_torch_for_the_ops_first(mode: str, tmp_path: Path) -> None:
    """Before anything of the library is loaded that has them."""
    path = str(tmp_path / "x.pt")
    call = (
        "x = torch.zeros(1); "
        f"torch.ops.npu.save_npugraph_tensor(x, save_path={path!r}); "
        "torch.ops.npu.print_npugraph_tensor(x, tensor_name='x')"
    )
    text = FIRST.format(call=call, mode=mode)
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert names(tmp_path) == [f"x_{n}.pt" for n in range(4)]
    assert done.stdout.count("x=tensor([0]") == 4
