"""Convert the layouts of attention to [batch, heads, sequence, dim], and compute the positions of rows.

A layout of packed sequences (TND, NTD) is one batch entry with a sequence number for each row. The visibility
of keys then follows from sequences and positions, never from a shape that depends on data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from torchair.core.errors import BadAttribute

# Value of "no limit" of pre_tokens and next_tokens.
FAR = 2147483647
# Rank of queries in each layout.
RANKS = {"BSH": 3, "BSND": 4, "BNSD": 4, "TND": 3, "NTD": 3, "NSD": 3, "SBH": 3}
PACKED = ("TND", "NTD")
PAIRS = (
    "BNSD_BSND", "BSH_BNSD", "BSND_BNSD", "NTD_TND", "BSH_NBSD", "BSND_NBSD", "BNSD_NBSD", "TND_NTD",
)  # fmt: skip


def entry_and_leaving(layout: str, query: torch.Tensor, heads: int) -> tuple[str, str]:
    """Check name, rank and heads of a layout; returns the layouts of queries and of the result."""
    entry, _, leaving = layout.partition("_")
    known = entry in RANKS if not leaving else layout in PAIRS
    if not known:
        names = ", ".join([*RANKS, *PAIRS])
        raise BadAttribute(f"attention does not support the layout {layout!r}", near=names)
    if query.ndim != RANKS[entry]:
        raise BadAttribute(
            f"a query in the layout {layout} must have {RANKS[entry]} dims", got=f"query {list(query.shape)}"
        )
    if heads <= 0:
        raise BadAttribute("attention needs at least one head", got=f"num_heads {heads}")
    return entry, leaving or entry


def to_heads(x: torch.Tensor, layout: str, heads: int) -> torch.Tensor:
    """Convert a tensor of a layout to [batch, heads, sequence, dim]."""
    if layout == "BNSD":
        return x
    if layout == "BSND":
        return x.transpose(1, 2)
    if layout == "BSH":
        return x.unflatten(2, (heads, -1)).transpose(1, 2)
    if layout == "SBH":
        return x.unflatten(2, (heads, -1)).permute(1, 2, 0, 3)
    return (x.transpose(0, 1) if layout == "TND" else x).unsqueeze(0)


def from_heads(x: torch.Tensor, layout: str) -> torch.Tensor:
    """Convert [batch, heads, sequence, dim] to a layout."""
    if layout == "BNSD":
        return x
    if layout == "NBSD":
        return x.transpose(0, 1)
    if layout == "SBH":
        return x.permute(2, 0, 1, 3).flatten(2)
    if layout in ("TND", "NTD", "NSD"):
        return x.squeeze(0).transpose(0, 1) if layout == "TND" else x.squeeze(0)
    return x.transpose(1, 2) if layout == "BSND" else x.transpose(1, 2).flatten(2)


def numbers(values: Any, device: torch.device) -> torch.Tensor | None:
    """Return lengths (Python numbers, symbols or a tensor) as an int64 tensor; None stays None."""
    if isinstance(values, torch.Tensor):
        return values.to(torch.int64).reshape(-1)
    if not values:
        return None
    if all(type(value) is int for value in values) and not _is_captured(device):
        return torch.tensor(list(values), dtype=torch.int64, device=device)
    return torch.stack([torch.scalar_tensor(value, dtype=torch.int64, device=device) for value in values])


def _is_captured(device: torch.device) -> bool:
    """Return whether a graph of this device is being captured. Nothing is copied from the host then, and
    numbers are arguments of kernels.
    """
    module: Any = getattr(torch, device.type, None)
    is_there = hasattr(module, "is_current_stream_capturing") and module.is_available()
    return is_there and module.is_current_stream_capturing()


# Pages


def from_pages(cache: torch.Tensor, table: torch.Tensor, heads: int) -> torch.Tensor:
    """Return the keys of each sequence [B, N, pages · rows, D].

    Pages are [rows, heads · dim], [heads, rows, dim], or [heads, pieces, rows, width] with the columns cut
    into pieces.
    """
    table = table.to(torch.int64).clamp(min=0)
    if cache.ndim == 3:
        return cache[table].flatten(1, 2).unflatten(-1, (heads, -1)).transpose(1, 2)
    if cache.ndim == 4:
        return cache[table].transpose(1, 2).flatten(2, 3)
    if cache.ndim != 5:
        raise BadAttribute("pages of keys and values must have 3, 4 or 5 dims", got=f"{list(cache.shape)}")
    # [B, pages, N, pieces, rows, width] -> [B, N, pages, rows, pieces, width]
    return cache[table].permute(0, 2, 1, 4, 3, 5).flatten(4).flatten(2, 3)


def side_by_side(x: torch.Tensor) -> torch.Tensor:
    """Reshape [B, N, S, D] to one batch entry [1, N, B · S, D]."""
    return x.transpose(0, 1).flatten(1, 2).unsqueeze(0)


# Positions of rows


@dataclass(frozen=True)
class Tokens:
    """Rows of queries or keys, [batch or 1, rows] each: position in the sequence, length of the sequence (or
    one number), sequence number if sequences are packed, and whether the row holds a token.
    """

    position: torch.Tensor
    length: Any
    sequence: torch.Tensor | None = None
    valid: torch.Tensor | None = None

    @property
    def is_plain(self) -> bool:
        """Whether every row is a token of its batch entry's sequence."""
        return self.sequence is None and self.valid is None


def plain(rows: Any, device: torch.device) -> Tokens:
    """Return the positions of complete sequences."""
    return Tokens(torch.arange(rows, device=device).unsqueeze(0), rows)


def counted(rows: Any, lengths: torch.Tensor, padding: torch.Tensor | None = None) -> Tokens:
    """Return the positions of sequences with lengths, from the first row on or ending `padding` rows before
    the last.
    """
    length = lengths.unsqueeze(1)
    position = torch.arange(rows, device=lengths.device).unsqueeze(0)
    if padding is not None:
        position = position - (rows - padding.to(torch.int64).reshape(-1, 1) - length)
    valid = position < length
    return Tokens(position, length, None, valid if padding is None else valid & (position >= 0))


def packed(rows: Any, ends: torch.Tensor) -> Tokens:
    """Return the positions of consecutive sequences with these ends."""
    row = torch.arange(rows, device=ends.device)
    sequence = torch.bucketize(row, ends, right=True)
    valid = sequence < ends.shape[0]
    starts = F.pad(ends, (1, 0))
    known = sequence.clamp(max=ends.shape[0] - 1)
    length = (ends - starts[:-1])[known]
    return Tokens(*(x.unsqueeze(0) for x in (row - starts[known], length, sequence, valid)))


def counted_side_by_side(batch: Any, rows: Any, lengths: torch.Tensor | None, device: torch.device) -> Tokens:
    """Return the positions of padded sequences [B, rows] after concatenation."""
    position = torch.arange(rows, device=device).expand(batch, rows)
    sequence = torch.arange(batch, device=device).unsqueeze(1).expand(batch, rows)
    length = torch.full_like(position, rows) if lengths is None else lengths.unsqueeze(1).expand(batch, rows)
    parts = (position, length, sequence, position < length)
    return Tokens(*(x.reshape(1, -1) for x in parts))


def after_prefix(prefix: Tokens, own: Tokens, batch: Any) -> Tokens:
    """Return the positions of a prefix that all sequences share, followed by the rows of each sequence."""
    ends = prefix.length.reshape(1, 1) if isinstance(prefix.length, torch.Tensor) else prefix.length
    first, rest = prefix.position, own.position + ends
    position = torch.cat((first.expand(batch, -1), rest.expand(batch, -1)), 1)
    known = [
        (torch.ones_like(x.position, dtype=torch.bool) if x.valid is None else x.valid).expand(batch, -1)
        for x in (prefix, own)
    ]
    return Tokens(position, own.length + ends, None, torch.cat(known, 1))


def as_row(x: Any) -> Any:
    """Reshape [G, R] to [G, 1, R, 1]; return a number unchanged."""
    return x[:, None, :, None] if isinstance(x, torch.Tensor) else x


def as_column(x: Any) -> Any:
    """Reshape [G, R] to [G, 1, 1, R]; return a number unchanged."""
    return x[:, None, None, :] if isinstance(x, torch.Tensor) else x


def both(a: torch.Tensor | None, b: torch.Tensor | None) -> torch.Tensor | None:
    """Return the positions that are visible in both conditions."""
    return a if b is None else b if a is None else a & b


def band(queries: Tokens, keys: Tokens, from_end: bool, before: int, after: int) -> torch.Tensor | None:
    """Return True where -before <= key - query <= after, counted from the starts or from the ends of
    sequences; None if that is true everywhere.
    """
    if before >= FAR and after >= FAR:
        return None
    distance = as_column(keys.position) - as_row(queries.position)
    if from_end:
        distance = distance - (as_column(keys.length) - as_row(queries.length))
    low = None if before >= FAR else distance >= -before
    return both(low, None if after >= FAR else distance <= after)


def tokens_that_are(queries: Tokens, keys: Tokens) -> torch.Tensor | None:
    """Return True where both are tokens of the same sequence."""
    seen = None if keys.valid is None else as_column(keys.valid)
    seen = both(seen, None if queries.valid is None else as_row(queries.valid))
    if queries.sequence is None or keys.sequence is None:
        return seen
    return both(seen, as_row(queries.sequence) == as_column(keys.sequence))


def fitted(mask: torch.Tensor, queries: Tokens, keys: Tokens, fill: Any, by_position: bool) -> torch.Tensor:
    """Fit a mask or shift [.., Sq, Sk] to the actual rows.

    Packed sequences index it by positions, keys after a prefix by the position of the key; otherwise it is
    cut or padded to the number of rows.
    """
    if queries.is_plain and keys.is_plain:
        return mask
    if queries.sequence is not None:
        return _by_positions(mask, queries, keys)
    if by_position:
        column = keys.position.clamp(0, mask.shape[-1] - 1)[:, None, None, :]
        shape = torch.broadcast_shapes(mask.shape[:-1], (column.shape[0], 1, 1))
        return mask.expand(*shape, -1).gather(-1, column.expand(*shape, -1))
    columns = keys.position.shape[-1]
    return mask if mask.shape[-1] == columns else F.pad(mask, (0, columns - mask.shape[-1]), value=fill)


def _by_positions(mask: torch.Tensor, queries: Tokens, keys: Tokens) -> torch.Tensor:
    """Return [B or 1, heads, Sq, Sk] at [sequence, :, position of the query, position of the key]."""
    mask = mask.expand(*(1,) * (4 - mask.ndim), *mask.shape)
    assert queries.sequence is not None, "only packed sequences are indexed by position"
    at = [x.clamp(0, size - 1) for x, size in (
        (queries.sequence, mask.shape[0]), (queries.position, mask.shape[2]), (keys.position, mask.shape[3]),
    )]  # fmt: skip
    made = mask.permute(0, 2, 3, 1)[at[0].mT, at[1].mT, at[2]]
    return made.permute(2, 0, 1).unsqueeze(0)
