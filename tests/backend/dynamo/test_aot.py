"""Calls that go straight to the runner do all that AOTAutograd's layers would do around them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

MODES = ("npu", "npugraph_ex")
PLAIN = {"codegen": "eager"}  # no compiler: this is about what stands around a program


@pytest.fixture(params=MODES)
def backend(request: pytest.FixtureRequest) -> str:
    return request.param


def both(function: Callable[..., Any], backend: str, make: Callable[[], tuple[Any, ...]]) -> tuple[Any, Any]:
    """The results and the arguments afterwards: of the compiled function, and of the function."""
    outcomes = []
    for run in (torch.compile(function, backend=backend, options=PLAIN), function):
        args = make()
        with torch.no_grad():
            for _ in range(3):
                result = run(*args)
        outcomes.append((result, args))
    return outcomes[0], outcomes[1]


def grow(cache: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    cache.add_(x)
    return cache * 2


def test_a_written_input_gets_a_new_version(backend: str) -> None:
    cache = torch.zeros(3)
    run = torch.compile(grow, backend=backend, options=PLAIN)
    with torch.no_grad():
        run(cache, torch.ones(3))
        before = cache._version
        run(cache, torch.ones(3))
    assert cache._version > before
    assert cache.tolist() == [2.0] * 3


def test_saved_tensors_notice_the_write(backend: str) -> None:
    """Autograd refuses to use a tensor that a compiled call has overwritten."""
    weight, cache = torch.ones(3, requires_grad=True), torch.ones(3)
    run = torch.compile(grow, backend=backend, options=PLAIN)
    loss = (weight * cache).sum()
    with torch.no_grad():
        run(cache, torch.ones(3))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_results_need_no_gradient_when_gradients_are_on(backend: str) -> None:
    run = torch.compile(lambda x: x * 2 + 1, backend=backend, options=PLAIN)
    assert torch.is_grad_enabled()
    y = run(torch.ones(3))
    assert (y.requires_grad, y.grad_fn) == (False, None)


ROWS: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]] = {
    "an output is an input": (lambda x: (x, x + 1), lambda: (torch.ones(3),)),
    "an output is a view of an input": (lambda x: (x[1:], x * 2), lambda: (torch.arange(4.0),)),
    "two outputs share memory": (lambda x: ((y := x + 1), y[1:]), lambda: (torch.arange(4.0),)),
    "one tensor twice": (lambda a, b: a * 2 + b, lambda: (torch.arange(4.0),) * 2),
    "one tensor twice, written": (lambda a, b: (a.add_(1), b * 2)[1], lambda: (torch.arange(4.0),) * 2),
    "views of one tensor, written": (
        lambda a, b: (a.add_(1), b * 2)[1],
        lambda: (base := torch.arange(6.0)) is not None and (base[:4], base[2:]),
    ),
    "a written view of an input": (lambda x: x[1:].mul_(3) + 1, lambda: (torch.arange(4.0),)),
    "metadata": (lambda x: x.t_() + 1, lambda: (torch.arange(6.0).view(2, 3),)),
}


@pytest.mark.parametrize("name", ROWS)
def test_direct_call_equals_eager(name: str, backend: str) -> None:
    function, make = ROWS[name]
    got, want = both(function, backend, make)
    torch.testing.assert_close(got, want)


def test_direct_call_under_autocast_equals_eager(backend: str) -> None:
    run = torch.compile(lambda a, b: a @ b, backend=backend, options=PLAIN)
    a, b = torch.randn(4, 4), torch.randn(4, 4)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(run(a, b), a @ b)


def test_without_autocast_inside_of_it(backend: str) -> None:
    """What the function has switched off stays off while its program runs."""

    def fn(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            return a @ b

    run = torch.compile(fn, backend=backend, options=PLAIN)
    a, b = torch.randn(4, 4), torch.randn(4, 4)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(run(a, b), fn(a, b))
