"""The debug folder of a run, with `TORCH_COMPILE_DEBUG=1`: what happened to each model, as files.

    torch_compile_debug/run_<time>-pid_<pid>[-rank_<r>]/npugraph_ex/
        debug.log
        model__<n>/ or compile__<n>/        the second for `compile_fx`
            dynamo_out_graph.txt
            forward/ or backward/ or compile_fx/
                000_aot_<phase>_graph.txt, 001_aot_<phase>_graph_after_<pass>.txt, …, output_code.py

What cannot be written is told once and left out: looking at a compilation must not end it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import fx

from torchair.core.degraded import Degradations
from torchair.core.environment import text_of
from torchair.core.errors import first_line
from torchair.core.log import LineFormat, capture_logger, logger
from torchair.core.torch_private.aot import dynamo_utils
from torchair.debug.files import PRIVATE_MODE, make_folder, next_folder, open_file, write_text
from torchair.debug.output_code import module_text

PRODUCT = "npugraph_ex"
_opening = threading.Lock()


def is_debugging() -> bool:
    """Are debug files wanted?"""
    return text_of("TORCH_COMPILE_DEBUG") == "1"


def name_folder_by_rank() -> None:
    """From now on the folder of a run, also Dynamo's part, ends in `-rank_<r>` where a process group is."""
    plain = dynamo_utils._get_debug_dir

    def named(root: str) -> str:
        grouped = torch.distributed.is_available() and torch.distributed.is_initialized()
        return f"{plain(root)}-rank_{torch.distributed.get_rank()}" if grouped else plain(root)

    dynamo_utils._get_debug_dir = named


if is_debugging():
    name_folder_by_rank()


class PhaseFiles:
    """What one compile of one graph leaves: the graph after each pass, and the generated code."""

    def __init__(self, model: Path, phase: str) -> None:
        self.model = model
        self._phase = phase
        self._number = 0
        self.degradations = Degradations()

    def graph(self, gm: fx.GraphModule) -> None:
        """The graph before all passes."""
        self._write_graph(f"aot_{self._phase}_graph", gm)

    def after_pass(self, title: str, gm: Any) -> None:
        """The graph after one pass: the observer of the pass loop."""
        self._write_graph(f"aot_{self._phase}_graph_after_{title}", gm)

    def code(self, program: Any, inputs: Sequence[Any]) -> None:
        """The generated module, with a `main` for such inputs."""
        with _told(self.degradations):
            path = make_folder(self.model, self._phase) / "output_code.py"
            write_text(path, module_text(program, inputs), PRIVATE_MODE)

    def _write_graph(self, what: str, gm: fx.GraphModule) -> None:
        with _told(self.degradations):
            path = make_folder(self.model, self._phase) / f"{self._number:03d}_{what}.txt"
            self._number += 1
            write_text(path, _readable(gm))


class ModelFiles:
    """The folder of one model."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def phase(self, name: str) -> PhaseFiles:
        """The files of its forward or backward graph."""
        return PhaseFiles(self.folder, name)


def open_model(gm: fx.GraphModule) -> ModelFiles | None:
    """A folder for what Dynamo hands over; None when nobody debugs."""
    model = _open("model")
    if model is not None:
        with _told(Degradations()):
            write_text(model / "dynamo_out_graph.txt", _readable(gm))
    return None if model is None else ModelFiles(model)


def open_compile() -> PhaseFiles | None:
    """A folder for a graph that came without Dynamo; None when nobody debugs."""
    folder = _open("compile")
    return None if folder is None else PhaseFiles(folder, "compile_fx")


def _open(stem: str) -> Path | None:
    if not is_debugging():
        return None
    with _told(Degradations()):
        run = Path(dynamo_utils.get_debug_dir())
        product = make_folder(run.parent, run.name, PRODUCT)
        _log_into(product / "debug.log")
        return next_folder(product, stem)
    return None


class DebugLog(logging.FileHandler):
    """Appends log lines to the run's `debug.log`."""

    def _open(self) -> Any:
        return os.fdopen(open_file(Path(self.baseFilename), append=True), self.mode, encoding="utf-8")


def _log_into(path: Path) -> None:
    """Both loggers write there from now on: capture mode speaks through both."""
    with _opening:
        for log in (logger, capture_logger):
            before = [handler for handler in log.handlers if isinstance(handler, DebugLog)]
            if any(handler.baseFilename == os.path.abspath(path) for handler in before):
                continue
            for handler in before:
                log.removeHandler(handler)
                handler.close()
            handler = DebugLog(path)
            handler.setFormatter(LineFormat(log.name.upper()))
            log.addHandler(handler)


def _readable(gm: fx.GraphModule) -> str:
    return gm.print_readable(print_output=False, include_stride=True, include_device=True) + "\n"


@contextlib.contextmanager
def _told(degradations: Degradations) -> Iterator[None]:
    """What cannot be written is told, and ends nothing."""
    try:
        yield
    except Exception as error:
        degradations.add(f"a debug file was not written: {type(error).__name__}: {first_line(error)}")
