"""What ops make of padded tensors: a rule for each family, and the ops of it as rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from torchair.fxgraph.symbols import is_symbol
from torchair.inference._gear_proof import Leak, Op, Result, Rule, undecided
from torchair.inference._gear_values import (
    POSITIONS,
    POSITIONS_AFTER,
    Dim,
    Padded,
    Samples,
    Value,
    always,
    anything,
    are_at_most,
    constant_of,
    converted,
    evaluated,
    form_of,
    has_padding,
    joined,
    merged,
    padded_factors,
    regrouped,
)

# Element by element.


def pointwise(op: Op) -> Value:
    """Each element of the result comes from the same places of the operands."""
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
    """What is made of operands that are broadcast; `apply` says of which numbers."""
    real = apply([value.real for value in values])
    dims: list[Dim] = []
    for back in range(rank, 0, -1):
        there = [value.dims[-back] if back <= len(value.dims) else () for value in values]
        dims.append(_broadcast(op, there, values, apply))
    return Value(tuple(dims), real)


def _broadcast(
    op: Op, there: Sequence[Dim], values: Sequence[Value], apply: Callable[[Sequence[Samples]], Samples]
) -> Dim:
    """One dimension of operands, as the result has it."""
    forms = {form_of(dim) for dim in there if dim}
    if not forms:
        return ()
    if len(forms) > 1:
        raise undecided(f"{op.name} has operands of different make")
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
    """The op of the node, applied to samples in the place of its tensors."""
    dtypes = [op.dtype_of(name) for name in names]
    schema = op.node.target._schema  # type: ignore[union-attr]
    kinds = {argument.name: argument for argument in schema.arguments}
    rest = {name: op.arg(name) for name in op.given if name not in names and name not in PLACES}
    rest = {name: _number(value) for name, value in rest.items()}

    def apply(samples: Sequence[Samples]) -> Samples:
        if op.name in COMPARISONS and not all(map(_is_exact, samples)):
            return always(False, True)
        if not names:
            return anything(op.result.dtype)

        def call(*tensors: torch.Tensor) -> Any:
            given = {**rest, **dict(zip(names, tensors, strict=True))}
            args = [given[name] for name in kinds if name in given and not kinds[name].kwarg_only]
            named = {name: given[name] for name in kinds if name in given and kinds[name].kwarg_only}
            return op.node.target(*args, **named)  # type: ignore[operator]

        try:
            return evaluated(call, samples, dtypes, op.result.dtype)
        except (RuntimeError, TypeError, NotImplementedError, ValueError, OverflowError):
            return anything(op.result.dtype)

    return apply


def _number(value: Any) -> Any:
    return value.node.hint if is_symbol(value) else value


def _is_exact(samples: Samples) -> bool:
    """Are these not samples of what is unknown, but a number, truth values or positions?"""
    is_number = constant_of(samples) is not None
    return is_number or samples[0] != samples[1] or all(isinstance(each, bool) for each in samples[0])


def _is_tensor(node: Any) -> bool:
    return isinstance(node, fx.Node) and isinstance(node.meta.get("val"), torch.Tensor)


PLACES = ("dtype", "device", "layout", "pin_memory", "memory_format", "non_blocking")
COMPARISONS = ("eq", "ne")


def cast(op: Op) -> Value:
    """The same numbers, maybe in another dtype."""
    return _cast(op.tensor("self"), op.dtype_of("self"), op.result.dtype)


def _cast(value: Value, dtype: torch.dtype, to: torch.dtype) -> Value:
    return value.with_tails(lambda tail: converted(tail, dtype, to), converted(value.real, dtype, to))


def copied(op: Op) -> Value:
    """`copy(self, src)`: src, broadcast to self."""
    src = _cast(op.tensor("src"), op.dtype_of("src"), op.result.dtype)
    return _expanded(op, src, op.result.shape)


def with_value(op: Op) -> Value:
    """A new tensor of one number."""
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
    """`arange`: what comes first is the same however long it is."""
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
    """The same elements in the same order."""
    value = op.tensor("self")
    sizes = [op.sized.factors(size) for size in op.result.shape]
    known = [size for size in sizes if size is not None]
    dims = regrouped(value.dims, known) if len(known) == len(sizes) else None
    if dims is None:
        if not value.is_padded:
            return _checked(op.plain(op.result))
        raise undecided(f"{op.name} divides the padded dimension")
    return Value(dims, value.real)


def _checked(value: Result) -> Value:
    assert isinstance(value, Value), "it is one tensor"
    return value


def permuted(op: Op) -> Value:
    """Other orders of dimensions."""
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
    """Dimensions of one element become larger."""
    return _expanded(op, op.tensor("self"), op.result.shape)


def _expanded(op: Op, value: Value, sizes: Sequence[Any]) -> Value:
    dims: list[Dim] = []
    for back, size in zip(range(len(sizes), 0, -1), sizes, strict=True):
        here = value.dims[-back] if back <= len(value.dims) else ()
        dims.append(here or op.dim(size, value.real))
    return Value(tuple(dims), value.real)


def repeated(op: Op) -> Value:
    """`repeat`: dimensions of one element become larger, others are repeated if they are not padded."""
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
    """Part of a dimension; of the padded one, what is counted from its beginning."""
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
            raise Leak(f"{op.name} takes elements from where the size says")
        dims[dim] = (Padded(value.real),)
    else:
        if op.sized.has_size(start):
            raise Leak(f"{op.name} takes elements from where the size says")
        dims[dim] = () if int(size) == 1 else (int(size),)
    return Value(tuple(dims), value.real)


def selected(op: Op) -> Value:
    """One element of a dimension; of the padded one, counted from its beginning."""
    value = op.tensor("self")
    dim = int(op.arg("dim")) % len(value.dims)
    index = op.arg("index")
    if op.sized.has_size(index):
        raise Leak("select takes the element that the size says")
    if has_padding(value.dims[dim]) and (is_symbol(index) or index < 0 or len(value.dims[dim]) != 1):
        raise Leak("select takes the padded dimension from its end")
    return Value((*value.dims[:dim], *value.dims[dim + 1 :]), value.real)


def divided(op: Op) -> Result:
    """Parts of a dimension that is not padded."""
    value = op.tensor("self")
    dim = int(op.arg("dim") or 0) % len(value.dims)
    if has_padding(value.dims[dim]):
        raise Leak(f"{op.name} divides the padded dimension")
    return tuple(_at_places(op, value, [dim], fake, fake.dim() < len(value.dims)) for fake in op.result)


def _at_places(op: Op, value: Value, acted: Sequence[int], fake: torch.Tensor, drop: bool = False) -> Value:
    """Dimensions stay where they are, but for those acted on: they have new sizes, or are dropped."""
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
    """`cat` and `stack` along a dimension that is not padded."""
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
        else _broadcast(op, [value.dims[place] for value in values], values, lambda tails: merged(*tails))
        for place in range(rank)
    ]
    return Value(tuple(dims), real)


# Along dimensions.


def _dims_of(op: Op, value: Value) -> list[int]:
    """The dimensions that an op works along; all where none is named."""
    found = op.arg("dim") if op.has("dim") else op.arg("dims")
    if found is None or found == []:
        return list(range(len(value.dims)))
    rank = max(1, len(value.dims))
    return [int(each) % rank for each in (found if isinstance(found, list) else [found])]


def _tails_along(value: Value, dims: Sequence[int]) -> list[Samples]:
    return [
        factor.tail
        for dim in dims
        if dim < len(value.dims)
        for factor in value.dims[dim]
        if isinstance(factor, Padded)
    ]


def reduction(neutral: Callable[[Op, Value, Samples], bool]) -> Rule:
    """A rule for reductions that do not notice padding which is neutral."""

    def rule(op: Op) -> Result:
        value = op.tensor("self") if op.has("self") else op.tensor("input")
        dims = _dims_of(op, value)
        for tail in _tails_along(value, dims):
            if not neutral(op, value, tail):
                raise Leak(
                    f"{op.name} reduces the padded dimension, and the padding is not known to be neutral"
                )
        keeps = op.has("keepdim") and bool(op.arg("keepdim"))
        is_plain = not _tails_along(value, dims)

        def contents(dtype: torch.dtype) -> Callable[[Samples], Samples]:
            def change(tail: Samples) -> Samples:
                number = constant_of(tail)
                stays = number == 0 if op.name in SUMS else op.name in EXTREMES
                is_known = is_plain and number is not None and stays and dtype == op.first_dtype
                return tail if is_known else anything(dtype)

            return change

        def made(fake: torch.Tensor) -> Value:
            kept = value.with_tails(contents(fake.dtype), anything(fake.dtype))
            is_range = op.name in EXTREMES and fake.dtype == op.first_dtype
            real = value.real if is_range else anything(fake.dtype)
            if keeps:
                left = [() if at in dims else dim for at, dim in enumerate(kept.dims)]
            else:
                left = [dim for at, dim in enumerate(kept.dims) if at not in dims]
            return Value(tuple(left), real)

        fakes = op.result
        return tuple(map(made, fakes)) if isinstance(fakes, list | tuple) else made(fakes)

    return rule


def _is_zero(op: Op, value: Value, tail: Samples) -> bool:
    return constant_of(tail) == 0


def _is_one(op: Op, value: Value, tail: Samples) -> bool:
    return constant_of(tail) == 1


def _is_least(op: Op, value: Value, tail: Samples) -> bool:
    return constant_of(tail) == -math.inf or are_at_most(tail, value.real)


def _is_greatest(op: Op, value: Value, tail: Samples) -> bool:
    return constant_of(tail) == math.inf or are_at_most(value.real, tail)


def _is_true(op: Op, value: Value, tail: Samples) -> bool:
    return all(number != 0 and number == number for world in tail for number in world)


def _vanishes(op: Op, value: Value, tail: Samples) -> bool:
    return constant_of(tail) == -math.inf


def _has_no_norm(op: Op, value: Value, tail: Samples) -> bool:
    order = op.given.get("ord", op.given.get("p", 2))
    return constant_of(tail) == 0 and (order is None or order > 0)


def _never(op: Op, value: Value, tail: Samples) -> bool:
    return False


def along(op: Op) -> Result:
    """Works along dimensions, each line of its own: none of them may be padded."""
    value = op.tensor("self") if op.has("self") else op.tensor("input")
    dims = _dims_of(op, value)
    if _tails_along(value, dims):
        raise Leak(f"{op.name} works along the padded dimension")
    fakes = op.result if isinstance(op.result, list | tuple) else [op.result]
    made = [_at_places(op, value, dims, fake, fake.dim() < len(value.dims)) for fake in fakes]
    return tuple(made) if isinstance(op.result, list | tuple) else made[0]


def padding(op: Op) -> Value:
    """`constant_pad_nd`: of dimensions that are not padded."""
    value = op.tensor("self")
    pad = op.arg("pad")
    rank = len(value.dims)
    dims = [rank - 1 - at // 2 for at, number in enumerate(pad) if number != 0]
    if _tails_along(value, dims):
        raise undecided("constant_pad_nd along the padded dimension")
    return _at_places(op, value, sorted(set(dims)), op.result)


def scan(op: Op) -> Result:
    """From the beginning on: what comes first is the same however long it is."""
    value = op.tensor("self")
    if any(
        len(dim) > 1 for at, dim in enumerate(value.dims) if at in _dims_of(op, value) and has_padding(dim)
    ):
        raise undecided(f"{op.name} along dimensions that were merged")
    fakes = op.result if isinstance(op.result, list | tuple) else [op.result]
    made = [value.with_tails(lambda _, f=fake: anything(f.dtype), anything(fake.dtype)) for fake in fakes]
    return tuple(made) if isinstance(op.result, list | tuple) else made[0]


def softmax(op: Op) -> Value:
    """Along one dimension, where padding of minus infinity vanishes."""
    value = op.tensor("self")
    (dim,) = _dims_of(op, value)
    for tail in _tails_along(value, [dim]):
        if not _vanishes(op, value, tail):
            raise undecided(f"{op.name} along the padded dimension, and the padding is not minus infinity")
    is_log = "log" in op.name
    real = anything(op.result.dtype) if is_log else always(0.0, 0.5, 1.0)

    def after(at: int, here: Dim) -> Dim:
        gone = always(-math.inf) if is_log else always(0.0)
        return tuple(Padded(gone if at == dim else real) if isinstance(f, Padded) else f for f in here)

    return Value(tuple(after(at, here) for at, here in enumerate(value.dims)), real)


def normalized(op: Op) -> Result:
    """`layer_norm` and others over the last dimensions."""
    value = op.tensor("input")
    shape = op.arg("normalized_shape")
    first = len(value.dims) - len(shape)
    if _tails_along(value, range(first, len(value.dims))):
        raise Leak(f"{op.name} normalizes over the padded dimension")
    unknown = anything(torch.float32)
    whole = value.with_tails(lambda _: unknown, unknown)
    few = Value((*whole.dims[:first], *[() for _ in shape]), unknown)
    return tuple(whole if at == 0 else few for at, _ in enumerate(op.result))


def of_batches(op: Op) -> Result:
    """Each element of the first dimension of its own: only that one may be padded."""
    first = op.tensor("input") if op.has("input") else op.tensor("self")
    if _tails_along(first, range(1, len(first.dims))):
        raise undecided(f"{op.name} of a padded dimension that is not the first")
    others = [value for value in op.tensors() if value is not first and value.is_padded]
    if others:
        raise undecided(f"{op.name} with several padded operands")

    def made(fake: Any) -> Value:
        unknown = anything(fake.dtype)
        if not fake.dim() or not op.sized.has_size(fake):
            return _checked(op.plain(fake))
        return Value(
            (first.dims[0], *(op.dim(size, unknown) for size in fake.shape[1:])), unknown
        ).with_tails(lambda _: unknown, unknown)

    return tuple(map(made, op.result)) if isinstance(op.result, list | tuple) else made(op.result)


def batch_norm(op: Op) -> Result:
    """With running statistics each element of its own; else over all dimensions but the second."""
    value = op.tensor("input")
    is_fixed = "no_training" in op.name or op.given.get("training", op.given.get("train")) is False
    padded = [at for at, _ in padded_factors(value)]
    if padded and not is_fixed:
        raise Leak(f"{op.name} computes statistics over the padded dimension")
    if 1 in padded:
        raise undecided(f"{op.name} of padded channels")
    unknown = anything(op.result[0].dtype)
    rest = [op.plain(fake) for fake in op.result[1:]]
    return (value.with_tails(lambda _: unknown, unknown), *rest)


# Products.


def product(op: Op) -> Value:
    """Of matrices: a sum of products, which padding of zeros in one of them adds nothing to."""
    a_name, b_name = MATRICES[op.name]
    a, b = op.tensor(a_name), op.tensor(b_name)
    batch = len(a.dims) - (1 if op.name in VECTORS else 2)
    _check_contracted(op, a.dims[-1], b.dims[batch])
    rows, columns = a.dims[batch:-1], b.dims[batch + 1 :]
    unknown = anything(op.result.dtype)
    is_sum = op.name in WITH_SUMMAND

    def lone(dim: Dim) -> Dim:
        return tuple(Padded(_product_tail([f.tail], unknown)) if isinstance(f, Padded) else f for f in dim)

    pairs = zip(a.dims[:batch], b.dims[:batch], strict=True)
    both = [_broadcast(op, pair, (a, b), lambda tails: _product_tail(tails, unknown)) for pair in pairs]
    made = Value((*both, *map(lone, rows), *map(lone, columns)), unknown)
    if not is_sum:
        return made
    summand = op.tensor("self" if op.has("self") else "input")
    dtypes = [op.result.dtype, op.result.dtype]

    def apply(samples: Sequence[Samples]) -> Samples:
        return evaluated(lambda x, y: x + y, samples, dtypes, op.result.dtype)

    return elementwise(op, [made, summand], apply, op.result.dim())


def _product_tail(tails: Sequence[Samples], unknown: Samples) -> Samples:
    return always(0.0) if any(constant_of(tail) == 0 for tail in tails) else unknown


def _check_contracted(op: Op, a: Dim, b: Dim) -> None:
    if not has_padding(a) and not has_padding(b):
        return
    if form_of(a) != form_of(b):
        raise undecided(f"{op.name} has operands of different make")
    for mine, theirs in zip(a, b, strict=True):
        tails = [each.tail for each in (mine, theirs) if isinstance(each, Padded)]
        if tails and not any(constant_of(tail) == 0 for tail in tails):
            raise undecided(f"{op.name} sums over the padded dimension, and the padding is not known to be 0")


def attention(op: Op) -> Result:
    """Keys that are padded must be masked, or come after their query."""
    query, key, value = op.tensor("query"), op.tensor("key"), op.tensor("value")
    if op.given.get("dropout_p", 0.0) != 0.0:
        raise Leak(f"{op.name} draws random numbers")
    mask = op.arg("attn_mask") if op.arg("attn_mask") is not None else op.arg("attn_bias")
    is_causal = bool(op.arg("is_causal"))
    if has_padding(query.dims[-1]) or has_padding(key.dims[-1]) or has_padding(value.dims[-1]):
        raise undecided(f"{op.name} of padded heads")
    if has_padding(key.dims[-2]):
        is_after = (
            is_causal and query.dims[-2] and form_of(query.dims[-2]) == form_of(key.dims[-2]) == (None,)
        )
        if not is_after:
            _check_mask(op, mask)
    unknown = anything(torch.float32)
    batch = [
        _broadcast(op, each, (query, key, value), lambda _: unknown)
        for each in zip(query.dims[:-2], key.dims[:-2], value.dims[:-2], strict=True)
    ]
    rows = tuple(Padded(unknown) if isinstance(f, Padded) else f for f in query.dims[-2])
    made = Value((*batch, rows, value.dims[-1]), unknown)
    if not isinstance(op.result, list | tuple):
        return made
    return (made, *(_unused(op, fake) for fake in op.result[1:]))


def _unused(op: Op, fake: Any) -> Result:
    """What only a backward pass reads."""
    return None


def _check_mask(op: Op, mask: Any) -> None:
    tails = _tails_along(mask, [len(mask.dims) - 1]) if isinstance(mask, Value) else []
    gone = [number is False or number == -math.inf for number in map(constant_of, tails)]
    if not gone or not all(gone):
        raise undecided(f"{op.name} has padded keys that are not known to be masked")


# By index.


def embedded(op: Op) -> Value:
    """Rows of a table."""
    table, indices = op.tensor("weight"), op.tensor("indices")
    if table.is_padded:
        raise undecided("embedding of a padded table")
    unknown = anything(op.result.dtype)
    return Value((*indices.with_tails(lambda _: unknown, unknown).dims, *table.dims[1:]), unknown)


def indexed(op: Op) -> Value:
    """`x[i, j]`: places that are counted from the beginning are the same ones however much is padded."""
    value = op.tensor("self")
    indices = op.arg("indices")
    used = [at for at, index in enumerate(indices) if isinstance(index, Value)]
    named = [index for index in indices if isinstance(index, Value)]
    masks = [op.given["indices"][at].meta["val"].dtype in (torch.bool, torch.uint8) for at in used]
    if any(masks):
        raise Leak("index has a size that depends on data")
    tails = _tails_along(value, used)
    if tails and not all(_is_counted(value.dims[at], indices[at]) for at in used):
        raise undecided("index into the padded dimension, and the places are not known to be 0 and more")
    rank = max(len(index.dims) for index in named)
    unknown = anything(op.result.dtype)
    # A place in the tail of the index is one in the tail of what is read, if both are positions.
    direct = {
        id(factor): source.tail
        for at in used
        for dim in indices[at].dims
        for factor in dim
        for source in value.dims[at]
        if isinstance(factor, Padded) and isinstance(source, Padded) and factor.tail == POSITIONS_AFTER
    }
    broadcast: list[Dim] = []
    for back in range(rank, 0, -1):
        there = [index.dims[-back] if back <= len(index.dims) else () for index in named]
        forms = {form_of(dim) for dim in there if dim}
        if len(forms) > 1:
            raise undecided("index has operands of different make")
        factors = next((dim for dim in there if dim), ())
        found = [direct.get(id(f)) for dim in there for f in dim if isinstance(f, Padded)]
        known = [tail for tail in found if tail is not None]
        tail = known[0] if len(known) == 1 and len(found) == 1 else value.real if not tails else unknown
        broadcast.append(tuple(Padded(tail) if isinstance(f, Padded) else f for f in factors))
    is_together = used == list(range(used[0], used[-1] + 1))
    kept = [dim for at, dim in enumerate(value.dims) if at not in used]
    place = used[0] if is_together else 0
    return Value((*kept[:place], *broadcast, *kept[place:]), value.real)


def _is_counted(dim: Dim, index: Value) -> bool:
    """Are these places 0 and more wherever they are real? Then they are those of an unpadded call."""
    return not has_padding(dim) or (len(dim) == 1 and all(n >= 0 for world in index.real for n in world))


def gathered(op: Op) -> Value:
    """Places along one dimension."""
    value, index = op.tensor("self"), op.tensor("index")
    dim = int(op.arg("dim")) % max(1, len(value.dims))
    unknown = anything(op.result.dtype)
    if _tails_along(value, [dim]) and not _is_counted(value.dims[dim], index):
        raise undecided(f"{op.name} from the padded dimension, and the places are not known to be 0 and more")
    if op.name == "index_select":
        (new,) = index.dims or ((),)
        dims = (*value.dims[:dim], new, *value.dims[dim + 1 :])
        return Value(dims, value.real).with_tails(lambda _: unknown, value.real)
    if any(
        form_of(a) != form_of(b)
        for at, (a, b) in enumerate(zip(value.dims, index.dims, strict=True))
        if at != dim and (has_padding(a) or has_padding(b))
    ):
        raise undecided("gather has operands of different make")
    return index.with_tails(lambda _: unknown, value.real)


def scattered(op: Op) -> Value:
    """A part of a tensor is another one; not of the padded dimension."""
    value, src = op.tensor("self"), op.tensor("src")
    dim = int(op.arg("dim") or 0) % len(value.dims)
    if has_padding(value.dims[dim]):
        raise undecided(f"{op.name} into the padded dimension")
    if op.name == "select_scatter":
        src = Value((*src.dims[:dim], (), *src.dims[dim:]), src.real)
    if op.sized.has_size(op.arg("start")) or has_padding(src.dims[dim]):
        raise undecided(f"{op.name} of what has the size")
    pairs = zip(value.dims, src.dims, strict=True)
    dims = [
        value.dims[at] if at == dim else _broadcast(op, pair, (value, src), lambda tails: merged(*tails))
        for at, pair in enumerate(pairs)
    ]
    return Value(tuple(dims), merged(value.real, src.real))


def refused(why: str) -> Rule:
    """A rule for ops that no padded tensor may come to."""

    def rule(op: Op) -> Result:
        if op.is_padded:
            raise Leak(f"{op.name} {why}")
        return op.plain(op.result)

    return rule


MATRICES = {
    "mm": ("self", "mat2"),
    "bmm": ("self", "mat2"),
    "addmm": ("mat1", "mat2"),
    "baddbmm": ("batch1", "batch2"),
    "mv": ("self", "vec"),
    "addmv": ("mat", "vec"),
    "dot": ("self", "tensor"),
}
"""The factors of each product."""
WITH_SUMMAND = ("addmm", "baddbmm", "addmv")
VECTORS = ("dot",)
SUMS = ("sum", "nansum", "linalg_vector_norm", "count_nonzero")
EXTREMES = ("amax", "amin", "max", "min")
KEEP = ("split", "split_with_sizes", "unbind", "chunk", "flip", "roll", "unsafe_split")
"""They give elements that they were given."""

FAMILIES: tuple[tuple[Rule, str], ...] = (
    (cast, "_to_copy lift_fresh_copy lift_fresh detach alias clone contiguous"),
    (copied, "copy"),
    (
        with_value,
        "full zeros ones empty new_full new_zeros new_ones new_empty full_like zeros_like ones_like",
    ),
    (with_value, "empty_like scalar_tensor empty_strided new_empty_strided"),
    (positions, "arange"),
    (viewed, "view _unsafe_view reshape _reshape_alias unsqueeze squeeze flatten unflatten"),
    (permuted, "permute transpose t numpy_T"),
    (expanded, "expand"),
    (repeated, "repeat"),
    (sliced, "slice narrow"),
    (selected, "select"),
    (divided, "split split_with_sizes unbind chunk unsafe_split"),
    (joining, "cat stack"),
    (reduction(_is_zero), "sum nansum count_nonzero any"),
    (reduction(_has_no_norm), "linalg_vector_norm norm"),
    (reduction(_is_one), "prod"),
    (reduction(_is_least), "amax max argmax"),
    (reduction(_is_greatest), "amin min argmin"),
    (reduction(_is_true), "all"),
    (reduction(_vanishes), "logsumexp"),
    (reduction(_never), "mean var std var_mean std_mean median nanmedian mode aminmax"),
    (along, "sort argsort topk kthvalue flip roll glu _fft_c2c _fft_r2c _fft_c2r"),
    (padding, "constant_pad_nd"),
    (scan, "cumsum cumprod cummax cummin logcumsumexp"),
    (softmax, "_softmax _log_softmax _safe_softmax softmax log_softmax"),
    (normalized, "native_layer_norm _fused_rms_norm"),
    (of_batches, "convolution native_group_norm avg_pool2d max_pool2d_with_indices _adaptive_avg_pool2d"),
    (
        of_batches,
        "_adaptive_avg_pool3d adaptive_max_pool2d upsample_nearest2d upsample_bilinear2d avg_pool3d",
    ),
    (
        of_batches,
        "max_pool3d_with_indices upsample_bicubic2d upsample_nearest1d pixel_shuffle grid_sampler_2d",
    ),
    (of_batches, "reflection_pad1d reflection_pad2d replication_pad1d replication_pad2d"),
    (batch_norm, "_native_batch_norm_legit_no_training native_batch_norm _native_batch_norm_legit"),
    (batch_norm, "_native_batch_norm_legit_functional cudnn_batch_norm _batch_norm_with_update batch_norm"),
    (batch_norm, "_batch_norm_no_update"),
    (product, " ".join(MATRICES)),
    (attention, "scaled_dot_product_attention _scaled_dot_product_flash_attention"),
    (attention, "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_efficient_attention"),
    (attention, "_scaled_dot_product_cudnn_attention _scaled_dot_product_fused_attention_overrideable"),
    (embedded, "embedding"),
    (indexed, "index _unsafe_index"),
    (gathered, "gather index_select"),
    (scattered, "slice_scatter select_scatter"),
    (
        refused("has a size that depends on data"),
        "nonzero masked_select unique_consecutive _unique2 unique_dim",
    ),
    (refused("counts what is padded"), "histc searchsorted bucketize bincount trace"),
)
RULES: dict[str, Rule] = {name: rule for rule, names in FAMILIES for name in names.split()}
"""By the name of the op. Ops that torch says work element by element need no row."""
ABOUT_CONTENTS = (
    *(cast, copied, with_value, positions, viewed, permuted, expanded, repeated, sliced, selected, joining),
)
"""Rules to ask where nothing is padded: what tensors hold that are made from numbers is known."""


def rule_of(op: Op) -> Rule | None:
    """Return the rule for a call; None where there is none, or none is needed."""
    is_pointwise = torch.Tag.pointwise in op.node.target.tags  # type: ignore[union-attr]
    rule = RULES.get(op.name, pointwise if is_pointwise else None)
    has_size = op.is_padded or any(map(op.sized.has_size, op.numbers()))
    return rule if has_size or rule is pointwise or rule in ABOUT_CONTENTS else None
