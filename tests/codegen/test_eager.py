"""The generated Python: how it reads, what it shares, and that its short cuts are the ops they stand for."""

from __future__ import annotations

import math
import textwrap
from typing import Any

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from tests.codegen.tracing import trace
from torchair.codegen import build
from torchair.codegen.eager import TORCH_FUNCTIONS
from torchair.fxgraph.value_keys import constant_key

aten = torch.ops.aten
X = torch.rand(3, 3) + 0.5
COLUMN = torch.tensor([0, 2, 1])
# Arguments for the rows that are neither of one tensor nor of two.
SAMPLES: dict[str, tuple[Any, ...]] = {
    "addmm.default": (X[0], X, X),
    "amax.default": (X, [1], True),
    "amin.default": (X, [1], True),
    "argmax.default": (X, 1),
    "baddbmm.default": (X[None], X[None], X[None]),
    "bmm.default": (X[None], X[None]),
    "cat.default": ([X, X], 1),
    "cumsum.default": (X, 1),
    "embedding.default": (X, COLUMN),
    "gather.default": (X, 1, COLUMN[:, None]),
    "index_select.default": (X, 1, COLUMN),
    "logical_and.default": (X > 1, X < 1),
    "mean.dim": (X, [-1], True),
    "permute.default": (X, [1, 0]),
    "select.int": (X, 1, 2),
    "squeeze.dim": (X[None], 0),
    "sum.dim_IntList": (X, [1], True),
    "transpose.int": (X, 0, 1),
    "unsqueeze.default": (X, 1),
    "where.self": (X > 1, X, X.t()),
}
PAIRS = ("Tensor", "maximum.default", "minimum.default", "mm.default")
SCALARS = ("Scalar", "Tensor_Scalar")


def sample(row: str) -> tuple[Any, ...]:
    if row in SAMPLES:
        return SAMPLES[row]
    if row.endswith(SCALARS):
        return (X, 2)
    return (X, X.t()) if row.endswith(PAIRS) else (X,)


@pytest.mark.parametrize("row", sorted(TORCH_FUNCTIONS))
def test_torch_function_is_the_overload(row: str) -> None:
    name, overload = row.split(".")
    args = sample(row)
    traced = trace(lambda _: [getattr(torch, name)(*args)], X, decompose=False)
    called = [node.target for node in traced.gm.graph.nodes if node.op == "call_function"]
    assert getattr(getattr(aten, name), overload) in called
    torch.testing.assert_close(getattr(torch, name)(*args), getattr(getattr(aten, name), overload)(*args))


def test_reads_like_a_program() -> None:
    def fn(x: torch.Tensor, cache: torch.Tensor, at: torch.Tensor) -> list[torch.Tensor]:
        aten.index_put_(cache, [at], x)
        scaled = aten.mul(x, aten.full([], 2.0))
        size = x.size(0) * 2
        return [aten.add(scaled, float("inf")), size]

    args = torch.ones(2, 4), torch.zeros(8, 4), torch.tensor([1, 2])
    program = build("eager", *_unpacked(trace(fn, *args, dynamic=[0, 2], decompose=False)))
    assert program.source == textwrap.dedent(
        """\
        def program(args):
            x_1, cache_1, at_1, = args
            args.clear()
            aten_index_put__default(cache_1, [at_1], x_1)
            del cache_1, at_1
            mul = torch_mul(x_1, full)
            sym_size_int = x_1.size(0)
            del x_1
            mul_1 = sym_size_int * 2
            del sym_size_int
            add = torch_add(mul, constant_float)
            del mul
            return [add, mul_1]
        """
    )
    result = program(list(args))
    assert result[1] == 4
    assert args[1][1:3].eq(1).all()


def _unpacked(traced: Any) -> tuple[Any, Any]:
    return traced.gm, traced.inputs


def test_a_returned_constant_is_not_shared() -> None:
    program = build("eager", *_unpacked(trace(lambda x: [x + 1, aten.full([2], 3.0)], X, decompose=False)))
    first = program([X])[1]
    first.zero_()
    assert program([X])[1].eq(3).all()


def test_eager_program_frees_inputs_after_last_use() -> None:
    seen: list[int] = []

    def fn(x: torch.Tensor) -> list[torch.Tensor]:
        return [aten.sin(aten.cos(x)).sum()]

    program = build("eager", *_unpacked(trace(fn, torch.randn(64), decompose=False)))
    args = [torch.randn(64)]
    alive = StorageWeakRef(args[0].untyped_storage())
    program.run.__globals__["torch_sin"] = lambda x: (seen.append(alive.expired()), aten.sin(x))[1]
    program(args)
    assert args == []
    assert seen == [True]


def test_errors_show_the_generated_line() -> None:
    program = build("eager", *_unpacked(trace(lambda x, y: [aten.mm(x, y)], X, X.clone(), decompose=False)))
    with pytest.raises(RuntimeError) as failure:
        program([X, torch.ones(5, 5)])
    assert "mm = torch_mm(x_1, y_1)" in str(failure.getrepr())


def test_eager_program_runs_subgraphs() -> None:
    def fn(flag: torch.Tensor, x: torch.Tensor) -> list[torch.Tensor]:
        return [torch.cond(flag, lambda v: v.sin(), lambda v: v.cos(), [x])]

    flag = torch.tensor(True)
    program = build("eager", *_unpacked(trace(fn, flag, X)))
    torch.testing.assert_close(program([flag, X])[0], X.sin())
    torch.testing.assert_close(program([~flag, X])[0], X.cos())


@pytest.mark.parametrize(
    "constant",
    [
        torch.tensor([math.inf, -math.inf, math.nan, -0.0, 1 / 3]),
        torch.tensor([[math.inf, 2.5], [-0.0, math.nan]], dtype=torch.bfloat16),
        torch.tensor([complex(math.inf, -0.0), complex(0.0, math.nan)]),
        torch.tensor([True, False]),
        torch.empty(0, 3),
    ],
    ids=["float32", "bfloat16", "complex64", "bool", "empty"],
)
def test_a_module_of_its_own_has_every_constant(constant: torch.Tensor) -> None:
    def fn(x: torch.Tensor) -> list[torch.Tensor]:
        return [x.sum() * 0 + constant, constant.clone()]

    traced = trace(fn, torch.ones(2))
    written = build("eager", traced.gm, traced.inputs).standalone()  # type: ignore[attr-defined]
    assert written is not None
    names: dict[str, Any] = {}
    exec(written, names)
    made = names["kernel"](torch.ones(2))[-1]
    assert (made.dtype, made.shape) == (constant.dtype, constant.shape)
    assert constant_key(made) == constant_key(constant)
