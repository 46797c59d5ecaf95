"""Convert ops of the `npu` library that are one IR op, by the entries of `ops.npu`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch

from torchair import ge
from torchair.convert.base.operands import as_type, cast
from torchair.convert.base.registry import converter
from torchair.core.dtypes import LACKING, to_ge
from torchair.ge.graph import Tensor, transposed
from torchair.ops.npu import ROWS
from torchair.ops.npu.common.library import by_op, full_name, schema_of
from torchair.ops.npu.common.op_spec import Held, NpuOp, bind, choose
from torchair.ops.numerics.formats import E8M0, INT4


def from_rows(op: str, rows: Sequence[NpuOp]) -> Callable[..., Any]:
    """Return the converter of one torch op."""
    builders = {row.ir: getattr(ge, row.ir) for row in rows if row.ir}
    schema = schema_of(op)

    def convert(*args: Any, **kwargs: Any) -> Any:
        _refuse_unknown(schema, args, kwargs)
        given = bind(schema, args, kwargs)
        row = choose(rows, given)
        if not row.ir:
            raise NotImplementedError("no IR op expresses these types")
        given |= {name: _copied(given[name]) for name in row.copies}
        result = builders[row.ir](*row.inputs(given, _read), **_attributes(row, given), **_count(row, given))
        listed = result if isinstance(result, tuple) else (result,)
        for name, index in row.writes.items():
            ge.Assign(given[name], cast(listed[index], given[name].dtype))
        # torch has powers of two as bytes, unless they were given in their own type.
        bytes_of = LACKING | {E8M0} - {x.dtype for x in given.values() if isinstance(x, Tensor)}
        packed = tuple(_packed(part, row, bytes_of) for part in listed)
        return row.results(packed if isinstance(result, tuple) else packed[0])

    return convert


def _refuse_unknown(schema: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise for unknown arguments: the plug-in may be newer than the table, and they would be lost."""
    unknown = set(kwargs) - {argument.name for argument in schema.arguments}
    if unknown or len(args) > len(schema.arguments):
        raise NotImplementedError(
            f"arguments that torchair's schema of {schema.name} does not have: {sorted(unknown)}"
        )


def _copied(value: Any) -> Any:
    """Copy a tensor, or every tensor of a list, that the device writes."""
    if isinstance(value, list):
        return [_copied(item) for item in value]
    return ge.TensorMove(value) if isinstance(value, Tensor) else value


def _read(x: Tensor, held: Held) -> Tensor:
    """Read torch's storage as the type of its values. A value that was just packed is read before packing."""
    if x.op.type == "Bitcast" and (source := x.op.inputs[0]).dtype == held.kind and not held.turned:
        return source
    return as_type(_swapped(x) if held.turned else x, held.kind)


def _swapped(x: Tensor) -> Tensor:
    """Swap the last two dims, or return the tensor before such a swap."""
    source = transposed(x)
    rank = x.rank
    return ge.Transpose(x, [*range(rank - 2), rank - 1, rank - 2]) if source is None else source


def _packed(part: Any, row: NpuOp, bytes_of: Collection[int]) -> Any:
    """Convert values of these types to torch's storage."""
    if isinstance(part, Tensor) and part.dtype in bytes_of:
        return as_type(part, to_ge(row.word if part.dtype == INT4 else torch.uint8))
    return part


def _attributes(row: NpuOp, given: Mapping[str, Any]) -> dict[str, Any]:
    found = row.attributes(given)
    for name, held in row.held(given).items():
        if held.turned and not held.flag:
            raise NotImplementedError(f"{row.ir} does not accept a transposed {name}")
        if held.turned:
            found[held.flag] = True
    for name, value in found.items():
        if isinstance(value, Tensor):
            raise NotImplementedError(f"{name} of {row.ir} must be a number that is known at compile time")
    return found


def _count(row: NpuOp, given: Mapping[str, Any]) -> dict[str, int]:
    return {} if row.count is None else {"outputs": row.count(given)}


for name, served in by_op(ROWS).items():
    converter(full_name(name))(from_rows(name, served))
