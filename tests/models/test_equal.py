"""Every model of the zoo, in both modes, static and dynamic: eager's numbers, one graph, no fall-back.

The quick run takes the readable code generator for all rows, which needs no compiler, and the default one for
one; `full` has the rest.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import fx, nn

import torchair
from tests.models.zoo import ROWS, Row, leaves
from tests.support.slow import slow

MODES = ("max-autotune", "npugraph_ex")
QUICK_AUTO = ("lstm",)
# Much like llama or slow with symbols; the full run has them.
LATER = ("whisper", "gemma2", "mixtral", "qwen2", "t5", "gpt2", "mamba")

# `test_zoo_model_with_float_inputs_equals_eager` has them in the quick run.
WITH_FLOATS = (("bert", MODES[0]),)


class Counted:
    """Our backend for one mode and code generator, and how often Dynamo asked it to compile."""

    def __init__(self, mode: str, codegen: str) -> None:
        config = torchair.CompilerConfig()
        config.mode = mode
        config.engine_config.codegen = codegen
        self.backend = torchair.get_npu_backend(compiler_config=config)
        self.compiles = 0

    def __call__(self, gm: fx.GraphModule, inputs: list[Any]) -> Any:
        self.compiles += 1
        return self.backend(gm, inputs)


def cases() -> list[Any]:
    """Each row in both modes, static and dynamic. In the quick run the default code generator serves few,
    graph mode is dynamic, and capture mode has every second row, in turns static and dynamic.
    """
    made = []
    for index, row in enumerate(ROWS):
        for codegen, (place, mode), dynamic in itertools.product(
            ("eager", "auto"), enumerate(MODES), (False, True)
        ):
            is_quick = (
                dynamic and place == 1 and row.name in QUICK_AUTO
                if codegen == "auto"
                else False
                if row.name in LATER or (row.name, mode) in WITH_FLOATS
                else (dynamic and place == 0)
                or (place == 1 and dynamic == (index % 4 == 0) and index % 2 == 0)
            )
            name = f"{row.name}-{codegen}-{mode}-{'dynamic' if dynamic else 'static'}"
            marks = () if is_quick else (pytest.mark.full,)
            made.append(pytest.param(row, codegen, mode, dynamic, id=name, marks=marks))
    return made


@pytest.fixture(autouse=True)
def _exact_products() -> Iterator[None]:
    """Convolutions in float32 on CUDA too: TF32 keeps ten bits, and eager and compiled round differently."""
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield


def check_both_shapes(row: Row, model: nn.Module, backend: Counted, dynamic: bool, device: str) -> None:
    """Equal to eager at both shapes; where dynamic, the second shape compiles nothing."""
    compiled = torch.compile(model, backend=backend, dynamic=dynamic, fullgraph=True)
    compiles = []
    for shape in row.shapes_on(device):
        feed = row.feed(shape, device)
        with torch.no_grad():
            want, got = leaves(model(**feed)), leaves(compiled(**feed))
        torch.testing.assert_close(got, want)
        compiles.append(backend.compiles)
    assert compiles[0] > 0, "Dynamo compiled something"
    if dynamic:
        assert compiles[1] == compiles[0], "the second shape was served by the first graph"


@pytest.mark.parametrize(("row", "codegen", "mode", "dynamic"), cases())
def test_zoo_model_equals_eager(
    row: Row, codegen: str, mode: str, dynamic: bool, device: torch.device
) -> None:
    model = row.model().to(device)
    # Floats stay constants here, which halves the tracing.
    # `test_zoo_model_with_float_inputs_equals_eager` keeps Dynamo's default.
    with torch._dynamo.config.patch({"specialize_float": True, **row.dynamo}):
        check_both_shapes(row, model, Counted(mode, codegen), dynamic, device.type)


@pytest.mark.parametrize(
    ("name", "mode"),
    [slow("llama", MODES[0]), slow("llama", MODES[1]), ("bert", MODES[0]), slow("bert", MODES[1])],
)
def test_zoo_model_with_float_inputs_equals_eager(name: str, mode: str, device: torch.device) -> None:
    """With `dynamic=True` Dynamo passes Python floats (an epsilon, a scale) as float64 tensors."""
    row = next(row for row in ROWS if row.name == name)
    check_both_shapes(row, row.model().to(device), Counted(mode, "eager"), True, device.type)


@pytest.mark.full
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_zoo_model_converts_without_fallback(row: Row, device: torch.device) -> None:
    """Graph mode has a converter or a decomposition for every op, and Dynamo breaks no graph. (In the tests
    above the one would be a warning, the other an error.)
    """
    with torch.no_grad(), torch._dynamo.config.patch(row.dynamo):
        report = torchair.explain(row.model().to(device), **row.feed(row.shapes[0], device.type))
    assert list(report.fallbacks) == []
    assert list(report.graph_breaks) == []
    assert len(report.graphs) == 1


@pytest.mark.parametrize("mode", MODES)
def test_second_length_compiles_again_when_static(mode: str) -> None:
    """The counter counts: a static program serves one shape only."""
    row = next(row for row in ROWS if row.name == "resnet")
    backend = Counted(mode, "eager")
    compiled = torch.compile(row.model(), backend=backend, dynamic=False)
    with torch.no_grad():
        for shape in row.shapes:
            compiled(**row.feed(shape))
    assert backend.compiles == 2
