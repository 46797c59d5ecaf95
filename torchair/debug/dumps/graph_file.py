"""Write graphs to files: as text of each format, or as standalone Python scripts; and run such scripts. Large
constants are stored next to the script, in a file with the same name and the suffix `.pt`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import fx

from torchair.codegen import eager
from torchair.core.fingerprint.atomic_files import FILE_MODE, PRIVATE_MODE, atomic_write
from torchair.core.torch_private.fake.fake_tensors import without_modes
from torchair.debug.dumps.files import write_text
from torchair.debug.dumps.output_code import main_text, views_text
from torchair.engine.interpret import interpret
from torchair.fxgraph.layout import Layout
from torchair.ge.files.text import to_pbtxt, to_python, to_txt
from torchair.ge.graph import Graph
from torchair.ge.schema.runtime_attrs import take_runtime_attrs

__all__ = ["GraphSignature", "GraphText", "begin_graph", "constants_of", "fx_text", "ir_text", "run_graph"]

BESIDE = ".pt"
IMPORTS = """
from math import inf, nan
from torchair.debug.dumps.graph_file import begin_graph, constants_of, run_graph
"""
KERNEL = '''

def kernel(*args):
    """Run the ops of the compiled graph one by one, for the flat arguments of a call."""
    return run_graph(graph, args, {device!r})

'''


@dataclass(frozen=True)
class GraphSignature:
    """Signature of a graph: example inputs, device, and layouts of the results."""

    inputs: Sequence[Any] = ()
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    layouts: Sequence[Layout | None] = ()

    @property
    def text(self) -> str:
        """Return the text that follows `kernel` in a script."""
        return f"{views_text(self.layouts)}{main_text(self.inputs)}"


@dataclass(frozen=True)
class GraphText:
    """Text of a graph, the constants stored next to it, and the reason if it cannot run on its own."""

    text: str
    constants: dict[str, torch.Tensor] = field(default_factory=dict[str, torch.Tensor])
    why_not: str = ""

    @without_modes
    def write(self, path: Path) -> None:
        """Write the file; its constants are written first, so that a script never lacks them."""
        if self.constants:
            with atomic_write(path.with_suffix(BESIDE)) as file:
                torch.save(self.constants, file)
        write_text(path, self.text, PRIVATE_MODE if path.suffix == ".py" else FILE_MODE)


def ir_text(graph: Graph, kind: str, call: GraphSignature, *, normalised: bool) -> GraphText:
    """Return the IR as `txt`, `pbtxt` or `py`; `normalised` as an engine receives it."""
    if kind != "py":
        write = to_txt if kind == "txt" else to_pbtxt
        return GraphText(write(graph, normalised=normalised))
    constants: dict[str, torch.Tensor] = {}
    header, _, body = to_python(graph, beside=constants).partition("\n\n")
    header += "" if "import torch\n" in header else "\nimport torch"
    loaded = "constants = constants_of(__file__)\n" if constants else ""
    begin = f"{header}{IMPORTS}\ngraph = begin_graph()\n{loaded}"
    text = f"{begin}{body}{KERNEL.format(device=str(call.device))}{call.text}"
    parts = (graph, *graph.subgraphs.values())
    held = [op for part in parts for op in part.ops if op.objects]
    why = f"{held[0].name} calls {held[0].attrs['target'].value} with Python objects" if held else ""
    return GraphText(text, constants, why)


@without_modes
def fx_text(gm: fx.GraphModule, call: GraphSignature) -> GraphText:
    """Return an FX graph as a Python script, or as torch prints it if a value in it has no text."""
    constants: dict[str, torch.Tensor] = {}
    program = eager.build(gm, call.inputs)
    assert program.standalone is not None, "an eager program has source text"
    text = program.standalone(beside=constants)
    if text is None:
        shown = gm.print_readable(print_output=False, include_stride=True, include_device=True)
        return GraphText(f"{shown}\n", why_not="it contains Python objects that cannot be written as text")
    loaded = f"{IMPORTS}\nconstants = constants_of(__file__)\n" if constants else ""
    return GraphText(f"import torchair  # its ops\n{loaded}{text}\n{call.text}", constants)


def begin_graph() -> Graph:
    """Create a graph and make it the one being built."""
    return Graph("script").__enter__()


def constants_of(file: str) -> dict[str, torch.Tensor]:
    """Load the constants stored next to a script."""
    return torch.load(Path(file).with_suffix(BESIDE), weights_only=True)


def run_graph(graph: Graph, args: Sequence[Any], device: str) -> list[Any]:
    """Run a graph that a script has built."""
    for part in (graph, *graph.subgraphs.values()):
        if not part.feeds and not part.results:
            take_runtime_attrs(part)
    return interpret(graph, args, torch.device(device))
