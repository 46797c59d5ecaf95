"""Random programs with streams, events and scopes: in whatever order streams run they compute what one stream
computes, and a wait that is missing is named before they run.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import torchair
from tests.backend.pipeline.test_tiered import Quick, kinds_of
from tests.sim.inside.programs import (
    INPUTS,
    Call,
    Program,
    function,
    has_waits,
    plain,
    programs,
    source,
    synchronised,
    unordered,
    without,
)
from tests.support.compile import compile_fn
from tests.support.slow import slow
from torchair.backend.service import scheduler
from torchair.core.diagnostics import Diagnostics
from torchair.core.errors import DegradedWarning
from torchair.ops.streams import stream_ops
from torchair.sim import interleaved, races_checked

MODES = pytest.mark.parametrize("mode", ["npugraph_ex", "max-autotune"])
EVENTS = [torchair.ops.npu_create_tagged_event(f"random_{number}") for number in range(64)]
IN_PIECES = pytest.mark.filterwarnings("ignore:the block of super_kernel")  # streams lie in some
SEEDS = 3


def examples(count: int) -> Any:
    """Without looking for a smaller program: each takes a compile."""
    return settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


def inputs() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(4, 4, generator=generator) for _ in range(INPUTS)]


def compile_program(program: Program, mode: str, codegen: str = "eager") -> Any:
    is_dynamic = sum(item.stream for item in program) % 2 > 0
    run = function(program, EVENTS)
    return compile_fn(run, mode=mode, codegen=codegen, reset=True, fullgraph=True, dynamic=is_dynamic)


def check(run: Any, program: Program, calls: int = 2) -> None:
    """Every call under an order of its own, and without a race in it."""
    wanted = inputs()
    expected = plain(program)(*wanted)
    for seed in range(calls):
        given = [x.npu() for x in inputs()]
        with races_checked(), interleaved(seed):
            made = run(*given)
            torch.npu.synchronize()
        for got, want in zip((*made, *given), (*expected, *wanted), strict=True):
            torch.testing.assert_close(got.cpu(), want, msg=lambda text: f"{text}\n{source(program)}")


@MODES
@examples(3)
@given(program=programs())
def test_every_order_gives_what_one_stream_gives(mode: str, program: Program) -> None:
    check(compile_program(program, mode), program)


@MODES
@examples(3)
@given(program=programs(), number=st.integers(0, 99))
def test_a_missing_wait_is_named(mode: str, program: Program, number: int) -> None:
    _without_a_wait(mode, program, number)


@pytest.mark.full
@MODES
@examples(500)
@given(program=programs())
def test_very_many_programs(mode: str, program: Program) -> None:
    check(compile_program(program, mode), program)


@pytest.mark.full
@MODES
@examples(500)
@given(program=programs(), number=st.integers(0, 99))
def test_very_many_missing_waits(mode: str, program: Program, number: int) -> None:
    _without_a_wait(mode, program, number)


@pytest.mark.usefixtures("builds")
@IN_PIECES
@MODES
@examples(3)
@given(program=programs())
def test_better_programs(mode: str, program: Program) -> None:
    """Their pieces are built while the ops serve: here of the same ops, without a compiler."""
    with pytest.MonkeyPatch.context() as patch:
        taken = kinds_of(patch)
        patch.setattr(scheduler, "compile_in_worker", Quick())
        run = compile_program(program, mode, "auto")
        check(run, program, calls=1)
        assert torchair.wait_until_optimised(60)
        check(run, program)
    assert set(taken) == {"eager"}


@pytest.mark.full
@IN_PIECES
@MODES
@examples(12)
@given(program=programs())
def test_compiled_pieces(mode: str, program: Program) -> None:
    check(compile_program(program, mode, "inductor"), program)


def _without_a_wait(mode: str, program: Program, number: int) -> None:
    """Still ordered, or named; in both cases right, in every order."""
    if not has_waits(program):
        return
    less = without(program, number)
    run, told = compile_program(less, mode), list[str]()
    with pytest.MonkeyPatch.context() as patch:
        # A cause is told once in a process, and programs come again.
        patch.setattr(Diagnostics, "add", lambda self, what, **more: told.append(what))
        check(run, program)
    names = [text for text in told if "a race between streams" in text]
    assert all("<program" in text and "on stream" in text for text in names), names
    missing = unordered(less)
    if mode == "max-autotune":
        assert not names  # what reads a value waits for it, on whatever streams they are
    elif any(missing):
        assert names, source(less)
    elif not missing:
        assert not names, (names, source(less))


@pytest.mark.parametrize(
    ("mode", "codegen"),
    [
        ("npugraph_ex", "eager"),
        slow("npugraph_ex", "inductor"),
        ("max-autotune", "eager"),
        ("max-autotune", "inductor"),
    ],
)
def test_streams_of_a_program_are_used(mode: str, codegen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = (Call("mm", 1, 0, 1), Call("mm", 2, 1, 2), Call("add", 0, 3, 4))
    entered: list[Any] = []
    monkeypatch.setattr(stream_ops.StreamScope, "__enter__", _noting(entered))
    run = compile_program(synchronised(program, ["token"]), mode, codegen)
    check(run, program)
    assert len({id(stream) for stream in entered if stream is not None}) == 2


def _noting(entered: list[Any]) -> Any:
    original = stream_ops.StreamScope.__enter__

    def enter(scope: stream_ops.StreamScope) -> None:
        entered.append(scope._stream)
        original(scope)

    return enter


def test_a_race_names_both_ops_their_streams_and_lines() -> None:
    program = (Call("mm", 1, 0, 1), Call("sin", 0, 3, 1))
    run = compile_program(program, "npugraph_ex")
    with pytest.warns(DegradedWarning) as told:
        check(run, program)
    (text,) = [str(each.message) for each in told if "race" in str(each.message)]
    first = "tanh (aten.tanh.default) on stream 'a' at <program"
    second = "sin (aten.sin.default) on stream of the graph at <program"
    assert all(part in text for part in (first, second, "sin reads tanh while it may still be made"))
    assert "record an event behind tanh and let stream of the graph wait for it before sin" in text


def test_a_read_of_an_input_that_another_stream_has_written() -> None:
    """Tried by hand: the input is written back at the end, and read before."""
    calls = (Call("add_", 1, 2, 1), Call("mul", 0, 1, 2), Call("mm", 1, 2, 1), Call("add", 3, 0, 2))
    program = synchronised(calls, ["token"])
    for number in range(2):
        _without_a_wait("npugraph_ex", program, number)
