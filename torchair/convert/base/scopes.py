"""Convert scopes, streams and events of an FX graph: attributes of ops, and control edges between them.

A record is the last op on its stream, a wait is an edge to the next op on its stream; a named event is both.
Ops outside all stream scopes are on the stream of the graph, whose label is None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from torchair import ge
from torchair.ge.attr import KNOWN, Attr, Bool, Str
from torchair.ge.graph import INPUT_TYPES, Graph, Op, Tensor
from torchair.ops.streams import scope_analysis, stream_ops

MARKS = stream_ops.ALL | stream_ops.WAIT_TENSOR
"""Calls that compute nothing."""
STREAM = (stream_ops.LABEL, stream_ops.PRIORITY, stream_ops.INNER_PARALLEL)
WITHOUT_STREAM = (*INPUT_TYPES, "Const")
"""Ops that are ready before anything runs."""


@dataclass
class Schedule:
    """Track the order that the nodes so far define."""

    tokens: dict[Op, list[Op]] = field(default_factory=dict[Op, list[Op]])
    """Token of a point of a stream -> the op that is done then."""
    events: dict[str, list[Op]] = field(default_factory=dict[str, list[Op]])
    labels: dict[tuple[Any, ...], str] = field(default_factory=dict[tuple[Any, ...], str])
    """Identity of a stream -> its label."""
    waiting: dict[str | None, list[Op]] = field(default_factory=dict[str | None, list[Op]])
    """Stream -> the ops that its next op waits for."""

    def label(self, identity: tuple[Any, ...]) -> str | None:
        """Return the label of a stream; one that no scope has entered has a label, too, and no ops."""
        return None if scope_analysis.is_entry(identity) else self.labels.get(identity, str(identity))

    def wait(self, label: str | None, ops: Iterable[Op]) -> None:
        """Make the next op on this stream wait for these."""
        found = self.waiting.setdefault(label, [])
        found += [op for op in ops if op not in found and op.type not in WITHOUT_STREAM]

    def add_pending_edges(self, made: Iterable[Op]) -> None:
        """Add the pending edges to the first of the new ops on each stream."""
        if not self.waiting:
            return
        for op in made:
            if op.type not in WITHOUT_STREAM and (label := label_of(op)) in self.waiting:
                op.after += [before for before in self.waiting.pop(label) if before not in op.after]


def mark(
    graph: Graph, schedule: Schedule, node: fx.Node, read: Callable[[Any], list[Tensor]]
) -> Tensor | None:
    """Convert one stream call to the IR; `read` returns the tensors of an argument."""
    target, here = node.target, _current_label(graph)
    if target in stream_ops.ENTER:
        graph.scopes.append(_attributes(schedule, node))
    elif target in stream_ops.EXIT:
        graph.scopes.pop()
    elif target in stream_ops.RECORD:
        token: Tensor = ge.Const(torch.empty(0))
        schedule.tokens[token.op] = _last(graph, here)
        return token
    elif target in stream_ops.WAIT:
        schedule.wait(here, _producers(schedule, read(node.args[0])))
    elif target in stream_ops.EVENT_RECORD:
        schedule.events[node.args[0]] = _last(graph, here)  # type: ignore[index]
    elif target in stream_ops.EVENT_RECORD_ON:
        schedule.events[node.args[0]] = _last(graph, schedule.label(node.args[1:4]))  # type: ignore[index]
    elif target in stream_ops.EVENT_WAIT:
        schedule.wait(here, schedule.events.get(node.args[0], ()))  # type: ignore[arg-type]
    elif target in stream_ops.EVENT_WAIT_ON:
        known = schedule.events.get(node.args[0], ())  # type: ignore[arg-type]
        schedule.wait(schedule.label(node.args[1:4]), known)
    elif target in stream_ops.STREAM_WAIT:
        waited = _last(graph, schedule.label(node.args[3:6]))
        schedule.wait(schedule.label(node.args[:3]), waited)
    elif target in stream_ops.WAIT_TENSOR:
        x, dependency = read(list(node.args))
        result: Tensor = ge.Identity(x)
        result.op.after += [op for op in _producers(schedule, [dependency]) if op.type not in WITHOUT_STREAM]
        return result
    return None


def label_of(op: Op) -> str | None:
    """Return the label of the stream of an op."""
    return op.attrs[stream_ops.LABEL].value if stream_ops.LABEL in op.attrs else None


def _current_label(graph: Graph) -> str | None:
    for scope in reversed(graph.scopes):
        if stream_ops.LABEL in scope:
            found = scope[stream_ops.LABEL]
            return None if found is None else found.value
    return None


def _attributes(schedule: Schedule, enter: fx.Node) -> dict[str, Attr | None]:
    """Return the attributes that a scope sets on ops; None removes an attribute of an outer scope."""
    given = stream_ops.attributes(enter)
    identity = tuple(given.pop(key, None) for key in stream_ops.IDENTITY)
    if None not in identity and scope_analysis.is_entry(identity):
        return dict.fromkeys(STREAM)
    if None not in identity:
        schedule.labels[identity] = given.setdefault(stream_ops.LABEL, str(identity))
    if given.get(stream_ops.SUPER_KERNEL) == "":
        return dict.fromkeys((stream_ops.SUPER_KERNEL, stream_ops.SUPER_KERNEL_OPTIONS))
    if given.get(stream_ops.LABEL) == stream_ops.MAIN:
        return dict.fromkeys(STREAM)
    names = [key for key in given if key not in stream_ops.LIMITED_STREAM]
    return {key: _attribute(key, given[key]) for key in names}


def _attribute(key: str, value: str) -> Attr:
    return Bool(value == "True") if KNOWN.get(key) is Bool else Str(value)


def _last(graph: Graph, label: str | None) -> list[Op]:
    """Return the last op on a stream, if there is one."""
    found = (op for op in reversed(graph.ops) if op.type not in WITHOUT_STREAM and label_of(op) == label)
    return [op for op in (next(found, None),) if op is not None]


def _producers(schedule: Schedule, tensors: Iterable[Tensor]) -> list[Op]:
    """Return the producers of these tensors; for a token, the ops it stands for."""
    return [op for tensor in tensors for op in schedule.tokens.get(tensor.op, [tensor.op])]
