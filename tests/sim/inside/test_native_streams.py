"""Streams and events that a compiled program uses itself, and labelled ones of a loaded graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import torchair
from tests.support.compile import compile_fn
from tests.support.slow import slow
from torchair.core.diagnostics import Diagnostics
from torchair.core.errors import DegradedWarning
from torchair.ops.streams import stream_ops
from torchair.sim import interleaved, races_checked

MODES = ("npugraph_ex", "max-autotune")
CONFIGS = [
    *((mode, "eager") for mode in MODES),
    ("max-autotune", "inductor"),
    slow("npugraph_ex", "inductor"),
]
S1, S2, EVENT = torch.npu.Stream(), torch.npu.Stream(), torch.npu.Event()


def blocks(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Nested streams, events made inside and outside, and a wait for a whole stream."""
    current = torch.npu.current_stream()
    S1.wait_stream(current)
    with torch.npu.stream(S1):
        a = x @ y
        made = torch.npu.Event()
        made.record()
        with torch.npu.stream(S2):
            S2.wait_event(made)
            b = a * 2
            EVENT.record()
    c = x + 1
    current.wait_event(made)
    EVENT.wait()
    a.record_stream(current)
    return c - a + b


def whole_streams(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    side = torch.npu.Stream()
    side.wait_stream(torch.npu.current_stream())
    with torch.npu.stream(side):
        a = (x @ y).sin()
        done = side.record_event()
    b = y.cos()
    torch.npu.current_stream().wait_event(done)
    return a + b


def writes(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    S1.wait_stream(torch.npu.current_stream())
    with torch.npu.stream(S1):
        x.add_(y)
    torch.npu.current_stream().wait_stream(S1)
    return x * y


PROGRAMS = [blocks, whole_streams, writes]
COMPILED = [(blocks, "max-autotune"), (writes, "npugraph_ex")]
"""By Inductor in the quick run, too."""
CASES = [(program, mode) for program in PROGRAMS for mode in MODES]
ORDERS = [
    *((*case, "eager") for case in CASES),
    *((*case, "inductor") for case in COMPILED),
    *(slow(*case, "inductor") for case in CASES if case not in COMPILED),
]


@pytest.fixture
def entered(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[int]]:
    """The streams that programs of ours have moved to."""
    found: set[int] = set()
    original = stream_ops.StreamScope.__enter__

    def enter(scope: stream_ops.StreamScope) -> None:
        if scope._stream is not None:
            found.add(scope._stream.stream_id)
        original(scope)

    monkeypatch.setattr(stream_ops.StreamScope, "__enter__", enter)
    return found


def eagerly(fn: Callable[..., Any], *args: torch.Tensor) -> Any:
    """On the device, which runs in order."""
    made = fn(*args)
    torch.npu.synchronize()
    return made


@pytest.mark.parametrize(("program", "mode", "codegen"), ORDERS)
def test_any_order_gives_eagers_numbers(
    program: Callable[..., Any], mode: str, codegen: str, entered: set[int]
) -> None:
    run = compile_fn(program, mode=mode, codegen=codegen, fullgraph=True, reset=True)
    ours = [torch.empty(4, 4).npu() for _ in range(2)]
    for seed in range(4):
        for x in ours:
            x.copy_(torch.randn(4, 4))
        theirs = [x.clone() for x in ours]
        wanted = eagerly(program, *theirs)
        with races_checked(), interleaved(seed):
            made = run(*ours)
            torch.npu.synchronize()
        torch.testing.assert_close((made.cpu(), ours[0].cpu()), (wanted.cpu(), theirs[0].cpu()))
    assert len(entered) == (2 if program is blocks else 1)


@pytest.mark.parametrize("mode", MODES)
def test_the_default_stream_by_name(mode: str) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        S1.wait_stream(torch.npu.default_stream())
        with torch.npu.stream(S1):
            y = x + 1
        torch.npu.default_stream().wait_stream(S1)
        return y * 2

    run, x = compile_fn(fn, mode=mode, fullgraph=True, reset=True), torch.randn(4, 4).npu()
    for seed in range(3):
        with races_checked(), interleaved(seed):
            made = run(x)
            torch.npu.synchronize()
        torch.testing.assert_close(made.cpu(), (x.cpu() + 1) * 2)


@pytest.mark.parametrize("mode", MODES)
def test_gradients_of_programs_with_streams(mode: str) -> None:
    x, y = (torch.randn(4, 4).npu().requires_grad_() for _ in range(2))
    compile_fn(whole_streams, mode=mode, fullgraph=True, reset=True)(x, y).square().sum().backward()
    found = x.grad.cpu(), y.grad.cpu()
    x.grad = y.grad = None
    ((x @ y).sin() + y.cos()).square().sum().backward()
    torch.testing.assert_close(found, (x.grad.cpu(), y.grad.cpu()))


def test_missing_wait_is_reported() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.npu.stream(S1):
            a = x @ y
        return a + 1

    run = compile_fn(fn, mode="npugraph_ex", fullgraph=True, reset=True)
    x, y = torch.randn(4, 4).npu(), torch.randn(4, 4).npu()
    with pytest.warns(DegradedWarning, match="a race between streams: mm"):
        torch.testing.assert_close(run(x, y), x @ y + 1)


def test_host_wait_inside_graph_is_reported() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        torch.npu.current_stream().synchronize()
        return y * 2

    run, x = compile_fn(fn, mode="npugraph_ex", fullgraph=True, reset=True), torch.randn(4, 4).npu()
    with pytest.warns(DegradedWarning, match="synchronize_stream has no effect inside of a graph"):
        torch.testing.assert_close(run(x), (x + 1) * 2)


@pytest.mark.parametrize(("mode", "codegen"), CONFIGS)
def test_events_reach_into_a_program_and_out_of_it(mode: str, codegen: str) -> None:
    ready, done = torch.npu.Event(), torch.npu.Event()

    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        ready.wait()
        with torch.npu.stream(S1):
            S1.wait_event(ready)
            z = x * 2
            S1.record_event(done)
        torch.npu.current_stream().wait_stream(S1)
        return y + z

    run = compile_fn(fn, mode=mode, codegen=codegen, fullgraph=True, reset=True)
    before, after = torch.npu.Stream(), torch.npu.Stream()
    x = torch.empty(4, 4).npu()
    for seed in range(6):
        given = torch.randn(4, 4)
        with races_checked(), interleaved(seed):
            with torch.npu.stream(before):
                before.wait_stream(torch.npu.default_stream())
                x.copy_(given)
                x.add_(1)
                ready.record()
            made = run(x)
            after.wait_event(done)
            with torch.npu.stream(after):
                seen = made + 1
            torch.npu.synchronize()
        torch.testing.assert_close(seen.cpu(), (given + 1).sin() + (given + 1) * 2 + 1)


class Labelled(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torchair.scope.npu_stream_switch("left"):
            a = x @ y
        with torchair.scope.npu_stream_switch("right"):
            b = y @ x
        return a - b


def test_a_loaded_graph_uses_its_streams(tmp_path: Path, entered: set[int]) -> None:
    x, y = torch.randn(4, 4), torch.randn(4, 4)
    torchair.dynamo_export(x, y, model=Labelled(), export_path=str(tmp_path), export_name="net")
    run = torchair.load_air(tmp_path / "net.air", device="npu")
    for seed in range(3):
        with races_checked(), interleaved(seed):
            made = run(x.npu(), y.npu())
            torch.npu.synchronize()
        torch.testing.assert_close(made.cpu(), x @ y - y @ x)
    assert len(entered) == 2


@pytest.mark.parametrize("codegen", ["eager", "inductor"])
@pytest.mark.filterwarnings("ignore:mutated input x moved")
def test_another_tensor_where_the_recorded_one_was(codegen: str) -> None:
    """Memory that was given back is given out again: its address is what a recording reads."""
    run = compile_fn(writes, codegen=codegen, fullgraph=True, reset=True)
    for _ in range(8):
        x, y = torch.randn(4, 4), torch.randn(4, 4)
        ours = x.npu()
        torch.testing.assert_close(run(ours, y.npu()).cpu(), (x + y) * y)
        torch.testing.assert_close(ours.cpu(), x + y)


@pytest.mark.parametrize(("mode", "codegen"), CONFIGS)
def test_work_outside_on_the_same_stream_is_ordered(mode: str, codegen: str) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        S1.wait_stream(torch.npu.current_stream())
        with torch.npu.stream(S1):
            y = x * 2
        torch.npu.current_stream().wait_stream(S1)
        return y

    run, x = compile_fn(fn, mode=mode, codegen=codegen, fullgraph=True, reset=True), torch.ones(4, 4).npu()
    for seed in range(6):
        with races_checked(), interleaved(seed):
            x.fill_(1)
            S1.wait_stream(torch.npu.current_stream())
            with torch.npu.stream(S1):
                x.mul_(3)
            made = run(x)
            with torch.npu.stream(S1):
                seen = made + 1
            torch.npu.current_stream().wait_stream(S1)
            torch.npu.synchronize()
        torch.testing.assert_close(seen.cpu(), torch.full((4, 4), 7.0))


def needs_the_host(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    with torchair.scope.npu_stream_switch("side"):
        made = (x @ y).relu()
        found = made.nonzero() * 2
        done = torchair.ops.record()
    torchair.ops.wait([done])
    return found + 1, made


@pytest.mark.parametrize("codegen", ["eager", slow("inductor")])
@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
def test_an_op_that_needs_the_host_beside_streams(codegen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(Diagnostics, "add", lambda self, what, **more: told.append(what))
    run = compile_fn(needs_the_host, mode="npugraph_ex", codegen=codegen, fullgraph=True, reset=True)
    for _ in range(3):
        x, y = torch.randn(4, 4), torch.randn(4, 4)
        made = run(x.npu(), y.npu())
        wanted = (x @ y).relu()
        torch.testing.assert_close((made[0].cpu(), made[1].cpu()), (wanted.nonzero() * 2 + 1, wanted))
    assert any("scopes have no effect where a graph is run in pieces" in text for text in told)


def test_who_reads_a_view_waits_on_its_own_stream() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torchair.scope.npu_stream_switch("a"):
            made = (x @ y) * 1
        flat = torchair.scope.npu_wait_tensor(x, made).view(-1)
        with torchair.scope.npu_stream_switch("b"):
            seen = flat + made.view(-1)
            done = torchair.ops.record()
        torchair.ops.wait([done])
        return seen

    run = compile_fn(fn, mode="npugraph_ex", fullgraph=True, reset=True)
    x, y = torch.randn(4, 4).npu(), torch.randn(4, 4).npu()
    for seed in range(4):
        with races_checked(), interleaved(seed):
            made = run(x, y)
            torch.npu.synchronize()
        torch.testing.assert_close(made, (x + x @ y).view(-1))


def limited(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Cores of a stream that is not the current one where the block begins."""
    with torchair.npugraph_ex.scope.limit_core_num(3, 4, stream=S1):
        a = x * y
        S1.wait_stream(torch.npu.current_stream())
        with torch.npu.stream(S1):
            b = x + y
    torch.npu.current_stream().wait_stream(S1)
    return a - b


def limited_here(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    with torchair.npugraph_ex.scope.limit_core_num(3, 4, stream=torch.npu.current_stream()):
        return x * y - (x + y)


@pytest.mark.parametrize("codegen", ["eager", slow("inductor")])
@pytest.mark.parametrize("fn", [limited, limited_here], ids=lambda fn: fn.__name__)
def test_cores_of_a_stream(fn: Callable[..., Any], codegen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    set_to: list[tuple[int, int, int]] = []
    original = torch.npu.set_stream_limit

    def spy(stream: Any, cube: int, vector: int) -> None:
        set_to.append((stream.stream_id, cube, vector))
        original(stream, cube, vector)

    x, y = torch.randn(8, 8, device="npu"), torch.randn(8, 8, device="npu")
    run = compile_fn(fn, mode="npugraph_ex", codegen=codegen, fullgraph=True, reset=True)
    want = (x * y - (x + y)).cpu()
    monkeypatch.setattr(torch.npu, "set_stream_limit", spy)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(run(x, y).cpu(), want)
    assert {(cube, vector) for _, cube, vector in set_to} == {(3, 4), (24, 48)}, "limited, and as before"
    assert (S1.stream_id in {stream for stream, _, _ in set_to}) is (fn is limited)
    assert torch.npu.get_stream_limit(S1) == {"cube_core_num": 24, "vector_core_num": 48}
