"""Serve at once, then get better: the eager program answers first, a better one takes over between calls."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges

import torchair
from tests.support.compile import compile_fn
from tests.support.models import mlp
from tests.support.simulated_device import SimulatedDevice
from tests.support.slow import slow
from torchair.backend.dynamo.entry_points import compile_fx
from torchair.backend.pipeline import tiered
from torchair.backend.service import request as order
from torchair.backend.service import scheduler
from torchair.backend.service.request import CompileRequest, CompileResult
from torchair.backend.service.scheduler import SCHEDULER, Job
from torchair.capture import PendingProgram
from torchair.capture.base.pending_program import ProgramsByKey, SwappableProgram
from torchair.codegen.base import guarded_program
from torchair.core.torch_private.fake.fake_tensors import lower_bound, make_fx

MODES = ["max-autotune", "npugraph_ex"]
pytestmark = pytest.mark.usefixtures("builds")


def compile_tiered(model: Any, mode: str, dynamic: bool = False, codegen: str = "auto", **engine: Any) -> Any:
    """Compile with the default code generator; `engine` are options of `engine_config`."""
    options = {f"engine_config.{name}": value for name, value in engine.items()}
    return compile_fn(model, options, mode, codegen, dynamic=dynamic)


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """Those that were made."""
    made: list[Job] = []
    add = Job.__init__

    def note(job: Job, *args: Any) -> None:
        made.append(job)
        add(job, *args)

    monkeypatch.setattr(Job, "__init__", note)
    return made


class Quick:
    """Builds without a compiler or another process: eager code, of the graph as it was sent."""

    def __init__(self) -> None:
        self.orders: list[CompileRequest] = []
        self.made: list[CompileResult] = []
        self.gate = threading.Event()
        self.gate.set()
        self.failed = ""
        self.conditions: tuple[Any, ...] = ()

    def __call__(
        self, order: CompileRequest, folder: Path, seconds: float | None = None
    ) -> tuple[CompileResult | None, str]:
        self.orders.append(order)
        assert self.gate.wait(600)
        if self.failed:
            return None, self.failed
        self.made.append(replace(replace(order, kinds=("eager",)).fill(), conditions=self.conditions))
        return self.made[-1], ""


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[Quick]:
    made = Quick()
    monkeypatch.setattr(scheduler, "compile_in_worker", made)
    yield made
    made.gate.set()
    assert SCHEDULER.wait(60)


def kinds_of(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    taken: list[str] = []
    take = Job.take

    def note(job: Job) -> Any:
        program = take(job)
        taken.append("none" if program is None else program.kind)
        return program

    monkeypatch.setattr(Job, "take", note)
    return taken


@pytest.mark.parametrize(
    ("mode", "dynamic"), [("max-autotune", True), slow("npugraph_ex", False), slow("npugraph_ex", True)]
)
def test_the_whole_way(mode: str, dynamic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the real compiler: nothing is compiled in this process, and what takes over is a library."""
    taken, news = kinds_of(monkeypatch), list[Any]()
    torchair.on_optimised(news.append)
    model = mlp(16, 32, 8, norm=True)
    run = compile_tiered(model, mode, dynamic)
    before = counters["inductor"].copy()
    with torch.no_grad():
        x = torch.randn(4, 16)
        torch.testing.assert_close(run(x), model(x), rtol=0, atol=0)  # the very ops of the model
        assert not taken
        assert torchair.wait_until_optimised(600)
        for rows in (4, 4, 7, 2) if dynamic else (4, 4):
            x = torch.randn(rows, 16)
            torch.testing.assert_close(run(x), model(x))
    assert taken == ["native"]
    assert [each.codegen for each in news] == ["native"]
    assert not counters["inductor"] - before, "neither traced nor compiled here"


@pytest.mark.parametrize("mode", MODES)
def test_swapped_between_two_calls(mode: str, quick: Quick, monkeypatch: pytest.MonkeyPatch) -> None:
    taken, model = kinds_of(monkeypatch), mlp(16, 32, 8, norm=True)
    run = compile_tiered(model, mode)
    quick.gate.clear()
    with torch.no_grad():
        x = torch.randn(4, 16)
        want = model(x)
        for _ in range(3):
            torch.testing.assert_close(run(x), want)
        while not quick.orders:
            time.sleep(0.01)
        torch.testing.assert_close(run(x), want)
        assert not taken
        quick.gate.set()
        assert torchair.wait_until_optimised(60)
        for _ in range(3):
            torch.testing.assert_close(run(x), want)
    assert taken == ["eager"]
    (order,) = quick.orders
    assert order.kinds == ("native", "inductor")


def test_a_graph_that_is_called_once_is_not_built(quick: Quick, jobs: list[Job]) -> None:
    run = compile_tiered(mlp(16, 32, 8, norm=True), "max-autotune")
    with torch.no_grad():
        run(torch.randn(4, 16))
        assert len(jobs) == 1
        assert not quick.orders
        run(torch.randn(4, 16))
    assert SCHEDULER.wait(60)
    assert len(quick.orders) == 1


def test_recordings_are_made_anew(
    row: SimulatedDevice, quick: Quick, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken, model = kinds_of(monkeypatch), mlp(16, 32, 8, norm=True)
    run = compile_tiered(model, "npugraph_ex", dynamic=True)
    quick.gate.clear()
    sizes = (4, 4, 4, 6, 6, 6)
    with torch.no_grad():
        for rows in sizes:
            x = torch.randn(rows, 16)
            torch.testing.assert_close(run(x), model(x))
        assert row.captures == 2
        assert not taken
        quick.gate.set()
        assert torchair.wait_until_optimised(60)
        for rows in (*sizes, 9, 9, 9, *sizes):
            x = torch.randn(rows, 16)
            torch.testing.assert_close(run(x), model(x))
    assert set(taken) == {"eager"}
    assert row.captures == 2 + 3, "each size once more, and a new one once"
    assert len(quick.orders) == 1


def test_quick_replays_go_on_while_a_program_is_built(row: SimulatedDevice, quick: Quick) -> None:
    quick.gate.clear()
    gm = make_fx(lambda x: [x.sin() * 2])(torch.randn(3))
    runner = compile_fx(gm, [torch.randn(3)], {}).runner
    x = torch.randn(3)
    for _ in range(3):
        runner.run(x)
    fast = runner.plain_fast_path
    assert fast is not None
    assert fast((x,)) is not None
    quick.gate.set()
    assert SCHEDULER.wait(60)
    assert fast((x,)) is None, "this call takes the better program"
    for _ in range(3):
        torch.testing.assert_close(runner.run(x), [x.sin() * 2])
    assert fast((x,)) is not None


@pytest.mark.parametrize("mode", MODES)
def test_random_numbers_stay_the_same(mode: str, quick: Quick) -> None:
    """Inductor is told to draw what the ops draw."""
    model = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.5)).train()
    run = compile_tiered(model, mode)
    with torch.no_grad():
        for _ in range(2):
            run(torch.randn(4, 16))
        assert SCHEDULER.wait(60)
    (order,) = quick.orders
    assert order.how.options == tiered.SAME_NUMBERS


@pytest.mark.full
@pytest.mark.parametrize("mode", MODES)
def test_random_numbers_are_the_same(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the real compiler."""
    taken = kinds_of(monkeypatch)
    model = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.5)).train()
    run = compile_tiered(lambda x: model(x) + torch.rand_like(x) + torch.randn(4, 1), mode)
    x = torch.randn(4, 16)
    with torch.no_grad():
        torch.manual_seed(3)
        first = run(x)
        assert torchair.wait_until_optimised(600)
        run(x)
        torch.manual_seed(3)
        torch.testing.assert_close(run(x), first)
    assert taken in (["native"], ["inductor"])


def test_tiered_without_budget_submits_no_job(quick: Quick, jobs: list[Job]) -> None:
    run = compile_tiered(mlp(16, 32, 8, norm=True), "max-autotune", compile_budget_s=0)
    with torch.no_grad():
        for _ in range(3):
            run(torch.randn(4, 16))
    assert torchair.wait_until_optimised(60)
    assert not jobs


def test_a_budget_that_is_used_up(quick: Quick, jobs: list[Job], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SCHEDULER, "_spent", 10.0)
    run = compile_tiered(mlp(16, 32, 8, norm=True), "max-autotune", compile_budget_s=5)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")  # it was the user's wish
        for _ in range(3):
            run(torch.randn(4, 16))
        assert torchair.wait_until_optimised(60)
        run(torch.randn(4, 16))
    assert not quick.orders
    assert "compile_budget_s" in jobs[0].failed


def test_the_very_same_in_all_calls(jobs: list[Job]) -> None:
    torch.use_deterministic_algorithms(True)
    try:
        run = compile_tiered(mlp(16, 32, 8, norm=True), "max-autotune")
        with torch.no_grad():
            for _ in range(3):
                run(torch.randn(4, 16))
    finally:
        torch.use_deterministic_algorithms(False)
    assert not jobs


def test_a_build_that_fails_costs_nothing(quick: Quick) -> None:
    quick.failed = "no compiler here"
    model = mlp(16, 32, 8, norm=True)
    run = compile_tiered(model, "npugraph_ex")
    x = torch.randn(4, 16)
    with torch.no_grad():
        run(x), run(x)
        assert torchair.wait_until_optimised(60)
        with pytest.warns(
            torchair.DegradedWarning, match="a better program is not compiled: no compiler here"
        ):
            torch.testing.assert_close(run(x), model(x))
        torch.testing.assert_close(run(x), model(x))


@pytest.mark.parametrize("mode", MODES)
def test_forward_and_backward_together(mode: str, quick: Quick, jobs: list[Job]) -> None:
    model = mlp(16, 32, 8, norm=True)
    run = compile_tiered(model, mode)
    x = torch.randn(4, 16)

    def step() -> None:
        model.zero_grad()
        run(x).square().sum().backward()
        got = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        model.zero_grad()
        model(x).square().sum().backward()
        torch.testing.assert_close(got, [p.grad for p in model.parameters()])

    quick.gate.clear()
    step(), step()
    assert len(jobs) == 2
    assert [job.is_done.is_set() for job in jobs] == [False, False]
    forward = jobs[0]
    forward.has_ended = True
    forward.task.together.ended()
    assert not forward.is_done.is_set(), "it waits for the backward"
    forward.has_ended = False
    quick.gate.set()
    assert torchair.wait_until_optimised(60)
    assert [job.is_done.is_set() for job in jobs] == [True, True]
    assert [order.how.backward for order in quick.orders] == [False, True]
    step(), step()


def test_together_none_is_taken_where_one_fails() -> None:
    pair = scheduler.SwapGroup()
    task = scheduler.CompileTask("t", [], lambda built: built[0].program, lambda why: None, together=pair)
    first, second = Job(task), Job(task)
    first.end()
    assert not first.is_done.is_set()
    second.end("no way")
    assert first.is_done.is_set()
    assert first.take() is None


def test_ops_of_this_process_are_compiled_in_the_first_call(jobs: list[Job]) -> None:
    name = "torchair_test_better::twice"
    if not hasattr(torch.ops.torchair_test_better, "twice"):
        op = torch.library.custom_op(name, lambda x: x * 2, mutates_args=(), schema="(Tensor x) -> Tensor")
        op.register_fake(torch.empty_like)
    gm = make_fx(lambda x: [torch.ops.torchair_test_better.twice(x) + 1])(torch.randn(3))
    compile_fx(gm, [torch.randn(3)], {"codegen": "auto"})
    assert not jobs


def test_sizes_that_do_not_fit(quick: Quick) -> None:
    """What was compiled for some sizes serves these alone."""
    run = compile_tiered(lambda x: x.relu() + x.shape[0], "npugraph_ex", dynamic=True)
    quick.gate.clear()
    with torch.no_grad():
        for rows in (4, 5):
            run(torch.randn(rows, 3))
        while not quick.orders:
            time.sleep(0.01)
        seen = next(each for each in quick.orders[0].symbols.seen if each.example == 4)
        quick.conditions = (seen.symbol < 5,)
        quick.gate.set()
        assert SCHEDULER.wait(60)
        for rows in (4, 5, 4, 9, 2):
            x = torch.randn(rows, 3)
            torch.testing.assert_close(run(x), x.relu() + rows)


class Numbers:
    """Reads the arguments themselves."""

    def reader(self, args: list[Any]) -> Any:
        return SimpleNamespace(values=dict(enumerate(args)))


def test_numbers_of_the_users_are_new_in_every_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is known of them does not grow for ever."""
    monkeypatch.setattr(guarded_program, "REMEMBERED", 3)
    made = guarded_program.Fitting(lambda args: args, None, (), Numbers())  # type: ignore[arg-type]
    for n in range(10):
        assert made([n]) == [n]
        assert len(made._known) <= 3


def test_numbers_without_bounds_have_none() -> None:
    gm = make_fx(lambda x, n: [x * n], tracing_mode="symbolic")(torch.randn(3), 5)
    values = [node.meta["val"] for node in gm.graph.find_nodes(op="placeholder")]
    number = values[1]
    assert isinstance(number, torch.SymInt)
    number.node.shape_env.var_to_range[number.node.expr] = ValueRanges(-int_oo, int_oo)
    assert lower_bound(number) == -1


def test_conditions_are_those_of_the_build_alone() -> None:
    """What the graph was traced for is known there, and asked by nobody."""

    def function(x: torch.Tensor) -> list[torch.Tensor]:
        return [x.sin() if x.shape[0] % 4 == 0 and x.shape[0] < 100 else x.cos()]

    gm = make_fx(function, tracing_mode="symbolic")(torch.randn(8, 3))
    (x,) = [node.meta["val"] for node in gm.graph.find_nodes(op="placeholder")]
    symbols = tiered.Symbols.of(order.symbols_of([x]))
    assert {str(fact).count("Mod") for fact in symbols.facts} == {0, 1}
    world = symbols.world()
    again = [world.number(size) for size in tiered.tensor_metadata_of([x])[0].size]
    assert bool(again[0] % 4 == 0)
    assert not world.conditions()
    assert bool(again[0] == 8)
    assert [str(each) for each in world.conditions()] == [f"Eq({symbols.seen[0].symbol}, 8)"]


def test_scheduler_runs_compile_workers_in_parallel(quick: Quick, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many at the same time."""
    fresh = scheduler.CompileScheduler()
    monkeypatch.setattr(scheduler, "SCHEDULER", fresh)
    quick.gate.clear()
    runs = [compile_tiered(lambda x, n=n: x.sin() + n, "npugraph_ex", compile_workers=2) for n in range(3)]
    with torch.no_grad():
        for run in runs:
            run(torch.ones(3)), run(torch.ones(3))
    end = time.monotonic() + 30
    while len(quick.orders) < 2 and time.monotonic() < end:
        time.sleep(0.01)
    time.sleep(0.2)
    assert len(quick.orders) == 2
    quick.gate.set()
    assert fresh.wait(60)
    assert len(quick.orders) == 3


def test_the_most_called_come_first(quick: Quick, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = scheduler.CompileScheduler()
    monkeypatch.setattr(scheduler, "SCHEDULER", fresh)
    quick.gate.clear()
    runs = [compile_tiered(lambda x, n=n: x.sin() + n, "npugraph_ex") for n in range(3)]
    with torch.no_grad():
        for n, calls in enumerate((2, 3, 9)):
            for _ in range(calls):
                runs[n](torch.ones(3 + n))
    quick.gate.set()
    assert fresh.wait(60)
    assert [order.likes[0].size for order in quick.orders] == [(3,), (5,), (4,)]


def test_many_threads_while_programs_are_swapped(row: SimulatedDevice, quick: Quick) -> None:
    model = mlp(16, 32, 8, norm=True)
    run = compile_tiered(model, "npugraph_ex", dynamic=True)
    wrong: list[str] = []
    quick.gate.clear()

    def call(number: int) -> None:
        with torch.no_grad():
            for step in range(30):
                x = torch.full((2 + (number + step) % 5, 16), float(step))
                if not torch.allclose(run(x), model(x), atol=1e-5):
                    wrong.append(f"{number} {step}")

    with torch.no_grad():
        run(torch.randn(3, 16)), run(torch.randn(4, 16))
    threads = [threading.Thread(target=call, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    quick.gate.set()
    for thread in threads:
        thread.join()
    assert not wrong


class Offset:
    """Where an input begins in its storage, and what the process is set to, decide what is computed."""

    memory = torch.arange(40.0)

    @staticmethod
    def window(x: torch.Tensor) -> torch.Tensor:
        return torch.as_strided(x, (3, 2), (2, 1), 7) * 2 + torch.ones(2)


@pytest.mark.filterwarnings("ignore:aten.as_strided.default has no converter")
@pytest.mark.parametrize("mode", MODES)
def test_windows_of_inputs_that_begin_later(mode: str, quick: Quick) -> None:
    run = compile_tiered(Offset.window, mode)
    x = Offset.memory[5:25]
    with torch.no_grad():
        run(x), run(x)
        assert SCHEDULER.wait(60)
    like = quick.orders[0].likes[0]
    assert like.offset == 5
    assert like.make().storage_offset() == 5


@pytest.mark.full
def test_windows_and_types_by_the_real_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    taken, x = kinds_of(monkeypatch), Offset.memory[5:25].double()
    torch.set_default_dtype(torch.float64)
    try:
        run = compile_tiered(Offset.window, "npugraph_ex")
        with torch.no_grad():
            run(x)
            assert torchair.wait_until_optimised(600)
            torch.testing.assert_close([run(x), run(x)], [Offset.window(x)] * 2)
    finally:
        torch.set_default_dtype(torch.float32)
    assert taken == ["native"]


def test_words_for_precision_that_torch_does_not_mix(quick: Quick) -> None:
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        run = compile_tiered(lambda x: x @ x, "npugraph_ex")
        with torch.no_grad():
            x = torch.randn(4, 4)
            run(x), run(x)
            assert SCHEDULER.wait(60)
            torch.testing.assert_close(run(x), x @ x)
    finally:
        torch.backends.cuda.matmul.fp32_precision = "none"
    assert quick.orders[0].surroundings.switches["cuda.matmul.fp32_precision"] == "tf32"


def test_what_cannot_be_ordered_is_served(jobs: list[Job], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise LookupError("no such thing")

    monkeypatch.setattr(tiered.TorchState, "now", fail)
    model, x = mlp(16, 32, 8, norm=True), torch.randn(4, 16)
    run = compile_tiered(model, "npugraph_ex")
    with torch.no_grad(), pytest.warns(torchair.DegradedWarning, match="not ordered: LookupError: no such"):
        torch.testing.assert_close(run(x), model(x))
    assert not jobs


def test_nothing_holds_what_was_built(quick: Quick, jobs: list[Job]) -> None:
    run = compile_tiered(mlp(16, 32, 8, norm=True), "npugraph_ex")
    with torch.no_grad():
        run(torch.randn(4, 16)), run(torch.randn(4, 16))
        assert SCHEDULER.wait(60)
    job = weakref.ref(jobs[0])
    del run
    jobs.clear()
    torch.compiler.reset()
    end = time.monotonic() + 30
    while job() is not None and time.monotonic() < end:
        gc.collect()
        time.sleep(0.05)
    assert job() is None


def test_callbacks_that_end_or_wait(quick: Quick, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh, told = scheduler.CompileScheduler(), list[bool]()
    monkeypatch.setattr(scheduler, "SCHEDULER", fresh)

    def end(news: Any) -> None:
        raise SystemExit(3)

    fresh.listen(end)
    fresh.listen(lambda news: told.append(torchair.wait_until_optimised()))
    for n in range(2):
        run = compile_tiered(lambda x, n=n: x.sin() + n, "npugraph_ex")
        with torch.no_grad():
            run(torch.ones(3)), run(torch.ones(3))
        assert fresh.wait(60)
    assert told == [True, True]


def test_no_more_threads(quick: Quick, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when Python is about to end."""
    fresh = scheduler.CompileScheduler()
    monkeypatch.setattr(scheduler, "SCHEDULER", fresh)

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread")

    run = compile_tiered(lambda x: x.sin() + 5, "npugraph_ex", program_cache_mb=0)
    with torch.no_grad(), monkeypatch.context() as patch:
        run(torch.ones(3))
        patch.setattr(threading.Thread, "start", refuse)
        for _ in range(3):
            torch.testing.assert_close(run(torch.ones(3)), torch.ones(3).sin() + 5)
        assert fresh.wait(60)
    assert not quick.orders


def test_threads_that_call_at_the_same_time_ask(quick: Quick) -> None:
    """A call that is counted beside another is not the second one, but the third."""
    pending = scheduler.Job(
        scheduler.CompileTask("t", lambda: None, lambda program, made: program, lambda why: None)  # type: ignore[arg-type,return-value]
    )
    growing = SwappableProgram(lambda args: args, pending)  # type: ignore[arg-type]
    growing._calls = 2
    growing([])
    assert pending.is_asked
    assert SCHEDULER.wait(60)


@pytest.mark.parametrize("calls", [1, 2])
def test_a_child_of_this_process_builds_anew(calls: int, quick: Quick) -> None:
    """Of the threads that build it has none."""
    run = compile_tiered(lambda x: x.sin() + 7, "npugraph_ex", program_cache_mb=0)
    quick.gate.clear()
    with torch.no_grad():
        for _ in range(calls):
            run(torch.ones(3))
    child = os.fork()
    if child == 0:
        quick.gate.set()
        quick.orders.clear()
        with torch.no_grad():
            run(torch.ones(3))
        os._exit(0 if torchair.wait_until_optimised(60) and quick.orders else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_sizes_with_programs_of_their_own_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing is recorded too: when they come again."""
    pending = PendingProgram()
    programs = ProgramsByKey(lambda args: args, lambda key, args: pending)  # type: ignore[arg-type]
    programs.ask("key", [])
    programs.of("key")([])
    assert not pending.is_asked
    programs.of("key")([])
    assert pending.is_asked


SCRIPT = """
import torch, torchair, time
run = torch.compile(torch.nn.Linear(4, 4), backend="npugraph_ex")
with torch.no_grad():
    for _ in range(3):
        run(torch.randn(2, 4))
time.sleep(1)
"""


@pytest.mark.parametrize("is_killed", [slow(False), True])
def test_the_process_ends_without_waiting(is_killed: bool, tmp_path: Path) -> None:
    def builders() -> list[str]:
        done = subprocess.run(["ps", "-ewwo", "args"], capture_output=True, text=True, check=True)
        lines = [line for line in done.stdout.splitlines() if "torchair.backend.service.worker_main" in line]
        return [line for line in lines if str(tmp_path) in line]

    path = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(tmp_path)])
    place = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": path}
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT], env=place, stdout=subprocess.PIPE, text=True
    ) as script:
        end = time.monotonic() + 120
        while not builders() and time.monotonic() < end:
            time.sleep(0.1)
        assert builders(), "a program is being built"
        if is_killed:
            script.kill()
        assert script.wait(30) == (-signal.SIGKILL if is_killed else 0)
    while builders() and time.monotonic() < end:
        time.sleep(0.1)
    assert not builders()
    assert not list(tmp_path.glob("torchair-order-*"))


@pytest.mark.full
@pytest.mark.parametrize("is_beside", [False, True])
def test_modules_with_names_of_pythons(is_beside: bool, tmp_path: Path) -> None:
    """In the working directory, or beside the script: what this process does not find, the other does not."""
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    for name in ("types", "enum") if is_beside else ("types", "json", "random", "queue"):
        place = scripts if is_beside else tmp_path
        (place / f"{name}.py").write_text("raise SystemExit('not this one')\n")
    script = scripts / "work.py"
    head = "import sys; sys.path.append(sys.path.pop(0))\n" if is_beside else ""
    script.write_text(head + ORDERED)
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "eager", done.stderr


ORDERED = """
from pathlib import Path
import tempfile, torch, torchair
from torchair.backend.service.request import CompileRequest, tensor_metadata_of
from torchair.backend.service.worker_pool import compile_in_worker
from torchair.codegen import CodegenOptions
from torchair.core.torch_private.fake.fake_tensors import dump_graph, make_fx
x = torch.randn(3)
gm = make_fx(lambda x: [x.sin()])(x)
for node in gm.graph.nodes:
    node.meta = {}
with tempfile.TemporaryDirectory() as folder:
    request = CompileRequest(dump_graph(gm), tensor_metadata_of([x]), CodegenOptions(), ("eager",))
    made, why = compile_in_worker(request, Path(folder))
print(why or made.code.kind)
"""


@pytest.mark.full
def test_a_process_that_builds_has_loaded_what_decompositions_count_on() -> None:
    """In torch, that of max_pool2d asks a module that nobody else may have imported."""
    code = (
        "import sys\n"
        "from torchair.core.torch_private.compilers.inductor import inductor_decompositions\n"
        "assert 'torch._inductor.lowering' not in sys.modules\n"
        "inductor_decompositions()\n"
        "assert 'torch._inductor.lowering' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
