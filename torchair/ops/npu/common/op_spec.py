"""The specification of an op of the `npu` library: one row serves the eager op, its converter and its kernel.

A definition is a readable function of torch tensors in the terms of its IR op. Positional parameters are the
op's inputs in order; those that are numbers are annotated (`core/kernel_params.py`). Keyword-only parameters
are the attributes it reads, with the defaults of the IR. A row maps the arguments of a torch op to these. An
op without an IR op is a plain function of torch's arguments.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from torchair.core import dtypes

Arguments = Mapping[str, Any]
Fn = Callable[..., Any]


@dataclass(frozen=True)
class Computed:
    """An input or attribute computed from torch arguments. The function sees Python values and whether a
    tensor is there, never data: it also runs while a graph is built.
    """

    fn: Fn
    names: tuple[str, ...]

    def __call__(self, given: Arguments) -> Any:
        return self.fn(*(given[name] for name in self.names))


def made(fn: Fn, *names: str) -> Computed:
    """`fn` of these torch arguments."""
    return Computed(fn, names)


def fixed(value: Any) -> Computed:
    """The same value always."""
    return Computed(lambda: value, ())


class Held(NamedTuple):
    """What the storage of an argument stands for: values of an IR type that torch lacks.

    `turned`: they are packed along the dim before the last; `flag` is the attribute by which the IR op then
    takes the tensor with these two dims swapped.
    """

    kind: int
    turned: bool = False
    flag: str = ""


@dataclass(frozen=True)
class NpuOp:
    """One torch op as a call of one IR op.

    `args`: IR name -> the torch argument of another name, or a `Made`; equal names need no entry.
    `outputs`: which outputs of the IR op torch returns, in torch's order (None: all of them as they are).
    `copies`: torch arguments that the IR op overwrites and torch does not: they are copied first.
    `writes`: torch argument -> the output that is its new content, for ops that write in place.
    `ignored`: torch arguments without an effect on the result (hints for one kind of chip).
    `extra`: numbers that torch returns behind the outputs.
    `count`: how many tensors a list output has. `when`: the row serves these arguments only.
    `holds`: IR input -> what the torch argument stands for (a `Held`, or None) where torch packs values.
    `makes`: output of the IR op -> its type, if that may be one that torch lacks: the name of the attribute
    or input that tells, or a `Made` of them. `word`: what torch packs int4 results in.
    An empty `ir` says that no IR op can express these arguments: the call is carried through as it is.
    `shared`: another family of the engine owns the kernel of this IR op.
    """

    op: str
    ir: str
    fn: Fn
    args: Mapping[str, str | Computed] = field(default_factory=dict)
    outputs: tuple[int, ...] | None = None
    extra: tuple[int | None, ...] = ()
    copies: tuple[str, ...] = ()
    writes: Mapping[str, int] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    holds: Mapping[str, Computed] = field(default_factory=dict)
    makes: Mapping[int, str | Computed] = field(default_factory=dict)
    word: torch.dtype = torch.int32
    count: Callable[[Arguments], int] | None = None
    when: Callable[[Arguments], bool] | None = None
    shared: bool = False

    def serves(self, given: Arguments) -> bool:
        """Is this the row for these arguments?"""
        return self.when is None or self.when(given)

    def held(self, given: Arguments) -> dict[str, Held]:
        """What packed arguments stand for, by the names of the IR inputs."""
        found = {name: holds(given) for name, holds in self.holds.items()}
        return {name: held for name, held in found.items() if held is not None}

    def inputs(self, given: Arguments, read: Fn) -> list[Any]:
        """The inputs of the IR op in order; what torch has no argument for is None. `read(value, held)` is
        the border for packed ones.
        """
        held = self.held(given)
        found = {name: self._value(name, given) for name in parameters(self.fn)[0]}
        for name, how in held.items():
            value = found[name]
            found[name] = [read(x, how) for x in value] if isinstance(value, list) else read(value, how)
        return list(found.values())

    def types(self, given: Arguments) -> dict[str, int]:
        """The IR types of packed arguments, by the names of the slots."""
        return {
            f"{name}0" if isinstance(self._value(name, given), list) else name: how.kind
            for name, how in self.held(given).items()
        }

    def attributes(self, given: Arguments) -> dict[str, Any]:
        """The attributes that are not left to their defaults."""
        found = {name: self._value(name, given) for name in parameters(self.fn)[1]}
        return {name: value for name, value in found.items() if value is not None}

    def results(self, outputs: Any) -> Any:
        """What torch returns, from what the IR op returns."""
        if self.outputs is None:
            return outputs
        listed = outputs if isinstance(outputs, tuple) else (outputs,)
        picked = (*(listed[index] for index in self.outputs), *self.extra)
        return picked[0] if len(picked) == 1 else picked or None

    def reads(self) -> set[str]:
        """The torch arguments that this row uses or declares without effect."""
        names = {name for kind in parameters(self.fn) for name in kind}
        sources = [*(self.args.get(name, name) for name in names), *self.holds.values()]
        used = {
            name
            for source in sources
            for name in (source.names if isinstance(source, Computed) else (source,))
        }
        return used | set(self.ignored)

    def _value(self, name: str, given: Arguments) -> Any:
        source = self.args.get(name, name)
        return source(given) if isinstance(source, Computed) else given.get(source)


@dataclass(frozen=True)
class InPlaceOp:
    """A torch op that writes into arguments: its functional twin, then copies of the results.

    `writes`: argument -> result of the twin. `returns`: names of arguments, or numbers of results.
    Traced, it is exactly these two steps, so compilers see functional graphs; the schema of some of these ops
    does not even say that they write. `direct`, if there is one, does it to tensors that hold data without
    copies.
    """

    op: str
    twin: str
    writes: Mapping[str, int]
    returns: tuple[str | int, ...]
    direct: Fn | None = None


TYPES = "types"
"""The parameter of a definition that asks for the IR types of its inputs: no attribute."""


@functools.cache
def parameters(fn: Fn) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of a definition's inputs and attributes."""
    listed = [p for p in inspect.signature(fn).parameters.values() if p.name != TYPES]
    inputs = tuple(p.name for p in listed if p.kind is not p.KEYWORD_ONLY)
    return inputs, tuple(p.name for p in listed if p.kind is p.KEYWORD_ONLY)


@functools.cache
def defaults(fn: Fn) -> dict[str, Any]:
    """The defaults of a definition's attributes."""
    listed = inspect.signature(fn).parameters.values()
    return {p.name: p.default for p in listed if p.kind is p.KEYWORD_ONLY and p.default is not p.empty}


def choose(rows: Sequence[NpuOp], given: Arguments) -> NpuOp:
    """The first row that serves the arguments."""
    found = next((row for row in rows if row.serves(given)), None)
    assert found is not None, f"the last row of {rows[0].op} serves everything"
    return found


def bind(schema: Any, args: Sequence[Any], kwargs: Arguments) -> dict[str, Any]:
    """All arguments of a call by name, defaults included."""
    given = {a.name: a.default_value for a in schema.arguments if a.has_default_value()}
    given.update((a.name, value) for a, value in zip(schema.arguments, args, strict=False))
    given.update(kwargs)
    return given


def shape_of(x: Any) -> tuple[Any, ...]:
    """The sizes of a tensor, or of an edge of the IR."""
    return tuple(x.shape) if isinstance(x, torch.Tensor) else x.symsize


def dtype_of(x: Any) -> torch.dtype:
    """The torch dtype of a tensor, or of an edge of the IR."""
    return x.dtype if isinstance(x, torch.Tensor) else dtypes.to_torch(x.dtype)
