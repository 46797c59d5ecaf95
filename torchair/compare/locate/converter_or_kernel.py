"""Decide whether a converter or the kernel of an op that it emits is wrong, by cross-checking other
converters.

A kernel is the definition of its op, so a single call cannot decide: either the op means something else than
the converter assumes, or the kernel does not compute what the op means. But one kernel serves many
converters, and their declared cases (`convert/special/declared_cases.json`) define the expected results. This
module runs these cases: a wrong kernel also fails the cases of other converters that emit the op. A kernel
that passes them is not the cause.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

import torchair.convert.special.declared_cases  # noqa: F401 - fills the table of declared cases
from torchair.backend.diagnose.converter_cases import SEED, Called, called, difference
from torchair.backend.pipeline.normalize import normalize_graph
from torchair.backend.settings.settings import Settings
from torchair.compare.base.culprit import Culprit
from torchair.compare.base.replay_call import copies
from torchair.convert.base.case_spec import Support, declared, target_name
from torchair.convert.base.emitted_ops import emitted_ops
from torchair.convert.base.registry import candidates
from torchair.convert.convert import convert
from torchair.engine.infer import inference
from torchair.engine.interpret import interpret
from torchair.ge.graph import INPUT_TYPES, OUTPUT_TYPE, Graph, Op, TensorResult, copy_graph
from torchair.ge.host import Host

CASES = 3  # number of cases to run for each op
MAX_CROSS_CHECKS = 24  # number of other ops to check
SILENT = (*INPUT_TYPES, OUTPUT_TYPE, "Const", "TorchOp")
CONVERTER, KERNEL, UNDECIDED = "converter", "kernel", "converter or kernel"
USERS = "(the user's)"


@dataclass
class CrossCheck:
    """Result of the declared cases of other converters for the kernel of one op."""

    right: int = 0
    wrong: list[str] = field(default_factory=list[str])  # names of the ops with failing cases

    @property
    def failure_rate(self) -> float:
        """The share of failing cases; below 0 if there are none."""
        count = self.right + len(self.wrong)
        return len(self.wrong) / count if count else -1.0


def emitted(graph: Graph) -> list[str]:
    """Return the op types that compute data, in order."""
    data = [op for op in graph.ops if any(not isinstance(tensor.meta, Host) for tensor in op.outputs)]
    return list(dict.fromkeys(op.type for op in data if op.type not in SILENT))


@dataclass(frozen=True)
class WrongCall:
    """A call that returns wrong numbers when it runs alone."""

    target: Any
    graph: Graph  # the GE graph of the call
    right_op: str  # the type of an op in it that still has the right result, if there is one
    is_right: Callable[[Graph], bool]  # whether another graph returns the right result for the same inputs


def classify(candidate: WrongCall) -> Culprit:
    """Decide between the converter of a call and the kernels of its ops."""
    kinds, name = emitted(candidate.graph), describe_converter(candidate.target)
    if not kinds:
        return Culprit(KERNEL, name, "the op has no converter and runs as an eager op")
    checks = cross_check(kinds, without=candidate.target)
    worst = max(kinds, key=lambda kind: checks[kind].failure_rate, default="")
    if worst and checks[worst].wrong:
        others = ", ".join(list(dict.fromkeys(checks[worst].wrong))[:4])
        return Culprit(KERNEL, worst, f"other converters that emit {worst} give wrong results too: {others}")
    unchecked = [kind for kind in kinds if not checks[kind].right]
    after = kinds[kinds.index(candidate.right_op) + 1 :] if candidate.right_op else kinds
    if candidate.right_op and not set(after) & set(unchecked):
        return Culprit(
            CONVERTER,
            name,
            f"{candidate.right_op} computes the right result, but the call returns another one",
        )
    if not unchecked:
        listed = ", ".join(f"{kind} in {checks[kind].right}" for kind in kinds)
        return Culprit(CONVERTER, name, f"the kernels are right in declared cases of other ops: {listed}")
    right = next(
        (kind for kind in unchecked if len(kinds) > 1 and candidate.is_right(only(kind, candidate.graph))), ""
    )
    if right:
        return Culprit(
            CONVERTER, name, f"{right} alone computes the right result from the inputs of the call"
        )
    return _by_own_cases(candidate.target, kinds, unchecked)


def _by_own_cases(target: Any, kinds: Sequence[str], unchecked: Sequence[str]) -> Culprit:
    """Decide by the op's own cases: a wrong attribute is wrong in some calls, a wrong kernel in all."""
    name = describe_converter(target)
    cases = [found for case in _cases(target) if (found := _emits(target, case)) is not None]
    right = sum(not why for _, why in cases)
    if right:
        return Culprit(
            CONVERTER,
            name,
            f"{right} of {len(cases)} declared cases of {name} pass, so the kernels are right",
        )
    if name.endswith(USERS):
        return Culprit(
            CONVERTER,
            name,
            f"the converter is user-defined, and no other converter emits {', '.join(unchecked)}",
        )
    if len(kinds) == 1:
        why = f"{name} consists of this op only, no other converter emits it, and no declared case passes"
        return Culprit(KERNEL, unchecked[0], why)
    listed = ", ".join(unchecked)
    return Culprit(
        UNDECIDED, f"{name}, {listed}", f"no other converter emits {listed}, and no declared case passes"
    )


def only(kind: str, graph: Graph) -> Graph:
    """Return a graph of one op of this type, with its attributes in `graph`, on the inputs of the graph."""
    op = next(op for op in graph.ops if op.type == kind)
    made = copy_graph(graph)
    data = [twin.outputs[0] for twin in made.inputs]
    slots = [slot for slot in made.by_name[op.name].slots if slot.tensor is not None]
    for slot, tensor in zip(slots, data, strict=False):
        slot.tensor = tensor
    made.results = [TensorResult(made.by_name[op.name].outputs[0])]
    return made


def describe_converter(target: Any) -> str:
    """Return the name of the op, and whether its converter is user-defined."""
    row = next(iter(candidates(target)), None)
    return f"{target_name(target)} {USERS}" if row is not None and row.from_user else target_name(target)


def cross_check(kinds: Collection[str], without: Any) -> dict[str, CrossCheck]:
    """Run the declared cases of other ops whose converters emit these op types."""
    checks = {kind: CrossCheck() for kind in kinds}
    for target in _cross_check_ops(kinds, without):
        for case in _cases(target):
            deciding, why = _emits(target, case, checks) or (set[str](), "")
            for kind in checks.keys() & deciding:
                if why:
                    checks[kind].wrong.append(target_name(target))
                else:
                    checks[kind].right += 1
    return checks


def _cross_check_ops(kinds: Collection[str], without: Any) -> list[Any]:
    """Return ops whose converters can emit one of these op types, those that emit few others first."""
    emits: dict[Any, set[str]] = {}
    for target, _ in declared():
        row = next(iter(candidates(target)), None)
        if target is not without and target not in emits and row is not None:
            emits[target] = set(emitted_ops(row.fn))
    found = [target for target, ops in emits.items() if ops & set(kinds)]
    return sorted(found, key=lambda target: len(emits[target]))[:MAX_CROSS_CHECKS]


def _cases(target: Any) -> list[Support]:
    return [case for op, case in declared(target_name(target)) if op is target][:CASES]


def _emits(target: Any, case: Support, kinds: Collection[str] = ()) -> tuple[set[str], str] | None:
    """Return the op types that decide the result of a case, and its error; None if not conclusive."""
    try:
        made = called(target, case)
        graph, report = converted(made.gm, made.tensors)
        if report.fallbacks or report.decomposed:
            return None
        why = _difference(graph, made)
        # A value that is passed on but not read does not show which op computed it.
        return {
            kind for kind in emitted(graph) if why or kind not in kinds or _difference(graph, made, kind)
        }, why
    except Exception:
        return None


def _difference(graph: Graph, made: Called, corrupted: str = "") -> str:
    """Return the error in the result of a case; the results of op type `corrupted` are changed."""

    def spoil(op: Op, values: Sequence[Any]) -> None:
        for value in values if op.type == corrupted else ():
            if isinstance(value, torch.Tensor):
                value.copy_(torch.logical_not(value) if value.dtype is torch.bool else value + 1)

    torch.manual_seed(SEED)
    return difference(interpret(graph, copies(made.tensors), torch.device("cpu"), spoil), made.expected)


def converted(gm: fx.GraphModule, inputs: Sequence[Any], settings: Settings | None = None) -> Any:
    """Return the GE graph of an FX graph, without passes, and the report."""
    settings = settings or Settings.of({})
    prepared, info = normalize_graph(gm, inputs)
    infer = inference(info.fake_mode, info.device)
    return convert(prepared, infer, info.fake_mode, fold_views=settings.fold_views, soc=settings.soc)
