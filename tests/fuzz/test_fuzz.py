"""Random programs give what eager gives, and the oracle sees when something does not."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from tests.fuzz import oracle
from tests.fuzz.__main__ import Hunt, hunt, options
from tests.fuzz.batch import any_batch, join, suspects
from tests.fuzz.oracle import Count, compare, observe, wrong_fakes
from tests.fuzz.programs import MODES, Buffer, Feed, Line, Program, View, any_program, is_legal
from tests.fuzz.shrink import shrink
from tests.support.slow import slow
from torchair.devices import get_device, installed


def count_of(programs: int, engine: str, mode: str, device: str = "cpu", batch: int = 1) -> Count:
    """Hunt among so many programs, others for each engine."""
    seed = ("reference", "eager", "inductor", "auto-eager", "auto").index(engine)
    way = f"--engine {engine} --mode {mode} --device {device} --stop-after 3 --batch {batch}"
    return hunt(options([*way.split(), "--count", str(programs), "--seed", str(seed)]))


@pytest.mark.parametrize(("engine", "mode"), [("reference", MODES[0]), *(("eager", mode) for mode in MODES)])
def test_programs_equal_eager(engine: str, mode: str) -> None:
    count = count_of(9, engine, mode)
    assert count.failures == 0
    assert count.replayed <= count.recorded <= count.simulated
    # The reference engine interprets the graph of graph mode: that is not recorded.
    is_recorded = (engine, mode) != ("reference", "max-autotune")
    assert count.replayed >= count.recordable if is_recorded else count.recorded == 0
    assert (count.replayed > 0) == is_recorded


@pytest.mark.full
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("engine", ["reference", "eager", "inductor"])
def test_many_programs_equal_eager(engine: str, mode: str) -> None:
    count = count_of(300, engine, mode)
    assert count.failures == 0
    assert count.own.total() <= 0.02 * count.programs


@pytest.mark.usefixtures("builds")
@pytest.mark.parametrize("mode", [MODES[0], slow(MODES[1])])
def test_swapped_programs_equal_eager(mode: str) -> None:
    count = count_of(2, "auto-eager", mode)
    assert count.failures == 0
    assert count.swapped > 0


@pytest.mark.full
@pytest.mark.usefixtures("builds")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("engine", "programs", "batch"), [("auto-eager", 150, 1), ("auto", 60, 20)])
def test_many_swapped_programs_equal_eager(engine: str, programs: int, batch: int, mode: str) -> None:
    count = count_of(programs, engine, mode, batch=batch)
    assert count.failures == 0
    assert count.swapped >= 0.5 * programs
    # as_strided of an input looks into its storage, which a compiler elsewhere does not know.
    assert all("counts from the start of the storage" in why for why in count.unswapped)


@pytest.mark.cuda
@pytest.mark.parametrize("mode", MODES)
def test_programs_equal_eager_on_cuda(mode: str) -> None:
    assert count_of(30, "eager", mode, "cuda").failures == 0


def program(returns: str, *lines: str, grad: bool = False, stride: tuple[int, int] = (4, 1)) -> Program:
    """A program of one input `x0`, of 2 rows of 3, with gaps and an offset."""
    feed = Feed((Buffer(12, "float64", 5),), (View(0, (2, 3), stride, 2, grad),))
    return Program(tuple(Line(line) for line in lines), tuple(returns.split()), (feed,))


def dense(x0: torch.Tensor) -> list[torch.Tensor]:
    return [x0.t().contiguous() * 2]


def cloned(x0: torch.Tensor) -> list[torch.Tensor]:
    return [x0[1:].clone()]


def shifted(x0: torch.Tensor) -> list[torch.Tensor]:
    return [x0.as_strided((1, 3), (4, 1), 3)]


def positive(x0: torch.Tensor) -> list[torch.Tensor]:
    return [x0 * 0.0 + 0.0]


def beside(x0: torch.Tensor) -> list[torch.Tensor]:
    x0.as_strided((1,), (1,), 5).zero_()
    return [x0 * 2]


def twice(x0: torch.Tensor) -> list[torch.Tensor]:
    y = x0 * 2
    return [y, y.clone()]


def view(x0: torch.Tensor) -> list[torch.Tensor]:
    return [x0.view_as(x0)]


def detached(x0: torch.Tensor) -> list[torch.Tensor]:
    return [x0 * 2 + x0.detach() - x0.detach(), (x0.detach() * 3).requires_grad_()]


BROKEN = [
    pytest.param(program("v0", "v0 = x0.t() * 2", stride=(3, 1)), dense, "output strides", id="strides"),
    pytest.param(program("v0", "v0 = x0[1:]"), cloned, "alias", id="no alias"),
    pytest.param(program("v0", "v0 = x0[:1]"), shifted, "alias", id="alias beside"),
    pytest.param(program("v0", "v0 = x0 * 0.0"), positive, "output sign of zero", id="positive zeros"),
    pytest.param(program("v0", "v0 = x0 * 2"), beside, "storage values", id="written beside"),
    pytest.param(program("v0 v0", "v0 = x0 * 2"), twice, "alias", id="two objects"),
    pytest.param(program("x0"), view, "alias", id="not the input"),
    pytest.param(
        program("v0 v1", "v0 = x0 * 2", "v1 = x0 * 3", grad=True), detached, "gradient values", id="gradients"
    ),
]  # fmt: skip


@pytest.mark.parametrize(("right", "wrong", "kind"), BROKEN)
def test_oracle_sees(right: Program, wrong: Callable[..., Any], kind: str) -> None:
    want = observe(right.function(), right)
    assert compare(want, observe(right.function(), right)) is None
    failure = compare(want, observe(wrong, right))
    assert failure is not None
    assert failure.kind == kind


def test_strides_that_torch_tells_wrong_are_torchs_own() -> None:
    """Fake tensors tell other strides of an op on a tensor with a unit dim and stride 0 than it has."""
    feed = Feed((Buffer(12, "float64", 5),), (View(0, (1, 4), (1, 1), 2, False),))
    given = Program((Line("v0 = x0.expand([1, 3, -1]).relu()"),), ("v0",), (feed,))
    want = observe(given.function(), given)
    own = wrong_fakes(given, want, "cpu")
    assert own is not None
    assert own.kind == "fake strides"
    right = program("v0", "v0 = x0.relu()")
    assert wrong_fakes(right, observe(right.function(), right), "cpu") is None


def test_results_held_over_calls_must_stay() -> None:
    kept = torch.zeros(2, 3, dtype=torch.float64)
    first = program("v0", "v0 = x0 * 2")
    other = Feed((Buffer(12, "float64", 9),), first.feeds[0].views)
    held = Program(first.lines, first.returns, (first.feeds[0], other), keep=True)
    failure = compare(observe(held.function(), held), observe(lambda x0: [kept.copy_(x0 * 2)], held))
    assert failure is not None
    assert failure.kind == "output values"


def test_joined_programs_return_what_each_returns() -> None:
    programs = any_batch(range(40, 44), "npugraph_ex", False)
    joined = join(programs)
    assert joined.parts == 4
    seen = observe(joined.function(), joined)
    first = 0
    for part, program in enumerate(programs):
        own = observe(program.function(), replace(program, feeds=program.feeds[: len(seen)]))
        for call, (alone, together) in enumerate(zip(own, seen, strict=False)):
            for i in range(len(program.returns)):
                want, got = alone.tensors[f"output {i}"], together.tensors[f"output {first + i}"]
                assert torch.equal(want.value.nan_to_num(), got.value.nan_to_num())
                assert want.stride == got.stride
                assert suspects(programs, [(call, f"output {first + i}")]) == [part]
        first += len(program.returns)


@pytest.mark.parametrize("wrong", [0, 2])
def test_the_failing_one_of_joined_programs_is_found(wrong: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A backend returns another number than 1234 for the one program of three that returns it."""
    programs = any_batch(range(50, 53), "npugraph_ex", False)
    marked = replace(programs[wrong], lines=(*programs[wrong].lines, Line("v90 = torch.full([3], 1234.0)")))
    programs[wrong] = replace(marked, returns=(*marked.returns, "v90"))

    def broken(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        return lambda *args: [o + 1 if (o == 1234).any() else o for o in gm(*args)]

    monkeypatch.setattr(oracle, "backend_of", lambda program, engine: broken)
    hunting = Hunt(options(["--engine", "eager", "--shown", "0"]))
    assert hunting.look([7, 8, 9], programs, hunting.count)
    assert hunting.seeds == [7 + wrong]
    assert hunting.kinds == {"output values": 1}


@pytest.mark.full
def test_shards_are_processes(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.fuzz", "--count", "6", "--jobs", "2", "--out", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    summary = json.loads((tmp_path / "summary-eager.json").read_text())
    assert summary["programs"] == 6
    assert summary["crashed"] == []


def test_one_seed_is_one_program() -> None:
    assert str(any_program(Random(3))) == str(any_program(Random(3)))


@pytest.mark.filterwarnings("ignore:.*carried through as it is:torchair.DegradedWarning")
@pytest.mark.parametrize("seed", range(3))
def test_a_script_runs(seed: int) -> None:
    # A script puts a simulated device in the place of the CPU, for good.
    with installed(get_device(torch.device("cpu"))), contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(str(any_program(Random(seed), "max-autotune")), {})
    assert "out0" in printed.getvalue()


def test_overlapping_writes_are_no_programs() -> None:
    lines = (Line("x0.add_(1)", "x0"),)
    for stride, legal in (((4, 1), True), ((1, 1), False), ((0, 1), False)):
        given = program("x0", stride=stride)
        assert is_legal(Program(lines, ("x0",), given.feeds), given.feeds[0]) == legal


def test_shrinking_keeps_what_fails() -> None:
    large = program("v2 x0 v1", "v0 = x0 + 1", "v1 = x0.cos()", "v2 = v1 * 2", "v3 = v0 - v2")
    small = shrink(large, lambda candidate: any("cos" in line.text for line in candidate.lines))
    assert [line.text for line in small.lines] == ["v1 = x0.cos()"]
    assert len(small.returns) == 1
    assert small.feeds[0].views[0].offset == 0
