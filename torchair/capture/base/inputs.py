"""Facts about the flat inputs of one FX graph: roles, key, aliases, and reasons not to record.

All facts are computed once, when the graph is compiled. The runner only reads them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import free_symbols

from torchair.capture.base.host_ops import describe_node
from torchair.core.torch_private.fake.fake_tensors import symbol_ranges
from torchair.fxgraph.effects import draws, written_by
from torchair.fxgraph.layout import Layout, layouts_of, memory_of, root_of, storage_relative_inputs


@dataclass(frozen=True, order=True)
class KeyPart:
    """One number that identifies a call: a scalar input (an `int`, or any `number`), or the size or stride of
    one dimension of a tensor input.
    """

    index: int
    what: str = "int"
    dim: int = 0


# Elements of a tensor of numbers. Each is an input ("index", input) or a constant ("fixed", number).
Pack = tuple[tuple[str, int], ...]


class Role(Enum):
    """How a recording treats one input."""

    PARAMETER = "parameter"  # used in place, address checked unless parameters are frozen
    MUTATED = "mutated"  # used in place, address checked
    PASSED = "passed"  # output of an earlier recording; used in place, address checked
    PLAIN = "plain"  # copied into a static buffer
    ALIAS = "alias"  # plain, and an output is a view of it: the output aliases the caller's tensor
    SYMBOL = "symbol"  # a number; part of the key
    OTHER = "other"  # None or an opaque object
    HOST = "host"  # a CPU tensor in a graph of another device
    UNUSED = "unused"  # a tensor that no op reads


@dataclass(frozen=True)
class InputInfo:
    """Facts about the flat inputs of one FX graph."""

    names: tuple[str, ...]
    roles: tuple[Role, ...]
    key: tuple[KeyPart, ...] = ()
    aliases: dict[int, list[int]] = field(default_factory=dict)
    origins: tuple[str, ...] = ()  # the user's name of each input, "" if unknown
    obstacles: tuple[str, ...] = ()  # why this graph cannot be recorded
    random: bool = False  # draws random numbers
    packs: tuple[Pack, ...] = ()  # trailing inputs that the runner creates from number inputs
    repeats: dict[int, tuple[int, ...]] = field(default_factory=dict)  # dimensions with stride 0
    symbols: dict[str, tuple[int | None, int | None]] = field(default_factory=dict)  # the ranges of sizes
    guarded: bool = True  # guards check the layout of each call first

    def having(self, *roles: Role) -> list[int]:
        """Return the indices of the inputs with any of these roles."""
        return [index for index, role in enumerate(self.roles) if role in roles]

    def repeated(self, index: int) -> tuple[int, ...]:
        """Return the dimensions of an input that repeat one element in the graph (stride 0)."""
        return self.repeats.get(index, ())

    def title(self, index: int) -> str:
        """Return the user's name of the input if it is known, else its name in the graph."""
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
    """Collect the facts about the inputs of one ATen graph.

    Args:
        gm: the graph.
        fake_inputs: fake values of the inputs; by default those of the placeholders.
        static: indices of parameters and inputs marked as static.
        packs: how the runner creates the last inputs from numbers.
        layouts: required layouts of the outputs; by default those of the graph.
        guarded: whether guards check sizes and strides before each call.
        arguments: the user's names of the arguments.
        passed: indices of inputs that another recording returns, at the same address in every call.
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
    """Return the dimensions of a tensor that repeat one element (stride 0)."""
    if not isinstance(value, torch.Tensor) or not _is_strided(value):
        return ()
    pairs = zip(value.size(), value.stride(), strict=True)
    # A symbol is neither 0 nor 1: torch creates no symbols for these.
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
    """Map the index of each input to the outputs that are views of it."""
    found: dict[int, list[int]] = {}
    for position, layout in enumerate(layouts):
        if layout is not None and layout.base is not None:
            found.setdefault(layout.base, []).append(position)
    return found


def mutated_inputs(gm: fx.GraphModule, values: Sequence[Any]) -> set[int]:
    """Return the indices of the inputs that some node writes, directly or through a view."""
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
    """Map each memory to the indices of the inputs that use it."""
    found: dict[int, list[int]] = {}
    for index, value in enumerate(values):
        if (memory := memory_of(value)) is not None:
            found.setdefault(memory, []).append(index)
    return found


def _key(
    placeholders: Sequence[fx.Node], values: Sequence[Any], roles: Sequence[Role], guarded: bool
) -> tuple[KeyPart, ...]:
    """Return the numbers that select a recording: the scalars in use, and the sizes and strides whose symbols
    are not scalar inputs. If no guard checks the layout (`guarded` is False), the strides of inputs used in
    place belong to the key, too. Offsets do not matter, because addresses are compared where they do.
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
    """Yield each size and stride of an input."""
    for dim, size in enumerate(value.shape):
        yield KeyPart(index, "size", dim), size
    for dim, step in enumerate(value.stride()):
        yield KeyPart(index, "stride", dim), step


def _origin(node: fx.Node, arguments: Sequence[str]) -> str:
    """Return what AOTAutograd knows about the input: the qualified name of a parameter, or the argument's
    name.
    """
    desc = node.meta.get("desc")
    index = getattr(desc, "idx", None)
    if isinstance(index, int) and index < len(arguments):
        return arguments[index]
    return str(getattr(desc, "target", ""))


def _read_otherwise(titles: Sequence[str], roles: Sequence[Role], values: Sequence[Any]) -> Iterator[str]:
    """Yield an obstacle for each aliased input that is conjugated or negated lazily: a view of its buffer
    would be a different view.
    """
    for title, role, value in zip(titles, roles, values, strict=True):
        if role is Role.ALIAS and (value.is_conj() or value.is_neg()):
            yield (
                f"an output is a view of input {title}, which has its conjugate or negative bit set; call "
                "resolve_conj() or resolve_neg() on it first"
            )


def _obstacles(gm: fx.GraphModule, roles: Sequence[Role]) -> Iterator[str]:
    """Yield the reasons why a recording of this graph would be wrong, each with its op and source line."""
    for index, node in storage_relative_inputs(gm).items():
        if roles[index] in (Role.PLAIN, Role.ALIAS):
            yield f"{describe_node(node)} may read memory outside its input, which a copy lacks"


def _device(value: Any) -> str | None:
    return value.device.type if isinstance(value, torch.Tensor) else None
