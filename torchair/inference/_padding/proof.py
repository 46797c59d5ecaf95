"""Prove that padding changes no result for any data, by reasoning about the ops of the graph.

Each tensor of a padded call is described by a `Value`: its real elements are those of the unpadded call, and
its tails are the padding, of which samples are known. Rules by family of op (`rules.py`) compute the `Value`
of a result. An op through which a tail affects real elements raises `Leak`: a mean over the padded dimension,
a maximum if the padding may not be the smallest number, the last element, the size used as a number.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

from torchair.core.source_location import source_of
from torchair.core.torch_private.dynamo.captured_graphs import SizedGraph
from torchair.core.torch_private.operators.schemas import OpOverload
from torchair.fxgraph.effects import arguments, draws, flat
from torchair.fxgraph.placeholders import placeholders, returned
from torchair.fxgraph.symbols import is_symbol
from torchair.inference._padding.padded_values import (
    Dim,
    Padded,
    Samples,
    Value,
    always,
    anything,
    constant_of,
    with_infinite,
)

Size = torch.SymInt | int
KEEP_LEAST = (
    "_softmax _log_softmax _safe_softmax softmax log_softmax logsumexp amax max argmax amin min argmin "
    "view _unsafe_view reshape unsqueeze squeeze permute transpose t expand slice select cat stack clone "
    "alias detach _to_copy copy flatten contiguous repeat split unbind chunk full full_like"
)
"""Ops that produce no other infinite or NaN values from minus infinity."""
EXACT = 16  # maximum number of elements of a constant whose values are read


class Leak(Exception):
    """Padding may change results. If `is_certain`, a successful test run does not disprove it."""

    def __init__(self, why: str, is_certain: bool = True) -> None:
        super().__init__(why)
        self.is_certain = is_certain


def undecided(why: str) -> Leak:
    """Return a `Leak` that the graph cannot decide, so that a test run must."""
    return Leak(why, is_certain=False)


Result = Value | tuple[Any, ...] | None
"""The result of an op: a tensor, several tensors, or None for other values."""


class Op:
    """One call of an op, as the argument of rules."""

    def __init__(self, proof: Proof, node: fx.Node) -> None:
        self.proof, self.node = proof, node
        assert isinstance(node.target, OpOverload), "rules are applied to calls of ops"
        self._schema: Any = node.target._schema
        self.given = {argument.name: value for argument, value in arguments(node)}
        self._defaults = {a.name: a.default_value for a in self._schema.arguments if a.has_default_value()}

    @property
    def name(self) -> str:
        """The name of the op, without the overload."""
        return self._schema.name.removeprefix("aten::")

    @property
    def result(self) -> Any:
        """The fake value of the result."""
        return self.node.meta["val"]

    @property
    def sized(self) -> SizedGraph:
        """The graph with a symbolic size."""
        return self.proof.sized

    def arg(self, name: str) -> Any:
        """Return an argument: the `Value` of a tensor, or the argument itself."""
        given = self.given.get(name, self._defaults.get(name))
        if isinstance(given, list | tuple):
            return [self.proof.known(each) for each in given]
        return self.proof.known(given)

    def tensor(self, name: str) -> Value:
        """Return the `Value` of a tensor argument."""
        found = self.arg(name)
        assert isinstance(found, Value), f"{name} of {self.name} is a tensor"
        return found

    def dtype_of(self, name: str) -> torch.dtype:
        """Return the dtype of a tensor argument."""
        return self.given[name].meta["val"].dtype

    @property
    def first_dtype(self) -> torch.dtype | None:
        """The dtype of the first tensor argument."""
        nodes = [each for each in flat(list(self.given.values())) if isinstance(each, fx.Node)]
        fakes = [fake for node in nodes if isinstance(fake := node.meta.get("val"), torch.Tensor)]
        return fakes[0].dtype if fakes else None

    def has(self, name: str) -> bool:
        """Whether the op has an argument of this name."""
        return any(argument.name == name for argument in self._schema.arguments)

    def tensors(self) -> list[Value]:
        """Return the values of all tensor arguments."""
        nodes = [each for each in flat(list(self.given.values())) if isinstance(each, fx.Node)]
        return [value for node in nodes if isinstance(value := self.proof.known(node), Value)]

    def numbers(self) -> list[Any]:
        """Return the symbolic numbers among the arguments."""
        given = [self.proof.known(each) for each in flat(list(self.given.values()))]
        return [each for each in given if is_symbol(each)]

    @property
    def is_padded(self) -> bool:
        """Whether an argument has a padded dimension."""
        return any(value.is_padded for value in self.tensors())

    def plain(self, fake: Any) -> Result:
        """Return a result without padded dimensions and with unknown contents."""
        if isinstance(fake, list | tuple):
            return tuple(self.plain(each) for each in fake)
        if not isinstance(fake, torch.Tensor):
            return None
        if self.sized.has_size(fake):
            raise undecided(f"{self.name} creates a tensor with the padded size and unknown contents")
        return Value(tuple(_plain_dim(int(size)) for size in fake.shape), anything(fake.dtype))

    def new(self, fake: torch.Tensor, real: Samples, tail: Samples) -> Value:
        """Return the value of a new tensor with these contents."""
        return Value(tuple(self.dim(size, tail) for size in fake.shape), real)

    def dim(self, size: Size, tail: Samples) -> Dim:
        """Return a dimension of a new tensor."""
        if self.sized.is_size(size):
            return (Padded(tail),)
        if self.sized.has_size(size):
            raise undecided(f"{self.name} creates a tensor with a size that is computed from the padded one")
        return _plain_dim(int(size))

    def count(self, name: str) -> int | None:
        """Return a number argument; raise `Leak` if it is computed from the size."""
        found = self.arg(name)
        if self.sized.has_size(found):
            raise Leak(f"{self.name} uses the size as a number")
        return None if found is None else int(found)


def _plain_dim(size: int) -> Dim:
    return () if size == 1 else (size,)


Rule = Callable[[Op], Result]


class Proof:
    """Compute the `Value` of each tensor in a graph."""

    def __init__(
        self,
        sized: SizedGraph,
        pads: Mapping[int, tuple[int, Any]],
        rule_of: Callable[[Op], Rule | None],
    ) -> None:
        """`pads` has the dimension and the padding value of each padded input, by its index."""
        self.sized = sized
        self._rule_of = rule_of
        self._known: dict[fx.Node, Any] = {}
        self._pads = pads
        self.undecided: str | None = None  # the first reason for a test run

    def known(self, arg: Any) -> Any:
        """Return the `Value` of an argument if it is a tensor."""
        if not isinstance(arg, fx.Node):
            return arg
        return self._known[arg] if self._known[arg] is not None else arg.meta.get("val")

    def run(self) -> list[Any]:
        """Return the value of each output; raise `Leak` if padding may change one.

        If an op is undecided, the next ops are analyzed as if its real elements were correct.
        """
        for place, node in enumerate(placeholders(self.sized.gm)):
            self._known[node] = self._given(node.meta.get("val"), self._pads.get(place))
        for node in self.sized.gm.graph.nodes:
            if node.op == "get_attr":
                self._known[node] = self._constant(node)
            elif node.op == "call_function":
                self._known[node] = self._called(node)
        return [self.known(each) for each in returned(self.sized.gm)]

    def _given(self, fake: Any, pad: tuple[int, Any] | None) -> Value | None:
        if not isinstance(fake, torch.Tensor):
            return None
        dims = [_plain_dim(int(size)) for size in _sizes(fake, pad)]
        if pad is not None:
            number = torch.tensor(pad[1]).to(fake.dtype).item()
            dims[pad[0]] = (Padded(always(number)),)
        return Value(tuple(dims), anything(fake.dtype))

    def _constant(self, node: fx.Node) -> Value | None:
        value = _attribute(self.sized.gm, str(node.target))
        if not isinstance(value, torch.Tensor):
            return None
        is_small = value.numel() <= EXACT and not value.dtype.is_complex and type(value) is torch.Tensor
        real = always(*value.flatten().tolist()) if is_small and value.numel() else anything(value.dtype)
        return Value(tuple(_plain_dim(int(size)) for size in value.shape), real)

    def _called(self, node: fx.Node) -> Result:
        if node.target is operator.getitem:
            whole, place = self.known(node.args[0]), node.args[1]
            return whole[place] if isinstance(whole, tuple) and isinstance(place, int) else None
        if is_symbol(node.meta.get("val")) and not isinstance(node.target, OpOverload):
            return None
        if not isinstance(node.target, OpOverload):
            raise Leak(f"{node.target} cannot be analyzed")
        try:
            return self._ruled(Op(self, node))
        except Leak as leak:
            place = source_of(node)
            why = f"{leak} ({place})" if place else str(leak)
            assumed = None if leak.is_certain else self._assumed(node.meta.get("val"))
            if assumed is None:
                raise Leak(why, leak.is_certain) from None
            self.undecided = self.undecided or why
            return assumed

    def _assumed(self, fake: Any) -> Result:
        """Return a result with unknown tails. A test run checks its real elements later."""
        if isinstance(fake, list | tuple):
            several = tuple(self._assumed(each) for each in fake)
            return None if None in several else several
        if not isinstance(fake, torch.Tensor):
            return None
        unknown = anything(fake.dtype)
        sizes = [self.sized.factors(size) for size in fake.shape]
        known = [size for size in sizes if size is not None and (size == (1, 1) or not size[1])]
        if len(known) != len(sizes):
            return None
        dims: list[Dim] = [(Padded(unknown),) if power else _plain_dim(number) for number, power in known]
        return Value(tuple(dims), unknown)

    def _ruled(self, op: Op) -> Result:
        if draws(op.node) and op.arg("dropout_p") != 0:
            return self._drawn(op)
        if is_symbol(op.result) and op.name.startswith("sym_"):
            return None
        if not isinstance(op.result, torch.Tensor | list | tuple):
            if op.is_padded:
                raise Leak(f"{op.name} reads data on the host")
            return None
        rule = self._rule_of(op)
        if rule is not None:
            return _as_finite_as(op, rule(op))
        if op.is_padded or any(map(self.sized.has_size, op.numbers())):
            raise undecided(f"there is no padding rule for {op.name}")
        return op.plain(op.result)

    def _drawn(self, op: Op) -> Result:
        values = op.result if isinstance(op.result, list | tuple) else [op.result]
        if op.is_padded or any(self.sized.has_size(value) for value in values):
            raise Leak(f"{op.name} draws random numbers, and their count depends on the size")
        return op.plain(op.result)


def _as_finite_as(op: Op, result: Result) -> Result:
    """Let the result be infinite or NaN if an operand can be, except for parts that are a constant."""
    if torch.Tag.pointwise in op.node.target.tags:  # type: ignore[union-attr]
        return result
    values = op.tensors()[:3] if "attention" in op.name else op.tensors()  # a mask is minus infinity
    given = [samples for value in values for samples in (value.real, *value.tails())]
    odd = [n for each in given for world in each for n in world if not math.isfinite(n)]
    if not odd or (op.name in KEEP_LEAST.split() and all(number == -math.inf for number in odd)):
        return result

    def change(samples: Samples) -> Samples:
        return samples if constant_of(samples) is not None else with_infinite(samples)

    def changed(value: Result) -> Result:
        if isinstance(value, tuple):
            return tuple(map(changed, value))
        return value and value.with_tails(change, change(value.real))

    return changed(result)


def _sizes(fake: torch.Tensor, pad: tuple[int, Any] | None) -> list[Any]:
    """Return the sizes of a tensor, with 1 for the padded dimension."""
    return [1 if pad is not None and at == pad[0] else size for at, size in enumerate(fake.shape)]


def _attribute(gm: fx.GraphModule, name: str) -> Any:
    found: Any = gm
    for part in name.split("."):
        found = getattr(found, part)
    return found
