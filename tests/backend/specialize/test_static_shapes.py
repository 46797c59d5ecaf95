"""Kernels for single shapes: made in another process, taken over between two calls, same results."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

import torchair
from tests.support.simulated_device import SimulatedDevice
from tests.support.slow import slow
from torchair.backend.service import scheduler
from torchair.backend.service.request import (
    KERNELS,
    ORDER,
    CompileRequest,
    CompileResult,
    TensorMetadata,
    tensor_metadata_of,
)
from torchair.backend.service.scheduler import SCHEDULER, CompileTask, Job, Subtask
from torchair.backend.specialize import static_shapes
from torchair.backend.specialize.static_shapes import (
    OUTPUTS,
    StaticShapeCompiler,
    is_wanted,
    outputs_below,
    specialised,
)
from torchair.codegen import CodegenOptions
from torchair.core.diagnostics import Diagnostics
from torchair.core.errors import Degraded, DegradedWarning
from torchair.core.torch_private.fake.fake_tensors import make_fx
from torchair.devices import installed
from torchair.fxgraph.layout_check import OutputLayouts

pytestmark = pytest.mark.usefixtures("builds")


def gelu_of_product(x: torch.Tensor, weight: torch.Tensor) -> list[torch.Tensor]:
    y = torch.nn.functional.gelu(x @ weight)
    return [y.reshape(x.shape[0] * 2, -1) + x.shape[0]]


def traced() -> torch.fx.GraphModule:
    return make_fx(gelu_of_product, tracing_mode="symbolic")(torch.randn(3, 4), torch.randn(4, 4))


def test_symbols_become_numbers() -> None:
    args = [torch.randn(5, 4), torch.randn(4, 4)]
    gm = specialised(traced(), tensor_metadata_of(args))
    targets = [str(node.target) for node in gm.graph.nodes if node.op == "call_function"]
    assert not [target for target in targets if "sym_size" in target or "mul" in target]
    torch.testing.assert_close(gm(*args), gelu_of_product(*args))


@pytest.fixture
def untouched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Inductor's own directory, which is empty."""
    own = tmp_path / "inductor"
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(own))
    return own


def asked(before: Counter[str]) -> int:
    """How often Inductor was asked for a graph since then, in this process."""
    made = counters["inductor"] - before
    return made["fxgraph_cache_hit"] + made["fxgraph_cache_miss"] + made["fxgraph_cache_bypass"]


@pytest.mark.full
def test_kept_in_the_build_dir(tmp_path: Path, untouched: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels land there and nowhere else, and the next compilation finds them."""
    build = tmp_path / "new" / "build"
    cache = build / OUTPUTS / KERNELS
    model = torch.nn.Sequential(torch.nn.Linear(16, 24), torch.nn.Tanh()).eval()

    def check() -> None:
        """A program is taken, and nothing is compiled here."""
        torch.compiler.reset()
        programs: list[Any] = []
        take = Job.take
        monkeypatch.setattr(Job, "take", lambda job: programs.append(take(job)) or programs[-1])
        config = torchair.CompilerConfig()
        config.mode, config.engine_config.codegen = "npugraph_ex", "eager"
        config.experimental_config.aclgraph._aclnn_static_shape_kernel = True
        config.experimental_config.aclgraph._aclnn_static_shape_kernel_build_dir = str(build)
        run = torch.compile(model, backend=torchair.get_npu_backend(compiler_config=config))
        before = counters["inductor"].copy()
        with torch.no_grad():
            x = torch.randn(3, 16)
            run(x)
            assert SCHEDULER.wait(600), "the compiler process came back"
            torch.testing.assert_close(run(x), model(x))
        monkeypatch.setattr(Job, "take", take)
        (program,) = programs
        assert program.kind == "inductor"
        assert not asked(before)

    check()
    entries = sorted(cache.glob("fxgraph/*/*/*"))
    assert len(entries) == 1, "made by the compiler process"
    assert list(cache.rglob("*.so")), "the code itself"
    assert not untouched.exists() or not list(untouched.rglob("*.so"))
    assert not (untouched / "fxgraph").exists()
    (order,) = build.glob(f"{OUTPUTS}/ts*_pid{os.getpid()}_outputs/{ORDER}")
    assert order.with_name("compiler.log").is_file()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(untouched), "for this process all is as before"

    check()
    assert sorted(cache.glob("fxgraph/*/*/*")) == entries, "the second order made nothing new"


def test_unusable_build_dir_is_refused_or_warned_of(tmp_path: Path) -> None:
    group = torchair.CompilerConfig().experimental_config.aclgraph
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(ValueError, match=r"build_dir cannot be a directory: .*link is a symbolic link"):
        group._aclnn_static_shape_kernel_build_dir = str(tmp_path / "link" / "below")
    (tmp_path / OUTPUTS).write_text("in the way")  # since it was assigned
    late = job(Diagnostics(), outputs_below(str(tmp_path)))
    late.run()
    with pytest.warns(
        DegradedWarning, match=r"graph_t \(3,\) are not compiled: (NotADirectory|FileExists)Error"
    ):
        assert late.take() is None


def test_likes_keep_strides_and_numbers() -> None:
    like, number = tensor_metadata_of([torch.randn(4, 6).t(), 7])
    assert like == TensorMetadata((6, 4), (1, 6), torch.float32, torch.device("cpu"))
    assert number == 7


def test_stand_ins_share_memory_and_are_zero() -> None:
    """One tensor for all weights that are alike; rows that are one row stay so."""
    rows = torch.ones(4).expand(3, 4)
    args = [torch.ones(4, 6), torch.ones(4, 6), rows, torch.ones(2, dtype=torch.int64), 7]
    order = CompileRequest(b"", tensor_metadata_of(args), CodegenOptions())
    first, second, expanded, indices, number = order.stand_ins()
    assert first is second
    assert number == 7
    assert expanded.stride() == (0, 1)
    assert not any(tensor.any() for tensor in (first, expanded, indices))


def test_only_kernels_that_can_be_tuned_are_tried_out() -> None:
    order = CompileRequest(b"", tensor_metadata_of([torch.ones(2), 3]), CodegenOptions())
    assert not order.is_tuned()
    tunable = SimulatedDevice()
    tunable.tuned = {"coordinate_descent_tuning": True}
    with installed(tunable):
        assert order.is_tuned()


@pytest.mark.full
def test_a_trial_that_fails_or_never_ends_is_left_to_others() -> None:
    """In a process of its own, which the alarm ends."""
    code = (
        "import time\n"
        "from torchair.backend.service import worker_main\n"
        "from torchair.backend.service.request import CompileRequest\n"
        "from torchair.codegen import CodegenOptions\n"
        "def broken(args): raise RuntimeError\n"
        "def endless(args):\n"
        "    while True: time.sleep(0.01)\n"
        "order = CompileRequest(b'', [], CodegenOptions())\n"
        "worker_main.TRIAL_SECONDS = 1\n"
        "worker_main.load = lambda code: code\n"
        "worker_main.try_out(broken, order)\n"
        "print('on', flush=True)\n"
        "worker_main.try_out(endless, order)\n"
        "raise SystemExit(3)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "on\n"), done.stderr


@pytest.mark.parametrize(("values", "wanted"), [(None, True), ([5, 9], True), ([4], False), ([], False)])
def test_the_range_picks_keys(
    values: list[int] | None, wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = []
    monkeypatch.setattr(SCHEDULER, "give", lambda job: given.append(job) or job)
    args = [torch.randn(5, 4), torch.randn(4, 4), 3, 5]
    gm = make_fx(lambda x, w, a, b: gelu_of_product(x, w))(*args)
    wanted_by_range = partial(is_wanted, 1, values)
    kernels = StaticShapeCompiler(
        gm, "graph_t", CodegenOptions(), OutputLayouts(()), Diagnostics(), wanted=wanted_by_range
    )
    assert (kernels((3, 5), args) is not None) == wanted
    assert len(given) == wanted


def job(degradations: Diagnostics, root: str = "") -> Job:
    def tell(why: str) -> None:
        degradations.add(f"static kernels for graph_t (3,) are not {why}")

    part = Subtask(lambda: CompileRequest(b"no graph", [], CodegenOptions(), root=root))
    return Job(CompileTask("graph_t (3,)", [part], lambda built: built[0].program, tell))


class Lost:
    """Code that cannot be loaded."""

    kind = source = ""

    def load(self) -> Any:
        raise FileNotFoundError("it is gone")


@pytest.mark.parametrize(
    ("made", "told"),
    [
        ((None, "no compiler"), "not compiled: no compiler"),
        ((CompileResult(Lost()), ""), "not loaded: FileNotFoundError"),
    ],
)
def test_failing_static_kernel_warns(made: Any, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "compile_in_worker", lambda *order: made)
    given = job(Diagnostics())
    given.run()
    with pytest.warns(DegradedWarning, match=rf"static kernels for graph_t \(3,\) are {told}"):
        assert given.take() is None
    strict = job(Diagnostics(strict=True))
    strict.run()
    with pytest.raises(Degraded):
        strict.take()


@pytest.mark.parametrize(("world", "local", "told"), [
    (1, "", False), (4, "2", False), (4, "4", False), (4, "", True), (4, "3", True), (4, "0", True),
    (4, "x", True),
])  # fmt: skip
def test_of_several_processes_each_must_know_its_neighbours(
    world: int, local: str, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Job] = []
    monkeypatch.setattr(static_shapes, "world_size", lambda: world)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", local)
    monkeypatch.setattr(SCHEDULER, "give", lambda job: given.append(job) or job)
    kernels = StaticShapeCompiler(traced(), "graph_t", CodegenOptions(), OutputLayouts(()), Diagnostics())
    args = [torch.randn(5, 4), torch.randn(4, 4)]
    if told:
        with pytest.warns(DegradedWarning, match="4 processes, but LOCAL_WORLD_SIZE is"):
            assert kernels((5,), args) is None
    else:
        assert kernels((5,), args) is not None
    assert bool(given) is not told


def test_a_failing_job_does_not_end_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*order: Any) -> Any:
        raise OSError("no room")

    monkeypatch.setattr(scheduler, "compile_in_worker", fail)
    jobs = [job(Diagnostics()) for _ in range(2)]
    for each in jobs:
        SCHEDULER.give(each)
    assert SCHEDULER.wait(30)
    with pytest.warns(DegradedWarning, match="not compiled: OSError: no room"):
        assert [each.take() for each in jobs] == [None, None]


@pytest.mark.full
@pytest.mark.parametrize("force_eager", [False, slow(True)])
def test_taken_over_when_ready(monkeypatch: pytest.MonkeyPatch, force_eager: bool) -> None:
    """The whole way, with the real compiler process."""
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 8)).eval()
    options = {"static_kernel_compile": True, "codegen": "eager", "force_eager": force_eager}
    compiled = torch.compile(model, backend="npugraph_ex", dynamic=True, options=options)
    with torch.no_grad():
        first = torch.randn(3, 16)
        torch.testing.assert_close(compiled(first), model(first))
        assert SCHEDULER.wait(600), "the compiler process came back"
        taken: list[Any] = []
        take = Job.take
        monkeypatch.setattr(Job, "take", lambda job: taken.append(take(job)) or taken[-1])
        before = counters["inductor"].copy()
        for _ in range(3):
            x = torch.randn(3, 16)
            torch.testing.assert_close(compiled(x), model(x))
    assert [program.kind for program in taken] == ["inductor"]
    assert not asked(before), "loaded, neither traced nor compiled"
