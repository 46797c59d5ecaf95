"""Programs as users type them: each in a fresh directory and a process of its own, without a word of ours."""

from __future__ import annotations

import csv
import re
from collections import Counter
from pathlib import Path

import pytest
from google.protobuf import text_format

from tests.structure.tree import ROOT
from tests.support.process import python
from tests.support.slow import slow
from torchair.ge.files.script import from_python
from torchair.ge.proto import schema
from torchair.ge.proto.read import from_graph_def

MODEL = """
import torch
import torchair


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x, y):
        return torch.relu(self.linear(x)) + y


model = Model().requires_grad_(False)
x, y = torch.randn(2, 4), torch.randn(2, 4)
"""
OPS = {"aten.t.default": 1, "aten.addmm.default": 1, "aten.relu.default": 1, "aten.add.Tensor": 1}
BACKENDS = (
    MODEL
    + """
npu_backend = torchair.get_npu_backend(compiler_config=None)
results = [torch.compile(model, backend=npu_backend)(x, y)]
for backend in ("npu", "npugraph_ex", "aot_eager"):
    torch.compiler.reset()
    results.append(torch.compile(model, backend=backend)(x, y))
for result in results:
    torch.testing.assert_close(result, model(x, y))
print("done")
"""
)
ADD = """
import torch
import torchair
from torchair import ge
from torchair.ge_concrete_graph.ge_graph import Tensor, TensorSpec
from torchair.ge_concrete_graph.fx2ge_converter import declare_supported, register_fx_node_ge_converter
from torchair.ge_concrete_graph.supported_declaration import F16, F32, I32, Support
from torchair.ge_concrete_graph.utils import dtype_promote


@declare_supported([
    Support(F32(2, 2), F32(2, 2)),
    Support(F32(2, 2), F32(2, 1)),
    Support(F32(2, 2), F16(2, 1)),
    Support(F32(2, 2), F32(2, 2), alpha=2),
    Support(F32(2, 2), 2, alpha=2.0),
    Support(I32(2, 2), 2),
])
@register_fx_node_ge_converter(torch.ops.aten.add.Tensor)
def convert_add(self: Tensor, other: Tensor, *, alpha=1, meta_outputs: TensorSpec = None):
    self, other = dtype_promote(self, other, target_dtype=meta_outputs.dtype)
    if alpha == 1:
        return ge.Add(self, other)
    return ge.AxpyV2(self, other, dtype_promote(alpha, target_dtype=meta_outputs.dtype))


if __name__ == "__main__":
    compiled = torch.compile(lambda x, y: torch.add(x, y, alpha=3), backend="npu")
    x, y = torch.randn(2, 2), torch.randn(2, 2)
    torch.testing.assert_close(compiled(x, y), x + 3 * y)
    print("done")
"""
NEW_OP = """
import torch
from torch.library import Library, impl
import torchair
from torchair import ge

m = Library("npu_define", "DEF")
m.define("custom_op(Tensor input1, Tensor input2) -> Tensor")

@impl(m, "custom_op", "CPU")
def plug_custom_op(input1, input2):
    return torch.add(input1, input2)

@impl(m, "custom_op", "Meta")
def custom_op_meta(input1, input2):
    return torch.empty_like(input1)

@torchair.register_fx_node_ge_converter(torch.ops.npu_define.custom_op.default)
def conveter_custom_op(input1, input2, meta_outputs=None):
    return ge.custom_op("Add", inputs={"x1": input1, "x2": input2}, outputs=["y"])

x, y = torch.randn(2, 2), torch.randn(2, 2)
for dynamic in (False, True):
    torch.compiler.reset()
    compiled = torch.compile(torch.ops.npu_define.custom_op, backend="npu", dynamic=dynamic)
    torch.testing.assert_close(compiled(x, y), x + y)
assert not torchair.explain(lambda x, y: torch.ops.npu_define.custom_op(x, y), x, y).fallbacks
print("done")
"""
LOGGING = """
import os
os.environ["TNG_LOG_LEVEL"] = "0"
import logging
import torch
import torchair
assert torchair.logger.level == logging.DEBUG
torchair.logger.setLevel(logging.ERROR)
torchair.logger.setLevel(logging.DEBUG)
torchair.logger.warning("heard %d", 1)
for _ in range(3):
    torchair.logger.warning_once("heard once")
torchair.logger.event("heard too")
torch.compile(torch.sin, backend="npu")(torch.ones(2))
print("done")
"""
WEIGHTS = """
import torch
import torchair
model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten(), torch.nn.Linear(64, 2))
torchair.use_internal_format_weight(model)
torchair.patch_for_hcom()
x = torch.randn(1, 3, 6, 6)
torch.testing.assert_close(torch.compile(model, backend=torchair.get_npu_backend())(x), model(x))
print("done")
"""
CAPTURE = """
import torch
import torchair

config = torchair.CompilerConfig()
config.mode = "npugraph_ex"
backend = torchair.get_npu_backend(compiler_config=config)

@torch.library.custom_op("mine::scaled", mutates_args=())
def scaled(x: torch.Tensor, by: float) -> torch.Tensor:
    return x * by

@scaled.register_fake
def _(x, by):
    return torch.empty_like(x)

library = torch.library.Library("mine", "FRAGMENT")
library.define("shifted(Tensor x) -> Tensor")
library.impl("shifted", lambda x: x + 1, "CPU")
library.impl("shifted", lambda x: torch.empty_like(x), "Meta")
library.define("doubled_(Tensor(a!) x) -> ()")

@torch.library.impl(library, "doubled_", "CPU")
def doubled_(x):
    x.mul_(2)

library.impl("doubled_", lambda x: None, "Meta")

def step(x, cache):
    torch.ops.mine.doubled_(cache)
    return torch.ops.mine.shifted(scaled(x, 3.0)) + cache.sum()

compiled = torch.compile(step, backend=backend, fullgraph=True)
cache, again = torch.ones(4), torch.ones(4)
for _ in range(3):
    x = torch.randn(4)
    torch.testing.assert_close(compiled(x, cache), step(x, again))
assert torch.equal(cache, again) and cache[0] == 8
print("done")
"""
SUMMARY = (
    MODEL
    + """
config = torchair.CompilerConfig()
config.debug.fx_summary.type = "csv"
compiled = torch.compile(model, backend=torchair.get_npu_backend(compiler_config=config))
torch.testing.assert_close(compiled(x, y), model(x, y))
print("done")
"""
)
DUMPS = (
    MODEL
    + """
for kind in ("txt", "pbtxt", "py"):
    torch.compiler.reset()
    config = torchair.CompilerConfig()
    config.debug.graph_dump.type = kind
    compiled = torch.compile(model, backend=torchair.get_npu_backend(compiler_config=config))
    torch.testing.assert_close(compiled(x, y), model(x, y))
print("done")
"""
)
TYPED = {
    "backends": BACKENDS,
    "add": ADD,
    "new op": NEW_OP,
    "logging": LOGGING,
    "weights": WEIGHTS,
    "capture": CAPTURE,
}


def typed(name: str, text: str, folder: Path) -> str:
    (folder / f"{name}.py").write_text(text)
    done = python([f"{name}.py"], folder)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
    assert "DegradedWarning" not in done.stderr
    assert done.stdout.splitlines()[-1] == "done"
    return done.stdout


@pytest.mark.parametrize("name", TYPED)
def test_it_runs_as_typed(name: str, tmp_path: Path) -> None:
    out = typed(f"typed_{name.replace(' ', '_')}", TYPED[name], tmp_path)
    if name == "logging":
        assert out.count("heard once") == 1
        assert "[WARNING]" in out
        assert "[EVENT]" in out
        assert "becomes Sin" in out
    if name == "weights":
        assert out.count("[ERROR]") == 1


def test_the_summary_has_a_row_per_op(tmp_path: Path) -> None:
    typed("typed_summary", SUMMARY, tmp_path)
    (path,) = tmp_path.glob("*.csv")
    with path.open(encoding="utf-8-sig", newline="") as file:
        counted = {row["目标函数"]: int(row["调用次数"]) for row in csv.DictReader(file)}
    assert counted == OPS


def test_the_dumps_are_the_graph(tmp_path: Path) -> None:
    """All three kinds, before and after the passes, hold the same ops; the scripts run by themselves."""
    typed("typed_dumps", DUMPS, tmp_path)
    for stage in ("original", "optimized"):
        (text,) = tmp_path.glob(f"dynamo_{stage}_*.txt")
        graph = from_graph_def(text_format.Parse(text.read_text(), schema.message("GraphDef")))
        of_text = Counter(op.type for op in graph.ops)
        assert of_text["Data"] == 4, "two weights and two arguments"
        assert of_text["NetOutput"] == of_text["Relu"] == of_text["Add"] == 1
        assert of_text["MatMul"] + of_text["MatMulV2"] + of_text["Addmm"] >= 1
        (script,) = tmp_path.glob(f"dynamo_{stage}_*.py")
        assert Counter(op.type for op in from_python(script.read_text()).ops) == of_text
        (viewed,) = tmp_path.glob(f"dynamo_{stage}_*.pbtxt")
        assert Counter(re.findall(r'^    op: "(\w+)"$', viewed.read_text(), re.MULTILINE)) == of_text
        done = python([script.name], tmp_path)
        assert done.returncode == 0, done.stderr[-3000:]


def test_declared_cases_run_by_the_script(tmp_path: Path) -> None:
    (tmp_path / "my_add.py").write_text(ADD)
    script = str(ROOT / "smoke/converter_test.py")
    done = python([script, "aten.add.Tensor", "--load", "my_add"], tmp_path, PYTHONPATH="")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[PASS] aten.add.Tensor Support(F32(2, 2), 2, alpha=2.0)" in done.stdout
    assert done.stdout.splitlines()[-1].endswith(" 0 failed")


@pytest.mark.full
def test_an_op_that_is_not_there_fails_the_script(tmp_path: Path) -> None:
    script = str(ROOT / "smoke/converter_test.py")
    assert python([script, "aten.no_such_op"], tmp_path).returncode == 1


EXAMPLES = sorted(path for path in (ROOT / "examples").rglob("*.py"))


@pytest.mark.parametrize(
    "path",
    # One of them is imported by another.
    [slow(path) if path.stem == "new_custom_op" else path for path in EXAMPLES],
    ids=lambda path: path.stem,
)
def test_typed_example_runs_without_warning(path: Path) -> None:
    done = python(["-W", "error::UserWarning:__main__", path.name], path.parent)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "DegradedWarning" not in done.stderr


def test_every_example_of_the_order_is_there() -> None:
    folder = "example_custom_op_register"
    wanted = {"example.py"} | {
        f"{folder}/{name}.py"
        for name in (
            "example_custom_op_register_in_one_file",
            "new_custom_op",
            "example_use_import_new_custom_op",
        )
    }
    assert {path.relative_to(ROOT / "examples").as_posix() for path in EXAMPLES} == wanted
