"""Which data types an op takes: those of its prototype, and the few that prototypes forget.

Prototypes are what engines check graphs against, so an op is never given another type: `build` casts to a
declared one that holds all values, or says that there is none.
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

FORGOTTEN = Path(__file__).parents[1] / "opdefs" / "forgotten_dtypes.json"
"""Rows of (op, slot, data type, evidence), as patterns: taken, and missing in the prototype."""

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
"""Types that hold all values of a type and compute as it does, the narrowest first. Integers are not computed
in floats: what wraps around would be rounded. Masks may be floats: they are compared with zero.
"""

NOT_TAKEN = re.compile("takes no [A-Z][A-Z0-9_]* as ")
"""So it is said of an op that it has no type for a value."""
_OF_THE_TYPE_ITSELF = ("Bitcast", "NextAfter")
"""What these make depends on how values are stored: another type gives another result."""


@functools.cache
def taken(op_type: str, slot: str) -> tuple[str, ...]:
    """The names of the types an input takes; none: any."""
    param = _param(catalogue()[op_type], slot)
    if param is None or not param.dtypes:
        return ()
    rows = [row for row in forgotten() if fnmatch(op_type, row[0]) and fnmatch(param.name, row[1])]
    others = [name for row in rows for name in dtypes.BY_NAME if fnmatch(name, row[2])]
    return (*param.dtypes, *others)


def _param(proto: Prototype, slot: str) -> Param | None:
    """Slots of a list are numbered; the name of a list may itself end in a digit."""
    for param in proto.inputs:
        if param.name == slot:
            return param
    stems = [param for param in proto.inputs if param.kind == "dynamic" and slot.startswith(param.name)]
    return next((param for param in stems if slot.removeprefix(param.name).isdecimal()), None)


@functools.cache
def forgotten() -> tuple[tuple[str, str, str, str], ...]:
    """The rows."""
    return tuple(
        (op, slot, dtype, evidence) for op, slot, dtype, evidence in json.loads(FORGOTTEN.read_text())
    )


def undeclared(op: Op) -> Iterator[tuple[str, str]]:
    """(slot, name of its type) for each input whose type the op does not take."""
    if op.type not in catalogue() or op.type in INPUT_TYPES:
        return
    for slot in op.slots:
        if slot.tensor is None or slot.tensor.dtype == dtypes.UNDEFINED:
            continue
        name, declared = dtypes.BY_RUNTIME[slot.tensor.dtype].name, taken(op.type, slot.name)
        if declared and name not in declared:
            yield slot.name, name


def casts(op: Op) -> dict[int, int]:
    """The types to cast inputs to, by the number of the slot, so that the op takes them.

    Inputs of one type stay of one type where the op takes it at both.
    """
    found: dict[int, int] = {}
    for name, dtype in undeclared(op):
        declared = taken(op.type, name)
        if "INT32" in declared and _is_size(op, name):
            found[_number(op, name)] = dtypes.BY_NAME["INT32"].runtime
            continue
        wider = _holder(dtype, declared)
        if wider is None or op.type in _OF_THE_TYPE_ITSELF:
            raise UnsupportedOp(f"{op.type} takes no {dtype} as {name}", near=" ".join(declared))
        for number, slot in enumerate(op.slots):
            is_alike = slot.tensor is not None and dtypes.BY_RUNTIME[slot.tensor.dtype].name == dtype
            if slot.name == name or (is_alike and _takes(op.type, slot.name, wider)):
                found.setdefault(number, dtypes.BY_NAME[wider].runtime)
    return found


def _number(op: Op, name: str) -> int:
    return next(number for number, slot in enumerate(op.slots) if slot.name == name)


def _is_size(op: Op, name: str) -> bool:
    """Sizes, which are numbers on the host: they fit into 32 bits, unless one is known that does not."""
    tensor = op.slots[_number(op, name)].tensor
    meta = None if tensor is None else tensor.meta
    if not isinstance(meta, Host) or meta.dtype != torch.int64:
        return False
    return all(not isinstance(item, int) or -(1 << 31) <= item < 1 << 31 for item in meta.items)


def _takes(op_type: str, slot: str, dtype: str) -> bool:
    declared = taken(op_type, slot)
    return not declared or dtype in declared


def holds(wide: int, narrow: int) -> bool:
    """Does a type hold all values of another, so that casts there and back change none?"""
    return dtypes.BY_RUNTIME[wide].name in _HELD_BY.get(dtypes.BY_RUNTIME[narrow].name, ())


def _holder(dtype: str, declared: tuple[str, ...]) -> str | None:
    """The narrowest declared type that holds what this one holds."""
    return next((name for name in _HELD_BY.get(dtype, ()) if name in declared), None)
