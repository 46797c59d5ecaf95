"""Define which data types an op accepts: those of its prototype, and a few that prototypes omit.

Engines check graphs against prototypes, so an op never gets another type: `build` casts to a declared type
that holds all values, or reports that there is none.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase as fnmatch
from pathlib import Path

import torch

from torchair.core import dtypes
from torchair.core.errors import UnsupportedOp
from torchair.ge.graph import INPUT_TYPES, Op
from torchair.ge.host import Host
from torchair.ge.prototype import Param, Prototype, catalogue

UNDECLARED_TYPES = Path(__file__).parents[1] / "opdefs" / "forgotten_dtypes.json"
"""Entries of (op, slot, data type, evidence), as patterns: accepted, but missing in the prototype."""

_INTEGERS = ("INT16", "INT32", "INT64")
_SMALL_FLOATS = ("FLOAT16", "BF16", "FLOAT")
_HELD_BY: dict[str, tuple[str, ...]] = {
    "BOOL": ("UINT8", "INT8", *_INTEGERS, "FLOAT16", "FLOAT"),
    "UINT8": _INTEGERS, "INT8": _INTEGERS, "UINT16": _INTEGERS[1:], "INT16": _INTEGERS[1:],
    "UINT32": _INTEGERS[2:], "INT32": _INTEGERS[2:],
    "INT4": ("INT8", *_INTEGERS),
    "FLOAT4_E2M1": ("FLOAT8_E4M3FN", *_SMALL_FLOATS), "FLOAT4_E1M2": ("FLOAT8_E4M3FN", *_SMALL_FLOATS),
    "FLOAT8_E5M2": ("FLOAT16", "FLOAT"), "FLOAT8_E4M3FN": _SMALL_FLOATS, "HIFLOAT8": ("FLOAT16", "FLOAT"),
    "FLOAT16": ("FLOAT", "DOUBLE"), "BF16": ("FLOAT", "DOUBLE"), "FLOAT": ("DOUBLE",),
    "COMPLEX32": ("COMPLEX64", "COMPLEX128"), "COMPLEX64": ("COMPLEX128",),
}  # fmt: skip
"""Types that hold all values of a type and compute as it does, the narrowest first.

Integers are not computed in floats: results that wrap around would be rounded. Masks may be floats: they are
compared with zero.
"""

NOT_ACCEPTED = re.compile("does not accept [A-Z][A-Z0-9_]* as ")
"""Pattern of the message that an op has no type for a value."""
_OF_THE_TYPE_ITSELF = ("Bitcast", "NextAfter")
"""The results of these ops depend on how values are stored: another type gives another result."""


@functools.cache
def taken(op_type: str, slot: str) -> tuple[str, ...]:
    """Return the names of the types an input accepts; none: any."""
    param = _param(catalogue()[op_type], slot)
    if param is None or not param.dtypes:
        return ()
    rows = [row for row in forgotten() if fnmatch(op_type, row[0]) and fnmatch(param.name, row[1])]
    others = [name for row in rows for name in dtypes.BY_NAME if fnmatch(name, row[2])]
    return (*param.dtypes, *others)


def _param(proto: Prototype, slot: str) -> Param | None:
    """Return the parameter of a slot. Slots of a list are numbered; its name may itself end in a digit."""
    for param in proto.inputs:
        if param.name == slot:
            return param
    stems = [param for param in proto.inputs if param.kind == "dynamic" and slot.startswith(param.name)]
    return next((param for param in stems if slot.removeprefix(param.name).isdecimal()), None)


@functools.cache
def forgotten() -> tuple[tuple[str, str, str, str], ...]:
    """Load the table."""
    return tuple(
        (op, slot, dtype, evidence) for op, slot, dtype, evidence in json.loads(UNDECLARED_TYPES.read_text())
    )


def undeclared(op: Op) -> Iterator[tuple[str, str]]:
    """Yield (slot, name of its type) for each input whose type the op does not accept."""
    if op.type not in catalogue() or op.type in INPUT_TYPES:
        return
    for slot in op.slots:
        if slot.tensor is None or slot.tensor.dtype == dtypes.UNDEFINED:
            continue
        name, declared = dtypes.BY_RUNTIME[slot.tensor.dtype].name, taken(op.type, slot.name)
        if declared and name not in declared:
            yield slot.name, name


def casts(op: Op) -> dict[int, int]:
    """Return the types to cast inputs to, by slot index, so that the op accepts them.

    Inputs of one type stay of one type where the op accepts it for both.
    """
    found: dict[int, int] = {}
    for name, dtype in undeclared(op):
        declared = taken(op.type, name)
        if "INT32" in declared and _is_size(op, name):
            found[_number(op, name)] = dtypes.BY_NAME["INT32"].runtime
            continue
        wider = _holder(dtype, declared)
        if wider is None or op.type in _OF_THE_TYPE_ITSELF:
            raise UnsupportedOp(f"{op.type} does not accept {dtype} as {name}", near=" ".join(declared))
        for number, slot in enumerate(op.slots):
            is_alike = slot.tensor is not None and dtypes.BY_RUNTIME[slot.tensor.dtype].name == dtype
            if slot.name == name or (is_alike and _takes(op.type, slot.name, wider)):
                found.setdefault(number, dtypes.BY_NAME[wider].runtime)
    return found


def _number(op: Op, name: str) -> int:
    return next(number for number, slot in enumerate(op.slots) if slot.name == name)


def _is_size(op: Op, name: str) -> bool:
    """Return whether the input is a size: a host number that fits into 32 bits, unless it is known not to."""
    tensor = op.slots[_number(op, name)].tensor
    meta = None if tensor is None else tensor.meta
    if not isinstance(meta, Host) or meta.dtype != torch.int64:
        return False
    return all(not isinstance(item, int) or -(1 << 31) <= item < 1 << 31 for item in meta.items)


def _takes(op_type: str, slot: str, dtype: str) -> bool:
    declared = taken(op_type, slot)
    return not declared or dtype in declared


def holds(wide: int, narrow: int) -> bool:
    """Return whether a type holds all values of another, so that a round-trip cast changes none."""
    return dtypes.BY_RUNTIME[wide].name in _HELD_BY.get(dtypes.BY_RUNTIME[narrow].name, ())


def _holder(dtype: str, declared: tuple[str, ...]) -> str | None:
    """Return the narrowest declared type that holds the values of this one."""
    return next((name for name in _HELD_BY.get(dtype, ()) if name in declared), None)
