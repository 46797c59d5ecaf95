"""Bind IR ops to calls of torch ops: users' own ops, which have no kernel here.

A converter may emit ops that only another engine implements. They stay in the graph, and the torch op of the
FX node runs in their place. The first op that makes one of the results, the *anchor*, holds the call as text
(`CALL`). Slots that only the call reads, and outputs that only other ops of the same call read, have names
that begin with `HIDDEN`; on the wire they are part of the text of the call. All other ops between the
arguments and the results have no value here, and do not run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchair.core.errors import BadGraph
from torchair.core.torch_private.operators.schemas import HigherOrderOperator
from torchair.ge.attr import Attr, Str
from torchair.ge.builder.torch_op import HIGHER_ORDER, decoded, encoded, find_target, target_of
from torchair.ge.graph import INPUT_TYPES, OUTPUT_TYPE, Desc, Graph, Op, Slot, Tensor
from torchair.ge.host import Host
from torchair.ge.schema.string_format import FORMAT, PRINT, read_by

CALL = "_torch_call"
"""Attribute with the text of the call.

On an anchor: `{"target", "args", "reads": slots, "makes": results by output}`. On other ops that make
results: `{"reads": slots by output}`. On the wire also the hidden `"slots"` (name -> edge) and `"outputs"`.
An empty text requests a call from the conversion.
"""
HIDDEN = "_torch_"


@dataclass(frozen=True)
class TorchCall:
    """Hold the call of an FX node, with graph tensors in place of tensors."""

    target: Any
    args: Sequence[Any]
    kwargs: Mapping[str, Any]


def runs_torch(op: Op) -> bool:
    """Return whether torch's own op runs."""
    return op.type == "TorchOp" or CALL in op.attrs


def inputs_of(op: Op) -> list[Tensor]:
    """Return the tensors whose values the op needs here."""
    if CALL not in op.attrs:
        return read_by(op) if op.type in (FORMAT, PRINT) else op.inputs
    reads = _facts(op)["reads"]
    found = [op.slots[number].tensor for number in reads if number is not None]
    return [tensor for tensor in found if tensor is not None]


def hold(ops: Sequence[Op], call: TorchCall, results: Mapping[Tensor, int]) -> None:
    """Bind the call to these ops, which were emitted for one FX node.

    `results` maps the tensors that get a value from the call to the index of that value.
    """
    text, tensors, objects = encoded(call.args, call.kwargs)
    if objects:
        kinds = ", ".join(type(value).__name__ for value in objects.values())
        raise NotImplementedError(
            f"an op without a kernel needs a torch call that can be written as text; this one holds {kinds}"
        )
    makers = [op for op in ops if any(output in results for output in op.outputs)] or [ops[-1]]
    anchor, *others = makers
    makes = [results.get(output) for output in anchor.outputs]
    reads = [_slot_of(anchor, tensor) for tensor in tensors]
    for other in others:
        picked = [_picked(anchor, other, output, results, makes) for output in other.outputs]
        other.attrs[CALL] = Str(json.dumps({"reads": picked}))
    facts = {"target": name_of(call.target), "args": text, "reads": reads, "makes": makes}
    anchor.attrs[CALL] = Str(json.dumps(facts))


def _slot_of(op: Op, tensor: Tensor) -> int:
    """Return the index of the slot that holds the tensor; add a hidden slot if there is none."""
    for number, slot in enumerate(op.slots):
        if slot.tensor is tensor:
            return number
    hidden = sum(slot.name.startswith(HIDDEN) for slot in op.slots)
    op.slots.append(Slot(Desc(f"{HIDDEN}x{hidden}"), tensor))
    return len(op.slots) - 1


def _picked(
    anchor: Op, op: Op, output: Tensor, results: Mapping[Tensor, int], makes: list[int | None]
) -> int | None:
    """Return the slot that reads another op's output, which becomes a hidden output of the anchor."""
    if output not in results:
        return None
    place = results[output]
    if place not in makes:
        hidden = sum(result.desc.name.startswith(HIDDEN) for result in anchor.outputs)
        result = Tensor(anchor, len(anchor.outputs), f"{HIDDEN}y{hidden}")
        result.meta = output.meta
        anchor.outputs.append(result)
        makes.append(place)
    return _slot_of(op, anchor.outputs[makes.index(place)])


def name_of(target: Any) -> str:
    """Return the name by which `torch_op.find_target` finds the op."""
    return f"{HIGHER_ORDER}{target.name()}" if isinstance(target, HigherOrderOperator) else str(target)


def call_of(
    op: Op, values: Sequence[torch.Tensor | Host], device: torch.device
) -> tuple[Any, list[Any], dict[str, Any]] | None:
    """Return the call that runs the op, given the values of `inputs_of`.

    Return None if the op picks its value from another op's call.
    """
    facts = _facts(op)
    if "target" not in facts:
        return None
    args, kwargs = decoded(op, facts["args"], values, device)
    return target_of(op, facts["target"]), args, kwargs


def spread(op: Op, values: Sequence[torch.Tensor | Host]) -> list[torch.Tensor | Host]:
    """Return the values of a call by output; an output without a value is empty."""
    facts = _facts(op)
    if "makes" in facts:
        return [Host(()) if place is None else values[place] for place in facts["makes"]]
    read = iter(values)
    return [Host(()) if slot is None else next(read) for slot in facts["reads"]]


def skipped(graph: Graph) -> set[Op]:
    """Return the ops that have no value here.

    Calls run in place of the readers of their outputs, and those calls do not need them.
    """
    held = [op for op in graph.ops if CALL in op.attrs]
    if not held:
        return set()
    needed = {op: set(inputs_of(op)) for op in held}
    uses, returned = graph.consumers(), set(graph.returned)
    found: set[Op] = set()
    for op in reversed(graph.ops):
        if op.type in (*INPUT_TYPES, OUTPUT_TYPE) or op in needed or not op.outputs:
            continue
        readers = [(user, output) for output in op.outputs for user, _ in uses.get(output, ())]
        if not readers or not returned.isdisjoint(op.outputs):
            continue
        if all(user in found or (user in needed and out not in needed[user]) for user, out in readers):
            found.add(op)
    return found


def _facts(op: Op) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(op.attrs[CALL].value)
    return found


# Wire format


def shown(op: Op) -> tuple[list[Slot], list[Tensor], dict[str, Attr]]:
    """Return slots, outputs and attributes without the hidden ones, which become part of the call's text."""
    if CALL not in op.attrs:
        return op.slots, op.outputs, op.attrs
    hidden = {
        slot.name: slot.tensor.tensor
        for slot in op.slots
        if slot.name.startswith(HIDDEN) and slot.tensor is not None
    }
    outputs = [tensor.desc.name for tensor in op.outputs if tensor.desc.name.startswith(HIDDEN)]
    facts = _facts(op) | ({"slots": hidden} if hidden else {}) | ({"outputs": outputs} if outputs else {})
    return (
        [slot for slot in op.slots if not slot.name.startswith(HIDDEN)],
        [tensor for tensor in op.outputs if not tensor.desc.name.startswith(HIDDEN)],
        op.attrs | {CALL: Str(json.dumps(facts))},
    )


def restore(graph: Graph) -> None:
    """Restore the hidden slots and outputs of a graph that was read."""
    found = {op: _checked(op) for op in graph.ops if CALL in op.attrs}
    for op, facts in found.items():
        for name in facts.pop("outputs", ()):
            op.outputs.append(Tensor(op, len(op.outputs), str(name)))
    for op, facts in found.items():
        for name, edge in facts.pop("slots", {}).items():
            maker, _, index = str(edge).rpartition(":")
            outputs = graph.by_name[maker].outputs if maker in graph.by_name else []
            if not index.isdecimal() or int(index) >= len(outputs):
                raise BadGraph(f"{op.name} reads {edge!r}, which is not an output of an op in {graph.name}")
            op.slots.append(Slot(Desc(name), outputs[int(index)]))
        reads = facts["reads"]
        if any(number is not None and not 0 <= number < len(op.slots) for number in reads):
            raise BadGraph(f"the call of {op.name} reads nonexistent input slots", got=str(reads))
        if len(facts.get("makes", reads)) != len(op.outputs):
            raise BadGraph(f"the call of {op.name} does not make its outputs", got=str(facts))
        op.attrs[CALL] = Str(json.dumps(facts))


def _checked(op: Op) -> dict[str, Any]:
    """Check the text of a call, which comes from a file."""
    text = op.attrs[CALL]
    try:
        facts = json.loads(text.value) if isinstance(text, Str) else None
    except ValueError:
        facts = None
    facts = facts if isinstance(facts, dict) else {}
    is_text = all(isinstance(facts.get(key, ""), str) for key in ("target", "args"))
    if not is_text or not isinstance(facts.get("reads"), list):
        raise BadGraph(f"{op.name} has no valid torch call", got=repr(text)[:200])
    return facts


# Torch ops that are not defined


def release(graph: Graph, may_run: Callable[[Any], bool]) -> dict[Op, str]:
    """Unbind calls of torch ops that are not defined here or may not run.

    Return the ops that these calls ran, with the names of the torch ops.
    """
    removed: dict[Op, str] = {}
    without = skipped(graph)
    for op in [op for op in graph.ops if CALL in op.attrs]:
        for name in _operators(_facts(op)):
            target = find_target(name)
            if target is None or not may_run(target):
                removed[op] = name
    picks = [op for op in graph.ops if CALL in op.attrs and "target" not in _facts(op)]
    for op in picks:
        names = [removed[tensor.op] for tensor in inputs_of(op) if tensor.op in removed]
        removed |= {op: names[0]} if names else {}
    for op in removed:
        del op.attrs[CALL]
        op.slots = [slot for slot in op.slots if not slot.name.startswith(HIDDEN)]
        op.outputs = [tensor for tensor in op.outputs if not tensor.desc.name.startswith(HIDDEN)]
    for op in reversed(graph.ops):
        for before in [tensor.op for tensor in op.inputs if op in removed and tensor.op in without]:
            removed.setdefault(before, removed[op])
    return removed


def _operators(facts: dict[str, Any]) -> list[str]:
    """Return the names of the operators that a call needs."""
    if "target" not in facts:
        return []
    found = [facts["target"]]
    waiting = [json.loads(facts["args"])]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            found += [str(part["op"])] if "op" in part else []
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part
    return found
