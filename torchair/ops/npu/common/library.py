"""Register the ops of the tables in torch: schema, eager and fake kernels.

If the plug-in `torch_npu` is installed, its own ops are used. Ops that are already registered are never
replaced.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.fx.node import has_side_effect

from torchair.core.registries.vendor_plugin import real_plugin
from torchair.core.torch_private.device.memory import storage_id
from torchair.core.torch_private.fake.fake_tensors import tree_flatten, tree_unflatten
from torchair.core.torch_private.operators.schemas import parse_schema, register_fake
from torchair.ops.npu.common.gradients import Gradient
from torchair.ops.npu.common.op_spec import TYPES, InPlaceOp, NpuOp, bind, choose, defaults
from torchair.ops.npu.common.packing import packed, read
from torchair.ops.numerics.self_returning import DIRECT

Fn = Callable[..., Any]
# Namespaces of this package: the plug-in does not provide their ops.
OUR_NAMESPACES = ("air", "torchair")
# Kernels of in-place ops for tensors with data: they write only their rows.
DEVICES = ("CPU", "CUDA", "PrivateUse1")
_libraries: dict[str, torch.library.Library] = {}


@functools.cache
def schemas() -> dict[str, str]:
    """Return the schema of every op of the library, by name such as `npu.npu_rms_norm.default`."""
    return json.loads((Path(__file__).parent / "schemas.json").read_text(encoding="utf-8"))


@functools.cache
def schema_of(op: str) -> Any:
    """Return the parsed schema of an op, by its full name."""
    return parse_schema(schemas()[full_name(op)])


def full_name(op: str) -> str:
    """Return `npu.npu_rms_norm.default` for `npu_rms_norm`; other namespaces and overloads must be
    explicit.
    """
    namespace, _, rest = op.rpartition("::")
    name, _, overload = rest.partition(".")
    return f"{namespace or 'npu'}.{name}.{overload or 'default'}"


def overload(op: str) -> Any:
    """Return the registered operator of torch."""
    namespace, name, variant = full_name(op).split(".")
    return getattr(getattr(getattr(torch.ops, namespace), name), variant)


def function(op: str, doc: str) -> Fn:
    """Return a function that calls the op, with the signature of its schema and a docstring."""
    namespace, name, _ = full_name(op).split(".")
    packet = getattr(getattr(torch.ops, namespace), name)

    def call(*args: Any, **kwargs: Any) -> Any:
        return packet(*args, **kwargs)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = doc
    parameters = [_parameter(argument) for argument in schema_of(op).arguments]
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return call


def _parameter(argument: Any) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY if argument.kwarg_only else inspect.Parameter.POSITIONAL_OR_KEYWORD
    default = argument.default_value if argument.has_default_value() else inspect.Parameter.empty
    return inspect.Parameter(argument.name, kind, default=default)


def by_op(rows: Sequence[NpuOp]) -> dict[str, tuple[NpuOp, ...]]:
    """Return the rows of each torch op, in order."""
    found: dict[str, tuple[NpuOp, ...]] = {}
    for row in rows:
        unread = {argument.name for argument in schema_of(row.op).arguments} - row.reads()
        assert not unread, f"{row.op}: {row.ir} does not read {sorted(unread)}"
        found[row.op] = (*found.get(row.op, ()), row)
    return found


def define_rows(rows: Sequence[NpuOp]) -> None:
    """Register ops that are calls of one IR op."""
    for op, served in by_op(rows).items():
        if not any(row.writes for row in served):
            define(op, _from_rows(op, served))


def define_plain(functions: Mapping[str, Fn]) -> None:
    """Register ops by functions of their own arguments."""
    for op, fn in functions.items():
        define(op, fn)


def define_composite(functions: Mapping[str, Fn]) -> None:
    """Register ops that are traced as the ATen calls they make."""
    for op, fn in functions.items():
        library = _declare(op)
        if library is not None:
            library.impl(_local(op), fn, "CompositeImplicitAutograd")


def define_in_place(rows: Sequence[InPlaceOp]) -> None:
    """Register ops that write into arguments."""
    for row in rows:
        library = _declare(row.op)
        if library is not None:
            library.impl(_local(row.op), _composite(row), "CompositeImplicitAutograd")
            for device in DEVICES if row.direct is not None else ():
                library.impl(_local(row.op), row.direct, device)
        if row.direct is not None:
            DIRECT[overload(row.op)] = row.direct


def define(op: str, fn: Fn) -> None:
    """Register an op with its definition, which runs on data and on fake tensors."""
    library = _declare(op)
    if library is None:
        return
    fn = _with_own_results(fn)
    library.impl(_local(op), fn, "CompositeExplicitAutograd")
    register_fake(library, _local(op), fn)


def define_gradients(gradients: Mapping[str, Gradient]) -> None:
    """Register the backward of each op with autograd, if torchair defines the op."""
    for op, gradient in gradients.items():
        library = _libraries.get(full_name(op).split(".")[0])
        if library is not None:
            _differentiate(op, gradient, library)


def keep_calls(ops: Sequence[str]) -> None:
    """Keep ops with side effects in graphs if their results are unused, whoever registered them."""
    for op in ops:
        namespace, name, variant = full_name(op).split(".")
        found = getattr(getattr(getattr(torch.ops, namespace), name, None), variant, None)
        if found is not None:
            has_side_effect(found)


def _differentiate(op: str, gradient: Gradient, library: torch.library.Library) -> None:
    schema = schema_of(op)

    def keep(ctx: Any, inputs: tuple[Any, ...], output: Any, keyword_only_inputs: Any = None) -> None:
        given = bind(schema, inputs, keyword_only_inputs or {})
        saved = gradient.keep(given, output)
        ctx.save_for_backward(*(part for part in saved if isinstance(part, torch.Tensor)))
        ctx.saved = [None if isinstance(part, torch.Tensor) else part for part in saved]
        ctx.is_tensor = [isinstance(part, torch.Tensor) for part in saved]

    def backward(ctx: Any, *grads: Any) -> Any:
        tensors = iter(ctx.saved_tensors)
        saved = [
            next(tensors) if is_tensor else part
            for part, is_tensor in zip(ctx.saved, ctx.is_tensor, strict=True)
        ]
        made = gradient.backward(*saved, *grads)
        rest = sum(not argument.kwarg_only for argument in schema.arguments) - len(made)
        return (*made, *(None,) * rest)

    torch.library.register_autograd(schema.name + _suffix(op), backward, setup_context=keep, lib=library)


def _declare(op: str) -> torch.library.Library | None:
    """Return the library with the schema of the op, or None if the op is registered elsewhere."""
    namespace, name, variant = full_name(op).split(".")
    if _is_brought() and namespace not in OUR_NAMESPACES:
        return None
    if variant in getattr(getattr(torch.ops, namespace), name, _Nothing).overloads():
        return None
    library = _libraries.setdefault(namespace, torch.library.Library(namespace, "FRAGMENT"))
    library.define(schemas()[full_name(op)].partition("::")[2], tags=(torch.Tag.pt2_compliant_tag,))
    return library


@functools.cache
def _is_brought() -> bool:
    """Return whether the vendor's plug-in registers its own ops."""
    return real_plugin() is not None


class _Nothing:
    """Placeholder for an op that is not registered."""

    @staticmethod
    def overloads() -> tuple[str, ...]:
        return ()


def _local(op: str) -> str:
    return full_name(op).split(".")[1] + _suffix(op)


def _suffix(op: str) -> str:
    variant = full_name(op).split(".")[2]
    return "" if variant == "default" else f".{variant}"


def _with_own_results(fn: Fn) -> Fn:
    """Copy results that are views of arguments, because an op without writes must return its own memory."""

    def run(*args: Any, **kwargs: Any) -> Any:
        made, form = tree_flatten(fn(*args, **kwargs))
        taken = {storage_id(x) for x in tree_flatten((args, kwargs))[0] if isinstance(x, torch.Tensor)}
        for index, result in enumerate(made):
            if isinstance(result, torch.Tensor):
                if storage_id(result) in taken:
                    made[index] = result.clone()
                taken.add(storage_id(made[index]))
        return tree_unflatten(made, form)

    return run


def _from_rows(op: str, rows: Sequence[NpuOp]) -> Fn:
    schema = schema_of(op)

    def run(*args: Any, **kwargs: Any) -> Any:
        given = bind(schema, args, kwargs)
        row = choose(rows, given)
        attributes, types = row.attributes(given), row.types(given)
        asked = {TYPES: types} if TYPES in inspect.signature(row.fn).parameters else {}
        made = row.fn(*row.inputs(given, read), **attributes, **asked)
        return row.results(_packed(row, made, defaults(row.fn) | types | attributes))

    return run


def _packed(row: NpuOp, made: Any, known: Mapping[str, Any]) -> Any:
    """Return the results, with 4-bit values packed as in torch."""
    if not row.makes:
        return made
    kinds = {i: known.get(of) if isinstance(of, str) else of(known) for i, of in row.makes.items()}
    listed = made if isinstance(made, tuple) else (made,)
    done = tuple(packed(part, kinds.get(index), row.word) for index, part in enumerate(listed))
    return done if isinstance(made, tuple) else done[0]


def _composite(row: InPlaceOp) -> Fn:
    schema, twin = schema_of(row.op), overload(row.twin)
    taken = {argument.name for argument in schema_of(row.twin).arguments}

    def run(*args: Any, **kwargs: Any) -> Any:
        given = bind(schema, args, kwargs)
        made = twin(**{name: value for name, value in given.items() if name in taken})
        results = made if isinstance(made, tuple | list) else (made,)
        for name, index in row.writes.items():
            if given[name] is not None:
                given[name].copy_(results[index])
        returned = tuple(given[r] if isinstance(r, str) else results[r] for r in row.returns)
        return returned[0] if len(returned) == 1 else returned or None

    return run
