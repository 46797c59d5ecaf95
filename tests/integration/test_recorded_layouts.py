"""Recordings and the layout of what they use in place, through `torch.compile` on a simulated device."""

from __future__ import annotations

import pytest
import torch

from tests.support.compile import compile_fn
from tests.support.simulated_device import SimulatedDevice
from torchair.core.errors import BadCall
from torchair.core.torch_private.fake.fake_tensors import make_fx
from torchair.npugraph_ex import CompilerConfig, get_compiler


def test_other_strides_at_the_same_address(row: SimulatedDevice) -> None:
    """The same address and shape, stride (8, 1) then (16, 1): other memory is written."""
    run = compile_fn(lambda x: x.add_(1), mode="npugraph_ex", dynamic=True)
    memory, wanted = torch.zeros(64), torch.zeros(64)
    with torch.no_grad():
        for stride in (8, 8, 16, 16, 8, 12, 16):
            run(memory.as_strided((4, 8), (stride, 1)))
            wanted.as_strided((4, 8), (stride, 1)).add_(1)
            assert memory.tolist() == wanted.tolist()
    assert row.replays > 0


@pytest.mark.parametrize("written", [0, 1])
def test_of_two_inputs_in_one_storage_the_written_one_is_used_in_place(
    row: SimulatedDevice, written: int
) -> None:
    def fn(*xs: torch.Tensor) -> torch.Tensor:
        xs[written][1] = 0.0
        xs[1 - written].any()
        return xs[1 - written]

    run = torch.compile(fn, backend="npugraph_ex", dynamic=False, options={"codegen": "eager"})
    memories = [torch.ones(21) for _ in range(2)]
    for memory in memories * 3:
        memory.fill_(1.0)
        with torch.no_grad():
            run(memory[:2], memory[15:17])
        assert memory.nonzero().numel() == 20
        assert memory[(1, 16)[written]] == 0
    assert row.replays > 0


def test_unguarded_stride_changes_equal_eager(row: SimulatedDevice) -> None:
    """An engine calls what `get_compiler` returned: no guard has looked at the strides."""

    def step(x: torch.Tensor) -> list[torch.Tensor]:
        return [x.copy_(x + 1), x[1:]]

    memory, wanted = torch.zeros(64), torch.zeros(64)
    example = memory.as_strided((4, 8), (8, 1))
    config = CompilerConfig()
    config.codegen = "eager"
    run = get_compiler(config)(make_fx(step)(example), [example])
    memory.zero_()
    for stride in (8, 8, 16, 16, 8, 16):
        _, part = run(memory.as_strided((4, 8), (stride, 1)))
        step(wanted.as_strided((4, 8), (stride, 1)))
        assert memory.tolist() == wanted.tolist()
        assert (part.stride(), part.storage_offset()) == ((stride, 1), stride)
    assert row.replays > 0


@pytest.mark.parametrize("clones", [True, False])
def test_unguarded_expanded_inputs_equal_eager(row: SimulatedDevice, clones: bool) -> None:
    """The recorded call's elements were one element; those of the next call are not."""
    config = CompilerConfig()
    config.codegen, config.clone_input = "eager", clones
    example = torch.ones(3, 4)
    run = get_compiler(config)(make_fx(lambda x: [x * 2])(example), [example])
    for _ in range(3):
        x = torch.arange(4.0).expand(3, 4)
        assert run(x)[0].tolist() == (x * 2).tolist()
        x = torch.arange(12.0).reshape(3, 4)
        assert run(x)[0].tolist() == (x * 2).tolist()
    assert row.replays > 0


def test_a_graph_of_an_expanded_input_refuses_others(row: SimulatedDevice) -> None:
    config = CompilerConfig()
    config.codegen = "eager"
    example = torch.ones(4).expand(3, 4)
    run = get_compiler(config)(make_fx(lambda x: [x * 2])(example), [example])
    assert run(example)[0].tolist() == [[2.0] * 4] * 3
    with pytest.raises(BadCall, match="dimension 0 is not expanded"):
        run(torch.ones(3, 4))


def test_unread_input_may_have_any_size(row: SimulatedDevice) -> None:
    run = compile_fn(lambda x, y: y + x.amax(0).copy_(y.sum()), mode="npugraph_ex", dynamic=True)
    y = torch.ones(4)
    records = []
    for size in (3, 3, 5, 7, 3):
        with torch.no_grad():
            assert run(torch.ones(size), y).tolist() == [5.0] * 4
        records.append(row.records)
    assert row.replays > 0
    assert records[-1] == records[1], "no other recording for other sizes"


def test_results_without_elements_are_made_anew(row: SimulatedDevice) -> None:
    """Autograd counts how often a tensor was written: one tensor of all calls would count them all."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.where(x[:0] > 0, x[:0], x[:1])

    run = compile_fn(fn, mode="npugraph_ex", dynamic=True)
    held = [(x := torch.ones(3, requires_grad=True), run(x)) for _ in range(3)]
    for x, made in held:
        made.sum().backward()
        assert x.grad is not None
        assert x.grad.tolist() == [0.0] * 3
    assert row.replays > 0


def test_an_empty_view_of_an_input(row: SimulatedDevice) -> None:
    """A tensor without elements has no address."""
    run = compile_fn(lambda x: (x[2:2], x + 1), mode="npugraph_ex", dynamic=True)
    for _ in range(3):
        x = torch.arange(6.0)[1:]
        with torch.no_grad():
            view, made = run(x)
        assert (view.shape, view.storage_offset()) == (x[2:2].shape, x[2:2].storage_offset())
        assert made.tolist() == (x + 1).tolist()
    assert row.replays > 0
