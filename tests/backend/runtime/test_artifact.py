"""Compile results as data: another process runs them without tracing, converting or compiling anything."""

from __future__ import annotations

import hashlib
import os
import pickle
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx._graph_pickler import GraphPickler
from torch.fx.experimental.proxy_tensor import make_fx

import torchair
from tests.models.zoo import ROWS
from tests.support.compile import make_config, seen_with, watching
from tests.support.process import python
from tests.support.slow import slow
from torchair.backend.runtime.artifact import ChainCode, CompiledArtifact
from torchair.backend.runtime.compiled_graph import CompiledGraph
from torchair.capture import CompiledProgram, Runner, RunnerOptions, capture
from torchair.core.errors import BadGraph, Degraded, NotPossible
from torchair.core.program import Program, ProgramWrapper
from torchair.core.storage.serialization import pack, unpack
from torchair.core.torch_private.compilers.inductor import code_kept_in
from torchair.core.torch_private.compilers.inductor_modules import CodeFile, GeneratedModule
from torchair.ops.streams import stream_ops

# Inductor does not help; of the C++ compiler it asks no more than who it is.
SCRIPT = """
import torch
import torch._inductor.compile_fx as inductor

def refuse(*args, **kwargs):
    raise AssertionError("a compile result is not compiled again")

inductor.compile_fx_inner = refuse
from torchair.backend.pipeline import compile, ir
from torchair.backend.runtime.artifact import CompiledArtifact

compile.compile_fx = ir.convert = ir.lower = refuse
data = torch.load("data.pt")
runner = CompiledArtifact.unpack(data["artefact"]).runner()
assert runner.program.kind == data["kind"], runner.program.kind
for args, expected in data["calls"]:
    torch.manual_seed(3)
    results = runner.run(*args)
    torch.testing.assert_close((list(results), args), expected, equal_nan=True)
print("equal")
"""


def elsewhere(runner: Runner, calls: list[tuple[list[Any], Any]], folder: Path) -> None:
    """The runner, in another process with empty caches and no compiler."""
    data = {"artefact": CompiledArtifact.of(runner).pack(), "kind": runner.program.kind, "calls": calls}
    torch.save(data, folder / "data.pt")
    empty = {"TORCHINDUCTOR_CACHE_DIR": str(folder / "cache"), "TORCHAIR_CACHE_HOME": str(folder / "air")}
    done = python(["-c", SCRIPT], folder, **empty)
    assert done.stdout.strip() == "equal", done.stderr[-3000:]


def called(runner: Runner, *args: Any) -> tuple[list[Any], Any]:
    """Arguments, and what becomes of them and of a call."""
    before, given = _copies(args), _copies(args)
    torch.manual_seed(3)
    return before, (_copies(runner.run(*given)), given)


def _copies(values: Any) -> list[Any]:
    return [value.detach().clone() if isinstance(value, torch.Tensor) else value for value in values]


TABLE = list(range(5000))


def work(x: torch.Tensor, y: torch.Tensor) -> list[Any]:
    """Constants, large and small, an update in place, views of an input and of a result, numbers."""
    x.copy_((x @ y).relu() + torch.tensor([1.0, float("nan"), -0.0]))
    z = torch.softmax(y, -1) + torch.tensor(TABLE)[7] * x.shape[0]
    return [z, z.t(), y.view(-1), y[1:], x.shape[0] * 2, torch.rand(4)]


def made(fn: Callable[..., Any], codegen: str, *args: torch.Tensor, mode: str = "symbolic") -> CompiledGraph:
    gm = make_fx(fn, tracing_mode=mode)(*[arg.clone() for arg in args])
    inputs = [node.meta["val"] for node in gm.graph.find_nodes(op="placeholder")]
    config = make_config({"engine_config.codegen": codegen})
    return torchair.get_compiler(config)(gm, inputs)


@pytest.mark.parametrize("codegen", ["eager", slow("inductor"), "reference", slow("native")])
def test_a_graph_in_another_process(codegen: str, tmp_path: Path) -> None:
    runner = made(work, codegen, torch.randn(5, 3), torch.randn(3, 3)).runner
    calls = [called(runner, torch.randn(rows, 3), torch.randn(3, 3)) for rows in (5, 7, 5)]
    elsewhere(runner, calls, tmp_path)


@contextmanager
def keeping() -> Iterator[list[tuple[Runner, list[Any]]]]:
    """What is compiled in here: a runner of each graph, and the calls that the graph gets."""
    kept: list[tuple[Runner, list[Any]]] = []

    def capture_kept(compiled: CompiledProgram, around: RunnerOptions) -> Runner:
        calls: list[Any] = []
        kept.append((capture(compiled, around), calls))
        return capture(replace(compiled, program=Kept(compiled.program, calls)), around)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torchair.backend.pipeline.link.capture", capture_kept)
        yield kept


class Kept(ProgramWrapper):
    """Remembers what it was called with, and what came of it."""

    def __init__(self, program: Program, calls: list[Any]) -> None:
        self.program = program
        self._calls = calls

    def __call__(self, args: list[Any]) -> list[Any]:
        before, given = _copies(args), list(args)
        results = self.program(args)
        self._calls.append((before, (_copies(results), _copies(given))))
        return results


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("mode", ["max-autotune", "npugraph_ex"])
@pytest.mark.parametrize("codegen", ["eager", slow("inductor"), slow("native")])
@pytest.mark.parametrize("row", [r if r.name == "llama" else slow(r) for r in ROWS], ids=lambda row: row.name)
def test_artifact_of_each_model_runs_in_another_process(
    row: Any, codegen: str, mode: str, dynamic: bool, tmp_path: Path
) -> None:
    """Each graph of a model, with its weights as inputs."""
    backend = torchair.get_npu_backend(compiler_config=make_config({"engine_config.codegen": codegen}, mode))
    torch.compiler.reset()
    with keeping() as kept, torch.no_grad(), torch._dynamo.config.patch(row.dynamo):
        run = torch.compile(row.model(), backend=backend, dynamic=dynamic)
        for shape in row.shapes[: 2 if dynamic else 1]:
            run(**row.feed(shape))
    assert kept
    for runner, calls in kept:
        assert calls
        elsewhere(runner, calls, tmp_path)


@pytest.mark.usefixtures("row")
@pytest.mark.filterwarnings("ignore:a graph is recorded in:torchair.DegradedWarning")
def test_a_graph_in_pieces() -> None:
    """Loaded again, the pieces are recorded, and the host does the rest."""
    config = make_config({}, "npugraph_ex")

    def step(x: torch.Tensor) -> torch.Tensor:
        kept = x.sin()
        return kept.masked_select(kept > 0).exp().sum() + x.cos()

    with (
        watching() as seen,
        torch.no_grad(),
        torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True),
    ):
        run = torch.compile(step, backend=torchair.get_npu_backend(compiler_config=config), dynamic=False)
        x = torch.randn(8)
        torch.testing.assert_close(run(x), step(x))
    whole = next(runner for runner in seen.runners if runner.strategy.parts)
    artefact = CompiledArtifact.of(whole)
    assert isinstance(artefact.code, ChainCode)
    loaded = CompiledArtifact.unpack(artefact.pack()).runner()
    for _ in range(6):
        x = torch.randn(8)
        torch.testing.assert_close(loaded.run(x)[0], step(x))
    assert sum(row.replays for part in loaded.strategy.parts for row in part.report().recordings) > 0


@torch.library.custom_op("artefact_test::write", mutates_args={"x"})
def write(x: torch.Tensor) -> None:
    """An op that the IR carries through with Python objects."""
    x.add_(1)


def rows(x: torch.Tensor) -> torch.Tensor:
    write(x)
    return x.sin()


@pytest.mark.filterwarnings("ignore::torchair.DegradedWarning")
def test_the_text_of_a_graph_with_python_objects() -> None:
    runner = seen_with({"engine_config.codegen": "reference"}, rows, torch.randn(3)).runner
    assert runner.program.standalone() is None
    loaded = CompiledArtifact.unpack(CompiledArtifact.of(runner).pack()).runner()
    x = torch.randn(3)
    given = x.clone()
    torch.testing.assert_close(list(loaded.run(given)), list(runner.run(x)))
    torch.testing.assert_close(given, x)


@pytest.mark.parametrize("strict", [False, True])
def test_programs_in_a_loaded_runner_tell_it_what_is_less(strict: bool) -> None:
    """With the line that the graph begins with; in strict mode as an error."""

    def window(x: torch.Tensor) -> torch.Tensor:
        return torch.as_strided(x, (2, 2), (3, 1), 1) + 1

    options = {"engine_config.codegen": "inductor", "engine_config.strict": strict}
    runner = seen_with(options, window, torch.randn(6, 5), dynamic=False).runner
    loaded = CompiledArtifact.unpack(CompiledArtifact.of(runner).pack()).runner()
    begins = r"begins at 5 of its storage.*test_artifact\.py"
    with pytest.raises(Degraded, match="begins at 5") if strict else pytest.warns(match=begins):
        loaded.run(torch.randn(7, 5)[1:])
    assert any("begins at 5" in text for text in loaded.degradations.texts)


def test_the_reference_engine_is_as_strict_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"engine_config.codegen": "reference", "engine_config.strict": True}
    runner = seen_with(options, torch.sin, torch.randn(3)).runner
    loaded = CompiledArtifact.unpack(CompiledArtifact.of(runner).pack()).runner()

    def fail(*args: Any, **rest: Any) -> None:
        raise RuntimeError("no kernel")

    monkeypatch.setattr("torchair.backend.pipeline.interpreter.interpret", fail)
    with pytest.raises(Degraded, match="no kernel"):
        loaded.run(torch.randn(3))


def test_symbols_have_ranges_and_no_hints() -> None:
    artefact = CompiledArtifact.of(made(work, "eager", torch.randn(5, 3), torch.randn(3, 3)).runner)
    again = CompiledArtifact.unpack(artefact.pack())
    assert again.inputs.symbols
    assert all(least is not None and least >= 0 for least, _ in again.inputs.symbols.values())
    numbers = [number for layout in again.contract.layouts if layout for number in layout.numbers]
    assert not any(isinstance(number, torch.SymInt) for number in numbers)


@pytest.mark.usefixtures("row")
@pytest.mark.filterwarnings("ignore:a graph is recorded in:torchair.DegradedWarning")
def test_numbers_that_may_be_any() -> None:
    """What a tensor of integers has in it has no range; the next piece takes it as an input."""

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.sin() * y.sum().item()

    torch.compiler.reset()
    backend = torchair.get_npu_backend(compiler_config=make_config({}, "npugraph_ex"))
    with watching() as seen, torch.no_grad(), torch._dynamo.config.patch(capture_scalar_outputs=True):
        run = torch.compile(step, backend=backend, dynamic=False)
        x, y = torch.randn(8), torch.tensor([3, -5])
        torch.testing.assert_close(run(x, y), step(x, y))
    ranges = [part.strategy.compiled.inputs.symbols for part in seen.runner.parts]
    assert (None, None) in [bounds for symbols in ranges for bounds in symbols.values()]
    loaded = CompiledArtifact.unpack(CompiledArtifact.of(seen.runner).pack()).runner()
    torch.testing.assert_close(loaded.run(x, y)[0], step(x, y))


def test_what_is_no_data_is_refused() -> None:
    weight = torch.randn(100, 100)
    tied = made(lambda x: [x @ weight], "eager", torch.randn(2, 100), mode="real")
    with pytest.raises(NotPossible, match="held outside"):
        tied.dump_artifacts()
    with pytest.raises(NotPossible, match=r"<locals>.*is not accessible by name in its module"):
        pack([lambda: 1])
    with pytest.raises(NotPossible, match="cannot be serialized"):
        pack(torch.Generator())
    with pytest.raises(NotPossible, match="event 'a' cannot be serialized"):
        pack(stream_ops.Event("a"))


ONES = torch.arange(16, dtype=torch.uint8)
TENSORS = {
    "expanded": torch.arange(3.0).expand(4, 3),
    "with gaps": torch.arange(12).view(3, 4)[:, ::2],
    "four bits": ONES.view(4, 4).t().view(torch.int4),
    "complex": ONES.view(torch.complex64),
    "float8": ONES.view(torch.float8_e4m3fn),
    "negated, one element": torch.tensor([1 + 2j]).conj().imag,
    "none": torch.empty(0, 3),
}


@pytest.mark.parametrize("name", TENSORS)
def test_artifact_tensor_keeps_dtype_shape_and_stride(name: str) -> None:
    given = TENSORS[name]
    made = unpack(pack(given))
    assert (made.dtype, made.shape, made.stride()) == (given.dtype, given.shape, given.stride())
    as_bytes = [x.view(torch.uint8) if x.dtype.itemsize == 1 else x for x in (made, given)]
    assert torch.equal(*as_bytes)


def test_a_tensor_of_another_class_is_refused() -> None:
    class Other(torch.Tensor):
        pass

    with pytest.raises(NotPossible, match="Other"):
        pack(torch.ones(2).as_subclass(Other))


@pytest.mark.parametrize("data", [b"", b"x", pack((0, None)), pack([1, 2])])
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(BadGraph, match="checksum mismatch"):
        CompiledArtifact.unpack(data)
    with pytest.raises(BadGraph, match="another version of torchair"):
        CompiledArtifact.unpack(hashlib.sha256(packed := pack((0, None))).digest() + packed)


def test_a_changed_bit_is_noticed() -> None:
    whole = CompiledArtifact.of(made(work, "eager", torch.randn(5, 3), torch.randn(3, 3)).runner).pack()
    for place in (0, 40, len(whole) // 2, len(whole) - 1):
        changed = bytearray(whole)
        changed[place] ^= 4
        with pytest.raises(BadGraph, match="checksum mismatch"):
            CompiledArtifact.unpack(bytes(changed))


def test_code_of_another_torch_is_refused() -> None:
    artefact = CompiledArtifact.of(made(lambda x: [x.sin()], "eager", torch.randn(3)).runner)
    other = CompiledArtifact.unpack(replace(artefact, torch="2.0.0").pack())
    with pytest.raises(NotPossible, match=r"was compiled with torch 2\.0\.0, but this is"):
        other.runner()


def test_other_names_are_refused() -> None:
    class Harm:
        def __reduce__(self) -> Any:
            return os.system, ("true",)

    with pytest.raises(BadGraph, match=r"must not refer to posix\.system"):
        unpack(pickle.dumps(Harm()))


@pytest.mark.parametrize(
    ("module", "name"), [("torch", "os.system"), ("torch.hub", "os.system"), ("torch", "builtins.eval")]
)
def test_names_are_not_reached_through_torch(module: str, name: str) -> None:
    call = f"ctorchair.core.storage.serialization\n_function\n(V{module}\nV{name}\ntR."
    with pytest.raises(BadGraph, match="is not a function of torch"):
        unpack(call.encode())
    with pytest.raises(BadGraph, match=r"must not refer to torchair.*\.importlib"):
        unpack(b"ctorchair.core.storage.serialization\nimportlib\n.")


def test_code_that_was_kept_elsewhere(tmp_path: Path) -> None:
    """Builds may have a directory of their own; packing looks for files where they were made."""
    there, here = tmp_path / "there", tmp_path / "here"
    (there / "ab").mkdir(parents=True)
    (there / "ab" / "c.so").write_bytes(b"code")
    packed = pack(CodeFile("ab/c.so", str(there)))
    with code_kept_in(str(here)):
        unpack(packed).place()
    made = here.rglob("c.so")
    assert [file.read_bytes() for file in made] == [b"code"]


OUTSIDE = [
    "../c.so",
    "ab/../../c.so",
    "/c.so",
    "..\\c.so",
    "ab\\..\\..\\c.so",
    "ab/./c.so",
    "ab//c.so",
    "",
    "c\0.so",
]


@pytest.mark.parametrize("name", OUTSIDE)
def test_code_is_not_placed_outside_its_folder(name: str, tmp_path: Path) -> None:
    """A library, the choice of a kernel, and a file of a kernel."""
    module = GeneratedModule("key", [], {}, (), (), False, ())
    others = (
        replace(module, files=(CodeFile(name, "", b"code"),)),
        replace(module, choices=((name, b"choice"),)),
        replace(module, kernels=((name, 0, (("a.cubin", b"code"),)),)),
        replace(module, kernels=(("hash", 0, ((name, b"code"),)),)),
    )
    for other in others:
        with code_kept_in(str(tmp_path / "inside")), pytest.raises(NotPossible, match="outside its folder"):
            other.load("")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_one_thread_at_a_time_packs_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch registers slices with pytree while it does: a second thread would take them away."""
    gm = make_fx(lambda x: x.sin() + x.cos())(torch.randn(3))
    dumps, inside, most = GraphPickler.dumps, list[int](), list[int]()

    def slow_dumps(*args: Any) -> bytes:
        inside.append(1)
        most.append(len(inside))
        time.sleep(0.05)
        inside.pop()
        return dumps(*args)

    monkeypatch.setattr(GraphPickler, "dumps", slow_dumps)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: pack(gm), range(4)))
    assert max(most) == 1


def test_an_operator_that_is_not_there() -> None:
    with torch.library._scoped_library("artefact_test", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        data = pack(torch.ops.artefact_test.twice.default)
    with pytest.raises(BadGraph, match=r"(?s)operator artefact_test\.twice.*import its module first"):
        unpack(data)


def test_artifacts_of_what_has_no_text() -> None:
    """Large constants, and views that are made around the program."""
    graph = made(lambda x: [x + torch.tensor(TABLE)], "eager", torch.randn(5000))
    loaded = CompiledGraph.load_artifacts(graph.dump_artifacts())
    x = torch.randn(5000)
    torch.testing.assert_close(list(loaded(x)), [x + torch.tensor(TABLE)])
    with pytest.raises(RuntimeError, match="expects 1 inputs"):
        loaded()


def test_artifacts_with_numbers_among_the_inputs() -> None:
    gm = make_fx(lambda x, n: [x * n + torch.tensor(TABLE)], tracing_mode="symbolic")(torch.randn(5000), 3)
    examples = [node.meta["val"] for node in gm.graph.find_nodes(op="placeholder")]
    graph = torchair.get_compiler(make_config({}))(gm, examples)
    loaded = CompiledGraph.load_artifacts(graph.dump_artifacts())
    x = torch.randn(5000)
    torch.testing.assert_close(list(loaded(x, 4)), [x * 4 + torch.tensor(TABLE)])


class Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x).exp()


@pytest.mark.parametrize("mode", ["max-autotune", "npugraph_ex"])
def test_artifact_holds_forward_and_backward(mode: str, tmp_path: Path) -> None:
    """Forward and backward, each a result of its own."""
    model = Linear()
    backend = torchair.get_npu_backend(compiler_config=make_config({}, mode))
    torch.compiler.reset()
    with keeping() as kept:
        run = torch.compile(model, backend=backend, dynamic=False)
        for _ in range(2):
            run(torch.randn(2, 3)).sum().backward()
    assert len(kept) == 2
    for runner, calls in kept:
        assert calls
        elsewhere(runner, calls, tmp_path)
