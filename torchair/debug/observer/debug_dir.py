"""Write the debug directory of a run with `TORCH_COMPILE_DEBUG=1`: the stages of each model as files.

torch_compile_debug/run_<time>-pid_<pid>[-rank_<r>]/torchair/ or npugraph_ex/       depending on the mode
    debug.log
    model__<n>/ or compile__<n>/        the second for `compile_fx` and `get_compiler`
        dynamo_out_graph.txt
        forward/ or backward/ or joint/ or compile_fx/
            000_aot_<phase>_graph.txt, 001_aot_<phase>_graph_after_<pass>.txt, …
            NNN_aot_<phase>_original_ge_graph.pbtxt, NNN_aot_<phase>_graph_after_<pass>.pbtxt, …,
            NNN_aot_<phase>_optimized_ge_graph.pbtxt                                in graph mode
            output_code.py
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import fx

from torchair.core.diagnostics import Diagnostics
from torchair.core.environment import text_of
from torchair.core.fingerprint.atomic_files import PRIVATE_MODE
from torchair.core.log import LineFormat, capture_logger, logger
from torchair.core.torch_private.compilers.aot_autograd import dynamo_utils
from torchair.debug.dumps.files import WarnOnWriteError, make_folder, next_folder, open_log, write_text
from torchair.debug.dumps.graph_file import GraphText
from torchair.debug.dumps.output_code import module_text

GRAPH_MODE, CAPTURE_MODE = "torchair", "npugraph_ex"
_opening = threading.Lock()


def is_debugging() -> bool:
    """Return whether debug files are enabled."""
    return text_of("TORCH_COMPILE_DEBUG") == "1"


def name_folder_by_rank() -> None:
    """Add `-rank_<r>` to the directory of a run, including Dynamo's part, if there is a process group."""
    plain = dynamo_utils._get_debug_dir

    def named(root: str) -> str:
        grouped = torch.distributed.is_available() and torch.distributed.is_initialized()
        return f"{plain(root)}-rank_{torch.distributed.get_rank()}" if grouped else plain(root)

    dynamo_utils._get_debug_dir = named


if is_debugging():
    name_folder_by_rank()


class PhaseFiles:
    """Files of one compile of one graph: the graph after each pass, and the generated code."""

    def __init__(self, model: Path, phase: str) -> None:
        self.model = model
        self._phase = phase
        self._number = 0

    def fx(self, what: str, gm: fx.GraphModule) -> None:
        """Write the current FX graph."""
        write_text(self._path(what, "txt"), _readable(gm))

    def ir(self, what: str, kind: str, text: GraphText) -> None:
        """Write the current IR."""
        text.write(self._path(what, kind))

    def code(self, program: Any, inputs: Sequence[Any]) -> None:
        """Write the generated module, with a `main` for inputs like these."""
        path = make_folder(self.model, self._phase) / "output_code.py"
        write_text(path, module_text(program, inputs), PRIVATE_MODE)

    def _path(self, what: str, kind: str) -> Path:
        self._number += 1
        name = f"{self._number - 1:03d}_aot_{self._phase}_{what}.{kind}"
        return make_folder(self.model, self._phase) / name


class ModelFiles:
    """Directory of one model."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def phase(self, name: str) -> PhaseFiles:
        """Return the files of its forward, backward or joint graph."""
        return PhaseFiles(self.folder, name)


def open_model(gm: fx.GraphModule, *, captures: bool) -> ModelFiles | None:
    """Create the directory for a graph from Dynamo; return None if debugging is disabled."""
    model = _open("model", captures)
    if model is not None:
        with WarnOnWriteError(Diagnostics()):
            write_text(model / "dynamo_out_graph.txt", _readable(gm))
    return None if model is None else ModelFiles(model)


def open_compile(*, captures: bool) -> PhaseFiles | None:
    """Create the directory for a graph without Dynamo; return None if debugging is disabled."""
    folder = _open("compile", captures)
    return None if folder is None else PhaseFiles(folder, "compile_fx")


def _open(stem: str, captures: bool) -> Path | None:
    if not is_debugging():
        return None
    with WarnOnWriteError(Diagnostics()):
        run = Path(dynamo_utils.get_debug_dir())
        product = make_folder(run.parent, run.name, CAPTURE_MODE if captures else GRAPH_MODE)
        _log_into(product / "debug.log")
        return next_folder(product, stem)
    return None


class DebugLog(logging.FileHandler):
    """Append log lines to the `debug.log` of the run."""

    def _open(self) -> Any:
        return os.fdopen(open_log(Path(self.baseFilename)), self.mode, encoding="utf-8")


def _log_into(path: Path) -> None:
    """Let the loggers of both modes write to this file while the run has this directory."""
    whole = os.path.abspath(path)
    with _opening:
        for log in (logger, capture_logger):
            before = [handler for handler in log.handlers if isinstance(handler, DebugLog)]
            for handler in before:
                if Path(handler.baseFilename).parents[1] != Path(whole).parents[1]:
                    log.removeHandler(handler)
                    handler.close()
            if all(handler.baseFilename != whole for handler in before):
                handler = DebugLog(path)
                handler.setFormatter(LineFormat(log.name.upper()))
                log.addHandler(handler)


def _readable(gm: fx.GraphModule) -> str:
    return gm.print_readable(print_output=False, include_stride=True, include_device=True) + "\n"
