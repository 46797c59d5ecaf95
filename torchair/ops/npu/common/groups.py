"""Interpret group lists, which assign the rows of a tensor to groups.

A list has the ends of groups (type 0), their lengths (1), or pairs of group and length (2).
"""

from __future__ import annotations

from typing import Any

import torch

from torchair.ops.numerics.formats import shared_exponent, store

ENDS, COUNTS, PAIRS = 0, 1, 2


def group_ends(groups: torch.Tensor, kind: int = ENDS) -> torch.Tensor:
    """Return the row at which each entry of the list ends."""
    if kind == ENDS:
        return groups.to(torch.int64)
    return (groups if kind == COUNTS else groups[:, 1]).to(torch.int64).cumsum(0)


def group_ids(groups: torch.Tensor, rows: Any, kind: int = ENDS) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (the group of every row, whether it is in a group); rows past the end have the last one."""
    ends = group_ends(groups, kind)
    entry = torch.bucketize(torch.arange(rows, device=groups.device), ends, right=True)
    covered = entry < ends.shape[0]
    entry = entry.clamp(max=ends.shape[0] - 1)
    return (groups[:, 0].to(torch.int64)[entry] if kind == PAIRS else entry), covered


def row_values(values: Any, ids: torch.Tensor | None) -> torch.Tensor:
    """Return the values [groups, n] for each row's group; a single row (or a vector) applies to all rows."""
    if values.ndim < 2 or ids is None:
        return values.reshape(values.shape[-1:]) if values.ndim == 2 and ids is None else values
    return values[ids] if values.shape[0] != 1 else values


def local_rows(groups: torch.Tensor, rows: Any, kind: int = ENDS) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (the group of every row, the index of the row in its group)."""
    ids, _ = group_ids(groups, rows, kind)
    ends = group_ends(groups, kind)
    starts = torch.cat((ends.new_zeros(1), ends[:-1]))
    return ids, torch.arange(rows, device=groups.device) - starts[ids]


def block_slots(groups: torch.Tensor, rows: Any, block: int, kind: int) -> torch.Tensor:
    """Return the number of the block of every row, if blocks of rows do not cross groups: group g starts at
    block start // block + g.
    """
    ids, local = local_rows(groups, rows, kind)
    first = (torch.arange(rows, device=groups.device) - local) // block + ids
    return first + local // block


def grouped_mx(
    y: torch.Tensor,
    groups: torch.Tensor,
    kind: int,
    dst_type: int,
    *,
    block: int = 32,
    scale_alg: int = 0,
    maximum: float = 0.0,
    mode: str = "rint",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize blocks of rows inside each group with one power of two per column: scales [rows // 64 +
    groups, n, 2] in pairs.
    """
    rows = y.shape[0]
    ids, local = local_rows(groups, rows, kind)
    first = (torch.arange(rows, device=y.device) - local) // (2 * block) + ids
    slot = 2 * first + local // block
    pairs = rows // (2 * block) + groups.shape[0]
    peak = y.new_zeros((2 * pairs, y.shape[1]), dtype=torch.float32)
    peak = peak.scatter_reduce(0, slot.unsqueeze(-1).expand(y.shape), y.float().abs(), "amax")
    scale = shared_exponent(peak, dst_type, scale_alg, maximum)
    values = y.float() * torch.exp2(127.0 - scale.float())[slot]
    return store(values, dst_type, mode), scale.to(torch.uint8).unflatten(0, (-1, 2)).movedim(1, -1)
