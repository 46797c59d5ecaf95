"""As many tensor objects come back as stock torch.compile returns: in the first call, and from replays."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.support.simulated_device import SimulatedDevice
from torchair.backend.settings import settings

Fn = Callable[[torch.Tensor], tuple[torch.Tensor, ...]]


def after(first: Callable[[torch.Tensor], torch.Tensor], *others: Callable[..., torch.Tensor]) -> Fn:
    """The first result, and what others make of it."""

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        made = first(x)
        return made, *(other(made) for other in others)

    return fn


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


# An op that returns its argument, or a view of all of it, is no longer seen in the graph.
ROWS: dict[str, Fn] = {
    "written": after(double, lambda y: y.add_(1)),
    "written twice": after(double, lambda y: y.mul_(3), lambda y: y.mul_(2)),
    "contiguous": after(double, lambda y: y.contiguous()),
    "same dtype": after(double, lambda y: y.to(torch.float32)),
    "not conjugated": after(double, lambda y: y.conj(), lambda y: y.resolve_conj()),
    "without elements": after(lambda x: x[:0] * 2, lambda y: y.contiguous()),
    "constant": after(lambda x: torch.ones(3), lambda y: y.add_(1)),
    "an input": after(lambda x: x, lambda y: y.contiguous(), double),
    "a view of its own": after(double, lambda y: y.contiguous()[1:], lambda y: y[1:].add_(1)),
    "detached": after(double, lambda y: y.detach()),
    "viewed": after(double, lambda y: y.view_as(y)),
    "expanded": after(double, lambda y: y.expand(4, 4), lambda y: y.contiguous()),
}


def sameness(x: torch.Tensor, outputs: tuple[torch.Tensor, ...]) -> list[tuple[int, int]]:
    """Of each output the first that is the same object, and the first in the same memory."""
    tensors = [x, *outputs]
    found = [next(i for i, other in enumerate(tensors) if other is tensor) for tensor in tensors]
    memory = [tensor.untyped_storage()._cdata for tensor in tensors]
    return [(first, memory.index(at)) for first, at in zip(found, memory, strict=True)]


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each size is recorded with its first call."""
    monkeypatch.setattr(settings, "PATIENCE", 0)


@pytest.mark.parametrize(("backend", "holds"), [("npu", False), ("npugraph_ex", True)])
def test_in_each_call(row: SimulatedDevice, backend: str, holds: bool) -> None:
    """Outputs that are held meanwhile are followed by copies, which are as many."""
    for name, fn in ROWS.items():
        torch.compiler.reset()  # they have one code
        stock = torch.compile(fn, backend="aot_eager")
        ours = torch.compile(fn, backend=backend, options={"codegen": "eager"})
        before, held = row.replays, []
        with torch.no_grad():
            x = torch.randn(4, 4)
            wanted = sameness(x, stock(x))
            for call in range(5):
                x = torch.randn(4, 4)
                outputs = ours(x)
                assert sameness(x, outputs) == wanted, f"{name}, call {call}"
                held += [outputs] if holds else []
                torch.testing.assert_close(outputs, fn(x.clone()))
                del outputs
        assert row.replays >= before + 3, name


def test_passes_that_merge_values_leave_two_objects() -> None:
    """Also where nothing is recorded, and where the IR is interpreted."""
    for name in ("detached", "viewed", "expanded"):
        fn = ROWS[name]
        for codegen in ("eager", "reference"):
            run = torch.compile(fn, backend="npu", options={"codegen": codegen})
            for _ in range(2):
                x = torch.randn(4, 4)
                assert sameness(x, run(x)) == sameness(x, fn(x)), (name, codegen)
