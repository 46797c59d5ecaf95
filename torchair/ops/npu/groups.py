"""Group lists: which group each row of a tensor belongs to.

A list says where groups end (type 0), how long they are (1), or gives pairs of group and length (2).
"""

from __future__ import annotations

from typing import Any

import torch

ENDS, COUNTS, PAIRS = 0, 1, 2


def group_ends(groups: torch.Tensor, kind: int = ENDS) -> torch.Tensor:
    """Where each entry of the list ends, in rows."""
    if kind == ENDS:
        return groups.to(torch.int64)
    return (groups if kind == COUNTS else groups[:, 1]).to(torch.int64).cumsum(0)


def group_ids(groups: torch.Tensor, rows: Any, kind: int = ENDS) -> tuple[torch.Tensor, torch.Tensor]:
    """(the group of every row, is the row in any group); rows past the last group say the last one."""
    ends = group_ends(groups, kind)
    entry = torch.bucketize(torch.arange(rows, device=groups.device), ends, right=True)
    covered = entry < ends.shape[0]
    entry = entry.clamp(max=ends.shape[0] - 1)
    return (groups[:, 0].to(torch.int64)[entry] if kind == PAIRS else entry), covered


def row_values(values: torch.Tensor, ids: torch.Tensor | None) -> torch.Tensor:
    """Values [groups, n] of every row's own group; one row (or a vector) serves all rows."""
    if values.ndim < 2 or ids is None:
        return values.reshape(values.shape[-1:]) if values.ndim == 2 and ids is None else values
    return values[ids] if values.shape[0] != 1 else values


def local_rows(groups: torch.Tensor, rows: Any, kind: int = ENDS) -> tuple[torch.Tensor, torch.Tensor]:
    """(the group of every row, the row's number inside its group)."""
    ids, _ = group_ids(groups, rows, kind)
    ends = group_ends(groups, kind)
    starts = torch.cat((ends.new_zeros(1), ends[:-1]))
    return ids, torch.arange(rows, device=groups.device) - starts[ids]
