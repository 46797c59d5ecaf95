"""Who looks at one compile of one graph: the debug folder, the graph dump, the summary of operators.

`backend` calls one method per stage; what is written, and where, is decided here. Looking must not end a
compile: what cannot be written is told.
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
    """What was asked for, and what is known of the graph under way."""

    options: DebugOptions = field(default_factory=DebugOptions)
    files: PhaseFiles | None = None
    captures: bool = False
    degradations: Diagnostics = field(default_factory=Diagnostics)
    name: str = ""
    is_summed: bool = False  # a compile that is tried again has one summary
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
        """The observer of the pass loop, if somebody wants to see each pass."""
        return None if self.files is None else self.after_pass

    def after_pass(self, title: str, graph: Any) -> None:
        """The graph after one pass."""
        what = f"graph_after_{title}"
        if not isinstance(graph, Graph):
            self._in_folder(lambda files: files.fx(what, graph))
        else:
            self._in_folder(lambda files: files.ir(what, *self._ir(graph)))

    def ir(self, which: str, graph: Graph) -> None:
        """The IR as conversion or the passes left it."""
        is_last = which == OPTIMIZED
        self._in_folder(lambda files: files.ir(f"{which}_ge_graph", *self._ir(graph, is_last)))
        self._dump(which, lambda kind: self._ir(graph, is_last)[1])

    def without_ir(self) -> None:
        """There is no IR: the graph goes around it."""
        if self.options.graph_dump is not None:
            self.degradations.add("debug.graph_dump has nothing to write: a graph runs without the IR")

    def recorded_graph(self, gm: fx.GraphModule) -> None:
        """The FX graph as capture mode runs it."""
        self._dump(OPTIMIZED, lambda kind: fx_text(gm, self.call))

    def code(self, program: Any) -> None:
        """What came out."""
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
                self.degradations.add(f"the dump of {self.name} does not run by itself: {text.why_not}")

    def _dump_folder(self) -> Path:
        """A link in the place of the folder is the user's to mend: nothing else is asked of this file."""
        try:
            return make_folder(Path(self.options.graph_dump_path or "."))
        except NotPossible as error:
            raise error.of_user() from None

    def _check_type(self) -> None:
        if self.options.graph_dump not in (None, "py"):
            raise NotInThisMode(
                "capture mode has no IR: debug.graph_dump.type can only be 'py' there",
                got=repr(self.options.graph_dump),
                next="config.debug.graph_dump.type = 'py', or mode max-autotune",
            ).of_user()
