"""Calls of ops that compute and communicate, and what each rank gets, written out from the inputs of all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchair.ops.formats import E4M3, mx

npu = torch.ops.npu
HALF, FP8 = torch.float16, torch.float8_e4m3fn
# torch's own numbers of types.
BFLOAT16_CODE, FLOAT_CODE, FP8_CODE = 15, 6, 24
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
        small(rank, "x", 2 * ranks, K), small(rank, "w", K, 2 * ranks), data(rank, "b", 2 * ranks, dtype=torch.float32),
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
        each(ranks, lambda r: (mm(data(r, "x", 3, K), data(r, "w", K, 4)) / first).round().clamp(-128, 127) * first)
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
        rows = [
            expert_rows(ranks, lambda r: to_experts(r, ranks)[0], rank, e) for e in range(EXPERTS)
        ]
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
        made = [
            mm(expert_rows(ranks, rows_of, rank, e), w[e].double() * w_scale) for e in range(EXPERTS)
        ]
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
    return each(
        ranks, lambda r: torch.cat([found[r, d, e] for d in range(ranks) for e in range(EXPERTS)])
    )


def quantised_back(ranks):
    def product(rank):
        x, w = from_experts(rank, ranks, small)
        return x.double() * scale(rank, "xs", 1), w.double() * scale(rank, "ws", 1)

    return [[y] for y in back(ranks, product)]


# Quantised sums


def byte_sum(ranks):
    return sum(
        each(ranks, lambda r: whole(r, "x", 2 * ranks, 8).double() * scale(r, "s", 2 * ranks, 2).repeat_interleave(4, 1))
    )


def block_sum(ranks):
    def of(rank):
        values, powers = mx(data(rank, "x", 2 * ranks, 64), E4M3)
        return of_blocks(values, powers)

    return sum(each(ranks, of))


CASES: dict[str, Case] = {
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
    "alltoallv_gmm": Case(
        "AlltoAllvGroupedMatMul",
        lambda r, n, g: (
            lambda x, w, y, v, c=routes(r, n): npu.npu_alltoallv_gmm(
                x, w, g, n, *c, mm_x=y, mm_weight=v, permute_out_flag=True
            ),
            to_experts(r, n),
        ),
        at_experts,
    ),
    "alltoallv_quant_gmm": Case(
        "AlltoAllvQuantGroupedMatMul",
        lambda r, n, g: (
            lambda x, w, s, t, c=routes(r, n): npu.npu_alltoallv_quant_gmm(
                x, w, s, t, g, n, *c, BFLOAT16_CODE, gmm_x_quant_mode=1, gmm_weight_quant_mode=1
            )[0],
            quantised_to_experts(r, n),
        ),
        quantised_at_experts,
    ),
    "gmm_alltoallv": Case(
        "GroupedMatMulAlltoAllv",
        lambda r, n, g: (
            lambda x, w, c=routes(r, n)[::-1]: npu.npu_gmm_alltoallv(
                x, w.mT.contiguous(), g, n, *c, trans_gmm_weight=True
            )[0],
            from_experts(r, n),
        ),
        lambda n: [[y] for y in back(n, lambda r: from_experts(r, n))],
    ),
    "quant_gmm_alltoallv": Case(
        "QuantGroupedMatMulAlltoAllv",
        lambda r, n, g: (
            lambda x, w, s, t, c=routes(r, n)[::-1]: npu.npu_quant_gmm_alltoallv(
                x, w, s, t, g, n, *c, BFLOAT16_CODE, gmm_x_quant_mode=1,
                gmm_weight_quant_mode=1,
            )[0],
            [*from_experts(r, n, small), scale(r, "xs", 1), scale(r, "ws", 1)],
        ),
        quantised_back,
    ),
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
