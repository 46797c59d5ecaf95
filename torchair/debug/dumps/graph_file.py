"""Graphs as files: the text of each type, Python scripts that run by themselves, and what such a script calls
when it runs. Large constants lie beside a script, in a file of its name that ends in `.pt`.
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
    """What the compiled graph returns for the flat arguments of a call: its ops run one by one."""
    return run_graph(graph, args, {device!r})

'''


@dataclass(frozen=True)
class GraphSignature:
    """How a graph is called: with such inputs, on this device; its results lie as the layouts say."""

    inputs: Sequence[Any] = ()
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    layouts: Sequence[Layout | None] = ()

    @property
    def text(self) -> str:
        """What stands behind the `kernel` of a script."""
        return f"{views_text(self.layouts)}{main_text(self.inputs)}"


@dataclass(frozen=True)
class GraphText:
    """The text of a graph, the constants that lie beside it, and why it does not run by itself, if so."""

    text: str
    constants: dict[str, torch.Tensor] = field(default_factory=dict[str, torch.Tensor])
    why_not: str = ""

    @without_modes
    def write(self, path: Path) -> None:
        """The file, and the one beside it first: a script is never without its constants."""
        if self.constants:
            with atomic_write(path.with_suffix(BESIDE)) as file:
                torch.save(self.constants, file)
        write_text(path, self.text, PRIVATE_MODE if path.suffix == ".py" else FILE_MODE)


def ir_text(graph: Graph, kind: str, call: GraphSignature, *, normalised: bool) -> GraphText:
    """The IR as `txt`, `pbtxt` or `py`; `normalised` as an engine receives it."""
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
    """An FX graph as a Python script; as torch prints it where something in it has no text."""
    constants: dict[str, torch.Tensor] = {}
    program = eager.build(gm, call.inputs)
    assert program.standalone is not None, "an eager program is text"
    text = program.standalone(beside=constants)
    if text is None:
        shown = gm.print_readable(print_output=False, include_stride=True, include_device=True)
        return GraphText(f"{shown}\n", why_not="it holds Python objects that have no text")
    loaded = f"{IMPORTS}\nconstants = constants_of(__file__)\n" if constants else ""
    return GraphText(f"import torchair  # its ops\n{loaded}{text}\n{call.text}", constants)


def begin_graph() -> Graph:
    """A new graph, which is the one being built from here on."""
    return Graph("script").__enter__()


def constants_of(file: str) -> dict[str, torch.Tensor]:
    """The constants that lie beside a script."""
    return torch.load(Path(file).with_suffix(BESIDE), weights_only=True)


def run_graph(graph: Graph, args: Sequence[Any], device: str) -> list[Any]:
    """Run a graph that a script has built."""
    for part in (graph, *graph.subgraphs.values()):
        if not part.feeds and not part.results:
            take_runtime_attrs(part)
    return interpret(graph, args, torch.device(device))
