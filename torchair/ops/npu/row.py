"""How an op of the `npu` library is described: one row serves the eager op, its converter and its IR kernel.

A definition is a readable function of torch tensors in the terms of its IR op: positional parameters are the
op's inputs in order, those that are numbers annotated (`core/slots.py`), keyword-only ones the attributes it
reads, with the IR's own defaults. A row says how the arguments of a torch op become these. What has no IR op
of its own is a plain function of torch's arguments.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from torchair.core import dtypes

Arguments = Mapping[str, Any]
Fn = Callable[..., Any]


@dataclass(frozen=True)
class Made:
    """An input or attribute computed from torch arguments. The function sees Python values and whether a
    tensor is there, never data: it also runs while a graph is built.
    """

    fn: Fn
    names: tuple[str, ...]

    def __call__(self, given: Arguments) -> Any:
        return self.fn(*(given[name] for name in self.names))


def made(fn: Fn, *names: str) -> Made:
    """`fn` of these torch arguments."""
    return Made(fn, names)


def fixed(value: Any) -> Made:
    """The same value always."""
    return Made(lambda: value, ())


@dataclass(frozen=True)
class Row:
    """One torch op as a call of one IR op.

    `args`: IR name -> the torch argument of another name, or a `Made`; equal names need no entry.
    `outputs`: which outputs of the IR op torch returns, in torch's order (None: all of them as they are).
    `copies`: torch arguments that the IR op overwrites and torch does not: they are copied first.
    `writes`: torch argument -> the output that is its new content, for ops that write in place.
    `ignored`: torch arguments without an effect on the result (hints for one kind of chip).
    `extra`: numbers that torch returns behind the outputs.
    `count`: how many tensors a list output has. `when`: the row serves these arguments only.
    An empty `ir` says that no IR op can express these arguments: the call is carried through as it is.
    `shared`: another family of the engine owns the kernel of this IR op.
    """

    op: str
    ir: str
    fn: Fn
    args: Mapping[str, str | Made] = field(default_factory=dict)
    outputs: tuple[int, ...] | None = None
    extra: tuple[int | None, ...] = ()
    copies: tuple[str, ...] = ()
    writes: Mapping[str, int] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    count: Callable[[Arguments], int] | None = None
    when: Callable[[Arguments], bool] | None = None
    shared: bool = False

    def serves(self, given: Arguments) -> bool:
        """Is this the row for these arguments?"""
        return self.when is None or self.when(given)

    def inputs(self, given: Arguments) -> list[Any]:
        """The inputs of the IR op in order; what torch has no argument for is None."""
        return [self._value(name, given) for name in parameters(self.fn)[0]]

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
        sources = [self.args.get(name, name) for name in names]
        used = {
            name for source in sources for name in (source.names if isinstance(source, Made) else (source,))
        }
        return used | set(self.ignored)

    def _value(self, name: str, given: Arguments) -> Any:
        source = self.args.get(name, name)
        return source(given) if isinstance(source, Made) else given.get(source)


@dataclass(frozen=True)
class InPlace:
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


@functools.cache
def parameters(fn: Fn) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of a definition's inputs and attributes."""
    listed = inspect.signature(fn).parameters.values()
    inputs = tuple(p.name for p in listed if p.kind is not p.KEYWORD_ONLY)
    return inputs, tuple(p.name for p in listed if p.kind is p.KEYWORD_ONLY)


def choose(rows: Sequence[Row], given: Arguments) -> Row:
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


def dtype_of(x: Any) -> torch.dtype:
    """The torch dtype of a tensor, or of an edge of the IR."""
    return x.dtype if isinstance(x, torch.Tensor) else dtypes.to_torch(x.dtype)
