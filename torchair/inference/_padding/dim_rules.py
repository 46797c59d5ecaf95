"""Padding rules of ops along dimensions, of products, and of indexing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchair.inference._padding.element_rules import at_places, broadcast, checked, elementwise
from torchair.inference._padding.padded_values import (
    POSITIONS_AFTER,
    Dim,
    Padded,
    Samples,
    Value,
    always,
    anything,
    are_at_most,
    constant_of,
    evaluated,
    form_of,
    has_padding,
    is_finite,
    merged,
    of_sign,
    padded_factors,
)
from torchair.inference._padding.proof import Leak, Op, Result, Rule, undecided

MATRICES = {
    "mm": ("self", "mat2"),
    "bmm": ("self", "mat2"),
    "addmm": ("mat1", "mat2"),
    "baddbmm": ("batch1", "batch2"),
    "mv": ("self", "vec"),
    "addmv": ("mat", "vec"),
    "dot": ("self", "tensor"),
}
"""The operands of each product."""
WITH_SUMMAND = ("addmm", "baddbmm", "addmv")
VECTORS = ("dot",)
SUMS = ("sum", "nansum", "linalg_vector_norm", "count_nonzero")
MAGNITUDES = ("linalg_vector_norm", "norm", "var", "std")
EXTREMES = ("amax", "amin", "max", "min")

# Along dimensions.


def _dims_of(op: Op, value: Value) -> list[int]:
    """Return the dimensions that an op works along; all if none is given."""
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
    """Return a rule for reductions whose results do not depend on neutral padding."""

    def rule(op: Op) -> Result:
        value = op.tensor("self") if op.has("self") else op.tensor("input")
        dims = _dims_of(op, value)
        for tail in _tails_along(value, dims):
            if not neutral(op, value, tail):
                raise Leak(f"{op.name} reduces the padded dimension, and the padding may not be neutral")
        keeps = op.has("keepdim") and bool(op.arg("keepdim"))
        is_plain = not _tails_along(value, dims)

        def numbers(samples: Samples, dtype: torch.dtype) -> Samples:
            if dtype != op.first_dtype or dtype.is_complex or not is_finite(samples):
                return samples if op.name in EXTREMES and dtype == op.first_dtype else anything(dtype)
            if op.name in EXTREMES or op.name == "mean":
                return samples
            is_magnitude = op.name in MAGNITUDES
            return (
                of_sign(samples, dtype, is_magnitude) if is_magnitude or op.name == "sum" else anything(dtype)
            )

        def contents(dtype: torch.dtype) -> Callable[[Samples], Samples]:
            def change(tail: Samples) -> Samples:
                number = constant_of(tail)
                if is_plain and number == 0 and op.name in SUMS and dtype == op.first_dtype:
                    return tail
                return numbers(tail, dtype) if is_plain else anything(dtype)

            return change

        def made(fake: torch.Tensor) -> Value:
            real = numbers(value.real, fake.dtype)
            kept = value.with_tails(contents(fake.dtype), real)
            if keeps:
                left = [() if at in dims else dim for at, dim in enumerate(kept.dims)]
            else:
                left = [dim for at, dim in enumerate(kept.dims) if at not in dims]
            return Value(tuple(left), real)

        fakes = op.result
        return tuple(map(made, fakes)) if isinstance(fakes, list | tuple) else made(fakes)

    return rule


def is_zero(op: Op, value: Value, tail: Samples) -> bool:
    return constant_of(tail) == 0


def is_one(op: Op, value: Value, tail: Samples) -> bool:
    return constant_of(tail) == 1


def is_least(op: Op, value: Value, tail: Samples) -> bool:
    return constant_of(tail) == -math.inf or are_at_most(tail, value.real)


def is_greatest(op: Op, value: Value, tail: Samples) -> bool:
    return constant_of(tail) == math.inf or are_at_most(value.real, tail)


def is_true(op: Op, value: Value, tail: Samples) -> bool:
    return all(number != 0 and number == number for world in tail for number in world)


def vanishes(op: Op, value: Value, tail: Samples) -> bool:
    return constant_of(tail) == -math.inf


def has_no_norm(op: Op, value: Value, tail: Samples) -> bool:
    order = op.given.get("ord", op.given.get("p", 2))
    return constant_of(tail) == 0 and (order is None or order > 0)


def never(op: Op, value: Value, tail: Samples) -> bool:
    return False


def along(op: Op) -> Result:
    """Apply to ops that process each line along some dimensions, which must not be padded."""
    value = op.tensor("self") if op.has("self") else op.tensor("input")
    dims = _dims_of(op, value)
    if _tails_along(value, dims):
        raise Leak(f"{op.name} works along the padded dimension")
    fakes = op.result if isinstance(op.result, list | tuple) else [op.result]
    made = [at_places(op, value, dims, fake, fake.dim() < len(value.dims)) for fake in fakes]
    return tuple(made) if isinstance(op.result, list | tuple) else made[0]


def padding(op: Op) -> Value:
    """Apply to `constant_pad_nd` along other dimensions."""
    value = op.tensor("self")
    pad = op.arg("pad")
    rank = len(value.dims)
    dims = [rank - 1 - at // 2 for at, number in enumerate(pad) if number != 0]
    if _tails_along(value, dims):
        raise undecided("constant_pad_nd along the padded dimension")
    return at_places(op, value, sorted(set(dims)), op.result)


def scan(op: Op) -> Result:
    """Apply to scans, whose first results do not depend on the length."""
    value = op.tensor("self")
    if any(
        len(dim) > 1 for at, dim in enumerate(value.dims) if at in _dims_of(op, value) and has_padding(dim)
    ):
        raise undecided(f"{op.name} along dimensions that were merged")
    fakes = op.result if isinstance(op.result, list | tuple) else [op.result]
    made = [value.with_tails(lambda _, f=fake: anything(f.dtype), anything(fake.dtype)) for fake in fakes]
    return tuple(made) if isinstance(op.result, list | tuple) else made[0]


def softmax(op: Op) -> Value:
    """Apply to softmax along one dimension, where padding of minus infinity has no effect."""
    value = op.tensor("self")
    (dim,) = _dims_of(op, value)
    for tail in _tails_along(value, [dim]):
        if not vanishes(op, value, tail):
            raise undecided(
                f"{op.name} along the padded dimension, and the padding may not be minus infinity"
            )
    is_log = "log" in op.name
    real = anything(op.result.dtype) if is_log else always(0.0, 0.5, 1.0)

    def after(at: int, here: Dim) -> Dim:
        gone = always(-math.inf) if is_log else always(0.0)
        return tuple(Padded(gone if at == dim else real) if isinstance(f, Padded) else f for f in here)

    return Value(tuple(after(at, here) for at, here in enumerate(value.dims)), real)


def normalized(op: Op) -> Result:
    """Apply to `layer_norm` and other norms over the last dimensions."""
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
    """Apply to ops on batches: only the first dimension may be padded."""
    first = op.tensor("input") if op.has("input") else op.tensor("self")
    if _tails_along(first, range(1, len(first.dims))):
        raise undecided(f"{op.name} of a padded dimension that is not the first")
    others = [value for value in op.tensors() if value is not first and value.is_padded]
    if others:
        raise undecided(f"{op.name} with several padded operands")

    def made(fake: Any) -> Value:
        unknown = anything(fake.dtype)
        if not fake.dim() or not op.sized.has_size(fake):
            return checked(op.plain(fake))
        return Value(
            (first.dims[0], *(op.dim(size, unknown) for size in fake.shape[1:])), unknown
        ).with_tails(lambda _: unknown, unknown)

    return tuple(map(made, op.result)) if isinstance(op.result, list | tuple) else made(op.result)


def batch_norm(op: Op) -> Result:
    """Apply to batch norm: elementwise with running statistics, else over all dimensions but the second."""
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
    """Apply to matrix products: padding of zeros in one operand adds nothing to the sums."""
    a_name, b_name = MATRICES[op.name]
    a, b = op.tensor(a_name), op.tensor(b_name)
    batch = len(a.dims) - (1 if op.name in VECTORS else 2)
    _check_contracted(op, a.dims[-1], b.dims[batch])
    rows, columns = a.dims[batch:-1], b.dims[batch + 1 :]
    unknown = anything(op.result.dtype)
    is_sum = op.name in WITH_SUMMAND

    are_finite = is_finite(a.real) and is_finite(b.real)

    def lone(dim: Dim) -> Dim:
        return tuple(Padded(tail_of([f.tail])) if isinstance(f, Padded) else f for f in dim)

    def tail_of(tails: Sequence[Samples]) -> Samples:
        """Return zero if one operand is zero and the other is finite."""
        is_zero = any(constant_of(tail) == 0 for tail in tails)
        return always(0.0) if is_zero and are_finite and all(map(is_finite, tails)) else unknown

    pairs = zip(a.dims[:batch], b.dims[:batch], strict=True)
    both = [broadcast(op, pair, (a, b), tail_of) for pair in pairs]
    made = Value((*both, *map(lone, rows), *map(lone, columns)), unknown)
    if not is_sum:
        return made
    summand = op.tensor("self" if op.has("self") else "input")
    dtypes = [op.result.dtype, op.result.dtype]

    def apply(samples: Sequence[Samples]) -> Samples:
        return evaluated(lambda x, y: x + y, samples, dtypes, op.result.dtype)

    return elementwise(op, [made, summand], apply, op.result.dim())


def _check_contracted(op: Op, a: Dim, b: Dim) -> None:
    if not has_padding(a) and not has_padding(b):
        return
    if form_of(a) != form_of(b):
        raise undecided(f"{op.name} has operands that are padded differently")
    for mine, theirs in zip(a, b, strict=True):
        tails = [each.tail for each in (mine, theirs) if isinstance(each, Padded)]
        if tails and not any(constant_of(tail) == 0 for tail in tails):
            raise undecided(f"{op.name} sums over the padded dimension, and the padding may not be 0")
        if not all(map(is_finite, tails)):
            raise Leak(f"{op.name} sums over the padded dimension, and the padding may be infinite or NaN")


def attention(op: Op) -> Result:
    """Apply to attention: padded keys must be masked, or come after their query."""
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
        tails = _tails_along(key, [len(key.dims) - 2]) + _tails_along(value, [len(value.dims) - 2])
        if not all(map(is_finite, tails)):
            raise Leak(f"{op.name} has padded keys or values that may be infinite or NaN")
    unknown = anything(torch.float32)
    batch = [
        broadcast(op, each, (query, key, value), lambda _: unknown)
        for each in zip(query.dims[:-2], key.dims[:-2], value.dims[:-2], strict=True)
    ]
    rows = tuple(Padded(unknown) if isinstance(f, Padded) else f for f in query.dims[-2])
    made = Value((*batch, rows, value.dims[-1]), unknown)
    if not isinstance(op.result, list | tuple):
        return made
    return (made, *(_unused(op, fake) for fake in op.result[1:]))


def _unused(op: Op, fake: Any) -> Result:
    """Return the value of a result that only a backward pass reads."""
    return None


def _check_mask(op: Op, mask: Any) -> None:
    tails = _tails_along(mask, [len(mask.dims) - 1]) if isinstance(mask, Value) else []
    gone = [number is False or number == -math.inf for number in map(constant_of, tails)]
    if not gone or not all(gone):
        raise undecided(f"{op.name} has padded keys that may not be masked")


# By index.


def embedded(op: Op) -> Value:
    """Apply to `embedding`."""
    table, indices = op.tensor("weight"), op.tensor("indices")
    if table.is_padded:
        raise undecided("embedding of a padded table")
    unknown = anything(op.result.dtype)
    return Value((*indices.with_tails(lambda _: unknown, unknown).dims, *table.dims[1:]), unknown)


def indexed(op: Op) -> Value:
    """Apply to `x[i, j]`: nonnegative indices select the same elements with any padding."""
    value = op.tensor("self")
    indices = op.arg("indices")
    used = [at for at, index in enumerate(indices) if isinstance(index, Value)]
    named = [index for index in indices if isinstance(index, Value)]
    masks = [op.given["indices"][at].meta["val"].dtype in (torch.bool, torch.uint8) for at in used]
    if any(masks):
        raise Leak("index has a size that depends on data")
    tails = _tails_along(value, used)
    if tails and not all(_is_counted(value.dims[at], indices[at]) for at in used):
        raise undecided("index into the padded dimension, and the indices may be negative")
    rank = max(len(index.dims) for index in named)
    unknown = anything(op.result.dtype)
    # If both are positions, the tail of the index selects elements in the tail of the operand.
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
            raise undecided("index has operands that are padded differently")
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
    """Whether all real indices are nonnegative, so that they are those of an unpadded call."""
    return not has_padding(dim) or (len(dim) == 1 and all(n >= 0 for world in index.real for n in world))


def gathered(op: Op) -> Value:
    """Apply to indexing along one dimension."""
    value, index = op.tensor("self"), op.tensor("index")
    dim = int(op.arg("dim")) % max(1, len(value.dims))
    unknown = anything(op.result.dtype)
    if _tails_along(value, [dim]) and not _is_counted(value.dims[dim], index):
        raise undecided(f"{op.name} from the padded dimension, and the indices may be negative")
    if op.name == "index_select":
        (new,) = index.dims or ((),)
        dims = (*value.dims[:dim], new, *value.dims[dim + 1 :])
        return Value(dims, value.real).with_tails(lambda _: unknown, value.real)
    if any(
        form_of(a) != form_of(b)
        for at, (a, b) in enumerate(zip(value.dims, index.dims, strict=True))
        if at != dim and (has_padding(a) or has_padding(b))
    ):
        raise undecided("gather has operands that are padded differently")
    return index.with_tails(lambda _: unknown, value.real)


def scattered(op: Op) -> Value:
    """Apply to ops that replace a part of a tensor, along other dimensions than the padded one."""
    value, src = op.tensor("self"), op.tensor("src")
    dim = int(op.arg("dim") or 0) % len(value.dims)
    if has_padding(value.dims[dim]):
        raise undecided(f"{op.name} into the padded dimension")
    if op.name == "select_scatter":
        src = Value((*src.dims[:dim], (), *src.dims[dim:]), src.real)
    if op.sized.has_size(op.arg("start")) or has_padding(src.dims[dim]):
        raise undecided(f"{op.name} of a tensor with the padded size")
    pairs = zip(value.dims, src.dims, strict=True)
    dims = [
        value.dims[at] if at == dim else broadcast(op, pair, (value, src), lambda tails: merged(*tails))
        for at, pair in enumerate(pairs)
    ]
    return Value(tuple(dims), merged(value.real, src.real))
