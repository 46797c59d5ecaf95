"""Graphs in which ops need the host: recorded in pieces around them, on a simulated device."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import torchair
from tests.support.compile import compile_fn
from tests.support.simulated_device import SimulatedDevice
from torchair.backend.pipeline.compile import compile_fx
from torchair.backend.settings.settings import resolve_settings
from torchair.core.errors import DegradedWarning
from torchair.core.torch_private.fake.fake_tensors import make_fx
from torchair.devices import get_device


def takes_rows(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    y = x.sin() * 2
    picked = y[mask]
    return picked.cos().sum() + y.sum()


def adds_where(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    y[mask] = 3.0
    return y.cos() + 1


def reads_a_number(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    y = x.exp()
    n = (mask.sum() + 1).item()
    torch._check(n >= 1)
    return (y * n).sum(0)


def writes_through_a_view(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    y = x * 2
    row = y[1]
    y[mask] = 0.0
    row.add_(1)
    return y + row


def two_alike(x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Equal ops of equal shapes: what one piece gives the next are two values, not one."""
    a, b = x * x.sin(), x * x.cos()
    picked = x[mask].sum()
    return a * picked, b * picked


@torch.library.custom_op("airtest::total", mutates_args=())
def total(x: torch.Tensor) -> int:
    TOTALS.append(1)
    return int(x.sum())


@total.register_fake
def _(x: torch.Tensor) -> Any:
    return torch.library.get_ctx().new_dynamic_size()


TOTALS: list[int] = []


def test_an_op_that_returns_a_number_runs_once(row: SimulatedDevice) -> None:
    def fn(x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x + 1
        count = torch.ops.airtest.total(y)
        z = y * count
        return z + count, z[mask]

    run = compile_fn(fn, mode="npugraph_ex", fullgraph=True, dynamic=False)
    x, mask = torch.ones(2), torch.tensor([True, False])
    config = {"capture_scalar_outputs": True, "capture_dynamic_output_shape_ops": True}
    with torch.no_grad(), warnings.catch_warnings(), torch._dynamo.config.patch(config):
        warnings.simplefilter("ignore", DegradedWarning)
        for _ in range(5):
            TOTALS.clear()
            torch.testing.assert_close(run(x, mask), (torch.full((2,), 12.0), torch.tensor([8.0])))
            assert len(TOTALS) == 1


# How many recordings there are; in graph mode writing by a mask needs no host.
PIECES = [
    (takes_rows, "max-autotune", 2),
    (takes_rows, "npugraph_ex", 2),
    (adds_where, "max-autotune", 1),
    (adds_where, "npugraph_ex", 2),
    (reads_a_number, "max-autotune", 2),
    (reads_a_number, "npugraph_ex", 2),
    (writes_through_a_view, "max-autotune", 1),
    (writes_through_a_view, "npugraph_ex", 2),
    (two_alike, "max-autotune", 2),
    (two_alike, "npugraph_ex", 2),
]


@pytest.mark.parametrize(
    ("fn", "mode", "pieces", "codegen"),
    [
        pytest.param(*row, codegen, marks=pytest.mark.full if codegen == "inductor" and place % 3 else ())
        for codegen in ("eager", "inductor")
        for place, row in enumerate(PIECES)
    ],
)
def test_what_comes_before_and_after_is_recorded(
    row: SimulatedDevice, fn: Callable[..., Any], mode: str, pieces: int, codegen: str
) -> None:
    run = compile_fn(fn, codegen=codegen, mode=mode, fullgraph=True, dynamic=False)
    with (
        torch.no_grad(),
        warnings.catch_warnings(record=True) as said,
        torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True),
    ):
        warnings.simplefilter("always", DegradedWarning)
        for call in range(8):
            x = torch.randn(4, 5)
            mask = torch.arange(4) <= call % 2
            torch.testing.assert_close(run(x.clone(), mask), fn(x.clone(), mask))
    assert row.replays >= 7, "the first piece from the second call on"
    texts = [str(one.message) for one in said]
    assert len(texts) == pieces - 1, texts
    assert all("recorded in 2 pieces" in text and "test_partitioned.py" in text for text in texts), texts


def test_where_all_ops_need_the_host_nothing_is_recorded(row: SimulatedDevice) -> None:
    run = compile_fn(torch.nonzero, mode="npugraph_ex", fullgraph=True, dynamic=False)
    with torch.no_grad(), torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        for call in range(4):
            x = torch.arange(4) <= call
            torch.testing.assert_close(run(x), torch.nonzero(x))
    assert row.records == 0


@pytest.mark.usefixtures("row")
def test_the_report_lists_the_pieces() -> None:
    def fn(x: torch.Tensor, mask: torch.Tensor) -> list[torch.Tensor]:
        return [x.sin().index_put((mask,), x.sum()).cos()]

    x, mask = torch.randn(4), torch.tensor([True, False, True, False])
    config = torchair.CompilerConfig()
    config.mode, config.engine_config.codegen = "npugraph_ex", "eager"
    gm = make_fx(fn)(x, mask)
    with torch.no_grad():
        with pytest.warns(DegradedWarning, match="recorded in 2 pieces"):
            runner = compile_fx(gm, [x, mask], resolve_settings(config))
        for _ in range(4):
            torch.testing.assert_close(runner([x, mask]), fn(x, mask))
    assert len({part.report().pool for part in runner.parts}) == 2, "each has memory of its own"
    assert len({part.strategy._turns for part in runner.parts}) == 1, "and takes turns with the others"
    report = runner.report()
    assert [[recording.replays > 0 for recording in part.recordings] for part in report.parts] == [[True]] * 2
    assert all(str(part) in str(report) for part in report.parts)


def test_numbers_drawn_in_a_branch_keep_their_turn(row: SimulatedDevice) -> None:
    def fn(x: torch.Tensor, flag: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        first = torch.rand_like(x)
        return first, torch.cond(
            flag, lambda x: x + torch.rand_like(x), lambda x: x - torch.rand_like(x), (x,)
        )

    run = compile_fn(fn, mode="npugraph_ex", fullgraph=True, dynamic=False)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", DegradedWarning)
        for call in range(5):
            given = torch.randn(3), torch.tensor(call % 2 == 0)
            torch.manual_seed(call)
            wanted = fn(*given)
            torch.manual_seed(call)
            torch.testing.assert_close(run(*given), wanted)


@torch.library.custom_op("airtest::turned", mutates_args=(), tags=(torch.Tag.cudagraph_unsafe,))
def turned(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).t().contiguous().t()


@turned.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@pytest.mark.parametrize("codegen", ["eager", "inductor"])
def test_pieces_get_the_layouts_they_were_compiled_for(row: SimulatedDevice, codegen: str) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return turned(x + 1).cumsum(0) * 3

    run = compile_fn(fn, codegen=codegen, mode="npugraph_ex", fullgraph=True, dynamic=False)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", DegradedWarning)
        for _ in range(6):
            x = torch.randn(3, 5)
            torch.testing.assert_close(run(x), fn(x))
    assert row.replays > 4


def test_data_dependent_strides_warn_once(row: SimulatedDevice) -> None:
    def fn(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return x.permute(2, 0, 1)[:, mask].cos() * 2

    run = compile_fn(fn, codegen="inductor", mode="npugraph_ex", fullgraph=True, dynamic=False)
    config = {"capture_dynamic_output_shape_ops": True}
    with torch.no_grad(), torch._dynamo.config.patch(config), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", DegradedWarning)
        for call in range(6):
            given = torch.randn(4, 5, 3), torch.arange(4) <= call % 3
            wanted = fn(*given)
            got = run(*given)
            torch.testing.assert_close(got, wanted)
            assert got.stride() == wanted.stride() or wanted.shape[1] == 1
    texts = [str(one.message) for one in said]
    assert len([text for text in texts if "strides" in text]) <= 1, texts


@torch.library.custom_op("airtest::breaks_and_writes", mutates_args=("x",))
def breaks_and_writes(x: torch.Tensor) -> None:
    if get_device(torch.device("cpu")).is_capturing():
        raise RuntimeError("not while capturing")
    x.add_(1)


def test_an_op_that_breaks_a_recording_from_inside_another_is_cut_out(row: SimulatedDevice) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        breaks_and_writes(y)
        return y.cos() * 2

    run = compile_fn(fn, mode="npugraph_ex", fullgraph=True, dynamic=False)
    with torch.no_grad(), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", DegradedWarning)
        for _ in range(8):
            x = torch.randn(3)
            torch.testing.assert_close(run(x), fn(x))
    assert row.replays > 4
    assert "recorded in 2 pieces" in str(said[0].message)


@torch.library.custom_op("airtest::looks", mutates_args=())
def looks(x: torch.Tensor) -> torch.Tensor:
    """Reads its data on the host: no recording takes it."""
    if getattr(get_device(torch.device("cpu")), "capturing", False):
        raise RuntimeError("operation not permitted when stream is capturing")
    return x * float(x.sum().item())


@looks.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@pytest.mark.filterwarnings("ignore:a graph is recorded in:torchair.DegradedWarning")
def test_what_the_host_made_is_not_written(row: SimulatedDevice) -> None:
    """Ops behind a call on the host write in place, where it was found out while recording: all are replayed,
    wherever its results are.
    """

    def step(x: torch.Tensor) -> torch.Tensor:
        y = (looks(x.sin()) + 1).relu().view(-1) * 2
        return looks(y.view_as(x)).exp().tanh() + x

    run = compile_fn(step, mode="npugraph_ex", fullgraph=True, dynamic=False)
    kept = []
    with torch.no_grad():
        for _ in range(16):
            x = torch.randn(3, 4)
            kept.append(torch.empty(random.randrange(1, 400)))  # results of the host move about
            before = row.replays
            torch.testing.assert_close(run(x), step(x))
    assert row.replays - before == 3, "before, between and behind"


@pytest.mark.usefixtures("row")
def test_strict_mode_refuses_every_call_of_a_graph_that_broke() -> None:
    config = torchair.CompilerConfig()
    config.mode, config.engine_config.codegen, config.engine_config.strict = "npugraph_ex", "eager", True
    backend = torchair.get_npu_backend(compiler_config=config)
    run = torch.compile(lambda x: looks(x.sin()).exp() + x, backend=backend, dynamic=False)
    with torch.no_grad():
        for _ in range(3):
            with pytest.raises(torchair.core.errors.Degraded):
                run(torch.randn(3))
