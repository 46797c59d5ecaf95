"""Gears: one graph for a few sizes, a program of its own for each of them, and nothing else let in."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

import torchair
from tests.support.compile import compile_fn, taken_programs, watching
from tests.support.models import mlp
from tests.support.simulated_device import SimulatedDevice
from tests.support.slow import slow
from torchair.backend.pipeline import generate
from torchair.backend.specialize import size_buckets as gears_module
from torchair.core.errors import BadGears, NotPossible
from torchair.inference import set_dim_gears

POLICY = "inference_config.dynamic_gears_merge_policy"


@pytest.fixture(autouse=True, scope="module")
def _loaded() -> None:
    """What torch warns of when it first compiles is nobody's concern here."""
    compile_dynamic(lambda x: x + 1)(torch.ones(2))


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch.compiler.reset()
    counters.clear()


def compile_dynamic(fn: Callable[..., Any], options: dict[str, Any] | None = None, **how: Any) -> Any:
    return compile_fn(fn, options, **{"dynamic": True, "fullgraph": True, **how})


def geared(gears: dict[int, Any], *sizes: int) -> torch.Tensor:
    x = torch.randn(*sizes)
    set_dim_gears(x, gears)
    return x


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The programs that were made for gears."""
    return taken_programs(monkeypatch)


@pytest.mark.parametrize(("gears", "text"), [
    ({"0": [2, 3]}, "must be an int"), ({True: [2, 3]}, "must be an int"),
    ({2: [2, 3]}, "no dimension 2"), ({-1: [2, 3]}, "no dimension -1"),
    ({0: {2, 3}}, "a list or a tuple"), ({0: [2, 3.0]}, "positive ints"),
    ({0: [2, 0]}, "positive ints"), ({0: [2, -3]}, "positive ints"),
    ({0: [2]}, "2 to 100 gears"), ({0: list(range(2, 103))}, "2 to 100 gears"), ([2, 3], "must be a dict"),
    ({0: []}, "2 to 100 gears"), ({}, "an empty dict"),
])  # fmt: skip
def test_what_is_no_gear_is_refused(gears: Any, text: str) -> None:
    x = torch.randn(2, 3)
    with pytest.raises(AssertionError, match=text):
        set_dim_gears(x, gears)
    assert not hasattr(x, "dim_gears")


def test_gears_are_set_once() -> None:
    x = geared({0: [2, 4]}, 2, 3)
    set_dim_gears(x, {0: [2, 4]})
    with pytest.raises(BadGears, match="already has different gears"):
        set_dim_gears(x, {0: [2, 8]})
    assert x.dim_gears == {0: [2, 4]}  # type: ignore[attr-defined]
    y = geared({0: (2, 4)}, 2, 3)
    set_dim_gears(y, {0: (2, 4)})
    set_dim_gears(y, {0: [2, 4]})


def test_gears_are_of_graph_mode() -> None:
    run = torch.compile(lambda x: x.sin(), backend="npugraph_ex", dynamic=True)
    x = geared({0: [2, 4]}, 2, 3)
    with pytest.warns(torchair.DegradedWarning, match="set_dim_gears has no effect in capture mode"):
        got = run(x)
    torch.testing.assert_close(got, x.sin())


@pytest.mark.parametrize("codegen", ["eager", slow("inductor")])
def test_each_gear_has_a_program(codegen: str, taken: list[Any]) -> None:
    model = mlp(8, 16, 4)
    run = compile_dynamic(model, {"engine_config.codegen": codegen})
    with torch.no_grad():
        first = geared({0: [2, 4, 8]}, 2, 8)
        torch.testing.assert_close(run(first), model(first))
        for rows in (4, 8, 2, 4, 8):
            x = torch.randn(rows, 8)
            torch.testing.assert_close(run(x), model(x))
    assert counters["stats"]["unique_graphs"] == 1
    assert [program.kind for program in taken] == [codegen] * 3
    if codegen == "inductor":
        assert len({program.source for program in taken}) == 3, "each for its size"
        torch.compiler.reset()
        run(first)  # also where Inductor knows the graphs


def test_other_sizes_are_compiled_apart(taken: list[Any]) -> None:
    run = compile_dynamic(lambda x: x.sin() * x.shape[0])
    run(geared({0: [2, 4, 8]}, 2, 3))
    for rows, graphs in ((4, 1), (8, 1), (3, 2), (9, 2), (1, 3), (8, 3)):
        x = torch.randn(rows, 3)
        torch.testing.assert_close(run(x), x.sin() * rows)
        assert counters["stats"]["unique_graphs"] == graphs, rows
    assert len(taken) == 3


def test_dimensions_without_gears_are_fixed() -> None:
    run = compile_dynamic(lambda x: x.sin())
    run(geared({0: [2, 4]}, 2, 5))
    run(torch.randn(4, 5))
    assert counters["stats"]["unique_graphs"] == 1
    x = torch.randn(2, 6)
    torch.testing.assert_close(run(x), x.sin())
    assert counters["stats"]["unique_graphs"] == 2


def test_a_first_call_of_one(taken: list[Any]) -> None:
    """Torch makes no symbol of it: it is compiled for itself, and no error."""
    run = compile_dynamic(lambda x: x.sin())
    with pytest.warns(torchair.DegradedWarning, match="gears are ignored for a call of size 0 or 1"):
        run(geared({0: [1, 2, 4]}, 1, 3))
    for rows in (1, 2, 4):
        x = geared({0: [1, 2, 4]}, rows, 3)
        torch.testing.assert_close(run(x), x.sin())
    assert counters["stats"]["unique_graphs"] == 2
    assert len(taken) == 2


@pytest.mark.parametrize(
    ("lists", "graphs"), [(([1, 4], [3, 6]), 2), (([1, 4], [1, 6]), 4), (([4, 4], [3, 6]), 1)]
)
def test_one_gear_beside_a_size_of_one(lists: tuple[list[int], list[int]], graphs: int) -> None:
    """Such a dimension has one size in the graph."""

    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.sum(0) + y.sum(0) * x.shape[0]

    run = compile_dynamic(fn)
    args = geared({0: lists[0]}, 4, 2), geared({0: lists[1]}, 6, 2)
    torch.testing.assert_close(run(*args), fn(*args))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", torchair.DegradedWarning)  # of calls of size 1
        for sizes in itertools.product(*lists):
            args = tuple(torch.randn(size, 2) for size in sizes)
            torch.testing.assert_close(run(*args), fn(*args))
    assert counters["stats"]["unique_graphs"] == graphs


def test_a_size_that_is_no_gear_cannot_be_first() -> None:
    with pytest.raises(Exception, match="is not one of its gears") as error:
        compile_dynamic(lambda x: x.sin())(geared({0: [2, 4]}, 3, 3))
    assert isinstance(getattr(error.value, "inner_exception", error.value), AssertionError)


def outer(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x.sum(1)[:, None] * y.sum(1)


@pytest.mark.parametrize(("policy", "programs"), [("zip", 2), ("product", 4)])
def test_gears_of_two_inputs(policy: str, programs: int, taken: list[Any]) -> None:
    """Sizes that are let in and no gear together are served by the program for all sizes."""
    run = compile_dynamic(outer, {POLICY: policy})
    run(geared({0: [2, 4]}, 2, 3), geared({0: [5, 7]}, 5, 3))
    for a in (2, 4):
        for b in (5, 7):
            x, y = torch.randn(a, 3), torch.randn(b, 3)
            torch.testing.assert_close(run(x, y), outer(x, y))
    assert counters["stats"]["unique_graphs"] == 1
    assert len(taken) == programs


def test_a_size_that_two_inputs_share() -> None:
    run = compile_dynamic(lambda x, y: x + y, {POLICY: "product"})
    run(geared({0: [2, 4]}, 2, 3), geared({0: [2, 4]}, 2, 3))
    x, y = torch.randn(4, 3), torch.randn(4, 3)
    torch.testing.assert_close(run(x, y), x + y)
    assert counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize(("policy", "gears", "text"), [
    ("zip", ([2, 4], [5, 6, 7]), "equally many"),
    ("product", (list(range(2, 22)), list(range(2, 22))), "more than 100 gears"),
])  # fmt: skip
def test_gears_that_do_not_fit_together(policy: str, gears: Any, text: str) -> None:
    first, second = gears
    x, y = geared({0: first}, first[0], 3), geared({0: second}, second[0], 3)
    with pytest.raises(Exception, match=text):
        compile_dynamic(outer, {POLICY: policy})(x, y)


def test_a_hundred_gears(taken: list[Any]) -> None:
    sizes = list(range(2, 102))
    run = compile_dynamic(lambda x: (x.sin() + 1).sum(0))
    run(geared({0: sizes}, 2, 3))
    for rows in sizes:
        x = torch.randn(rows, 3)
        torch.testing.assert_close(run(x), (x.sin() + 1).sum(0))
    assert counters["stats"]["unique_graphs"] == 1
    assert len(taken) == 100


def test_each_gear_has_a_recording(row: SimulatedDevice) -> None:
    with watching() as seen, torch.no_grad():
        run = compile_dynamic(lambda x: (x.sin() + 1).sum(0))
        run(geared({0: [2, 4, 8]}, 2, 3))
        for rows in (4, 8, 2) * 4:
            x = torch.randn(rows, 3)
            torch.testing.assert_close(run(x), (x.sin() + 1).sum(0))
        before = row.replays
        run(torch.randn(4, 3))
    assert row.replays == before + 1
    assert len({recording.key for recording in seen.runner.report().recordings}) == 3


ORDERS = {"ascending": list, "descending": lambda sizes: sizes[::-1], "mixed": lambda s: s[::2] + s[1::2]}


@pytest.mark.parametrize("order", [slow("ascending"), slow("descending"), "mixed"])
def test_gears_share_the_memory_of_the_largest(order: str, row: SimulatedDevice) -> None:
    """Whichever comes first: what others would leave behind is never made."""
    sizes = list(range(4, 42, 2)) + [41]
    with watching() as seen, torch.no_grad():
        run = compile_dynamic(lambda x: (x.sin(), (x @ x.t())[:, 1:]))
        first, *others = ORDERS[order](sizes)
        run(geared({0: sizes}, first, 3))
        for _ in range(3):
            for rows in (first, *others):
                x = torch.randn(rows, 3)
                torch.testing.assert_close(run(x), (x.sin(), (x @ x.t())[:, 1:]))
    report = seen.runner.report()
    assert report.static_bytes == 41 * 3 * 4, "the largest input"
    spare = 16  # an output begins at whole 16 bytes
    assert 41 * 3 * 4 + 41 * 40 * 4 <= report.home_bytes <= 41 * 3 * 4 + 41 * 41 * 4 + spare
    assert len({recording.key for recording in report.recordings}) == len(sizes)


def test_a_held_output_of_another_gear_stays(row: SimulatedDevice) -> None:
    with torch.no_grad():
        run = compile_dynamic(lambda x: x * 2)
        run(geared({0: [2, 4, 8]}, 2, 3))
        for rows in (2, 4, 8) * 3:
            run(torch.ones(rows, 3))
        held = [run(torch.full((rows, 3), float(rows))) for rows in (8, 4, 2, 8, 4, 2)]
        assert [y.unique().tolist() for y in held] == [[16.0], [8.0], [4.0]] * 2


def test_failing_bucket_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> Any:
        raise RuntimeError("on purpose")

    monkeypatch.setattr(gears_module, "specialised", fail)
    run = compile_dynamic(lambda x: x.sin())
    x = geared({0: [2, 4]}, 2, 3)
    with pytest.warns(torchair.DegradedWarning, match="the dynamic program serves it: on purpose"):
        got = run(x)
    torch.testing.assert_close(got, x.sin())


def test_gears_of_a_graph_in_pieces(row: SimulatedDevice, taken: list[Any]) -> None:
    def chosen(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.sin() + 1, x.masked_select(x > 0).cos().sum()

    run = compile_dynamic(chosen)
    with torch.no_grad():
        with (
            pytest.warns(torchair.DegradedWarning, match="a graph is recorded in 2 pieces"),
            pytest.warns(torchair.DegradedWarning, match="the dynamic program serves all gears"),
        ):
            run(geared({0: [2, 4, 8]}, 2, 3))
        for rows in (4, 8, 2) * 3:
            x = torch.randn(rows, 3)
            torch.testing.assert_close(run(x), chosen(x))
    assert not taken
    assert row.replays


def test_files_have_none(tmp_path: Path) -> None:
    with pytest.raises(NotPossible, match="with gears"):
        torchair.dynamo_export(
            geared({0: [2, 4]}, 2, 3), model=nn.ReLU(), export_path=str(tmp_path), dynamic=True
        )


@pytest.mark.parametrize("codegen", ["eager", slow("inductor")])
def test_size_buckets_compile_forward_and_backward(codegen: str, taken: list[Any]) -> None:
    weight = torch.randn(3, 3, requires_grad=True)
    run = compile_dynamic(lambda x, w: (x @ w).relu().sum(), {"engine_config.codegen": codegen})
    run(geared({0: [2, 4]}, 2, 3), weight).backward()
    for rows in (4, 2):
        x, other = torch.randn(rows, 3), weight.detach().clone().requires_grad_()
        weight.grad = None
        run(x, weight).backward()
        (x @ other).relu().sum().backward()
        torch.testing.assert_close(weight.grad, other.grad)
    assert counters["stats"]["unique_graphs"] == 1
    assert len(taken) == 4, "two of the forward, two of the backward graph"


@pytest.mark.parametrize("trains", [True, False])
def test_who_makes_programs_for_gears(trains: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In training they are compiled in the first call: forward and backward programs that are made in the
    background would be taken one without the other.
    """
    ordered, here = [], []
    better = generate.better_gears
    monkeypatch.setattr(generate, "better_gears", lambda *given: ordered.append(1) or better(*given))
    # Served by the common program: who is asked, and when, is what counts here.
    monkeypatch.setattr(gears_module.GearProgram, "take", lambda self: here.append(1))
    weight = torch.randn(3, 3, requires_grad=trains)
    run = compile_dynamic(lambda x, w: (x @ w).relu().sum(), {"engine_config.codegen": "auto"})
    loss = run(geared({0: [2, 4]}, 2, 3), weight)
    assert (len(ordered), len(here)) == ((0, 1) if trains else (1, 0))
    if trains:
        loss.backward()
        assert (ordered, len(here)) == ([], 2), "forward and backward, each in its first call"


@pytest.mark.full
def test_training_is_compiled_in_the_first_call(taken: list[Any]) -> None:
    weight = torch.randn(3, 3, requires_grad=True)
    run = compile_dynamic(lambda x, w: (x @ w).relu().sum(), {"engine_config.codegen": "auto"})
    x, other = geared({0: [2, 4]}, 2, 3), weight.detach().clone().requires_grad_()
    run(x, weight).backward()
    assert [program.kind for program in taken] == ["inductor"] * 2, "at once, and of both"
    (x @ other).relu().sum().backward()
    torch.testing.assert_close(weight.grad, other.grad)


def test_a_joint_graph_has_no_gears() -> None:
    weight = torch.randn(3, 3, requires_grad=True)
    run = compile_dynamic(
        lambda x, w: (x @ w).relu().sum(), {"experimental_config.aot_config_enable_joint_graph": True}
    )
    x = geared({0: [2, 4]}, 2, 3)
    with pytest.warns(torchair.DegradedWarning, match="one program serves all sizes"):
        loss = run(x, weight)
    torch.testing.assert_close(loss.detach(), (x @ weight).relu().sum().detach())
