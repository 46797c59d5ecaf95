"""What is known about the flat inputs of one FX graph: roles, key, aliases, obstacles to recording.

Everything here is found once, when the graph is compiled; the runner only reads it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import free_symbols

from torchair.capture.base.host_ops import say
from torchair.core.torch_private.fake.fake_tensors import symbol_ranges
from torchair.fxgraph.effects import draws, written_by
from torchair.fxgraph.layout import Layout, layouts_of, memory_of, root_of, storage_relative_inputs


@dataclass(frozen=True, order=True)
class KeyPart:
    """One number of a call: the value of a scalar input (an `int`, or any `number`), or the size or stride of
    one dimension of a tensor input.
    """

    index: int
    what: str = "int"
    dim: int = 0


# The elements of a tensor of numbers: each of them an input ("index", input) or a constant ("fixed", number).
Pack = tuple[tuple[str, int], ...]


class Role(Enum):
    """How a recording treats one input."""

    PARAMETER = "parameter"  # used in place, address checked unless parameters are frozen
    MUTATED = "mutated"  # used in place, address checked
    PASSED = "passed"  # made by a recording before this one; used in place, address checked
    PLAIN = "plain"  # copied into a static buffer
    ALIAS = "alias"  # plain, and some output is a view of it: the output is tied to the caller's tensor
    SYMBOL = "symbol"  # a number; part of the key
    OTHER = "other"  # None or an opaque object
    HOST = "host"  # a CPU tensor in a graph of another device
    UNUSED = "unused"  # a tensor that nobody reads


@dataclass(frozen=True)
class InputInfo:
    """Facts about the flat inputs of one FX graph."""

    names: tuple[str, ...]
    roles: tuple[Role, ...]
    key: tuple[KeyPart, ...] = ()
    aliases: dict[int, list[int]] = field(default_factory=dict)
    origins: tuple[str, ...] = ()  # what the user calls each input, "" when unknown
    obstacles: tuple[str, ...] = ()  # why this graph cannot be recorded
    random: bool = False  # draws random numbers
    packs: tuple[Pack, ...] = ()  # inputs at the end that the runner makes from numbers among the others
    repeats: dict[int, tuple[int, ...]] = field(default_factory=dict)  # dimensions that are one element
    symbols: dict[str, tuple[int | None, int | None]] = field(default_factory=dict)  # the ranges of sizes
    guarded: bool = True  # the layout of each call was checked before it comes here

    def having(self, *roles: Role) -> list[int]:
        """Indices of the inputs in any of these roles."""
        return [index for index, role in enumerate(self.roles) if role in roles]

    def repeated(self, index: int) -> tuple[int, ...]:
        """Dimensions of an input whose elements are one element in the graph."""
        return self.repeats.get(index, ())

    def title(self, index: int) -> str:
        """The user's own name for the input, where it is known, for messages."""
        return (self.origins[index] if index < len(self.origins) else "") or self.names[index]


def inputs_of(
    gm: fx.GraphModule,
    fake_inputs: Sequence[Any] | None = None,
    static: Sequence[int] = (),
    packs: tuple[Pack, ...] = (),
    layouts: Sequence[Layout | None] | None = None,
    guarded: bool = True,
    arguments: Sequence[str] = (),
    passed: Collection[int] = (),
) -> InputInfo:
    """Analyse one ATen graph; `static` are the indices of parameters and marked inputs, `packs` are how the
    last inputs are made, `layouts` what is promised of the outputs; `guarded`: sizes and strides of a call
    have been checked before it comes here; `arguments` are the user's names; `passed` inputs are made by
    another recording, at the same address in every call.
    """
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    values = [node.meta.get("val") for node in placeholders] if fake_inputs is None else list(fake_inputs)
    aliases = _aliases(layouts_of(gm) if layouts is None else layouts)
    mutated = mutated_inputs(gm, values)
    on_device = any(_device(node.meta.get("val")) not in (None, "cpu") for node in gm.graph.nodes)
    roles = tuple(
        Role.UNUSED
        if isinstance(value, torch.Tensor) and not node.users and index not in aliases
        else Role.PASSED
        if index in passed
        else _role(value, index in set(static), index in mutated, index in aliases, on_device)
        for index, (node, value) in enumerate(zip(placeholders, values, strict=True))
    )
    origins = tuple(_origin(node, arguments) for node in placeholders)
    titles = [origin or node.name for origin, node in zip(origins, placeholders, strict=True)]
    return InputInfo(
        names=tuple(node.name for node in placeholders),
        roles=roles,
        key=_key(placeholders, values, roles, guarded),
        aliases=aliases,
        origins=origins,
        obstacles=(*_read_otherwise(titles, roles, values), *_obstacles(gm, roles)),
        random=any(map(draws, gm.graph.nodes)),
        packs=packs,
        repeats={index: dims for index, value in enumerate(values) if (dims := repeated_dims(value))},
        symbols=symbol_ranges(values),
        guarded=guarded,
    )


def repeated_dims(value: Any) -> tuple[int, ...]:
    """Dimensions of a tensor whose elements are one element (stride 0)."""
    if not isinstance(value, torch.Tensor) or not _is_strided(value):
        return ()
    pairs = zip(value.size(), value.stride(), strict=True)
    # A symbol is neither 0 nor 1: torch makes no symbols of these.
    return tuple(
        dim
        for dim, (size, step) in enumerate(pairs)
        if isinstance(step, int) and step == 0 and not (isinstance(size, int) and size <= 1)
    )


def _role(value: Any, static: bool, mutated: bool, alias: bool, on_device: bool) -> Role:
    if not isinstance(value, torch.Tensor):
        numbers = (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool)
        return Role.SYMBOL if isinstance(value, numbers) else Role.OTHER
    if on_device and value.device.type == "cpu":
        return Role.HOST
    if static:
        return Role.PARAMETER
    if mutated:
        return Role.MUTATED
    return Role.ALIAS if alias else Role.PLAIN


def _is_strided(value: torch.Tensor) -> bool:
    return value.layout == torch.strided


def _aliases(layouts: Sequence[Layout | None]) -> dict[int, list[int]]:
    """Input index -> the outputs that are views of it."""
    found: dict[int, list[int]] = {}
    for position, layout in enumerate(layouts):
        if layout is not None and layout.base is not None:
            found.setdefault(layout.base, []).append(position)
    return found


def mutated_inputs(gm: fx.GraphModule, values: Sequence[Any]) -> set[int]:
    """Indices of the inputs that some node writes, directly or through a view."""
    position = {node: i for i, node in enumerate(n for n in gm.graph.nodes if n.op == "placeholder")}
    on = _on_memory(values), _on_memory([node.meta.get("val") for node in position])
    found: set[int] = set()
    for node in gm.graph.nodes:
        for written in written_by(node):
            root, _ = root_of(written)
            if root in position:
                found.add(position[root])
            elif (memory := memory_of(written.meta.get("val"))) is not None:
                found.update(index for owners in on for index in owners.get(memory, ()))
    return found


def _on_memory(values: Sequence[Any]) -> dict[int, list[int]]:
    """Memory -> indices of the inputs that look at it."""
    found: dict[int, list[int]] = {}
    for index, value in enumerate(values):
        if (memory := memory_of(value)) is not None:
            found.setdefault(memory, []).append(index)
    return found


def _key(
    placeholders: Sequence[fx.Node], values: Sequence[Any], roles: Sequence[Role], guarded: bool
) -> tuple[KeyPart, ...]:
    """What picks the recording: the scalars that are used, and the sizes and strides whose symbol no scalar
    input carries. Where nobody has checked the layout of a call (not `guarded`), also the strides of what a
    recording uses in place. Offsets do not matter: addresses are compared where they do.
    """
    scalars = {s: i for i, v in enumerate(values) if isinstance(v, torch.SymInt) for s in free_symbols(v)}
    parts: set[KeyPart] = set()
    known = set(scalars)
    used: set[Any] = set()
    for index, (node, value, role) in enumerate(zip(placeholders, values, roles, strict=True)):
        if role is Role.SYMBOL and node.users:
            is_int = isinstance(value, int | torch.SymInt) and not isinstance(value, bool)
            parts.add(KeyPart(index, "int" if is_int else "number"))
        if not isinstance(value, torch.Tensor) or role is Role.UNUSED or not _is_strided(value):
            continue
        for part, number in _numbers(index, value):
            symbols = free_symbols(number)
            used |= symbols
            is_unchecked = not guarded and part.what == "stride" and role in (Role.MUTATED, Role.ALIAS)
            if symbols - known or is_unchecked:
                parts.add(part)
            known |= symbols
    parts.update(KeyPart(scalars[symbol]) for symbol in used & scalars.keys())
    return tuple(sorted(parts))


def _numbers(index: int, value: torch.Tensor) -> Iterator[tuple[KeyPart, Any]]:
    """Each size and stride of an input."""
    for dim, size in enumerate(value.shape):
        yield KeyPart(index, "size", dim), size
    for dim, step in enumerate(value.stride()):
        yield KeyPart(index, "stride", dim), step


def _origin(node: fx.Node, arguments: Sequence[str]) -> str:
    """What AOTAutograd knows about the input: a parameter's qualified name, or which argument it is."""
    desc = node.meta.get("desc")
    index = getattr(desc, "idx", None)
    if isinstance(index, int) and index < len(arguments):
        return arguments[index]
    return str(getattr(desc, "target", ""))


def _read_otherwise(titles: Sequence[str], roles: Sequence[Role], values: Sequence[Any]) -> Iterator[str]:
    """Inputs of which an output is a view, where the same view of a buffer would be another one."""
    for title, role, value in zip(titles, roles, values, strict=True):
        if role is Role.ALIAS and (value.is_conj() or value.is_neg()):
            yield f"an output is a view of input {title}, which is conjugated or negated only on reading"


def _obstacles(gm: fx.GraphModule, roles: Sequence[Role]) -> Iterator[str]:
    """Why a recording of this graph would be wrong; each with its node and source line."""
    for index, node in storage_relative_inputs(gm).items():
        if roles[index] in (Role.PLAIN, Role.ALIAS):
            yield f"{say(node)} may look at memory beside its input, which a copy of the input has not"


def _device(value: Any) -> str | None:
    return value.device.type if isinstance(value, torch.Tensor) else None
