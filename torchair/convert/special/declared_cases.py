"""Load the declared cases of built-in converters: the entries of `declared_cases.json`, by family.

An entry has ops and the calls that each of them covers, written as the arguments of `Support(...)`. A call
represents a kind of call: dtypes, broadcasting, numbers, negative dims.
"""

from __future__ import annotations

import ast
import json
import operator
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from torchair.convert.base.case_spec import (
    BF16,
    BOOL,
    C64,
    F16,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    U8,
    Support,
    T,
    supported,
)
from torchair.core.errors import BadConverter
from torchair.core.torch_private.operators.schemas import OpOverload

TABLE = Path(__file__).with_suffix(".json")
TENSORS = {"T": T} | {x.name: x for x in (F32, F16, BF16, F64, I64, I32, I16, I8, U8, C64, BOOL)}
NUMBERS = {"nan": float("nan"), "inf": float("inf")}


def rows_of(families: Any) -> Iterator[tuple[list[OpOverload], list[Support]]]:
    """Yield the ops and cases of each entry; raise for an invalid entry with its family and text."""
    for family, rows in families.items():
        for row in rows:
            try:
                yield [_op(name) for name in row["ops"]], [_case(text) for text in row["cases"]]
            except (AttributeError, KeyError, SyntaxError, TypeError, ValueError) as error:
                raise BadConverter(
                    f"invalid entry of declared cases: {error}",
                    at=f"{TABLE.name}, {family}",
                    got=json.dumps(row),
                    next='write entries like {"ops": ["aten.add.Tensor"], "cases": ["F32(2, 3), F32(3), '
                    'alpha=2"]}',
                ) from error


def _op(name: str) -> OpOverload:
    found = operator.attrgetter(name)(torch.ops)
    if not isinstance(found, OpOverload):
        raise ValueError(f"{name} is not an op overload")
    return found


def _case(text: str) -> Support:
    call = ast.parse(f"Support({text})", mode="eval").body
    if not isinstance(call, ast.Call) or ast.unparse(call.func) != "Support":
        raise ValueError(f"{text!r} is not the argument list of a single call")
    return Support(*map(_value, call.args), **_named(call))


def _named(call: ast.Call) -> dict[str, Any]:
    return {str(part.arg): _value(part.value) for part in call.keywords}


def _value(node: ast.expr) -> Any:
    match node:
        case ast.Call(func=ast.Name(id=name)) if name in TENSORS:
            return TENSORS[name](*map(_value, node.args), **_named(node))
        case ast.Name(id=name) if name in NUMBERS:
            return NUMBERS[name]
        case ast.UnaryOp(op=ast.USub()):
            return -_value(node.operand)
        case ast.List():
            return [_value(part) for part in node.elts]
        case ast.Tuple():
            return tuple(_value(part) for part in node.elts)
        case ast.Attribute(value=ast.Name(id="torch")) if isinstance(
            dtype := getattr(torch, node.attr, None), torch.dtype
        ):
            return dtype
        case ast.Constant():
            return node.value
        case _:
            raise ValueError(f"{ast.unparse(node)!r} is not a value, a described tensor or a dtype")


for targets, cases in rows_of(json.loads(TABLE.read_text(encoding="utf-8"))):
    supported(*targets, cases=cases)
