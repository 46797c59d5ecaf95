"""Offline tuning: which way was the fastest is written down, used, and found by the next process."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import torchair
from tests.support.compile import Seen, watching
from tests.support.process import python
from tests.support.simulated_device import SimulatedDevice
from torchair.backend.pipeline import autotune, generate
from torchair.backend.pipeline.autotune import Trials
from torchair.configs.option import assign
from torchair.core.errors import BadOption, DegradedWarning
from torchair.core.program import Program
from torchair.devices import get_device

BOTH = [{"codegen": "inductor"}, {"codegen": "eager"}]
X = torch.randn(5, 8)


def gelu_of_gram(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(x @ x.t()) + 1


def config_in(folder: Path, **plan: Any) -> torchair.CompilerConfig:
    """Tuning in this folder, by a file that says so."""
    file = folder / "plan.json"
    file.write_text(json.dumps({"candidates": BOTH, "repeats": 1} | plan))
    config = torchair.CompilerConfig()
    config.aoe_config.aoe_mode = "2"
    config.aoe_config.work_path = str(folder)
    config.aoe_config.aoe_config_file = str(file)
    return config


def called(fn: Callable[..., Any], config: torchair.CompilerConfig, *args: Any, **rest: Any) -> Seen:
    """What is made of a function that is compiled anew and called twice, with the results of eager."""
    torch.compiler.reset()
    with watching() as seen, torch.no_grad():
        made = torchair.get_npu_backend(compiler_config=config)
        run = torch.compile(fn, backend=made, **{"dynamic": False} | rest)
        for _ in range(2):
            torch.testing.assert_close(run(*args), fn(*args))
    return seen


def result_in(folder: Path) -> dict[str, Any]:
    (path,) = folder.glob("aoe_result_*.json")
    return json.loads(path.read_text())


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The kinds of programs that were timed, in order; the last one named in `fastest` is the fastest."""
    kinds: list[str] = []
    seconds = Trials.seconds

    def watched(self: Trials, program: Program, args: Any) -> float:
        kinds.append(program.kind)
        assert seconds(self, program, args) > 0
        return 1.0 if program.kind == FASTEST[-1] else 2.0

    monkeypatch.setattr(Trials, "seconds", watched)
    yield kinds
    del FASTEST[1:]


FASTEST = ["eager"]


@pytest.mark.parametrize("fastest", ["eager", "inductor"])
def test_the_fastest_way_serves_and_is_found_again(fastest: str, tried: list[str], tmp_path: Path) -> None:
    FASTEST.append(fastest)
    seen = called(gelu_of_gram, config_in(tmp_path), X)
    assert tried == ["inductor", "eager"]
    assert seen.runner.program.kind == fastest
    found = result_in(tmp_path)
    assert found["best"] == {"codegen": fastest, "options": {}}
    assert [(each["codegen"], each["microseconds"]) for each in found["tried"]] == [
        (kind, 1e6 if kind == fastest else 2e6) for kind in ("inductor", "eager")
    ]
    again = called(gelu_of_gram, config_in(tmp_path), X)
    assert len(tried) == 2, "the second compilation tries nothing"
    assert again.runner.program.kind == fastest
    assert not isinstance(getattr(again.runner.program, "program", None), autotune.AutotunedProgram), (
        "nor chooses"
    )


SCRIPT = """
import sys, torch, torchair
from torchair.backend.pipeline.autotune import Trials
seconds, tried = Trials.seconds, []
Trials.seconds = lambda self, program, args: tried.append(program.kind) or seconds(self, program, args)
config = torchair.CompilerConfig()
config.aoe_config.aoe_mode = "2"
config.aoe_config.work_path, config.aoe_config.aoe_config_file = sys.argv[1:]
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.SiLU(), torch.nn.Linear(16, 4)).eval()
run = torch.compile(model, backend=torchair.get_npu_backend(compiler_config=config), dynamic=False)
with torch.no_grad():
    x = torch.randn(3, 8)
    torch.testing.assert_close(run(x), model(x))
print(*tried)
"""


@pytest.mark.full
def test_another_process_finds_what_was_tuned(tmp_path: Path) -> None:
    """Results and code are in the working directory, and nowhere else."""
    work, here = tmp_path / "work", tmp_path / "here"
    for folder in (work, here):
        folder.mkdir()
    (tmp_path / "plan.json").write_text(json.dumps({"candidates": BOTH, "repeats": 1}))

    def process() -> list[str]:
        done = python(["-c", SCRIPT, str(work), str(tmp_path / "plan.json")], here)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    assert process() == ["inductor", "eager"]
    files = {path: path.stat().st_mtime_ns for path in work.glob("aoe_result_*.json")}
    assert len(files) == 1
    assert list(work.glob(f"{autotune.CODE}/fxgraph/*/*/*")), "the code of what was tried"
    assert process() == []
    assert {path: path.stat().st_mtime_ns for path in work.glob("aoe_result_*.json")} == files
    assert list(here.iterdir()) == []


@pytest.mark.full
def test_autotune_tries_candidates_of_config_file(tried: list[str], tmp_path: Path) -> None:
    """Code generators, and options of Inductor that show in its code; and whether results count."""
    ways = [{"codegen": "inductor", "options": {"cpp.simdlen": 1}}]
    seen = called(gelu_of_gram, config_in(tmp_path, candidates=ways), X)
    assert tried == ["inductor"]
    assert "at::vec::" not in seen.runner.program.source
    assert result_in(tmp_path)["best"] == ways[0]

    called(gelu_of_gram, config_in(tmp_path, candidates=ways, again=True), X)
    assert tried == ["inductor"] * 2
    called(gelu_of_gram, config_in(tmp_path, candidates=ways), X)
    assert tried == ["inductor"] * 2

    called(gelu_of_gram, config_in(tmp_path, candidates=[{"codegen": "eager"}]), X)
    assert tried[2:] == ["eager"], "a result counts for the candidates that it was found among"


def test_so_many_runs_are_timed(tmp_path: Path) -> None:
    runs: list[int] = []

    def program(args: list[Any]) -> list[Any]:
        runs.append(1)
        return []

    trials = Trials(torch.device("cpu"), frozenset(), repeats=8)
    for _ in range(trials.rounds):
        trials.seconds(program, [])  # type: ignore[arg-type]
    assert len(runs) == 8 + trials.rounds, "and one before those of each round"


def test_all_have_their_turn_and_the_first_of_equals_wins(tried: list[str], tmp_path: Path) -> None:
    FASTEST.append("none of them")
    assert called(gelu_of_gram, config_in(tmp_path, repeats=4), X).runner.program.kind == "inductor"
    assert tried == ["inductor", "eager"] * 2


@pytest.mark.parametrize("text", [
    "no json", "[]", '{"candidate": []}', '{"candidates": []}', '{"candidates": [{"codegen": "cuda"}]}',
    '{"candidates": [{"options": {}}]}',
    '{"candidates": [{"codegen": "inductor", "options": {"no_such": 1}}]}',
    '{"candidates": [{"codegen": "inductor", "options": {"max_autotune": "yes"}}]}',
    '{"candidates": [{"codegen": "inductor", "options": {"cpp_wrapper": true}}]}',
    '{"candidates": [{"codegen": "eager", "options": {"max_autotune": true}}]}',
    '{"repeats": 0}', '{"repeats": true}', '{"again": 1}',
])  # fmt: skip
def test_a_file_that_is_no_plan_is_refused(text: str, tmp_path: Path) -> None:
    config = config_in(tmp_path)
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(BadOption, match=r"aoe_config_file .*plan.json is no tuning plan"):
        torchair.get_compiler(config)(torch.fx.symbolic_trace(gelu_of_gram), [X])


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"best": {"codegen": "cuda", "options": {}}}'])
def test_autotune_replaces_damaged_result(text: str, tried: list[str], tmp_path: Path) -> None:
    called(gelu_of_gram, config_in(tmp_path), X)
    (path,) = tmp_path.glob("aoe_result_*.json")
    whole = path.read_text()
    path.write_text(text)
    with pytest.warns(DegradedWarning, match=r"aoe_result_.*json is no result of tuning .* tuned again"):
        called(gelu_of_gram, config_in(tmp_path), X)
    assert len(tried) == 4
    assert json.loads(path.read_text())["best"] == json.loads(whole)["best"]


def test_symbolic_sizes_are_not_tuned(tried: list[str], tmp_path: Path) -> None:
    with pytest.warns(DegradedWarning, match="does not tune a graph: its sizes are symbols"):
        seen = called(gelu_of_gram, config_in(tmp_path), X, dynamic=True)
    assert (tried, list(tmp_path.glob("aoe_result_*"))) == ([], [])
    assert seen.runner.program.kind == "inductor"


@pytest.mark.parametrize(("path", "value"), [
    ("debug.run_eagerly", True), ("engine_config.codegen", "reference"), ("debug.data_dump.type", "npy"),
])  # fmt: skip
def test_ops_that_run_one_by_one_are_not_tuned(
    path: str, value: Any, tried: list[str], tmp_path: Path
) -> None:
    config = config_in(tmp_path)
    assign(config, path, value)
    if path.startswith("debug.data_dump"):
        config.debug.data_dump.path = str(tmp_path)
    with pytest.warns(DegradedWarning, match="does not tune a graph: its ops run one by one"):
        called(gelu_of_gram, config, X)
    assert tried == []


def test_a_code_generator_that_was_asked_for_stays(tried: list[str], tmp_path: Path) -> None:
    FASTEST.append("eager")
    config = config_in(tmp_path)
    config.engine_config.codegen = "inductor"
    called(gelu_of_gram, config, X)
    assert tried == ["inductor"]
    config = config_in(tmp_path, candidates=BOTH[:1])
    config.engine_config.codegen = "eager"
    with pytest.warns(DegradedWarning, match="its code generator is no candidate"):
        assert called(gelu_of_gram, config, X).runner.program.kind == "eager"
    assert tried == ["inductor"]


def test_autotune_options_without_mode_warn(tmp_path: Path) -> None:
    config = config_in(tmp_path)
    del config.aoe_config.aoe_mode
    with pytest.warns(DegradedWarning) as told:
        called(gelu_of_gram, config, X)
    assert [str(each.message).partition("=")[0] for each in told] == [
        "option aoe_config.work_path", "option aoe_config.aoe_config_file",
    ]  # fmt: skip


def test_trials_leave_no_trace(tried: list[str], tmp_path: Path) -> None:
    """Inputs are updated once, in place, and as many random numbers are drawn as by one call."""

    def step(cache: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        cache[:, 1:3].add_(x)
        return torch.nn.functional.dropout(x, 0.5) + cache.sum()

    memory = torch.zeros(4, 20)
    config = config_in(tmp_path)
    run = torch.compile(step, backend=torchair.get_npu_backend(compiler_config=config), dynamic=False)
    with torch.no_grad():
        run(memory[:, 2:8], torch.ones(4, 2))
        first = torch.get_rng_state()
        assert len(tried) == 2
        expected = torch.zeros(4, 20)
        expected[:, 3:5] = 1
        torch.testing.assert_close(memory, expected)
        torch.compiler.reset()
        torch.manual_seed(20240607)
        run(memory[:, 2:8], torch.ones(4, 2))
    assert len(tried) == 2
    assert torch.equal(torch.get_rng_state(), first)


def test_a_graph_with_other_effects_is_not_tuned(tried: list[str], tmp_path: Path) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        torchair.ops.npu_print("seen:", x)
        return x + 1

    with pytest.warns(DegradedWarning) as told:
        called(fn, config_in(tmp_path), X)
    texts = " ".join(str(t.message) for t in told)
    assert re.search(r"print\S* has effects that trials would repeat", texts), texts
    assert tried == []


def test_a_way_that_fails_is_left_out(
    tried: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Trials.seconds

    def fails(self: Trials, program: Program, args: Any) -> float:
        if program.kind == "eager":
            raise MemoryError("too large")
        return watched(self, program, args)

    monkeypatch.setattr(Trials, "seconds", fails)
    FASTEST.append("eager")
    assert called(gelu_of_gram, config_in(tmp_path), X).runner.program.kind == "inductor"
    assert result_in(tmp_path)["tried"][1]["failed"] == "MemoryError: too large"


def test_autotune_warns_if_fastest_candidate_fails(
    tried: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FASTEST.append("eager")
    called(gelu_of_gram, config_in(tmp_path), X)
    real = generate.build

    def broken(kind: str, *rest: Any) -> Program:
        if kind == "eager":
            raise RuntimeError("no longer")
        return real(kind, *rest)

    monkeypatch.setattr(generate, "build", broken)
    with pytest.warns(DegradedWarning, match="eager was the fastest, and now it fails .*no longer"):
        assert called(gelu_of_gram, config_in(tmp_path), X).runner.program.kind == "inductor"
    assert result_in(tmp_path)["best"]["codegen"] == "inductor"


def test_where_calls_are_replayed_recordings_are_timed(
    row: SimulatedDevice, tried: list[str], tmp_path: Path
) -> None:
    called(gelu_of_gram, torchair.CompilerConfig(), X)
    plainly = row.records, row.replays
    seen = called(gelu_of_gram, config_in(tmp_path), X)
    assert tried == ["inductor", "eager"]
    assert row.records == 2 * plainly[0] + 2, "one more of each way"
    assert row.replays == 2 * plainly[1] + 2, "as often as the file says"
    assert seen.runner.report().recordings


def test_nothing_is_tried_while_somebody_records(
    row: SimulatedDevice, tried: list[str], tmp_path: Path
) -> None:
    config = config_in(tmp_path)
    run = torch.compile(gelu_of_gram, backend=torchair.get_npu_backend(compiler_config=config), dynamic=False)
    row.capturing = True
    with torch.no_grad():
        run(X)
        assert tried == []
        row.capturing = False
        run(X)
    assert tried == ["inductor", "eager"]


def test_what_devices_offer_to_try() -> None:
    for kind in ("cpu", "cuda"):
        ways = get_device(torch.device(kind)).ways
        assert len(ways) > 2
        assert ways[0] == ("inductor", {})
