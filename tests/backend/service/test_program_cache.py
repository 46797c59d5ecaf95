"""Better programs outlive the process: the next one begins with them, and never with another's."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchair
from tests.backend.pipeline.test_tiered import compile_tiered
from tests.support.models import mlp
from tests.support.process import python
from torchair.backend.service import program_cache, scheduler
from torchair.backend.service.request import CompileRequest, CompileResult
from torchair.core.fingerprint import machine
from torchair.core.log import logger

pytestmark = pytest.mark.usefixtures("builds")


class Counting:
    """Builds for the CPU without a compiler; programs look like libraries."""

    def __init__(self) -> None:
        self.orders: list[CompileRequest] = []

    def __call__(
        self, order: CompileRequest, folder: Path, seconds: float | None = None
    ) -> tuple[CompileResult | None, str]:
        self.orders.append(order)
        return replace(order, kinds=("eager",)).fill(), ""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Where programs are kept."""
    return tmp_path / "programs"


@pytest.fixture
def counting(place: Path, monkeypatch: pytest.MonkeyPatch) -> Counting:
    made = Counting()
    monkeypatch.setattr(scheduler, "compile_in_worker", made)
    return made


def built(model: Any, x: torch.Tensor, mode: str = "npugraph_ex", **options: Any) -> None:
    torch.compiler.reset()
    run = compile_tiered(model, mode, **options)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(run(x), model(x))
        assert torchair.wait_until_optimised(60)
        torch.testing.assert_close(run(x), model(x))


def test_the_same_graph_is_built_once(counting: Counting, place: Path) -> None:
    model, x = mlp(16, 32, 8, norm=True), torch.randn(4, 16)
    built(model, x)
    built(mlp(16, 32, 8, norm=True), x)  # other weights, which are arguments
    assert len(counting.orders) == 1
    (entry,) = place.rglob(program_cache.FILE)
    assert entry.stat().st_mode & 0o777 == 0o600


class Scaled(nn.Module):
    def __init__(self, by: float) -> None:
        super().__init__()
        self.by = by

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.by + torch.tensor([1.0, self.by])).sin()


def without_mkldnn(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    return {}


CHANGES: dict[str, Any] = {
    "a number": lambda monkeypatch: {"model": Scaled(3.0)},
    "a constant": lambda monkeypatch: {"model": Shifted(torch.tensor([1.0, 4.0]))},
    "sizes": lambda monkeypatch: {"x": torch.randn(5, 2)},
    "a type": lambda monkeypatch: {"x": torch.randn(4, 2).double()},
    "strides": lambda monkeypatch: {"x": torch.randn(2, 4).T},
    "an option": lambda monkeypatch: {"frozen": True},
    "our sources": lambda monkeypatch: monkeypatch.setattr(program_cache, "sources", lambda: "other") or {},
    "torch": lambda monkeypatch: monkeypatch.setattr(program_cache, "torch_facts", lambda: "2.99") or {},
    "the processor": lambda monkeypatch: (
        monkeypatch.setattr(program_cache, "processor", lambda: "x86 AVX9") or {}
    ),
    "the compiler": lambda monkeypatch: monkeypatch.setenv("CXX", "another") or {},
    "an offset": lambda monkeypatch: {"x": torch.randn(10)[2:].view(4, 2)},
    "a switch": without_mkldnn,
    "an option of Inductor's": lambda monkeypatch: (
        monkeypatch.setattr(program_cache, "all_options", str) or {}
    ),
    "threads": lambda monkeypatch: monkeypatch.setattr(torch, "get_num_threads", lambda: 99) or {},
}


class Shifted(nn.Module):
    def __init__(self, by: torch.Tensor) -> None:
        super().__init__()
        self.values = by.tolist()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tensor(self.values)


@pytest.mark.filterwarnings("ignore:frozen_parameter")
@pytest.mark.parametrize("case", CHANGES)
def test_what_changes_the_result_is_another_key(
    case: str, counting: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Shifted(torch.tensor([1.0, 2.0])) if case == "a constant" else Scaled(2.0)
    x = torch.randn(4, 2)
    built(first, x)
    assert len(counting.orders) == 1
    changed = CHANGES[case](monkeypatch)
    torch.compiler.reset()
    config = torchair.CompilerConfig()
    config.mode = "npugraph_ex"
    config.experimental_config.frozen_parameter = changed.get("frozen", False)
    model, x = changed.get("model", first), changed.get("x", x)
    run = torch.compile(model, backend=torchair.get_npu_backend(compiler_config=config), dynamic=False)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(run(x), model(x))
        assert torchair.wait_until_optimised(60)
        torch.testing.assert_close(run(x), model(x))
    assert len(counting.orders) == 2


def test_program_cache_of_zero_mb_writes_nothing(counting: Counting, place: Path) -> None:
    model, x = mlp(16, 32, 8, norm=True), torch.randn(4, 16)
    for _ in range(2):
        built(model, x, program_cache_mb=0)
    assert len(counting.orders) == 2
    assert not place.exists()


def test_any_other_byte_is_built_again(counting: Counting, place: Path) -> None:
    model, x = mlp(16, 32, 8, norm=True), torch.randn(4, 16)
    built(model, x)
    (entry,) = place.rglob(program_cache.FILE)
    whole = entry.read_bytes()
    for at in range(0, len(whole), max(1, len(whole) // 5)):
        entry.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        before = len(counting.orders)
        logger.forget()
        with pytest.warns(torchair.DegradedWarning, match="made again"):
            built(model, x)
        assert len(counting.orders) == before + 1
        assert entry.read_bytes()[-64:] == whole[-64:], "whole again"


def test_what_others_can_write_is_left_alone(counting: Counting, place: Path) -> None:
    model, x = mlp(16, 32, 8, norm=True), torch.randn(4, 16)
    built(model, x)
    os.chmod(place, 0o777)
    built(model, x)
    assert len(counting.orders) == 2


def test_entries_that_others_drop_meanwhile(tmp_path: Path) -> None:
    for name in ("one", "two", "gone"):
        (tmp_path / name).mkdir()
    for name in ("one", "two"):
        (tmp_path / name / program_cache.FILE).write_bytes(b"some")
    assert program_cache._size(tmp_path) == 8


def test_what_is_unused_longest_is_dropped(counting: Counting, place: Path, monkeypatch: Any) -> None:
    sizes = iter([0, 0, 1 << 40])
    monkeypatch.setattr(program_cache, "_size", lambda root: next(sizes))
    monkeypatch.setattr(program_cache, "FULL", 1e-9)
    for rows in (2, 3):
        built(mlp(16, 32, 8, norm=True), torch.randn(rows, 16))
    assert len(list(place.rglob(program_cache.FILE))) == 2
    built(mlp(16, 32, 8, norm=True), torch.randn(4, 16))
    assert len(list(place.rglob(program_cache.FILE))) < 3


SCRIPT = """
import sys, torch, torchair
from torchair.backend.service.scheduler import Job
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 8)).eval()
config = torchair.CompilerConfig()
config.mode = sys.argv[1]
run = torch.compile(model, backend=torchair.get_npu_backend(compiler_config=config), dynamic=True)
jobs, add = [], Job.__init__
Job.__init__ = lambda job, *args: jobs.append(job) or add(job, *args)
with torch.no_grad():
    for rows in (4, 5):
        x = torch.randn(rows, 16)
        torch.testing.assert_close(run(x), model(x))
    assert torchair.wait_until_optimised(600)
    torch.testing.assert_close(run(x), model(x))
print(len(jobs))
"""


@pytest.mark.full
@pytest.mark.parametrize("mode", ["npugraph_ex", "max-autotune"])
def test_another_process_begins_with_it(mode: str, place: Path) -> None:
    """The first call of the second process is served by the library."""
    assert [python(["-c", SCRIPT, mode]).stdout.strip() for _ in range(2)] == ["1", "0"]


def test_what_cannot_be_loaded_is_built_again(counting: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = mlp(16, 32, 8, norm=True), torch.randn(4, 16)
    built(model, x)
    load, tries = CompileRequest.load, list[CompileResult]()

    def fail_once(order: CompileRequest, made: CompileResult) -> Any:
        tries.append(made)
        if len(tries) == 1:
            raise OSError("no such file")
        return load(order, made)

    monkeypatch.setattr(CompileRequest, "load", fail_once)
    built(model, x)
    assert (len(tries), len(counting.orders)) == (2, 2)


def test_program_cache_without_home_writes_nothing(
    counting: Counting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a user that the system does not know: nothing is written into the working directory."""
    for name in ("TORCHAIR_PROGRAMS", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    monkeypatch.chdir(tmp_path)
    built(mlp(16, 32, 8, norm=True), torch.randn(4, 16))
    assert len(counting.orders) == 1
    assert not list(tmp_path.glob("~*"))


def test_processors_differ_by_all_they_can_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = set[str]()
    for flags in ("avx2 fma", "avx2 fma avx512_fp16"):
        (tmp_path / "cpuinfo").write_text(f"processor : 0\nmodel name : a\nflags : {flags}\ncpu MHz : 2\n")
        monkeypatch.setattr(machine, "_PROCESSORS", tmp_path / "cpuinfo")
        machine.processor.cache_clear()
        seen.add(machine.processor())
    machine.processor.cache_clear()
    assert len(seen) == 2


def test_sources_are_those_of_the_package() -> None:
    assert len(machine.sources()) == 64
