"""Ops of the `npu` library that are one IR op: the rows of `ops.npu`, read as converters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torchair import ge
from torchair.convert.operands import cast
from torchair.convert.registry import converter
from torchair.ge.graph import Tensor
from torchair.ops.npu import ROWS
from torchair.ops.npu.library import by_op, full_name, schema_of
from torchair.ops.npu.row import Row, bind, choose


def from_rows(op: str, rows: Sequence[Row]) -> Callable[..., Any]:
    """The converter of one torch op."""
    builders = {row.ir: getattr(ge, row.ir) for row in rows if row.ir}
    schema = schema_of(op)

    def convert(*args: Any, **kwargs: Any) -> Any:
        _refuse_unknown(schema, args, kwargs)
        given = bind(schema, args, kwargs)
        row = choose(rows, given)
        if not row.ir:
            raise NotImplementedError("no IR op expresses these types")
        given |= {name: _copied(given[name]) for name in row.copies}
        made = builders[row.ir](*row.inputs(given), **_attributes(row, given), **_count(row, given))
        listed = made if isinstance(made, tuple) else (made,)
        for name, index in row.writes.items():
            ge.Assign(given[name], cast(listed[index], given[name].dtype))
        return row.results(made)

    return convert


def _refuse_unknown(schema: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """The plug-in may be newer than our table and know arguments that we would lose."""
    unknown = set(kwargs) - {argument.name for argument in schema.arguments}
    if unknown or len(args) > len(schema.arguments):
        raise NotImplementedError(f"arguments that are not in our schema of {schema.name}: {sorted(unknown)}")


def _copied(value: Any) -> Any:
    """The device writes into these: a copy of the tensor, or of every tensor of a list."""
    if isinstance(value, list):
        return [_copied(item) for item in value]
    return ge.TensorMove(value) if isinstance(value, Tensor) else value


def _attributes(row: Row, given: Mapping[str, Any]) -> dict[str, Any]:
    found = row.attributes(given)
    for name, value in found.items():
        if isinstance(value, Tensor):
            raise NotImplementedError(f"{name} of {row.ir} is a number, here it is only known when it runs")
    return found


def _count(row: Row, given: Mapping[str, Any]) -> dict[str, int]:
    return {} if row.count is None else {"outputs": row.count(given)}


for name, served in by_op(ROWS).items():
    converter(full_name(name))(from_rows(name, served))
