"""The debug folder: which files, which modes, which numbers; and nothing when nobody asks."""

from __future__ import annotations

import logging
import os
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import torchair
from tests.passes.test_options import DOCUMENTED
from tests.support.compile import compile_fn
from torchair.core.errors import DegradedWarning, NotPossible
from torchair.core.log import capture_logger, logger
from torchair.core.torch_private.compilers.aot_autograd import dynamo_utils
from torchair.debug.dumps.files import write_text
from torchair.debug.observer import debug_dir
from torchair.debug.observer.debug_dir import DebugLog, name_folder_by_rank
from torchair.npugraph_ex import compile_fx
from torchair.passes import GE_PASSES

PRE, POST = "post_grad_custom_pre_pass", "post_grad_custom_post_pass"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Debugging is on, and its folder is here. Not by the variable, which torch follows with open files."""
    monkeypatch.setattr(debug_dir, "is_debugging", lambda: True)
    umask = os.umask(0o022)
    with torch._dynamo.config.patch(debug_dir_root=str(tmp_path / "debug")):
        yield tmp_path / "debug"
    os.umask(umask)
    for log in (logger, capture_logger):
        for handler in [handler for handler in log.handlers if isinstance(handler, DebugLog)]:
            log.removeHandler(handler)
            handler.close()


def product(root: Path) -> Path:
    (run,) = root.glob("run_*")
    assert run.name.endswith(f"-pid_{os.getpid()}")
    return run / "npugraph_ex"


def work(x: torch.Tensor) -> torch.Tensor:
    """`clone` is no work, and `view` becomes `reshape`."""
    return x.sin().clone().cos().view(32) * 2


def expected(phase: str, *, without: tuple[str, ...] = (PRE, POST)) -> list[str]:
    passes = [name for name in DOCUMENTED if name not in without]
    graphs = [f"aot_{phase}_graph", *(f"aot_{phase}_graph_after_{name}" for name in passes)]
    return [*(f"{number:03d}_{name}.txt" for number, name in enumerate(graphs)), "output_code.py"]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_exactly_these_files(root: Path) -> None:
    x = torch.randn(4, 8)
    torch.testing.assert_close(compile_fn(work, mode="npugraph_ex", dynamic=False)(x), work(x))
    assert names(product(root)) == ["debug.log", "model__0"]
    model = product(root) / "model__0"
    assert names(model) == ["dynamo_out_graph.txt", "forward"]
    assert names(model / "forward") == expected("forward")
    assert "clone" in (model / "dynamo_out_graph.txt").read_text()
    texts = {path.name.split("_", 1)[1]: path.read_text() for path in (model / "forward").glob("*.txt")}
    before = texts["aot_forward_graph.txt"]
    noop = texts["aot_forward_graph_after_optimize_noop_ops.txt"]
    reshape = texts["aot_forward_graph_after_view_to_reshape.txt"]
    assert "aten.clone" in before
    assert "aten.clone" not in noop
    assert "aten.view" in noop
    assert "aten.view" not in reshape
    assert "aten.reshape" in reshape


def test_debug_dir_is_closed_to_other_users(root: Path) -> None:
    compile_fn(work, mode="npugraph_ex", dynamic=False)(torch.randn(4, 8))
    paths = [product(root), *product(root).rglob("*")]
    modes = {path: path.stat().st_mode & 0o777 for path in paths}
    assert {mode for path, mode in modes.items() if path.is_dir()} == {0o750}
    assert {mode for path, mode in modes.items() if path.suffix in (".txt", ".log")} == {0o640}
    assert [mode for path, mode in modes.items() if path.suffix == ".py"] == [0o600]


def test_the_next_model_has_the_next_number(root: Path) -> None:
    compile_fn(work, mode="npugraph_ex", dynamic=False)(torch.randn(4, 8))
    compile_fn(lambda x: x.cos(), mode="npugraph_ex", dynamic=False)(torch.randn(2))
    gm = make_fx(lambda x: [x.sin()])(torch.randn(3))
    compile_fx(gm, [torch.randn(3)], {"force_eager": True})
    assert names(product(root)) == ["compile__0", "debug.log", "model__0", "model__1"]
    assert "cos" in (product(root) / "model__1/dynamo_out_graph.txt").read_text()
    assert names(product(root) / "compile__0") == ["compile_fx"]
    assert names(product(root) / "compile__0/compile_fx") == expected("compile_fx")


def test_training_has_two_phases(root: Path) -> None:
    x = torch.randn(4, 8, requires_grad=True)
    compile_fn(work, mode="npugraph_ex", dynamic=False)(x).sum().backward()
    model = product(root) / "model__0"
    assert names(model) == ["backward", "dynamo_out_graph.txt", "forward"]
    assert names(model / "backward") == expected("backward")


def test_a_joint_graph_has_one_phase(root: Path) -> None:
    config = torchair.CompilerConfig()
    config.mode = "npugraph_ex"
    config.experimental_config.aot_config_enable_joint_graph = True
    backend = torchair.get_npu_backend(compiler_config=config)
    torch.compile(lambda x: work(x).sum(), backend=backend)(torch.randn(4, 8, requires_grad=True))
    model = product(root) / "model__0"
    assert names(model) == ["dynamo_out_graph.txt", "joint"]
    assert "000_aot_joint_graph.txt" in names(model / "joint")


def test_users_passes_have_files_when_they_are_given(root: Path) -> None:
    options = {"post_grad_custom_pre_pass": lambda gm, inputs, config: None}
    compile_fn(work, options, mode="npugraph_ex", dynamic=False)(torch.randn(4, 8))
    assert names(product(root) / "model__0/forward") == expected("forward", without=(POST,))


def test_the_code_runs_by_itself(root: Path) -> None:
    config = torchair.CompilerConfig()
    config.mode = "npugraph_ex"
    config.engine_config.codegen = "eager"
    backend = torchair.get_npu_backend(compiler_config=config)
    function = torch.compile(lambda x, i: x[i] + x.shape[0], backend=backend, dynamic=True)
    function(torch.randn(5, 3), torch.tensor([0, 1]))
    (path,) = product(root).rglob("output_code.py")
    (result,) = runpy.run_path(str(path))["main"]()
    assert result.dim() == 2
    assert min(result.shape) >= 2


def test_the_log_is_kept(root: Path) -> None:
    level = capture_logger.level
    capture_logger.setLevel(logging.DEBUG)
    try:
        compile_fn(work, mode="npugraph_ex", dynamic=False)(torch.randn(4, 8))
    finally:
        capture_logger.setLevel(level)
    text = (product(root) / "debug.log").read_text()
    assert "pass view_to_reshape: 1 changes" in text
    assert "input 0 x: Tensor (4, 8)" in text


@pytest.mark.parametrize("value", ["0", "", "true"])
def test_nothing_without_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("TORCH_COMPILE_DEBUG", value)
    with torch._dynamo.config.patch(debug_dir_root=str(tmp_path / "debug")):
        compile_fn(work, mode="npugraph_ex", dynamic=False)(torch.randn(4, 8))
    assert names(tmp_path) == []


def test_the_variable_switches_all_of_it_on(tmp_path: Path) -> None:
    script = """
import torch, torchair
torch.compile(lambda x: x + 1, backend="npugraph_ex", options={"force_eager": True})(torch.ones(2))
"""
    environment = os.environ | {"TORCH_COMPILE_DEBUG": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    (run,) = (tmp_path / "torch_compile_debug").glob("run_*")
    assert names(run / "npugraph_ex") == ["debug.log", "model__0"]
    assert (run / "torchdynamo/debug.log").exists()
    for text in (done.stdout, (run / "npugraph_ex/debug.log").read_text()):
        assert "[DEBUG] NPUGRAPH_EX(" in text
        assert "graph_1: output 0: Tensor (2,) torch.float32" in text


def test_nothing_is_written_through_a_link(root: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    run = Path(dynamo_utils.get_debug_dir())
    run.mkdir(parents=True)
    (run / "npugraph_ex").symlink_to(elsewhere)
    x = torch.randn(4, 8)
    with pytest.warns(DegradedWarning, match="cannot write a debug file: .* is a symbolic link"):
        torch.testing.assert_close(compile_fn(work, mode="npugraph_ex", dynamic=False)(x), work(x))
    assert names(elsewhere) == []


def test_a_file_that_cannot_be_written_ends_nothing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> None:
        raise ValueError("no text for this graph")

    monkeypatch.setattr(debug_dir, "_readable", fail)
    monkeypatch.setattr(debug_dir, "module_text", fail)
    x = torch.randn(4, 8)
    with pytest.warns(DegradedWarning) as said:
        torch.testing.assert_close(compile_fn(work, mode="npugraph_ex", dynamic=False)(x), work(x))
    assert [str(one.message) for one in said] == [
        "cannot write a debug file: ValueError: no text for this graph"
    ]
    assert not list(product(root).rglob("*.txt"))


def test_links_and_long_names_are_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(NotPossible, match="symbolic link"):
        write_text(tmp_path / "link", "text")
    with pytest.raises(NotPossible, match="too long"):
        write_text(tmp_path / ("n" * 256), "text")
    assert names(tmp_path) == ["link"]


def test_a_rank_is_in_the_name(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dynamo_utils, "_get_debug_dir", dynamo_utils._get_debug_dir)
    name_folder_by_rank()
    assert dynamo_utils.get_debug_dir().endswith(f"-pid_{os.getpid()}")
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 3)
    assert dynamo_utils.get_debug_dir().endswith(f"-pid_{os.getpid()}-rank_3")


# Graph mode

FX_STEPS = (
    "optimize_noop_ops",
    "recover_view_inplace_pattern",
    "optimize_sym_input",
    "apply_pattern_passes",
    "view_to_reshape",
)
# Passes that nobody asked for do not run.
IR_STEPS = tuple(step.title for step in GE_PASSES if step.title not in ("mark_reference_inputs", "order_ops"))


def graph_mode(function: Callable[..., Any], kind: str | None = None, **dynamo: Any) -> Any:
    config = torchair.CompilerConfig()
    config.engine_config.codegen = "eager"
    if kind is not None:
        config.debug.graph_dump.type = kind
    return torch.compile(function, backend=torchair.get_npu_backend(compiler_config=config), **dynamo)


def of_graph_mode(root: Path) -> Path:
    return product(root).parent / "torchair"


def expected_with_ir(phase: str, kind: str = "pbtxt") -> list[str]:
    before = ["graph.txt", *(f"graph_after_{name}.txt" for name in FX_STEPS)]
    ir = ["original_ge_graph", *(f"graph_after_{name}" for name in IR_STEPS), "optimized_ge_graph"]
    listed = [*before, *(f"{name}.{kind}" for name in ir)]
    return [*(f"{number:03d}_aot_{phase}_{name}" for number, name in enumerate(listed)), "output_code.py"]


@pytest.mark.parametrize("kind", [None, "txt", "py"])
def test_exactly_these_files_in_graph_mode(
    root: Path, kind: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a graph dump goes there
    x = torch.randn(4, 8)
    torch.testing.assert_close(graph_mode(work, kind)(x), work(x))
    assert names(of_graph_mode(root)) == ["debug.log", "model__0"]
    model = of_graph_mode(root) / "model__0"
    assert names(model) == ["dynamo_out_graph.txt", "forward"]
    assert names(model / "forward") == expected_with_ir("forward", kind or "pbtxt")
    for path in model.rglob("*"):
        wanted = 0o750 if path.is_dir() else 0o600 if path.suffix == ".py" else 0o640
        assert path.stat().st_mode & 0o777 == wanted, path
    noop = (model / "forward/001_aot_forward_graph_after_optimize_noop_ops.txt").read_text()
    assert "aten.clone" not in noop
    assert "aten.sin" in noop


def test_ir_files_are_the_graph_as_it_was_then(root: Path) -> None:
    """What nobody reads is there before the pass that takes it out, and not behind it."""

    def wasteful(x: torch.Tensor) -> torch.Tensor:
        return x.view(2, 2).t() @ x.view(2, 2)

    graph_mode(wasteful)(torch.randn(4))
    texts = {path.name.split("_", 3)[3]: path.read_text() for path in of_graph_mode(root).rglob("*.pbtxt")}
    assert 'op: "Transpose"' in texts["original_ge_graph.pbtxt"]
    assert 'op: "Transpose"' not in texts["graph_after_remove_dead_ops.pbtxt"]
    assert 'op: "Transpose"' not in texts["optimized_ge_graph.pbtxt"]


def test_training_in_graph_mode_has_two_phases(root: Path) -> None:
    graph_mode(work, dynamic=False)(torch.randn(4, 8, requires_grad=True)).sum().backward()
    model = of_graph_mode(root) / "model__0"
    assert names(model) == ["backward", "dynamo_out_graph.txt", "forward"]
    for phase in ("forward", "backward"):
        assert names(model / phase) == expected_with_ir(phase)


def test_both_modes_in_one_process(root: Path) -> None:
    level = logger.level
    logger.setLevel(logging.DEBUG)
    try:
        compile_fn(work, mode="npugraph_ex", dynamic=False)(torch.randn(4, 8))
        torch.compiler.reset()
        graph_mode(work)(torch.randn(4, 8))
    finally:
        logger.setLevel(level)
    assert names(product(root).parent) == ["npugraph_ex", "torchair"]
    assert "pass optimize_sym_pack:" in (of_graph_mode(root) / "debug.log").read_text()
    assert len([handler for handler in logger.handlers if isinstance(handler, DebugLog)]) == 2


def test_get_compiler_has_a_folder_in_graph_mode(root: Path) -> None:
    gm = make_fx(lambda x: [x.sin()])(torch.randn(3))
    torchair.get_compiler()(gm, [torch.randn(3)])
    assert names(of_graph_mode(root)) == ["compile__0", "debug.log"]
    assert "output_code.py" in names(of_graph_mode(root) / "compile__0/compile_fx")


def test_a_break_makes_two_models(root: Path) -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        torch._dynamo.graph_break()
        return y.cos()

    graph_mode(broken)(torch.randn(3))
    assert names(of_graph_mode(root)) == ["debug.log", "model__0", "model__1"]
