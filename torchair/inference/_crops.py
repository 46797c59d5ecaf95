"""Which dimensions of outputs have the size that inputs were padded in: known from symbolic shapes, or said
by the user, never guessed from equal numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.fx.experimental.symbolic_shapes import free_symbols

from torchair.core.errors import first_line
from torchair.core.torch_private.fake import tree_flatten, tree_unflatten
from torchair.fxgraph.effects import written_by
from torchair.fxgraph.layout import root_of
from torchair.fxgraph.symbols import is_symbol

Declared = Mapping[str | int, int | Sequence[int]]
Known = torch.Tensor | bool | int | float | complex | str | None
"""What a container of outputs may hold."""


class Unknown(ValueError):
    """Nobody can say how to crop the outputs: calls of this model must not be padded."""


@dataclass(frozen=True)
class Crops:
    """The dimensions of each output to crop, in the order torch takes containers apart in; None where outputs
    stay padded.
    """

    dims: tuple[tuple[int, ...], ...] | None

    def cut(self, outputs: Any, size: int) -> Any:
        """The outputs, as a call of this size gives them."""
        if self.dims is None:
            return outputs
        leaves, spec = tree_flatten(outputs)
        if len(leaves) != len(self.dims):
            raise Unknown(f"there are {len(leaves)} outputs, and {len(self.dims)} were expected")
        cut = [_narrowed(leaf, dims, size) for leaf, dims in zip(leaves, self.dims, strict=True)]
        return tree_unflatten(cut, spec)


def _narrowed(leaf: Any, dims: Sequence[int], size: int) -> Any:
    if not dims:
        return leaf
    for dim in dims:
        leaf = leaf.narrow(dim, 0, size)
    # As eager's, in the same order of strides: nobody sees that it was larger, and the larger one can go.
    return leaf.clone()


def declared_crops(outputs: Any, declared: Declared) -> Crops:
    """From what the user says: by key or place in the outermost container, 0 of a lone tensor."""
    known: dict[Any, Any] = {0: outputs}
    if isinstance(outputs, Mapping):
        known = dict(outputs)
    elif isinstance(outputs, list | tuple):
        known = dict(enumerate(outputs))
    if missing := [key for key in declared if key not in known]:
        raise Unknown(f"there is no output {missing[0]!r} to crop; there are {list(known)}")
    found: list[tuple[int, ...]] = []
    for key, value in known.items():
        dims = declared.get(key, ())
        wanted = (dims,) if isinstance(dims, int) else tuple(dims)
        for leaf in tree_flatten(value)[0]:
            if not isinstance(leaf, Known):
                kind = type(leaf).__name__
                raise Unknown(f"output {key!r} is or holds a {kind}, which nobody can look into")
            found.append(_checked(leaf, wanted, key) if isinstance(leaf, torch.Tensor) else ())
    return Crops(tuple(found))


def _checked(leaf: torch.Tensor, dims: tuple[int, ...], key: Any) -> tuple[int, ...]:
    if not all(-leaf.dim() <= dim < leaf.dim() for dim in dims):
        raise Unknown(f"output {key!r} has {leaf.dim()} dimensions, none of them {dims}")
    return tuple(dim % leaf.dim() for dim in dims)


class _Named(nn.Module):
    """A model that takes its arguments as one dict."""

    def __init__(self, model: Any, args: Sequence[str]) -> None:
        super().__init__()
        self.model = model
        self._args = list(args)
        self.training = getattr(model, "training", False)

    def forward(self, given: dict[str, Any]) -> Any:
        named = {name: value for name, value in given.items() if name not in self._args}
        return self.model(*[given[name] for name in self._args], **named)


def symbolic_crops(
    model: Any, args: Mapping[str, Any], kwargs: Mapping[str, Any], dims: Mapping[str, int]
) -> Crops:
    """From the shapes that outputs have when the size of these dims is a symbol."""
    given = {**args, **kwargs}
    shapes = {name: {dims[name]: torch.export.Dim.DYNAMIC} if name in dims else None for name in given}
    try:
        with torch.no_grad():
            program = torch.export.export(
                _Named(model, list(args)),
                (given,),
                dynamic_shapes=(shapes,),
                strict=False,
            )
        return _crops_of(program)
    except Unknown:
        raise
    except Exception as error:
        raise Unknown(f"its shapes cannot be told beforehand: {first_line(error)}") from error


def _crops_of(program: Any) -> Crops:
    """Of an exported program: all symbols are those of the size."""
    nodes = list(program.graph.nodes)
    symbols: set[Any] = set()
    for node in nodes:
        if node.op == "placeholder" and isinstance(value := node.meta.get("val"), torch.Tensor):
            symbols |= {symbol for size in value.shape for symbol in free_symbols(size)}
    (output,) = (node for node in nodes if node.op == "output")
    written = (root_of(each)[0] for node in nodes for each in written_by(node))
    if any(root.op in ("placeholder", "get_attr") for root in written):
        raise Unknown("the model writes its inputs or its state")
    kinds = [spec.kind.name for spec in program.graph_signature.output_specs]
    results = [result for result, kind in zip(output.args[0], kinds, strict=True) if kind == "USER_OUTPUT"]
    if len(results) != len(kinds):
        raise Unknown("the model writes its inputs or its state")
    return Crops(tuple(_dims(place, result, symbols) for place, result in enumerate(results)))


def _dims(place: int, result: Any, symbols: set[Any]) -> tuple[int, ...]:
    value = result.meta.get("val") if isinstance(result, torch.fx.Node) else result
    if is_symbol(value) and free_symbols(value):
        raise Unknown(f"output {place} is a number that depends on the size")
    if not isinstance(value, torch.Tensor):
        return ()
    found: list[int] = []
    for dim, size in enumerate(value.shape):
        if not free_symbols(size):
            continue
        assert isinstance(size, torch.SymInt), "it has a symbol"
        if size.node.expr not in symbols:
            raise Unknown(f"dimension {dim} of output {place} has {size.node.expr} elements, not the size")
        found.append(dim)
    return tuple(found)
