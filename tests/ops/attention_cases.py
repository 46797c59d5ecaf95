"""Random cases of attention: sequences as they are meant, packed into a layout, and their attention by
torch's own op in double precision, one sequence at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import strategies as st

PACKED = ("TND", "NTD")
LAYOUTS = (
    "BSH", "BSND", "BNSD", "TND", "NTD", "NSD", "BNSD_BSND", "BSH_BNSD", "BSND_BNSD", "BSH_NBSD", "BSND_NBSD",
    "BNSD_NBSD", "NTD_TND", "TND_NTD",
)  # fmt: skip
# How a cache is quantised, by number of the mode; None is not at all.
SCALES = (None, None, None, 0, 1, 2, 3, 4, 5, 6, "common", "common tokens", "int4")
FAR = 2147483647


@dataclass(frozen=True)
class Case:
    """What a call of attention is asked for."""

    layout: str
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    kv_heads: int
    group: int
    dim: int
    value_dim: int
    mode: int
    band: tuple[int, int]
    has_mask: bool
    has_shift: bool
    pages: int
    scales: Any
    has_rope: bool
    has_lse: bool
    has_sink: bool
    prefix: int
    padding: tuple[int, int] | None
    seed: int

    @property
    def entry(self) -> str:
        return self.layout.partition("_")[0]

    @property
    def leaving(self) -> str:
        return self.layout.partition("_")[2] or self.entry

    @property
    def heads(self) -> int:
        return self.kv_heads * self.group


@st.composite
def cases(draw: Any) -> Case:
    """Cases that the op allows: parts that exclude each other are not drawn together."""
    layout = draw(st.sampled_from(LAYOUTS))
    entry = layout.partition("_")[0]
    batch = 1 if entry == "NSD" else draw(st.integers(1, 3))
    rows = tuple(draw(st.lists(st.integers(0, 5), min_size=batch, max_size=batch)))
    columns = tuple(draw(st.lists(st.integers(0, 9), min_size=batch, max_size=batch)))
    packed = entry in PACKED
    pages = 0 if entry == "NSD" else draw(st.sampled_from((0, 0, 3, 4, 5)))
    scales = draw(st.sampled_from(SCALES))
    if scales in (4, 5) and not pages:
        scales = None
    if packed and not pages and scales == 6:
        scales = None
    prefix = 0 if packed or pages or entry == "NSD" or scales not in (None, 0, 2) else draw(st.integers(0, 3))
    padded = not packed and not pages and not prefix and draw(st.booleans())
    mode = draw(st.integers(0, 4))
    dim = draw(st.sampled_from((8, 16, 32)))
    value_dim = dim if scales is not None or pages == 5 else draw(st.sampled_from((8, dim)))
    return Case(
        layout=layout,
        rows=rows,
        columns=columns,
        kv_heads=draw(st.sampled_from((1, 2))),
        group=draw(st.integers(1, 3)),
        dim=dim,
        value_dim=value_dim,
        mode=mode,
        band=draw(st.tuples(st.integers(0, 4), st.integers(0, 4))) if draw(st.booleans()) else (FAR, FAR),
        has_mask=mode in (0, 1) and not padded and draw(st.booleans()),
        has_shift=not padded and draw(st.booleans()),
        pages=pages,
        scales=scales,
        has_rope=scales is None and not prefix and draw(st.booleans()),
        has_lse=draw(st.booleans()),
        has_sink=draw(st.booleans()),
        prefix=prefix,
        padding=draw(st.tuples(st.integers(0, 2), st.integers(0, 2))) if padded else None,
        seed=draw(st.integers(0, 1000)),
    )


def packed_int4(x: torch.Tensor) -> torch.Tensor:
    """Eight values in one int32, the first in the lowest bits."""
    shifts = 4 * torch.arange(8, dtype=torch.int32)
    return ((x.to(torch.int32).unflatten(-1, (-1, 8)) & 15) << shifts).sum(-1, dtype=torch.int32)


class Data:
    """The sequences of a case [heads, length, dim] and the arguments that say the same."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.generator = torch.Generator().manual_seed(case.seed)
        self.arguments: dict[str, Any] = {}
        heads, kv = case.heads, case.kv_heads
        self.queries = [self.random(heads, n, case.dim) for n in case.rows]
        self.keys = [self.random(kv, n, case.dim) for n in case.columns]
        self.values = [self.random(kv, n, case.value_dim) for n in case.columns]
        self.query_ropes = [self.random(heads, n, 16) for n in case.rows] if case.has_rope else None
        self.key_ropes = [self.random(kv, n, 16) for n in case.columns] if case.has_rope else None
        self.prefixes = None
        if case.prefix:
            self.prefixes = [self.random(kv, case.prefix, width) for width in (case.dim, case.value_dim)]
        self.rows = max([*case.rows, 1]) + (case.padding[0] if case.padding else 0)
        self.columns = max([*case.columns, 1]) + (case.padding[1] if case.padding else 0)
        size = (self.rows, self.columns + case.prefix)
        self.mask = self.random(len(case.rows), 1, *size) > 0.7 if case.has_mask else None
        self.shift = self.random(len(case.rows), heads, *size) if case.has_shift else None
        self.sink = self.random(heads) if case.has_sink else None
        self.query = self.packed(self.queries, case.entry, self.rows, 0)
        self.stored_prefixes = self.prefixes
        if case.scales is None:
            self.key, self.value = self.cache(self.keys), self.cache(self.values)
        else:
            self.quantise()
        self.fill()

    def random(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self.generator)

    def packed(self, parts: list[torch.Tensor], layout: str, rows: int, side: int) -> torch.Tensor:
        """Sequences in a layout; what is no token is noise."""
        if layout in PACKED:
            whole = torch.cat(parts, 1)
            return whole.transpose(0, 1).contiguous() if layout == "TND" else whole
        heads, _, dim = parts[0].shape
        whole = self.random(len(parts), heads, rows, dim).mul(9).to(parts[0].dtype)
        for number, part in enumerate(parts):
            end = rows - self.case.padding[side] if self.case.padding else part.shape[1]
            whole[number, :, end - part.shape[1] : end] = part
        return {
            "BNSD": lambda: whole,
            "BSND": lambda: whole.transpose(1, 2).contiguous(),
            "BSH": lambda: whole.transpose(1, 2).flatten(2),
            "NSD": lambda: whole[0],
        }[layout]()

    def table(self) -> torch.Tensor:
        """Which page holds the next four rows of a sequence."""
        if "block_table" not in self.arguments:
            batch, count = len(self.case.columns), -(-self.columns // 4)
            order = torch.randperm(batch * count, generator=self.generator).to(torch.int32)
            self.arguments.update(block_table=order.reshape(batch, count), block_size=4)
        return self.arguments["block_table"]

    def cache(self, parts: list[torch.Tensor]) -> torch.Tensor:
        """Keys or values in the layout, or in pages of four rows."""
        if not self.case.pages:
            return self.packed(parts, self.case.entry, self.columns, 1)
        heads, _, dim = parts[0].shape
        batch, count = len(parts), -(-self.columns // 4)
        table = self.table()
        whole = self.random(batch, heads, count * 4, dim).mul(9).to(parts[0].dtype)
        for number, part in enumerate(parts):
            whole[number, :, : part.shape[1]] = part
        pages = torch.empty(batch * count, heads, 4, dim, dtype=parts[0].dtype)
        pages[table.flatten().long()] = whole.unflatten(2, (count, 4)).transpose(1, 2).flatten(0, 1)
        if self.case.pages == 3:
            return pages.transpose(1, 2).flatten(2)
        if self.case.pages == 4:
            return pages
        return pages.unflatten(3, (-1, 8)).transpose(2, 3).contiguous()

    def quantise(self) -> None:
        """Keys and values become whole numbers with scales and offsets; what they stand for is the truth."""
        case, names = self.case, ("key", "value")
        mode = {"common": 0, "common tokens": 1, "int4": 0}.get(case.scales, case.scales)
        parts = []
        for name in names:
            truth = getattr(self, f"{name}s")
            top = 7 if case.scales == "int4" else 100
            stored = [(part * top / 3).round().clamp(-top, top).to(torch.int8) for part in truth]
            scale, offset = (self.scale(mode) for _ in range(2))
            offset = [part * 10 for part in offset[0]], offset[1] * 10
            spread = zip(stored, scale[0], offset[0], strict=True)
            setattr(self, f"{name}s", [(x.float() + shift) * factor for x, factor, shift in spread])
            cache = self.cache(stored)
            setattr(self, name, packed_int4(cache) if case.scales == "int4" else cache)
            parts.append((scale[1], offset[1]))
            if self.prefixes is not None and self.stored_prefixes is not None:
                index = names.index(name)
                raw = (self.prefixes[index] * 30).round().to(torch.int8)
                self.stored_prefixes = [
                    *self.stored_prefixes[:index],
                    raw,
                    *self.stored_prefixes[index + 1 :],
                ]
                self.prefixes[index] = (raw.float() + offset[0][0]) * scale[0][0]
        if str(case.scales).startswith("common"):
            scales, offsets = (torch.stack(pair) for pair in zip(*parts, strict=True))
            self.arguments.update(antiquant_scale=scales, antiquant_offset=offsets, antiquant_mode=mode)
            return
        for name, (scale, offset) in zip(names, parts, strict=True):
            self.arguments[f"{name}_antiquant_scale"] = scale
            self.arguments[f"{name}_antiquant_offset"] = offset
            self.arguments[f"{name}_antiquant_mode"] = mode

    def scale(self, mode: int) -> tuple[list[torch.Tensor], torch.Tensor]:
        """Numbers that broadcast with every sequence [heads, length, dim], and the argument that says so."""
        case, batch = self.case, len(self.case.columns)
        heads, dim, counts = case.kv_heads, case.dim, case.columns

        def numbers(*shape: int) -> torch.Tensor:
            return self.random(*shape).abs() * 0.02 + 0.01

        if mode == 0:
            one = numbers(heads * dim)
            return [one.reshape(heads, 1, dim)] * batch, one
        if mode == 2:
            one = numbers(heads)
            return [one.reshape(heads, 1, 1)] * batch, one
        if mode in (4, 5):
            table = self.table()
            one = numbers(table.numel(), heads, 4) if mode == 5 else numbers(table.numel(), 4)
            logical = one[table.long()]
            logical = logical.transpose(1, 2).flatten(2) if mode == 5 else logical.flatten(1).unsqueeze(1)
        elif case.entry in PACKED and not case.pages:
            one = numbers(sum(counts), heads) if mode == 3 else numbers(sum(counts))
            parts = one.split(list(counts))
            return [(x.t() if mode == 3 else x.unsqueeze(0)).unsqueeze(-1) for x in parts], one
        else:
            width = max([*counts, 1]) if case.pages else self.columns
            shape = {1: (batch, width), 3: (batch, heads, width), 6: (1, batch, heads, width, dim // 8)}[mode]
            one = numbers(*shape)
            if mode == 6:
                every = one[0].repeat_interleave(8, -1)
                return [self.tokens(every[b], counts[b]) for b in range(batch)], one
            logical = one.unsqueeze(1) if mode == 1 else one
        return [self.tokens(logical[b].unsqueeze(-1), counts[b]) for b in range(batch)], one

    def tokens(self, part: torch.Tensor, count: int) -> torch.Tensor:
        """The rows of [heads, rows, dim] that are tokens."""
        end = part.shape[1] - self.case.padding[1] if self.case.padding else count
        return part[:, end - count : end]

    def fill(self) -> None:
        """The other arguments of the call."""
        case, given = self.case, self.arguments
        lengths, key_lengths = list(case.rows), list(case.columns)
        if case.entry in PACKED:
            lengths = torch.tensor(lengths).cumsum(0).tolist()
            if not case.pages:
                key_lengths = torch.tensor(key_lengths).cumsum(0).tolist()
        given.update(actual_seq_lengths=lengths, actual_seq_lengths_kv=key_lengths)
        given.update(num_heads=case.heads, num_key_value_heads=case.kv_heads, input_layout=case.layout)
        given.update(scale=0.3, sparse_mode=case.mode, softmax_lse_flag=case.has_lse)
        given.update(pre_tokens=case.band[0], next_tokens=case.band[1])
        given.update(atten_mask=self.mask, pse_shift=self.shift)
        if case.padding:
            sizes = [torch.tensor([size]) for size in case.padding]
            given.update(query_padding_size=sizes[0], kv_padding_size=sizes[1])
        if self.query_ropes is not None and self.key_ropes is not None:
            given["query_rope"] = self.packed(self.query_ropes, case.entry, self.rows, 0)
            given["key_rope"] = self.cache(self.key_ropes)
        if self.stored_prefixes is not None:
            parts = [F.pad(part, (0, 0, 0, 2), value=7) for part in self.stored_prefixes]
            to = {
                "BNSD": lambda x: x.unsqueeze(0),
                "BSND": lambda x: x.transpose(0, 1).unsqueeze(0),
                "BSH": lambda x: x.transpose(0, 1).flatten(1).unsqueeze(0),
            }[case.entry]
            given.update(key_shared_prefix=to(parts[0]), value_shared_prefix=to(parts[1]))
            given["actual_shared_prefix_len"] = [case.prefix]

    def expected(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The result and, where it is asked for, the log-sum-exp, in the layout that leaves."""
        case = self.case
        outs, logs = zip(*(self.sequence(number) for number in range(len(case.rows))), strict=True)
        entry = "NTD" if case.entry in PACKED else case.entry
        if entry == "NTD":
            out, log = torch.cat(outs, 1), torch.cat(logs, 1)
            out = out.transpose(0, 1) if case.leaving == "TND" else out
            return out, log.transpose(0, 1).unsqueeze(-1) if case.has_lse else None
        whole = torch.zeros(len(outs), case.heads, self.rows, case.value_dim)
        every = torch.full((len(outs), case.heads, self.rows), -torch.inf)
        for number, (out, log) in enumerate(zip(outs, logs, strict=True)):
            end = self.rows - case.padding[0] if case.padding else out.shape[1]
            whole[number, :, end - out.shape[1] : end] = out
            every[number, :, end - out.shape[1] : end] = log
        out = {
            "BNSD": lambda: whole,
            "BSND": lambda: whole.transpose(1, 2),
            "BSH": lambda: whole.transpose(1, 2).flatten(2),
            "NBSD": lambda: whole.transpose(0, 1),
            "NSD": lambda: whole[0],
        }[case.leaving]()
        return out, every.unsqueeze(-1) if case.has_lse else None

    def sequence(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        """(result [heads, rows, dim], log-sum-exp [heads, rows]) of one sequence, in double precision."""
        case = self.case
        q, k, v = self.queries[number], self.keys[number], self.values[number]
        if self.query_ropes is not None and self.key_ropes is not None:
            q = torch.cat((q, self.query_ropes[number]), 2)
            k = torch.cat((k, self.key_ropes[number]), 2)
        if self.prefixes is not None:
            k, v = torch.cat((self.prefixes[0], k), 1), torch.cat((self.prefixes[1], v), 1)
        k, v = (x.repeat_interleave(case.group, 0).double() for x in (k, v))
        rows, columns = q.shape[1], k.shape[1]
        bias = torch.zeros(case.heads, rows, columns, dtype=torch.float64)
        if self.shift is not None:
            bias += self.shift[number, :, :rows, :columns]
        for i in range(rows):
            for j in range(columns):
                if not self.sees(number, i, j, rows, columns):
                    bias[:, i, j] = -torch.inf
        if self.sink is not None:
            # A key that adds nothing, with the sink as its score.
            k = F.pad(k, (0, 0, 0, 1))
            v = F.pad(v, (0, 0, 0, 1))
            bias = torch.cat((bias, self.sink.double().reshape(-1, 1, 1).expand(-1, rows, 1)), 2)
        out = F.scaled_dot_product_attention(q.double(), k, v, attn_mask=bias, scale=0.3)
        scores = (0.3 * q.double() @ k.mT + bias)[..., :columns]
        hidden = (bias == -torch.inf).all(-1, keepdim=True)
        return torch.where(hidden, 0.0, out).float(), torch.logsumexp(scores, -1).float()

    def sees(self, number: int, i: int, j: int, rows: int, columns: int) -> bool:
        mode, (before, after) = self.case.mode, self.case.band
        is_hidden = self.mask is not None and bool(self.mask[number, 0, i, j])
        from_end = j - i - (columns - rows)
        return {
            0: not is_hidden and (self.mask is None or -before <= j - i <= after),
            1: not is_hidden,
            2: j <= i,
            3: from_end <= 0,
            4: -before <= from_end <= after,
        }[mode]
