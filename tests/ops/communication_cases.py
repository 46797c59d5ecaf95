"""Calls of ops that compute and communicate, and what each rank gets, written out from the inputs of all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchair.ops.numerics.formats import E4M3, mx

npu = torch.ops.npu
HALF, FP8 = torch.float16, torch.float8_e4m3fn
# torch's own numbers of types.
BFLOAT16_CODE, FLOAT_CODE, FP8_CODE = 15, 6, 24
PER_TENSOR = {"gmm_x_quant_mode": 1, "gmm_weight_quant_mode": 1}
K, EXPERTS = 6, 2

Call = tuple[Callable[..., Any], list[torch.Tensor]]


@dataclass(frozen=True)
class Case:
    """`call(rank, ranks, group)` is a function with its tensors; `expected(ranks)` what each rank gets."""

    ir: str
    call: Callable[[int, int, str], Call]
    expected: Callable[[int], list[Sequence[torch.Tensor]]]


def data(rank: int, name: str, *shape: int, dtype: torch.dtype = HALF) -> torch.Tensor:
    """The numbers that every process knows every rank to have."""
    seed = rank * 1000 + sum(map(ord, name))
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def whole(rank: int, name: str, *shape: int) -> torch.Tensor:
    return (data(rank, name, *shape, dtype=torch.float32) * 40).round().clamp(-128, 127).to(torch.int8)


def small(rank: int, name: str, *shape: int) -> torch.Tensor:
    return data(rank, name, *shape, dtype=torch.float32).to(FP8)


def scale(rank: int, name: str, *shape: int) -> torch.Tensor:
    return data(rank, name, *shape, dtype=torch.float32).abs() + 0.1


def each(ranks: int, of: Callable[[int], Any]) -> list[Any]:
    return [of(rank) for rank in range(ranks)]


def mm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a.double() @ b.double()


def parts(total: torch.Tensor, ranks: int, dim: int = 0) -> list[torch.Tensor]:
    return list(total.chunk(ranks, dim))


# A product of what is gathered


def x_of(rank, ranks):
    return data(rank, "x", 2 * ranks, K)


def w_of(rank, ranks):
    return data(rank, "w", K, 2 * ranks)


def b_of(rank, ranks):
    return data(rank, "b", 2 * ranks)


def plain_of(rank, ranks):
    return [x_of(rank, ranks), w_of(rank, ranks), b_of(rank, ranks)]


def gathered(ranks):
    whole_x = torch.cat(each(ranks, lambda r: x_of(r, ranks)))
    return each(ranks, lambda r: [mm(whole_x, w_of(r, ranks)) + b_of(r, ranks), whole_x])


def gathered_right(ranks):
    whole_w = torch.cat(each(ranks, lambda r: data(r, "w", K, 4)))
    return each(ranks, lambda r: [mm(data(r, "x", 3, K * ranks), whole_w)])


def quantised_of(rank, ranks):
    return [
        small(rank, "x", 2 * ranks, K), small(rank, "w", K, 2 * ranks),
        data(rank, "b", 2 * ranks, dtype=torch.float32),
        scale(rank, "xs", 2 * ranks), scale(rank, "ws", 2 * ranks),
    ]  # fmt: skip


def numbers(rank, ranks):
    """The product that quantised operands stand for."""
    x, w, bias, x_scale, w_scale = quantised_of(rank, ranks)
    return mm(x.double() * x_scale[:, None], w.double() * w_scale) + bias


def gathered_quantised(ranks):
    def of(rank):
        given = each(ranks, lambda r: quantised_of(r, ranks))
        _, w, bias, _, w_scale = given[rank]
        x = torch.cat([x.float() * x_scale[:, None] for x, _, _, x_scale, _ in given])
        y = mm(x, w.double() * w_scale) + bias
        return [y, torch.cat([x.float() for x, *_ in given]), y.abs().amax().reshape(1)]

    return each(ranks, of)


# A product that is summed


def summed(ranks):
    total = sum(each(ranks, lambda r: mm(x_of(r, ranks), w_of(r, ranks)) + b_of(r, ranks)))
    return total + sum(each(ranks, lambda r: data(r, "x3", 2 * ranks, 2 * ranks).double()))


def bytes_of(rank, ranks):
    return [
        whole(rank, "x", 3, K), whole(rank, "w", K, 4), (scale(rank, "ws", 4) / 100).bfloat16(),
        scale(rank, "xs", 3),
    ]  # fmt: skip


def summed_bytes(ranks):
    def of(rank):
        x, w, w_scale, x_scale = bytes_of(rank, ranks)
        return mm(x, w) * w_scale.double() * x_scale.double()[:, None]

    return [[sum(each(ranks, of))]] * ranks


def weights_only(ranks):
    def of(rank):
        w = (whole(rank, "w", K, 4).double() + data(rank, "wo", 4)) * data(rank, "ws", 4)
        return mm(data(rank, "x", 3, K), w)

    return [[sum(each(ranks, of))]] * ranks


def travelled_as_bytes(ranks):
    first, second = scale(0, "c1", 4) / 10, scale(0, "c2", 4) / 5
    total = sum(
        each(
            ranks,
            lambda r: (mm(data(r, "x", 3, K), data(r, "w", K, 4)) / first).round().clamp(-128, 127) * first,
        )
    )
    return [[(total / second).round().clamp(-128, 127) * second]] * ranks


def scattered(ranks):
    total = sum(each(ranks, lambda r: mm(x_of(r, ranks), w_of(r, ranks)) + b_of(r, ranks)))
    return [[part] for part in parts(total, ranks)]


def scattered_quantised(ranks):
    total = sum(each(ranks, lambda r: numbers(r, ranks)))
    return [[part] for part in parts(total, ranks)]


# Rows for columns


def rows_for_columns(ranks, of):
    """This rank's rows of all columns."""
    cut = each(ranks, lambda r: parts(of(r), ranks))
    return each(ranks, lambda r: torch.cat([cut[source][r] for source in range(ranks)], 1))


def wide_w(rank, ranks, k=K):
    return data(rank, "w", k * ranks, 4)


def exchanged(ranks):
    found = rows_for_columns(ranks, lambda r: x_of(r, ranks))
    return [[mm(a, wide_w(r, ranks)) + data(r, "b", 4), a] for r, a in enumerate(found)]


def exchanged_then_quantised(ranks):
    found = []
    for r, a in enumerate(rows_for_columns(ranks, lambda r: x_of(r, ranks))):
        step = a.float().abs().amax(1, keepdim=True) / 448
        rows = (a.float() / step).to(FP8).float() * step
        found.append([mm(rows, small(r, "w", K * ranks, 4).double() * scale(r, "ws", 4)), a])
    return found


def blocks_of(rank, ranks):
    """x [2 · ranks, 64] and w [64 · ranks, 4] with powers of two for 32 values."""
    x, x_scale = mx(data(rank, "x", 2 * ranks, 64), E4M3)
    w, w_scale = mx(data(rank, "w", 64 * ranks, 4), E4M3, 0)
    return [x, w, x_scale, w_scale]


def of_blocks(values, powers):
    """Values [m, k] times their powers of two [m, k / 64, 2]."""
    return values.double() * torch.exp2(powers.double() - 127).flatten(1).repeat_interleave(32, 1)


def exchanged_blocks(ranks):
    given = each(ranks, lambda r: blocks_of(r, ranks))
    found = rows_for_columns(ranks, lambda r: of_blocks(given[r][0], given[r][2]))
    kept = rows_for_columns(ranks, lambda r: given[r][0].float())
    weights = [of_blocks(w.t(), w_scale.transpose(0, 1)).t() for _, w, _, w_scale in given]
    return [[mm(a, w), b] for a, w, b in zip(found, weights, kept, strict=True)]


def columns_for_rows(ranks, of):
    cut = each(ranks, lambda r: parts(of(r), ranks, 1))
    return each(ranks, lambda r: [torch.cat([cut[source][r] for source in range(ranks)], 0)])


# Experts


def counts_of(ranks):
    """Rows from each rank to each expert of each rank; some are none."""
    made = torch.randint(0, 4, (ranks, ranks, EXPERTS), generator=torch.Generator().manual_seed(5))
    made[0, 0, 1] = 0
    return made


def routes(rank, ranks):
    """(rows sent, rows received) per (rank, expert)."""
    counts = counts_of(ranks)
    return counts[rank].flatten().tolist(), counts[:, rank].flatten().tolist()


def to_experts(rank, ranks):
    sent, _ = routes(rank, ranks)
    return [
        data(rank, "x", sum(sent), K), data(rank, "w", EXPERTS, K, 4), data(rank, "mx", 3, K),
        data(rank, "mw", K, 5),
    ]  # fmt: skip


def from_rank(ranks, of):
    """Rows by (source, destination, expert)."""
    found = {}
    for source in range(ranks):
        pieces = of(source).split(routes(source, ranks)[0])
        for place, piece in enumerate(pieces):
            found[source, place // EXPERTS, place % EXPERTS] = piece
    return found


def expert_rows(ranks, of, rank, expert):
    found = from_rank(ranks, of)
    return torch.cat([found[source, rank, expert] for source in range(ranks)])


def at_experts(ranks):
    def of(rank):
        _, w, mm_x, mm_w = to_experts(rank, ranks)
        rows = [expert_rows(ranks, lambda r: to_experts(r, ranks)[0], rank, e) for e in range(EXPERTS)]
        return [torch.cat([mm(x, w[e]) for e, x in enumerate(rows)]), mm(mm_x, mm_w), torch.cat(rows)]

    return each(ranks, of)


def quantised_to_experts(rank, ranks):
    sent, _ = routes(rank, ranks)
    x, w = small(rank, "x", sum(sent), K), small(rank, "w", EXPERTS, K, 4)
    return [x, w, scale(rank, "xs", 1), scale(rank, "ws", 1)]


def quantised_at_experts(ranks):
    def rows_of(rank):
        x, _, x_scale, _ = quantised_to_experts(rank, ranks)
        return x.double() * x_scale

    def of(rank):
        _, w, _, w_scale = quantised_to_experts(rank, ranks)
        made = [mm(expert_rows(ranks, rows_of, rank, e), w[e].double() * w_scale) for e in range(EXPERTS)]
        return [torch.cat(made)]

    return each(ranks, of)


def from_experts(rank, ranks, make=data):
    """Rows of this rank's experts, expert by expert."""
    _, received = routes(rank, ranks)
    return [make(rank, "x", sum(received), K), make(rank, "w", EXPERTS, K, 4)]


def back(ranks, product):
    """Every rank's rows after the product of their expert, in the order in which they were sent."""
    found = {}
    for rank in range(ranks):
        x, w = product(rank)
        _, received = routes(rank, ranks)
        sizes = [received[source * EXPERTS + e] for e in range(EXPERTS) for source in range(ranks)]
        for place, piece in enumerate(x.split(sizes)):
            expert, source = divmod(place, ranks)
            found[source, rank, expert] = mm(piece, w[expert])
    return each(ranks, lambda r: torch.cat([found[r, d, e] for d in range(ranks) for e in range(EXPERTS)]))


def quantised_back(ranks):
    def product(rank):
        x, w = from_experts(rank, ranks, small)
        return x.double() * scale(rank, "xs", 1), w.double() * scale(rank, "ws", 1)

    return [[y] for y in back(ranks, product)]


def alltoallv_gmm(rank, ranks, group):
    counts = routes(rank, ranks)
    how = {"permute_out_flag": True}
    return (
        lambda x, w, y, v: npu.npu_alltoallv_gmm(x, w, group, ranks, *counts, mm_x=y, mm_weight=v, **how),
        to_experts(rank, ranks),
    )


def alltoallv_quant_gmm(rank, ranks, group):
    given = group, ranks, *routes(rank, ranks), BFLOAT16_CODE
    return (
        lambda x, w, s, t: npu.npu_alltoallv_quant_gmm(x, w, s, t, *given, **PER_TENSOR)[0],
        quantised_to_experts(rank, ranks),
    )


def gmm_alltoallv(rank, ranks, group):
    sent, received = routes(rank, ranks)
    return (
        lambda x, w: npu.npu_gmm_alltoallv(
            x, w.mT.contiguous(), group, ranks, received, sent, trans_gmm_weight=True
        )[0],
        from_experts(rank, ranks),
    )


def quant_gmm_alltoallv(rank, ranks, group):
    sent, received = routes(rank, ranks)
    given = group, ranks, received, sent, BFLOAT16_CODE
    return (
        lambda x, w, s, t: npu.npu_quant_gmm_alltoallv(x, w, s, t, *given, **PER_TENSOR)[0],
        [*from_experts(rank, ranks, small), scale(rank, "xs", 1), scale(rank, "ws", 1)],
    )


# Quantised sums


def byte_sum(ranks):
    return sum(
        each(
            ranks,
            lambda r: (
                whole(r, "x", 2 * ranks, 8).double() * scale(r, "s", 2 * ranks, 2).repeat_interleave(4, 1)
            ),
        )
    )


def block_sum(ranks):
    def of(rank):
        values, powers = mx(data(rank, "x", 2 * ranks, 64), E4M3)
        return of_blocks(values, powers)

    return sum(each(ranks, of))


# Tokens to the experts of all ranks, and back

WIDTH, SLOTS, ALL_EXPERTS, MOST = 8, 2, 12, 5


def tokens(rank):
    """x, the experts of each token, their weights; and which tokens there are. Ranks have unlike many."""
    count = MOST - rank % 2
    ids = scale(rank, "ids", count, ALL_EXPERTS).topk(SLOTS).indices.to(torch.int32)
    active = torch.arange(count) != rank
    return data(rank, "x", count, WIDTH), ids, scale(rank, "weights", count, SLOTS), active


def routed(rank, ranks, shared):
    """(expert here, source, token, slot) of the rows that come to a rank, in order."""
    if rank < shared:
        pairs = [
            (source, token)
            for source in range(ranks)
            for token, there in enumerate(tokens(source)[3])
            if there
        ]
        return [(0, *pair, SLOTS) for pair in pairs if pair[0] % shared == rank % shared]
    here = ALL_EXPERTS // (ranks - shared)
    found = []
    for source in range(ranks):
        _, ids, _, active = tokens(source)
        for token, row in enumerate(ids.tolist()):
            found += [
                (e // here, e % here, source, token, slot) for slot, e in enumerate(row) if active[token]
            ]
    return sorted(entry[1:] for entry in found if entry[0] == rank - shared)


def sent_to_experts(ranks, shared, noted):
    """(rows, places or notes, rows per expert, ends, weights); places count a rank's rows for one expert."""

    def of(rank):
        entries = routed(rank, ranks, shared)
        here = 1 if rank < shared else ALL_EXPERTS // (ranks - shared)
        size = ranks * MOST // shared if rank < shared else ranks * MOST * min(here, SLOTS)
        rows, weights, notes = torch.zeros(size, WIDTH), torch.zeros(size), torch.zeros(size, 3)
        for place, (_, source, token, slot) in enumerate(entries):
            x, _, weight, _ = tokens(source)
            rows[place] = x[token]
            weights[place] = weight[token, slot] if slot < SLOTS else 1
            notes[place] = torch.tensor([source, token, slot])
        counts = torch.tensor([sum(entry[0] == e for entry in entries) for e in range(here)])
        pairs = [(e, source) for e in range(here) for source in range(ranks)]
        ends = torch.tensor([sum(entry[:2] <= pair for entry in entries) for pair in pairs])
        return [rows, notes if noted else places(rank), counts, ends, weights]

    return each(ranks, of)


def places(rank):
    _, ids, _, active = tokens(rank)
    ids = torch.where(active.unsqueeze(1), ids, -1).flatten().tolist()
    return torch.tensor([ids[:at].count(e) if e >= 0 else 0 for at, e in enumerate(ids)])


def there_and_back(ranks, shared):
    """Each expert multiplies by its number plus 1, a shared one by 10."""

    def of(rank):
        x, ids, weights, active = tokens(rank)
        factor = (weights * (ids + 1)).sum(1) + (10 if shared else 0)
        return [x.double() * torch.where(active, factor, 0.0).unsqueeze(1)]

    return each(ranks, of)


def dispatch_case(version, shared, returns):
    """Rows to experts, and back if `returns`."""
    send = (npu.npu_moe_distribute_dispatch, npu.npu_moe_distribute_dispatch_v2)[version]
    collect = (npu.npu_moe_distribute_combine, npu.npu_moe_distribute_combine_v2)[version]

    def call(rank, ranks, group):
        given = group, ranks, rank, ALL_EXPERTS
        how = {"global_bs": MOST * ranks, "shared_expert_rank_num": shared}
        first = ALL_EXPERTS // (ranks - shared) * (rank - shared) + 1 if rank >= shared else 10

        def run(x, ids, weights, active):
            rows, _, where, counts, ends, _, of_rows = send(
                x, ids, *given, expert_scales=weights, x_active_mask=active, **how
            )
            numbers = torch.arange(rows.shape[0])
            if not returns:
                used = (numbers < ends[-1]).unsqueeze(1)
                return rows, where.reshape(-1, 128)[:, :3] * used if version else where, counts, ends, of_rows
            factor = torch.bucketize(numbers, counts.cumsum(0), right=True) + first
            made = rows * factor.unsqueeze(1).to(rows.dtype)
            return collect(made, ids, where, ends, weights, *given, x_active_mask=active, **how)

        return run, list(tokens(rank))

    names = "MoeDistributeCombine" if returns else "MoeDistributeDispatch"
    expected = (
        (lambda ranks: there_and_back(ranks, shared))
        if returns
        else (lambda ranks: sent_to_experts(ranks, shared, version == 1))
    )
    return Case(names + ("", "V2")[version], call, expected)


DISPATCHES = {
    f"moe {'combine' if returns else 'dispatch'} {version + 1} with {shared} shared": dispatch_case(
        version, shared, returns
    )
    for returns in (False, True)
    for version in (0, 1)
    for shared in (0, 1)
}

CASES: dict[str, Case] = DISPATCHES | {
    "all_gather_base_mm": Case(
        "AllGatherMatmul",
        lambda r, n, g: (lambda x, w, b: npu.npu_all_gather_base_mm(x, w, g, n, bias=b), plain_of(r, n)),
        gathered,
    ),
    "all_gather_base_mm of the right operand": Case(
        "AllGatherMatmul",
        lambda r, n, g: (
            lambda x, w: npu.npu_all_gather_base_mm(x, w, g, n, gather_index=1, gather_output=False)[0],
            [data(r, "x", 3, K * n), data(r, "w", K, 4)],
        ),
        gathered_right,
    ),
    "all_gather_quant_mm": Case(
        "AllGatherMatmulV2",
        lambda r, n, g: (
            lambda x, w, b, s, t: npu.npu_all_gather_quant_mm(
                x, w, g, n, bias=b, x1_scale=s, x2_scale=t, amax_output=True
            ),
            quantised_of(r, n),
        ),
        gathered_quantised,
    ),
    "mm_all_reduce_base": Case(
        "MatmulAllReduce",
        lambda r, n, g: (
            lambda x, w, b, y: npu.npu_mm_all_reduce_base(x, w, g, bias=b, x3=y),
            [*plain_of(r, n), data(r, "x3", 2 * n, 2 * n)],
        ),
        lambda n: [[summed(n)]] * n,
    ),
    "mm_all_reduce_base of bytes": Case(
        "MatmulAllReduce",
        lambda r, n, g: (
            lambda x, w, s, t: npu.npu_mm_all_reduce_base(x, w, g, dequant_scale=s, pertoken_scale=t),
            bytes_of(r, n),
        ),
        summed_bytes,
    ),
    "mm_all_reduce_base with weights of bytes": Case(
        "MatmulAllReduce",
        lambda r, n, g: (
            lambda x, w, s, o: npu.npu_mm_all_reduce_base(x, w, g, antiquant_scale=s, antiquant_offset=o),
            [data(r, "x", 3, K), whole(r, "w", K, 4), data(r, "ws", 4), data(r, "wo", 4)],
        ),
        weights_only,
    ),
    "mm_all_reduce_base that travels as bytes": Case(
        "MatmulAllReduce",
        lambda r, n, g: (
            lambda x, w, s, t: npu.npu_mm_all_reduce_base(
                x, w, g, comm_quant_scale_1=s, comm_quant_scale_2=t
            ),
            [data(r, "x", 3, K), data(r, "w", K, 4), scale(0, "c1", 4) / 10, scale(0, "c2", 4) / 5],
        ),
        travelled_as_bytes,
    ),
    "mm_reduce_scatter_base": Case(
        "MatmulReduceScatter",
        lambda r, n, g: (lambda x, w, b: npu.npu_mm_reduce_scatter_base(x, w, g, n, bias=b), plain_of(r, n)),
        scattered,
    ),
    "quant_mm_reduce_scatter": Case(
        "MatmulReduceScatterV2",
        lambda r, n, g: (
            lambda x, w, b, s, t: npu.npu_quant_mm_reduce_scatter(
                x, w, g, n, bias=b, x1_scale=s, x2_scale=t, y_dtype=FLOAT_CODE
            )[0],
            quantised_of(r, n),
        ),
        scattered_quantised,
    ),
    "all_to_all_matmul": Case(
        "AlltoAllMatmul",
        lambda r, n, g: (
            lambda x, w, b: npu.npu_all_to_all_matmul(x, w, g, n, b),
            [x_of(r, n), wide_w(r, n), data(r, "b", 4)],
        ),
        exchanged,
    ),
    "all_to_all_quant_matmul": Case(
        "AlltoAllMatmul",
        lambda r, n, g: (
            lambda x, w, s: npu.npu_all_to_all_quant_matmul(
                x, w, g, n, x2_scale=s, x1_quant_mode=7, x2_quant_mode=2, x1_quant_dtype=FP8_CODE
            ),
            [x_of(r, n), small(r, "w", K * n, 4), scale(r, "ws", 4)],
        ),
        exchanged_then_quantised,
    ),
    "all_to_all_quant_matmul of blocks": Case(
        "AlltoAllMatmul",
        lambda r, n, g: (
            lambda x, w, s, t: npu.npu_all_to_all_quant_matmul(
                x, w, g, n, x1_scale=s, x2_scale=t, x1_quant_mode=6, x2_quant_mode=6
            ),
            blocks_of(r, n),
        ),
        exchanged_blocks,
    ),
    "matmul_all_to_all": Case(
        "MatmulAlltoAll",
        lambda r, n, g: (lambda x, w, b: npu.npu_matmul_all_to_all(x, w, g, n, b), plain_of(r, n)),
        lambda n: columns_for_rows(n, lambda r: mm(x_of(r, n), w_of(r, n)) + b_of(r, n)),
    ),
    "quant_matmul_all_to_all": Case(
        "MatmulAlltoAll",
        lambda r, n, g: (
            lambda x, w, b, s, t: npu.npu_quant_matmul_all_to_all(
                x, w, g, n, b, x1_scale=s, x2_scale=t, x1_quant_mode=3, x2_quant_mode=2
            ),
            quantised_of(r, n),
        ),
        lambda n: columns_for_rows(n, lambda r: numbers(r, n)),
    ),
    "alltoallv_gmm": Case("AlltoAllvGroupedMatMul", alltoallv_gmm, at_experts),
    "alltoallv_quant_gmm": Case("AlltoAllvQuantGroupedMatMul", alltoallv_quant_gmm, quantised_at_experts),
    "gmm_alltoallv": Case(
        "GroupedMatMulAlltoAllv",
        gmm_alltoallv,
        lambda n: [[y] for y in back(n, lambda r: from_experts(r, n))],
    ),
    "quant_gmm_alltoallv": Case("QuantGroupedMatMulAlltoAllv", quant_gmm_alltoallv, quantised_back),
    "quant_all_reduce": Case(
        "QuantAllReduce",
        lambda r, n, g: (
            lambda x, s: npu.npu_quant_all_reduce(x, s, g, n, output_dtype=FLOAT_CODE),
            [whole(r, "x", 2 * n, 8), scale(r, "s", 2 * n, 2)],
        ),
        lambda n: [[byte_sum(n)]] * n,
    ),
    "quant_reduce_scatter": Case(
        "QuantReduceScatter",
        lambda r, n, g: (
            lambda x, s: npu.npu_quant_reduce_scatter(x, s, g, n),
            list(mx(data(r, "x", 2 * n, 64), E4M3)),
        ),
        lambda n: [[part] for part in parts(block_sum(n), n)],
    ),
    "distribute_barrier": Case(
        "DistributeBarrier",
        lambda r, n, g: (lambda x: npu._npu_distribute_barrier(x, g, n), [x_of(r, n)]),
        lambda n: each(n, lambda r: [x_of(r, n)]),
    ),
}  # fmt: skip
