"""The program that interprets the GE graph, op by op, and lets `dump_config` see each of them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from torchair.backend.pipeline.context import Fallbacks
from torchair.codegen.base.programs import NonSerializableCode
from torchair.core.diagnostics import Diagnostics
from torchair.core.errors import NotPossible, first_line, is_of_user
from torchair.core.log import logger
from torchair.core.program import Code
from torchair.debug.dumps.ge_op_dump import EngineDump
from torchair.engine.interpret import binding_of, interpret
from torchair.fxgraph.external_constants import HELD
from torchair.fxgraph.layout import Layout
from torchair.fxgraph.symbols import Binding
from torchair.ge.builder.torch_kernel_binding import runs_torch
from torchair.ge.files.script import from_python
from torchair.ge.files.text import to_python
from torchair.ge.graph import AliasResult, Graph, Op, TensorResult
from torchair.passes.ge.dead_code import acts

MODULE = """import torch
from torchair.engine.interpret import interpret
from torchair.ge.files.script import from_python

GRAPH = {graph!r}
graph = from_python(GRAPH)


def kernel(*args):
    return interpret(graph, list(args), torch.device({device!r}))
"""


@dataclass(frozen=True)
class InterpretedCode:
    """A graph of the IR as text, and the code of the program of the same graph that helps out."""

    text: str
    objects: tuple[dict[str, dict[str, Any]], ...]
    """What the text leaves out: of each graph, the Python objects of its ops by their names."""
    layouts: tuple[Layout | None, ...]
    """Of its results, with symbols,"""
    binding: Binding
    """which are read from there."""
    device: torch.device
    other: Code | None
    source: str
    degradations: Diagnostics
    kind = "reference"

    def load(self) -> InterpretedProgram:
        """Ready to run."""
        graph = from_python(self.text)
        for part, objects in zip(_parts(graph), self.objects, strict=True):
            for name, held in objects.items():
                part.by_name[name].objects.update(held)
        graph.binding = self.binding
        graph.results = [
            replace(result, layout=layout)
            if isinstance(result, TensorResult | AliasResult) and layout
            else result
            for result, layout in zip(graph.results, self.layouts, strict=True)
        ]
        return InterpretedProgram(graph, self.device, self.other, Fallbacks(degradations=self.degradations))


class InterpretedProgram:
    """Runs the graph; where that fails and nothing has happened yet, `other`, a program of the same graph,
    runs, if there is one.
    """

    kind = "reference"
    _boxed_call = True

    def __init__(
        self,
        graph: Graph,
        device: torch.device,
        other: Code | None,
        fallbacks: Fallbacks,
    ) -> None:
        self._graph = graph
        self._device = device
        self._other = other
        self._fallbacks = fallbacks
        self.dump: EngineDump | None = None

    @property
    def source(self) -> str:
        """The op list; `ge.text` prints the whole graph."""
        return "\n".join(f"{op.name}: {op.type}" for op in self._graph.ops)

    @property
    def code(self) -> Code | None:
        """As data; none where the graph is dumped as it runs."""
        if self.dump is not None:
            return None
        layouts = [getattr(result, "layout", None) for result in self._graph.results]
        text, binding = to_python(self._graph, limit=None), binding_of(self._graph)
        objects = tuple(
            {op.name: op.objects for op in part.ops if op.objects} for part in _parts(self._graph)
        )
        degradations = self._fallbacks.degradations
        code = InterpretedCode(
            text, objects, tuple(layouts), binding, self._device, self._other, self.source, degradations
        )
        return NonSerializableCode(code) if any(HELD in op.attrs for op in self._graph.ops) else code

    def standalone(self) -> str | None:
        """The graph as a module of its own; None where it holds what has no text."""
        return interpreted(self._graph, self._device)

    def __call__(self, args: list[Any]) -> list[Any]:
        written: list[Op] = []
        with contextlib.nullcontext() if self.dump is None else self.dump.run() as run:

            def observe(op: Op, values: Sequence[Any]) -> None:
                if acts(op):
                    written.append(op)
                if run is not None:
                    run.after(op, values)

            before = None if run is None else run.before
            try:
                return interpret(self._graph, args, self._device, observe, before=before)
            except Exception as error:
                # What is not ours may have acted already, or would act twice.
                is_last = self._other is None or written
                if is_of_user(error) or is_last or any(map(runs_torch, self._graph.ops)):
                    raise
                # What the ops themselves refuse, they refuse here too, and the error says so.
                assert self._other is not None, "else it was raised"
                outputs = self._other.load()(args)
                why = f"{type(error).__name__}: {first_line(error)}"
                text = f"the reference engine failed ({why}); ops run one by one"
                logger.error("%s: %s", self._graph.name, text)
                self._fallbacks.say("reference", text)
                return outputs


def _parts(graph: Graph) -> list[Graph]:
    """The graph and those in the sub-graph slots of its ops."""
    return [graph, *graph.subgraphs.values()]


def interpreted(graph: Graph, device: torch.device) -> str | None:
    """The module; None where the graph holds what has no text."""
    if any(op.objects for part in (graph, *graph.subgraphs.values()) for op in part.ops):
        return None
    try:
        text = to_python(graph, limit=None)
    except NotPossible:
        return None
    return MODULE.format(graph=text, device=str(device))
