"""Graphs with scopes, too, are served at once: what is between their borders is built in the background, each
piece by itself.
"""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

import torchair
import torchair.npugraph_ex
from tests.backend.pipeline.test_tiered import Quick, compile_tiered, kinds_of, quick  # noqa: F401 - a fixture
from torchair.backend.pipeline import generate, multi_stream
from torchair.backend.service.scheduler import Job
from torchair.core.errors import DegradedWarning
from torchair.ops.streams import core_limits

pytestmark = pytest.mark.usefixtures("builds")
MODES = pytest.mark.parametrize("mode", ["max-autotune", "npugraph_ex"])
X, W = torch.randn(6, 6), torch.randn(6, 6)
scope = torchair.scope


def limited(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = (x @ w).relu()
    with scope.limit_core_num(1, 1):
        y = torch.tanh(y @ w) + y
    return (y - x).sin()


def limited_rows(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    with scope.limit_core_num(1, 1):
        y = torch.tanh(x @ w) * x.shape[0]
    return y.sin()


@MODES
def test_pieces_are_built_in_the_background(
    mode: str,
    quick: Quick,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken, run = kinds_of(monkeypatch), compile_tiered(limited, mode)
    quick.gate.clear()
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(run(X, W), limited(X, W), rtol=0, atol=0)
        assert not taken
        quick.gate.set()
        assert torchair.wait_until_optimised(60)
        for _ in range(2):
            torch.testing.assert_close(run(X, W), limited(X, W))
    assert taken == ["eager"]
    assert len(quick.orders) == 3
    assert all(order.kinds == ("native", "inductor") for order in quick.orders)


@MODES
def test_a_piece_is_compiled_for_the_threads_it_runs_on(mode: str, quick: Quick) -> None:  # noqa: F811
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        run = compile_tiered(limited, mode)
        with torch.no_grad():
            run(X, W), run(X, W)
        assert torchair.wait_until_optimised(60)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert [order.surroundings.threads for order in quick.orders] == [2, 1, 2]


@MODES
def test_scopes_act_in_the_better_program(
    mode: str,
    quick: Quick,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x.relu()
        with scope.limit_core_num(1, 1):
            y = y.sin() + 1
        return y * 2

    run = compile_tiered(fn, mode)
    with torch.no_grad():
        run(X), run(X)
        assert torchair.wait_until_optimised(60)
        entered: list[Any] = []
        act = core_limits.cores_limited
        monkeypatch.setattr(
            core_limits, "cores_limited", lambda *given: entered.append(given[:2]) or act(*given)
        )
        torch.testing.assert_close(run(X), fn(X))
    assert entered == [(1, 1)]


def test_deterministic_pieces_stay_as_they_are(quick: Quick) -> None:  # noqa: F811
    def fn(x: torch.Tensor) -> torch.Tensor:
        with torchair.npugraph_ex.scope.deterministic(1):
            y = x.cumsum(0).exp()
        return y.sin() + x

    run = compile_tiered(fn, "npugraph_ex")
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(run(X), fn(X), rtol=0, atol=0)
        assert torchair.wait_until_optimised(60)
        torch.testing.assert_close(run(X), fn(X))
    (order,) = quick.orders
    assert b"cumsum" not in order.graph
    assert b"sin" in order.graph


@MODES
def test_sizes_that_do_not_fit_a_piece(mode: str, quick: Quick) -> None:  # noqa: F811
    """The ops of that piece run."""
    run = compile_tiered(limited_rows, mode, dynamic=True)
    quick.gate.clear()
    with torch.no_grad():
        for rows in (4, 5):
            x = torch.randn(rows, 6)
            run(x, W)
        while not quick.orders:
            time.sleep(0.01)
        symbol = quick.orders[0].symbols.seen[0].symbol
        quick.conditions = (symbol < 7,)
        quick.gate.set()
        assert torchair.wait_until_optimised(60)
        for rows in (4, 9, 5, 8):
            x = torch.randn(rows, 6)
            torch.testing.assert_close(run(x, W), limited_rows(x, W))


def test_equal_pieces_are_built_once(quick: Quick) -> None:  # noqa: F811
    def fn(x: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            with scope.super_kernel("layer"):
                x = torch.tanh(x * 2)
            with scope.limit_core_num(1, 1):
                x = x.exp()
        return x

    run = compile_tiered(fn, "max-autotune")
    with torch.no_grad():
        run(X), run(X)
        assert torchair.wait_until_optimised(60)
        torch.testing.assert_close(run(X), fn(X))
    assert len(quick.orders) == 2


def test_none_is_taken_where_a_piece_fails(quick: Quick, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    taken, run = kinds_of(monkeypatch), compile_tiered(limited, "max-autotune")
    quick.failed = "no compiler"
    with torch.no_grad():
        run(X, W), run(X, W)
        assert torchair.wait_until_optimised(60)
        with pytest.warns(DegradedWarning, match="a better program is not compiled: no compiler"):
            torch.testing.assert_close(run(X, W), limited(X, W))
    assert taken == ["none"]


@MODES
def test_pieces_whose_sizes_data_decides_are_compiled_at_once(
    mode: str,
    quick: Quick,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No other process knows them."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        with scope.limit_core_num(1, 1):
            number = x.sum().abs().int().item()
        with scope.limit_core_num(2, 2):
            return x.sin() * number

    asked: list[str] = []

    def pieces(gm: Any, mode: Any, kind: str, how: Any, degradations: Any) -> Any:
        asked.append(kind)
        return multi_stream.streamed(gm, mode, "eager", how, degradations)

    monkeypatch.setattr(generate, "streamed", pieces)
    run = compile_tiered(fn, mode)
    with torch.no_grad(), torch._dynamo.config.patch(capture_scalar_outputs=True):
        for x in (X, X * 2):
            torch.testing.assert_close(run(x), fn(x))
    assert asked == ["inductor"]
    assert not quick.orders


def test_static_kernels_are_not_for_graphs_with_scopes(quick: Quick) -> None:  # noqa: F811
    """They would be compiled without them."""
    run = torch.compile(limited, backend="npugraph_ex", options={"static_kernel_compile": True})
    with torch.no_grad():
        with pytest.warns(DegradedWarning, match="no effect on a graph with scopes"):
            run(X, W)
        run(X, W)
        assert torchair.wait_until_optimised(60)
        torch.testing.assert_close(run(X, W), limited(X, W))
    assert not any(b"scope_enter" in order.graph for order in quick.orders)
    assert len(quick.orders) == 3


def test_a_block_that_must_be_one_unit_is_refused_at_once() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        with scope.super_kernel("block", "strict-scope-check=abort"):
            y = x.sin()
            with scope.limit_core_num(1, 1):
                y = y.cos()
            return y + 1

    with pytest.raises(Exception, match="is 3 units"):
        compile_tiered(fn, "max-autotune")(X)


@MODES
def test_what_is_kept_is_not_built_again(
    mode: str,
    quick: Quick,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken = kinds_of(monkeypatch)
    for _ in range(2):
        torch.compiler.reset()
        run = compile_tiered(limited, mode)
        with torch.no_grad():
            torch.testing.assert_close(run(X, W), limited(X, W))
            assert torchair.wait_until_optimised(60)
            torch.testing.assert_close(run(X, W), limited(X, W))
    assert taken == ["eager", "eager"]
    assert len(quick.orders) == 3, "each piece was built once"


@pytest.mark.full
@MODES
def test_the_whole_way(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the real compiler; another process begins with what it made."""
    taken: list[Any] = kinds_of(monkeypatch)
    run = compile_tiered(limited, mode)
    with torch.no_grad():
        torch.testing.assert_close(run(X, W), limited(X, W), rtol=0, atol=0)
        assert torchair.wait_until_optimised(600)
        torch.testing.assert_close(run(X, W), limited(X, W))
        assert taken == ["native"]
        torch.compiler.reset()
        made: list[Job] = []
        monkeypatch.setattr(Job, "__init__", lambda job, task: made.append(job))
        again = compile_tiered(limited, mode)
        torch.testing.assert_close(again(X, W), limited(X, W))
    assert not made, "all of it is there"
