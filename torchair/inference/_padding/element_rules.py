"""Padding rules of elementwise ops and of views."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from torchair.fxgraph.symbols import is_symbol
from torchair.inference._padding.padded_values import (
    POSITIONS,
    POSITIONS_AFTER,
    Dim,
    Padded,
    Samples,
    Value,
    always,
    anything,
    converted,
    form_of,
    has_padding,
    joined,
    merged,
    regrouped,
)
from torchair.inference._padding.proof import Leak, Op, Result, undecided
from torchair.inference._padding.ranges import made_of

KEEP = ("split", "split_with_sizes", "unbind", "chunk", "flip", "roll", "unsafe_split")
"""Ops whose results are elements of their operands."""

# Element by element.


def pointwise(op: Op) -> Value:
    """Apply to elementwise ops: each result depends on the elements at the same index."""
    names = [name for name, given in op.given.items() if isinstance(given, fx.Node) and _is_tensor(given)]
    if any(isinstance(given, list | tuple) and any(map(_is_tensor, given)) for given in op.given.values()):
        raise undecided(f"{op.name} of lists")
    for name in op.given:
        if name not in names and op.sized.has_size(op.arg(name)):
            raise Leak(f"{op.name} uses the size as a number")
    values = [op.tensor(name) for name in names]
    apply = _on_samples(op, names)
    return elementwise(op, values, apply, op.result.dim())


def elementwise(
    op: Op, values: Sequence[Value], apply: Callable[[Sequence[Samples]], Samples], rank: int
) -> Value:
    """Return the result of an elementwise op on broadcast operands; `apply` computes samples."""
    real = apply([value.real for value in values])
    dims: list[Dim] = []
    for back in range(rank, 0, -1):
        there = [value.dims[-back] if back <= len(value.dims) else () for value in values]
        dims.append(broadcast(op, there, values, apply))
    return Value(tuple(dims), real)


def broadcast(
    op: Op, there: Sequence[Dim], values: Sequence[Value], apply: Callable[[Sequence[Samples]], Samples]
) -> Dim:
    """Return one dimension of the result of broadcast operands."""
    forms = {form_of(dim) for dim in there if dim}
    if not forms:
        return ()
    if len(forms) > 1:
        raise undecided(f"{op.name} has operands that are padded differently")
    made: list[Any] = []
    for place, factor in enumerate(next(dim for dim in there if dim)):
        if isinstance(factor, int):
            made.append(factor)
            continue
        pairs = zip(there, values, strict=True)
        tails = [_tail(dim[place]) if dim else value.real for dim, value in pairs]
        made.append(Padded(apply(tails)))
    return joined(made)


def _tail(factor: Any) -> Samples:
    assert isinstance(factor, Padded), "operands have the same form"
    return factor.tail


def _on_samples(op: Op, names: Sequence[str]) -> Callable[[Sequence[Samples]], Samples]:
    """Return a function that applies the op of the node to samples instead of its tensors."""
    dtypes = [op.dtype_of(name) for name in names]
    schema = op.node.target._schema  # type: ignore[union-attr]
    kinds = {argument.name: argument for argument in schema.arguments}
    rest = {name: op.arg(name) for name in op.given if name not in names and name not in PLACES}
    rest = {name: _number(value) for name, value in rest.items()}

    def apply(samples: Sequence[Samples]) -> Samples:
        if not names:
            return anything(op.result.dtype)

        def call(*tensors: torch.Tensor) -> Any:
            given = {**rest, **dict(zip(names, tensors, strict=True))}
            args = [given[name] for name in kinds if name in given and not kinds[name].kwarg_only]
            named = {name: given[name] for name in kinds if name in given and kinds[name].kwarg_only}
            return op.node.target(*args, **named)  # type: ignore[operator]

        given = {**rest, **dict(zip(names, samples, strict=True))}
        return made_of(op.name, call, samples, dtypes, op.result.dtype, given)

    return apply


def _number(value: Any) -> Any:
    return value.node.hint if is_symbol(value) else value


def _is_tensor(node: Any) -> bool:
    return isinstance(node, fx.Node) and isinstance(node.meta.get("val"), torch.Tensor)


PLACES = ("dtype", "device", "layout", "pin_memory", "memory_format", "non_blocking")


def cast(op: Op) -> Value:
    """Apply to copies and casts."""
    return _cast(op.tensor("self"), op.dtype_of("self"), op.result.dtype)


def _cast(value: Value, dtype: torch.dtype, to: torch.dtype) -> Value:
    return value.with_tails(lambda tail: converted(tail, dtype, to), converted(value.real, dtype, to))


def copied(op: Op) -> Value:
    """Apply to `copy(self, src)`, which broadcasts src to self."""
    src = _cast(op.tensor("src"), op.dtype_of("src"), op.result.dtype)
    return _expanded(op, src, op.result.shape)


def with_value(op: Op) -> Value:
    """Apply to factory functions that fill a tensor with one number."""
    found = op.given.get("fill_value", op.given.get("s", op.given.get("value")))
    number = op.proof.known(found)
    if is_symbol(number):
        if op.sized.has_size(number):
            raise Leak(f"{op.name} uses the size as a number")
        number = number.node.hint
    numbers = {"zeros": 0, "zeros_like": 0, "new_zeros": 0, "ones": 1, "ones_like": 1, "new_ones": 1}
    number = numbers.get(op.name, number)
    dtype = op.result.dtype
    is_known = isinstance(number, int | float | bool) and not dtype.is_complex
    contents = always(torch.tensor(number).to(dtype).item()) if is_known else anything(dtype)
    if op.name.endswith("_like"):
        return op.tensor("self").with_tails(lambda _: contents, contents)
    return op.new(op.result, contents, contents)


def positions(op: Op) -> Value:
    """Apply to `arange`, whose first elements do not depend on the length."""
    start, step = op.count("start") or 0, op.given.get("step", 1)
    if op.sized.has_size(op.proof.known(step)):
        raise Leak("arange has a step that depends on the size")
    (size,) = op.result.shape
    is_usual = start == 0 and step == 1 and not op.result.dtype.is_floating_point
    if not op.sized.has_size(size):
        return op.new(op.result, anything(op.result.dtype), ())
    unknown = anything(op.result.dtype)
    return op.new(op.result, POSITIONS if is_usual else unknown, POSITIONS_AFTER if is_usual else unknown)


# Views.


def viewed(op: Op) -> Value:
    """Apply to views with the same elements in the same order."""
    value = op.tensor("self")
    sizes = [op.sized.factors(size) for size in op.result.shape]
    known = [size for size in sizes if size is not None]
    dims = regrouped(value.dims, known) if len(known) == len(sizes) else None
    if dims is None:
        if not value.is_padded:
            return checked(op.plain(op.result))
        raise undecided(f"{op.name} divides the padded dimension")
    return Value(dims, value.real)


def checked(value: Result) -> Value:
    assert isinstance(value, Value), "it is one tensor"
    return value


def permuted(op: Op) -> Value:
    """Apply to permutations of dimensions."""
    value = op.tensor("self")
    order = list(range(len(value.dims)))
    if op.name == "permute":
        order = [place % len(order) for place in op.given["dims"]]
    elif op.name == "transpose":
        a, b = op.given["dim0"] % max(1, len(order)), op.given["dim1"] % max(1, len(order))
        if order:
            order[a], order[b] = order[b], order[a]
    else:
        order.reverse()
    return Value(tuple(value.dims[place] for place in order), value.real)


def expanded(op: Op) -> Value:
    """Apply to `expand`, which enlarges dimensions of one element."""
    return _expanded(op, op.tensor("self"), op.result.shape)


def _expanded(op: Op, value: Value, sizes: Sequence[Any]) -> Value:
    dims: list[Dim] = []
    for back, size in zip(range(len(sizes), 0, -1), sizes, strict=True):
        here = value.dims[-back] if back <= len(value.dims) else ()
        dims.append(here or op.dim(size, value.real))
    return Value(tuple(dims), value.real)


def repeated(op: Op) -> Value:
    """Apply to `repeat`, which must not repeat a padded dimension."""
    value = op.tensor("self")
    dims: list[Dim] = []
    times = op.arg("repeats")
    for back, size in zip(range(len(times), 0, -1), op.result.shape, strict=True):
        here = value.dims[-back] if back <= len(value.dims) else ()
        if has_padding(here) and times[-back] != 1:
            raise undecided("repeat of the padded dimension")
        dims.append(here if has_padding(here) else op.dim(size, value.real))
    return Value(tuple(dims), value.real)


def sliced(op: Op) -> Value:
    """Apply to slices; those of the padded dimension must count from its beginning."""
    value = op.tensor("self")
    dim = int(op.arg("dim") or 0) % len(value.dims)
    here, size = value.dims[dim], op.result.shape[dim]
    start, step = op.arg("start"), op.arg("step")
    is_first = start is None or (isinstance(start, int) and start == 0)
    dims = list(value.dims)
    if has_padding(here):
        factors = op.sized.factors(size)
        is_whole = factors is not None and regrouped([here], [factors]) is not None
        if not (is_first and step == 1 and is_whole):
            is_start = start is None or (isinstance(start, int) and start >= 0)
            if not is_start or op.sized.has_size(size) or len(here) != 1:
                raise Leak(f"{op.name} cuts the padded dimension")
            dims[dim] = () if int(size) == 1 else (int(size),)
    elif op.sized.has_size(size):
        if not is_first or step != 1 or not op.sized.is_size(size):
            raise Leak(f"{op.name} has a start that depends on the size")
        dims[dim] = (Padded(value.real),)
    else:
        if op.sized.has_size(start):
            raise Leak(f"{op.name} has a start that depends on the size")
        dims[dim] = () if int(size) == 1 else (int(size),)
    return Value(tuple(dims), value.real)


def selected(op: Op) -> Value:
    """Apply to `select`; in the padded dimension, the index must count from its beginning."""
    value = op.tensor("self")
    dim = int(op.arg("dim")) % len(value.dims)
    index = op.arg("index")
    if op.sized.has_size(index):
        raise Leak("select has an index that depends on the size")
    if has_padding(value.dims[dim]) and (is_symbol(index) or index < 0 or len(value.dims[dim]) != 1):
        raise Leak("select counts from the end of the padded dimension")
    return Value((*value.dims[:dim], *value.dims[dim + 1 :]), value.real)


def divided(op: Op) -> Result:
    """Apply to splits of a dimension that is not padded."""
    value = op.tensor("self")
    dim = int(op.arg("dim") or 0) % len(value.dims)
    if has_padding(value.dims[dim]):
        raise Leak(f"{op.name} divides the padded dimension")
    return tuple(at_places(op, value, [dim], fake, fake.dim() < len(value.dims)) for fake in op.result)


def at_places(op: Op, value: Value, acted: Sequence[int], fake: torch.Tensor, drop: bool = False) -> Value:
    """Return a value in which the dimensions `acted` have new sizes, or are dropped."""
    unknown = anything(fake.dtype)
    real = value.real if fake.dtype in (op.first_dtype,) and op.name in KEEP else unknown
    kept = value if real is value.real else value.with_tails(lambda _: unknown, unknown)
    dims: list[Dim] = []
    at = 0
    for place, dim in enumerate(kept.dims):
        if place in acted:
            if drop:
                continue
            dims.append(op.dim(fake.shape[at], unknown))
        else:
            dims.append(dim)
        at += 1
    return Value(tuple(dims), real)


def joining(op: Op) -> Value:
    """Apply to `cat` and `stack` along a dimension that is not padded."""
    given = [node for node in op.given["tensors"] if node.meta["val"].shape != (0,)]
    values = [op.proof.known(node) for node in given]
    rank = op.result.dim()
    dim = int(op.arg("dim") or 0) % rank
    if op.name == "stack":
        values = [Value((*v.dims[:dim], (), *v.dims[dim:]), v.real) for v in values]
    if any(has_padding(value.dims[dim]) for value in values) and len(values) > 1:
        raise undecided(f"{op.name} along the padded dimension")
    real = merged(*(value.real for value in values))
    dims = [
        op.dim(op.result.shape[place], real)
        if place == dim and len(values) > 1
        else broadcast(op, [value.dims[place] for value in values], values, lambda tails: merged(*tails))
        for place in range(rank)
    ]
    return Value(tuple(dims), real)
