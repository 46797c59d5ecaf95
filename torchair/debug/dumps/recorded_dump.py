"""Dump the tensors of a recorded graph: it copies them, and they are written after every call."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from torchair.capture import Observer
from torchair.debug.dumps.tensor_dump import TensorFolder, saved_by_user
from torchair.fxgraph.fake_values import device_of
from torchair.fxgraph.placeholders import placeholders

aten = torch.ops.aten


class RecordedDump(Observer):
    """Let a graph return copies of all its values in addition to its results, and write them after each call.

    Inputs are written before the graph may modify them.
    """

    watches_calls = True
    takes_outputs = True

    def __init__(self, gm: fx.GraphModule, folder: TensorFolder) -> None:
        self._folder = folder
        left_out = saved_by_user(gm)
        self._inputs = [None if node in left_out else node.name for node in placeholders(gm)]
        nodes = [node for node in gm.graph.nodes if node not in left_out]
        self._constants = {
            node.name: operator.attrgetter(node.target)(gm) for node in nodes if node.op == "get_attr"
        }
        self._results = len(_returned(gm))
        self.names = _return_copies(gm, [node for node in nodes if node.op == "call_function"])

    def called(self, args: Sequence[Any]) -> None:
        for name, value in (*zip(self._inputs, args, strict=True), *self._constants.items()):
            if name is not None and isinstance(value, torch.Tensor):
                self._folder.save(name, value)

    def returned(self, outputs: list[Any]) -> None:
        for name, value in zip(self.names, outputs[self._results :], strict=True):
            self._folder.save(name, value)
        del outputs[self._results :]


def _return_copies(gm: fx.GraphModule, calls: Sequence[fx.Node]) -> list[str]:
    """Copy each value where it is computed, before an op writes into it, and return the names of the values.

    A value on another device is returned without a copy, because the copy would have to run there.
    """
    device = device_of(gm)
    made = [node for node in calls if isinstance(node.meta.get("val"), torch.Tensor)]
    copies = [_copy_of(node) if node.meta["val"].device.type == device.type else node for node in made]
    gm.graph.output_node().args = ((*_returned(gm), *copies),)
    gm.recompile()
    return [node.name for node in made]


def _returned(gm: fx.GraphModule) -> tuple[Any, ...]:
    (returned,) = gm.graph.output_node().args
    assert isinstance(returned, list | tuple), "a graph during compilation returns a list"
    return tuple(returned)


def _copy_of(node: fx.Node) -> fx.Node:
    value = node.meta["val"]
    with node.graph.inserting_after(node):
        copy = node.graph.call_function(aten.clone.default, (node,))
    with value.fake_mode:
        copy.meta = {**node.meta, "val": value.clone()}
    return copy
