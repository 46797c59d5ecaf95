"""`python -m torchair codegen`: which headers it reads, what it writes and says, and that a fault leaves what
was there.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.process import python
from torchair.__main__ import main

ROOT = Path(__file__).parents[2]
A = "REG_OP(CodegenA)\n.INPUT(x, ALL())\n.OUTPUT(y, ALL())\n.OP_END_FACTORY_REG(CodegenA)\n"
B = A.replace("CodegenA", "CodegenB")
LOOP = A.replace("CodegenA", "CodegenLoop").replace(".OUTPUT", ".GRAPH(body)\n.OUTPUT")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.h").write_text(A)
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "b.h").write_text(B)
    return tmp_path


def functions(path: Path) -> list[str]:
    lines = path.read_text().splitlines()
    return [line[4:-1] for line in lines if line.startswith("def ")]


@pytest.mark.parametrize(
    ("given", "made"),
    [
        (["a.h"], ["CodegenA"]),
        (["inner/b.h", "a.h"], ["CodegenB", "CodegenA"]),
        (["."], ["CodegenA", "CodegenB"]),
        (["inner", "a.h", "inner/b.h"], ["CodegenA", "CodegenB"]),
    ],
)
def test_headers_and_directories(folder: Path, given: list[str], made: list[str], capsys: Any) -> None:
    assert main(["codegen", *given, "-o", "ops.py"]) == 0
    assert functions(folder / "ops.py") == made
    said = capsys.readouterr()
    assert said.out == f"wrote ops.py: ops {len(made)}, builders {len(made)}\n"
    assert said.err == ""


def test_codegen_lists_ops_without_builder(folder: Path, capsys: Any) -> None:
    (folder / "loop.h").write_text(LOOP)
    assert main(["codegen", "loop.h", "a.h", "-o", "ops.py"]) == 0
    assert functions(folder / "ops.py") == ["CodegenA"]
    assert "no builder for CodegenLoop: it has sub-graphs" in capsys.readouterr().out


def test_codegen_uses_last_declaration_with_warning(folder: Path, capsys: Any) -> None:
    (folder / "z.h").write_text("\n" + A.replace("ALL()", "{DT_BOOL}"))
    assert main(["codegen", "a.h", "z.h", "-o", "ops.py"]) == 0
    assert "DT_BOOL" in (folder / "ops.py").read_text()
    assert capsys.readouterr().err == "CodegenA: z.h:2 replaces a.h:1\n"


FAULTS: list[tuple[str | bytes, list[str], list[str]]] = [
    (A + "REG_OP(B)\n.INPUT(x)", ["bad.h"], ["bad.h:6", "takes 2 arguments"]),
    (b"\n\xff", ["bad.h"], ["bad.h:2", "UTF-8"]),
    ("int main();", ["bad.h"], ["bad.h", "0 REG_OP"]),
    (A.replace("CodegenA", "Acos"), ["bad.h"], ["Acos", "already", "bad.h:1"]),
    ("", ["none.h"], ["none.h"]),
    ("", ["empty"], ["empty", "*.h"]),
    (A, ["bad.h", "-o", "nowhere/ops.py"], ["nowhere"]),
    (A, ["bad.h", "-o", "ops.txt"], ["ops.txt", "-o OPS.py"]),
    (A, ["bad.h", "-o", "folder.py"], ["cannot write folder.py: Is a directory", "pass a file"]),
]


@pytest.mark.parametrize(("text", "given", "parts"), FAULTS, ids=range(len(FAULTS)))
def test_a_fault_leaves_what_was_there(
    folder: Path, text: str | bytes, given: list[str], parts: list[str], capsys: Any
) -> None:
    (folder / "bad.h").write_bytes(text if isinstance(text, bytes) else text.encode())
    (folder / "empty").mkdir()
    (folder / "folder.py").mkdir()
    (folder / "ops.py").write_text("before")
    before = sorted(folder.rglob("*"))
    assert main(["codegen", "a.h", *given] if "-o" in given else ["codegen", *given, "-o", "ops.py"]) == 2
    said = capsys.readouterr().err
    assert "Traceback" not in said
    for part in parts:
        assert part in said
    assert (folder / "ops.py").read_text() == "before"
    assert sorted(folder.rglob("*")) == before, "no half-written file"


def test_a_write_that_fails_leaves_what_was_there(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    (folder / "ops.py").write_text("before")

    def full(*args: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("os.replace", full)
    assert main(["codegen", "a.h", "-o", "ops.py"]) == 2
    assert (folder / "ops.py").read_text() == "before"
    assert sorted(path.name for path in folder.iterdir()) == ["a.h", "inner", "ops.py"]
    said = capsys.readouterr().err
    assert "cannot write ops.py: no space left" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("name", ["os.open", "pathlib.Path.read_bytes"])
def test_codegen_without_permission_reports_the_file(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(name, refuse)
        assert main(["codegen", "a.h", "-o", "ops.py"]) == 2
    said = capsys.readouterr().err
    assert f"cannot {'write ops.py' if name == 'os.open' else 'read a.h'}: " in said
    assert "Permission denied" in said
    assert "Traceback" not in said


def test_known_ops_may_be_left_out(folder: Path) -> None:
    (folder / "stock.h").write_text(A.replace("CodegenA", "Acos") + B)
    assert main(["codegen", "stock.h", "--skip-known", "-o", "ops.py"]) == 0
    assert functions(folder / "ops.py") == ["CodegenB"]


def test_a_byte_order_mark_is_no_fault(folder: Path) -> None:
    (folder / "bom.h").write_bytes(b"\xef\xbb\xbf" + A.replace("\n", "\r\n").encode())
    assert main(["codegen", "bom.h", "-o", "ops.py"]) == 0
    assert functions(folder / "ops.py") == ["CodegenA"]


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
def test_make_writes_the_module_that_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the target would call, called here on a copy of its header."""
    command = ["make", "--no-print-directory", "-n", "generate_ge_raw_custom_ops", "SETUP=0", "PYTHON=python"]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    program, *arguments = shlex.split(told)
    assert [program, *arguments[:2]] == ["python", "-m", "torchair"]
    kept, made = (root / "codegen" / "custom_op" for root in (ROOT, tmp_path))
    made.mkdir(parents=True)
    shutil.copy(kept / "custom_reg_op.h", made)
    monkeypatch.chdir(tmp_path)
    assert main(arguments[2:]) == 0
    name = "auto_generated_ge_raw_custom_ops.py"
    assert (made / name).read_bytes() == (kept / name).read_bytes()


SCRIPT = """
import torch
import ops
import torchair
from torch.library import Library, impl

library = Library("codegen_test", "DEF")
library.define("scaled(Tensor x, Tensor? bias, Tensor[] rest, float by) -> (Tensor, Tensor[])")


@impl(library, "scaled", "CPU")
def scaled(x, bias, rest, by):
    return x * by, [x + each for each in rest]


@impl(library, "scaled", "Meta")
def scaled_meta(x, bias, rest, by):
    return torch.empty_like(x), [torch.empty_like(x) for each in rest]


seen = []


@torchair.register_fx_node_ge_converter(torch.ops.codegen_test.scaled.default)
def convert(x, bias, rest, by, meta_outputs=None):
    y, sums = ops.CodegenScaled(x, bias, rest, size_of_sums=len(rest), by=by)
    seen.append(y.op)
    return y, sums


def model(x, z):
    y, (first, second) = torch.ops.codegen_test.scaled(x, None, [z, x], 2.0)
    return y.sin() + first, second


x, z = torch.randn(2, 3), torch.randn(2, 3)
config = torchair.CompilerConfig()
config.engine_config.codegen = "eager"
backend = torchair.get_npu_backend(compiler_config=config)
compiled = torch.compile(model, backend=backend, fullgraph=True)
torch.testing.assert_close(compiled(x, z), model(x, z))
assert [op.type for op in seen] == ["CodegenScaled"]
assert [slot.name for slot in seen[0].slots if slot.name[0] != "_"] == ["x", "bias", "rest0", "rest1"]
"""


def test_from_the_header_to_a_run(folder: Path) -> None:
    """An op with an optional input, a list of inputs and a list of outputs."""
    (folder / "scaled.h").write_text(
        "REG_OP(CodegenScaled).INPUT(x, ALL()).OPTIONAL_INPUT(bias, ALL()).DYNAMIC_INPUT(rest, ALL())"
        ".OUTPUT(y, ALL()).DYNAMIC_OUTPUT(sums, ALL()).REQUIRED_ATTR(by, Float)"
        ".OP_END_FACTORY_REG(CodegenScaled)"
    )
    assert main(["codegen", "scaled.h", "-o", "ops.py"]) == 0
    (folder / "script.py").write_text(SCRIPT)
    done = python(["-W", "error::UserWarning:__main__", "script.py"], folder)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "DegradedWarning" not in done.stderr
