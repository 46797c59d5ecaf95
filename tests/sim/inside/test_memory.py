"""Memory that is read before it is written, or used after it was given back: errors where they are wanted."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import torchair
from torchair.sim import interleaved, memory_checked, races_checked


def fresh(*size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(*size, dtype=dtype, device="npu")


READS: dict[str, Callable[[], object]] = {
    "an op": lambda: fresh(3) + 1,
    "in place": lambda: fresh(3).add_(1),
    "to the host": lambda: fresh(3).cpu(),
    "a number": lambda: fresh(()).item(),
    "printed": lambda: str(fresh(3)),
    "a view": lambda: fresh(4, 4)[1:, ::2].sum(),
    "one element of many": lambda: torch.cat([torch.zeros(3, device="npu"), fresh(1)]),
    "as another type": lambda: fresh(3).view(torch.int32).abs(),
    "an index": lambda: torch.zeros(3, device="npu")[fresh(2, dtype=torch.int64)],
    "copied": lambda: torch.zeros(3, device="npu").copy_(fresh(3)),
    "between devices": lambda: fresh(3).to("npu:1"),
    "beside what was written": lambda: (lambda x: (x[:2].zero_(), x.sum()))(fresh(3)),
    "like another": lambda: torch.empty_like(torch.zeros(3, device="npu")).exp(),
    "new": lambda: torch.zeros(3, device="npu").new_empty(2) * 2,
    "a matrix": lambda: torch.ones(2, 2, device="npu") @ fresh(2, 2),
}
WRITTEN: dict[str, Callable[[], torch.Tensor]] = {
    "filled": lambda: fresh(3).fill_(2),
    "zeroed": lambda: fresh(3).zero_(),
    "drawn": lambda: fresh(3).normal_(),
    "uniform": lambda: fresh(3).uniform_(),
    "chances": lambda: fresh(3).bernoulli_(0.5),
    "numbers": lambda: fresh(3, dtype=torch.int64).random_(5),
    "copied from the host": lambda: fresh(3).copy_(torch.ones(3)),
    "copied": lambda: fresh(3).copy_(torch.ones(3, device="npu")),
    "out": lambda: torch.add(torch.ones(3, device="npu"), 1, out=fresh(3)),
    "out resized": lambda: torch.add(torch.ones(3, device="npu"), 1, out=fresh(0)),
    "sorted": lambda: torch.sort(torch.ones(3, device="npu"), out=(fresh(3), fresh(3, dtype=torch.int64)))[0],
    "by pieces": lambda: (lambda x: (x[::2].zero_(), x[1::2].zero_(), x)[-1])(fresh(4)),
    "by columns": lambda: (lambda x: (x[:, 0].zero_(), x[:, 1:].zero_(), x)[-1])(fresh(4, 3)),
    "by indices": lambda: fresh(3).index_copy_(0, torch.arange(3, device="npu"), torch.ones(3, device="npu")),
    "by a mask": lambda: fresh(3).masked_fill_(torch.ones(3, dtype=torch.bool, device="npu"), 0),
    "put": lambda: fresh(3).index_put_((torch.arange(3, device="npu"),), torch.ones(3, device="npu")),
    "grown": lambda: torch.ones(3, device="npu").resize_(9)[:3],
    "cummax": lambda: torch.cummax(torch.ones(3, device="npu"), 0)[0],
    "rrelu": lambda: torch.nn.functional.rrelu(torch.ones(3, device="npu"), training=True),
    "scattered": lambda: fresh(3).scatter_(0, torch.arange(3, device="npu"), 1.0),
    "for each": lambda: (lambda xs: (torch._foreach_zero_(xs), xs[0])[-1])([fresh(2), fresh(3)]),
    "zeros like it": lambda: torch.zeros_like(fresh(3)),
    "new": lambda: fresh(3).new_zeros(2),
    "full": lambda: torch.full((2, 3), 7, device="npu"),
    "as bytes": lambda: (lambda x: (x.view(torch.uint8).zero_(), x)[-1])(fresh(3)),
    "moved": lambda: torch.ones(3).npu(),
    "a layer": lambda: torch.nn.Linear(3, 3, device="npu")(torch.ones(2, 3, device="npu")),
    "a deep copy": lambda: torch.nn.Parameter(torch.ones(3)).npu().clone(),
    "nothing": lambda: fresh(0, 3),
}


@pytest.mark.parametrize("case", READS)
def test_unwritten_memory_is_not_read(case: str) -> None:
    with (
        memory_checked(),
        pytest.raises(RuntimeError, match=r"uninitialized memory: aten::\w+ .*test_memory.py"),
    ):
        READS[case]()


@pytest.mark.parametrize("case", WRITTEN)
def test_written_memory_is_read(case: str) -> None:
    with memory_checked():
        made = WRITTEN[case]()
        assert made.sum().isfinite()


def test_what_was_there_before_counts_as_written() -> None:
    x = fresh(3)
    with memory_checked():
        x.sum()


@pytest.mark.parametrize("seed", range(3))
def test_in_every_order(seed: int) -> None:
    with interleaved(seed), memory_checked():
        assert ((torch.ones(4, device="npu") * 2).exp() > 0).all()
        with pytest.raises(RuntimeError, match="uninitialized memory"):
            fresh(3) + 1


def test_captured() -> None:
    """What a graph is given may be written before each replay."""
    with memory_checked():
        graph, x = torch.npu.NPUGraph(), fresh(4)
        with torch.npu.graph(graph):
            y = (x + 1).exp()
        x.zero_()
        graph.replay()
        assert y.cpu().isfinite().all()
        with pytest.raises(RuntimeError, match="uninitialized memory"):
            fresh(3) + y[:3]


def test_a_storage_that_was_given_back() -> None:
    with memory_checked():
        x = torch.ones(3, device="npu")
        x.untyped_storage().resize_(0)
        with pytest.raises(
            RuntimeError, match=r"freed memory: aten::add .*needs 12 bytes, and its storage has 0"
        ):
            x + 1


@pytest.mark.parametrize("mode", ["npugraph_ex", "max-autotune"])
def test_compiled(mode: str) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).npu()
    config = torchair.CompilerConfig()
    config.mode = mode
    run = torch.compile(model, backend=torchair.get_npu_backend(compiler_config=config))
    with torch.no_grad(), memory_checked():
        x = torch.ones(2, 4, device="npu")
        for _ in range(4):
            torch.testing.assert_close(run(x), model(x))


def test_training() -> None:
    with memory_checked():
        model = torch.nn.Sequential(torch.nn.Conv1d(2, 3, 3), torch.nn.BatchNorm1d(3), torch.nn.GELU()).npu()
        optimiser = torch.optim.AdamW(model.parameters())
        for _ in range(3):
            model(torch.randn(2, 2, 8, device="npu")).square().mean().backward()
            optimiser.step()
            optimiser.zero_grad()
        state = torch.npu.memory_allocated()
        assert state > 0


def test_graphed_callables() -> None:
    model, x = torch.nn.Linear(3, 3).npu(), torch.ones(2, 3, device="npu")
    with memory_checked():
        run = torch.npu.make_graphed_callables(model, (x,))
        run(x).sum().backward()


def test_gradients_of_another_stream() -> None:
    """Torch itself says who uses them."""
    with races_checked(), memory_checked():
        x = torch.ones(9, device="npu", requires_grad=True)
        main, side = torch.npu.current_stream(), torch.npu.Stream()
        side.wait_stream(main)
        with torch.npu.stream(side):
            y = x * 2
        main.wait_stream(side)
        (y * 3).sum().backward()
        torch.npu.synchronize()
    assert x.grad is not None
    assert x.grad.tolist() == [6.0] * 9


def test_checks_are_not_nested() -> None:
    with memory_checked(), pytest.raises(RuntimeError, match="already"), memory_checked():
        pass
    with races_checked(), pytest.raises(RuntimeError, match="already"), races_checked():
        pass


def used_beside(*, is_told: bool, waits: bool) -> None:
    """Memory of the main stream, given back while the other one may still read it."""
    main, side = torch.npu.current_stream(), torch.npu.Stream()
    x = torch.ones(1000, device="npu")
    side.wait_stream(main)
    with torch.npu.stream(side):
        y = x * 2
    if is_told:
        x.record_stream(side)
    if waits:
        main.wait_stream(side)
    del x
    torch.ones(1000, device="npu")
    torch.npu.synchronize()
    del y


def test_memory_that_another_stream_still_uses() -> None:
    used_beside(is_told=False, waits=False)
    with races_checked():
        used_beside(is_told=False, waits=False)
    with (
        races_checked(),
        memory_checked(),
        pytest.raises(
            RuntimeError, match=r"use after free: .* while aten::mul on .*test_memory.py.*record_stream"
        ),
    ):
        used_beside(is_told=False, waits=False)
    for is_told, waits in ((True, False), (False, True)):
        with races_checked(), memory_checked():
            used_beside(is_told=is_told, waits=waits)


def test_memory_that_is_given_back_last() -> None:
    """There is no next op to tell it with."""

    def give_back() -> None:
        side, x = torch.npu.Stream(), torch.ones(1000, device="npu")
        side.wait_stream(torch.npu.current_stream())
        with torch.npu.stream(side):
            x.neg_()

    with memory_checked(), pytest.raises(RuntimeError, match="use after free"), races_checked():
        give_back()
