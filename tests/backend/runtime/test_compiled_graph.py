"""A compiled graph as source: for every code generator, in this process and in another."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

import torchair
from tests.support.process import python
from tests.support.slow import slow
from torchair.backend.runtime.compiled_graph import CompiledGraph, SerializedGraph
from torchair.core.errors import NotPossible

CODEGENS = ("eager", "inductor", "native", "reference")
TABLE = torch.randn(3, 3)


def update(x: torch.Tensor, y: torch.Tensor) -> list[Any]:
    """A constant of the graph, an update in place, a view of an input."""
    x.copy_(x @ y + TABLE)
    return [torch.softmax(y, -1) - TABLE, y.view(-1)]


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...], str]] = {
    "update": (update, (torch.randn(3, 3), torch.randn(3, 3)), "real"),
    "symbols": (
        lambda x, w: [torch.softmax(x @ w, -1) * x.shape[0], x.shape[0] + 1],
        (torch.randn(5, 3), torch.randn(3, 3)),
        "symbolic",
    ),
    "conv": (
        lambda x, w: [F.max_pool2d(F.conv2d(x, w, padding=1).relu(), 2)],
        (torch.randn(1, 3, 6, 6), torch.randn(4, 3, 3, 3)),
        "real",
    ),
    "random": (lambda x: [torch.rand(x.shape) + x], (torch.randn(4),), "real"),
}


def compile_program(name: str, codegen: str) -> tuple[CompiledGraph, tuple[torch.Tensor, ...]]:
    fn, args, mode = PROGRAMS[name]
    gm = make_fx(fn, tracing_mode=mode)(*[arg.clone() for arg in args])
    inputs = [node.meta["val"] for node in gm.graph.find_nodes(op="placeholder")]
    config = torchair.CompilerConfig()
    config.engine_config.codegen = codegen
    made = torchair.get_compiler(config)(gm, list(args) if mode == "real" else inputs)
    assert made.runner.program.kind == codegen
    return made, args


def call_seeded(
    run: Callable[..., Any], args: tuple[torch.Tensor, ...]
) -> tuple[list[Any], list[torch.Tensor]]:
    """Results, and what became of the arguments."""
    torch.manual_seed(3)
    given = [arg.clone() for arg in args]
    return list(run(*given)), given


# A native library is built anew for each.
CASES = [
    (slow if codegen == "native" else pytest.param)(name, codegen)
    for name in PROGRAMS
    for codegen in CODEGENS
]


@pytest.mark.parametrize(("name", "codegen"), CASES)
def test_loaded_again_it_does_the_same(name: str, codegen: str) -> None:
    made, args = compile_program(name, codegen)
    artifacts = made.dump_artifacts()
    assert (artifacts.version, artifacts.py_code) == ("0.1", made.get_code())
    loaded = CompiledGraph.load_artifacts(artifacts)
    torch.testing.assert_close(call_seeded(loaded, args), call_seeded(made, args))


RUN = """
import sys
sys.path.insert(0, {folder!r})
import torch
from artifact import kernel

args, expected = torch.load({data!r})
results = kernel(*args)
torch.testing.assert_close((list(results), args), expected)
print("equal")
"""


@pytest.mark.parametrize("codegen", ["eager", *(slow(c) for c in CODEGENS if c != "eager")])
def test_another_process_needs_nothing_but_the_source(codegen: str, tmp_path: Path) -> None:
    made, args = compile_program("update", codegen)
    expected = call_seeded(made, args)
    (tmp_path / "artifact.py").write_text(made.get_code())
    torch.save(([arg.clone() for arg in args], expected), tmp_path / "data.pt")
    script = RUN.format(folder=str(tmp_path), data=str(tmp_path / "data.pt"))
    # Without the caches of this process.
    done = python(["-c", script], tmp_path, TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "cache"))
    assert done.stdout.strip() == "equal", done.stderr[-3000:]


def test_what_cannot_be_written_is_the_runner_and_an_error() -> None:
    big = torch.randn(100, 100)
    gm = make_fx(lambda x: [x @ big])(torch.randn(2, 100))
    config = torchair.CompilerConfig()
    config.engine_config.codegen = "eager"
    made = torchair.get_compiler(config)(gm, [torch.randn(2, 100)])
    assert made.get_code() is made.runner
    with pytest.raises(RuntimeError, match="held outside"):
        made.dump_artifacts()


def test_another_version_is_refused() -> None:
    made, _ = compile_program("random", "eager")
    old = dataclasses.replace(made.dump_artifacts(), version="0.0")
    with pytest.raises(RuntimeError, match=r"0\.0"):
        CompiledGraph.load_artifacts(old)


def test_artifacts_that_import_moved_modules_are_refused() -> None:
    source = "import torchair.backend.compiled\nkernel = None\n"
    with pytest.raises(NotPossible, match="another version of torchair"):
        CompiledGraph.load_artifacts(SerializedGraph("0.1", source))
