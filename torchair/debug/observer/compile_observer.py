"""Observe the compile of one graph: the debug directory, the graph dump, the operator summary.

`backend` calls one method per stage; this module decides what is written, and where. Observing must not fail
a compile: if a file cannot be written, torchair warns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import fx

from torchair.core.diagnostics import Diagnostics
from torchair.core.errors import NotInThisMode, NotPossible
from torchair.debug.dumps.files import WarnOnWriteError, make_folder, stamped, write_text
from torchair.debug.dumps.graph_file import GraphSignature, GraphText, fx_text, ir_text
from torchair.debug.dumps.op_summary import summary_text
from torchair.debug.dumps.options import DebugOptions
from torchair.debug.observer.debug_dir import PhaseFiles
from torchair.ge.graph import Graph

ORIGINAL, OPTIMIZED = "original", "optimized"
DEFAULT_TYPE = "pbtxt"


@dataclass
class CompileObserver:
    """The debug outputs that are enabled, and the state of the current graph."""

    options: DebugOptions = field(default_factory=DebugOptions)
    files: PhaseFiles | None = None
    captures: bool = False
    degradations: Diagnostics = field(default_factory=Diagnostics)
    name: str = ""
    is_summed: bool = False  # write the summary only once if the compile is retried
    call: GraphSignature = field(default_factory=GraphSignature)

    def begin(self, gm: fx.GraphModule, name: str, call: GraphSignature) -> None:
        """Show the FX graph before all passes."""
        self.name, self.call = name, call
        self._in_folder(lambda files: files.fx("graph", gm))
        if self.options.summary is not None and not self.captures and not self.is_summed:
            self.is_summed = True
            with WarnOnWriteError(self.degradations, "a summary of operators"):
                folder = make_folder(Path(self.options.summary_path or "."))
                write_text(folder / stamped("summary", self.options.summary), summary_text(gm))
        if self.captures:
            self._check_type()
            self._dump(ORIGINAL, lambda kind: fx_text(gm, self.call))

    @property
    def observe(self) -> Callable[[str, Any], None] | None:
        """Return the observer of the pass loop, or None if no output needs it."""
        return None if self.files is None else self.after_pass

    def after_pass(self, title: str, graph: Any) -> None:
        """Handle the graph after one pass."""
        what = f"graph_after_{title}"
        if not isinstance(graph, Graph):
            self._in_folder(lambda files: files.fx(what, graph))
        else:
            self._in_folder(lambda files: files.ir(what, *self._ir(graph)))

    def ir(self, which: str, graph: Graph) -> None:
        """Handle the IR after conversion or after the passes."""
        is_last = which == OPTIMIZED
        self._in_folder(lambda files: files.ir(f"{which}_ge_graph", *self._ir(graph, is_last)))
        self._dump(which, lambda kind: self._ir(graph, is_last)[1])

    def without_ir(self) -> None:
        """Warn that the graph is compiled without the IR."""
        if self.options.graph_dump is not None:
            self.degradations.add("debug.graph_dump writes no file: the graph is compiled without the IR")

    def recorded_graph(self, gm: fx.GraphModule) -> None:
        """Handle the FX graph that capture mode runs."""
        self._dump(OPTIMIZED, lambda kind: fx_text(gm, self.call))

    def code(self, program: Any) -> None:
        """Handle the compiled program."""
        self._in_folder(lambda files: files.code(program, self.call.inputs))

    def _ir(self, graph: Graph, normalised: bool = False) -> tuple[str, GraphText]:
        kind = self.options.graph_dump or DEFAULT_TYPE
        return kind, ir_text(graph, kind, self.call, normalised=normalised)

    def _in_folder(self, write: Callable[[PhaseFiles], None]) -> None:
        if self.files is not None:
            with WarnOnWriteError(self.degradations):
                write(self.files)

    def _dump(self, which: str, make: Callable[[str], GraphText]) -> None:
        kind = self.options.graph_dump
        if kind is None:
            return
        with WarnOnWriteError(self.degradations, "a graph dump"):
            text = make(kind)
            text.write(self._dump_folder() / stamped(f"dynamo_{which}_{self.name}", kind))
            if text.why_not:
                self.degradations.add(f"the dump of {self.name} cannot run on its own: {text.why_not}")

    def _dump_folder(self) -> Path:
        """Return the directory. Raise a user error if it is a symbolic link; other write errors only warn."""
        try:
            return make_folder(Path(self.options.graph_dump_path or "."))
        except NotPossible as error:
            raise error.of_user() from None

    def _check_type(self) -> None:
        if self.options.graph_dump not in (None, "py"):
            raise NotInThisMode(
                "capture mode has no IR: debug.graph_dump.type can only be 'py' in capture mode",
                got=repr(self.options.graph_dump),
                next="set config.debug.graph_dump.type = 'py', or use mode max-autotune",
            ).of_user()
