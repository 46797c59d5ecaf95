"""Specify an op of the `npu` library: one row defines the eager op, its converter and its kernel.

A definition is a function of torch tensors, in terms of its IR op. Positional parameters are the inputs of
the op in order; those that are numbers are annotated (`core/kernel_params.py`). Keyword-only parameters are
the attributes it reads, with the defaults of the IR. A row maps the arguments of a torch op to these. An op
without an IR op is a plain function of torch's arguments.
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
    """An input or attribute computed from torch arguments. The function receives Python values and whether a
    tensor is present, never data: it also runs while a graph is built.
    """

    fn: Fn
    names: tuple[str, ...]

    def __call__(self, given: Arguments) -> Any:
        return self.fn(*(given[name] for name in self.names))


def made(fn: Fn, *names: str) -> Computed:
    """Compute a value with `fn` from these torch arguments."""
    return Computed(fn, names)


def fixed(value: Any) -> Computed:
    """Return a constant value."""
    return Computed(lambda: value, ())


class Held(NamedTuple):
    """Meaning of the storage of an argument: values of an IR type that torch lacks.

    If `turned` is set, the values are packed along the second last dim; `flag` is the attribute with which
    the IR op reads the tensor with these two dims swapped.
    """

    kind: int
    turned: bool = False
    flag: str = ""


@dataclass(frozen=True)
class NpuOp:
    """One torch op as a call of one IR op.

    `args`: IR name -> the torch argument, if its name differs, or a `Computed`; equal names need no entry.
    `outputs`: the outputs of the IR op that torch returns, in torch's order (None: all of them, unchanged).
    `copies`: torch arguments that the IR op overwrites and torch does not: they are copied first.
    `writes`: torch argument -> the output that is its new content, for ops that write in place.
    `ignored`: torch arguments without an effect on the result (hints for one kind of chip).
    `extra`: numbers that torch returns after the outputs.
    `count`: the number of tensors in a list output. `when`: the row applies only to these arguments.
    `holds`: IR input -> the meaning of the torch argument (a `Held`, or None) if torch packs values.
    `makes`: output of the IR op -> its type, if torch may lack it: the name of the attribute or input that
    defines it, or a `Computed` of them. `word`: the dtype in which torch packs int4 results.
    An empty `ir` means that no IR op can express these arguments: the call runs as an eager op.
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
        """Return whether this row applies to these arguments."""
        return self.when is None or self.when(given)

    def held(self, given: Arguments) -> dict[str, Held]:
        """Return the meaning of packed arguments, by the names of the IR inputs."""
        found = {name: holds(given) for name, holds in self.holds.items()}
        return {name: held for name, held in found.items() if held is not None}

    def inputs(self, given: Arguments, read: Fn) -> list[Any]:
        """Return the inputs of the IR op in order, or None; `read(value, held)` unpacks packed ones."""
        held = self.held(given)
        found = {name: self._value(name, given) for name in parameters(self.fn)[0]}
        for name, how in held.items():
            value = found[name]
            found[name] = [read(x, how) for x in value] if isinstance(value, list) else read(value, how)
        return list(found.values())

    def types(self, given: Arguments) -> dict[str, int]:
        """Return the IR types of packed arguments, by the names of the slots."""
        return {
            f"{name}0" if isinstance(self._value(name, given), list) else name: how.kind
            for name, how in self.held(given).items()
        }

    def attributes(self, given: Arguments) -> dict[str, Any]:
        """Return the attributes that do not have their defaults."""
        found = {name: self._value(name, given) for name in parameters(self.fn)[1]}
        return {name: value for name, value in found.items() if value is not None}

    def results(self, outputs: Any) -> Any:
        """Convert the results of the IR op to those of the torch op."""
        if self.outputs is None:
            return outputs
        listed = outputs if isinstance(outputs, tuple) else (outputs,)
        picked = (*(listed[index] for index in self.outputs), *self.extra)
        return picked[0] if len(picked) == 1 else picked or None

    def reads(self) -> set[str]:
        """Return the torch arguments that this row uses or declares as ignored."""
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
    """A torch op that writes into arguments: its functional variant, followed by copies of the results.

    `writes`: argument -> result of the variant. `returns`: names of arguments, or indices of results. Traced,
    it is exactly these two steps, so compilers see functional graphs; the schemas of some of these ops do not
    even declare the writes. `direct`, if present, writes into tensors with data without copies.
    """

    op: str
    twin: str
    writes: Mapping[str, int]
    returns: tuple[str | int, ...]
    direct: Fn | None = None


TYPES = "types"
"""Parameter of a definition that receives the IR types of its inputs; it is not an attribute."""


@functools.cache
def parameters(fn: Fn) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of the inputs and attributes of a definition."""
    listed = [p for p in inspect.signature(fn).parameters.values() if p.name != TYPES]
    inputs = tuple(p.name for p in listed if p.kind is not p.KEYWORD_ONLY)
    return inputs, tuple(p.name for p in listed if p.kind is p.KEYWORD_ONLY)


@functools.cache
def defaults(fn: Fn) -> dict[str, Any]:
    """Return the defaults of the attributes of a definition."""
    listed = inspect.signature(fn).parameters.values()
    return {p.name: p.default for p in listed if p.kind is p.KEYWORD_ONLY and p.default is not p.empty}


def choose(rows: Sequence[NpuOp], given: Arguments) -> NpuOp:
    """Return the first row that applies to the arguments."""
    found = next((row for row in rows if row.serves(given)), None)
    assert found is not None, f"the last row of {rows[0].op} applies to all arguments"
    return found


def bind(schema: Any, args: Sequence[Any], kwargs: Arguments) -> dict[str, Any]:
    """Return all arguments of a call by name, including defaults."""
    given = {a.name: a.default_value for a in schema.arguments if a.has_default_value()}
    given.update((a.name, value) for a, value in zip(schema.arguments, args, strict=False))
    given.update(kwargs)
    return given


def shape_of(x: Any) -> tuple[Any, ...]:
    """Return the sizes of a tensor, or of an edge of the IR."""
    return tuple(x.shape) if isinstance(x, torch.Tensor) else x.symsize


def dtype_of(x: Any) -> torch.dtype:
    """Return the torch dtype of a tensor, or of an edge of the IR."""
    return x.dtype if isinstance(x, torch.Tensor) else dtypes.to_torch(x.dtype)
