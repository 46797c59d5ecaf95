"""LU factors and LAPACK's pivots against eager: wide, tall and empty matrices, empty batches, ties, singular
matrices; and chains of swaps as long as they get.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, linalg

from tests.convert.aten.test_linalg import CLOSE, check, converted, square
from tests.convert.harness import compare
from tests.support.slow import STATIC_FIRST, slow
from torchair.backend.dynamo.entry_points import get_npu_backend
from torchair.configs.compiler_config import CompilerConfig
from torchair.convert.aten.lu import rows_of, swaps_of
from torchair.engine.interpret import interpret

aten = torch.ops.aten
SHAPES = pytest.mark.parametrize("shape", [(4, 4), (5, 2), (2, 5), (2, 3, 1, 4), (1, 1)], ids=str)
EMPTY = pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0), (2, 3, 0), (0, 3, 3), (0, 4, 2)], ids=str)

# Ties between pivots, and matrices in which a step finds nothing but zeros.
SPECIAL: dict[str, Tensor] = {
    "ties": torch.tensor([[1.0, 2.0, 3.0], [-1.0, 5.0, 7.0], [1.0, 1.0, 8.0]]),
    "zeros": torch.zeros(3, 3),
    "zero column": torch.tensor([[0.0, 1.0, 2.0], [0.0, 3.0, 4.0], [0.0, 5.0, 7.0]]),
    "equal rows": torch.ones(3, 4),
    "singular in the middle": torch.tensor([[1.0, 2.0, 3.0], [2.0, 4.0, 7.0], [3.0, 6.0, 5.0]]),
    "tall and singular": torch.tensor([[0.0, 1.0], [0.0, 2.0], [0.0, 4.0], [0.0, 3.0]]),
    "reversed": torch.eye(6).flip(0),
    "shifted": torch.eye(7).roll(1, 0),
    "a batch of both": torch.stack([torch.eye(3), torch.zeros(3, 3)]),
}  # fmt: skip


def factored(x: Tensor) -> tuple[Tensor, ...]:
    return tuple(linalg.lu_factor_ex(x))


def unpacked(x: Tensor) -> tuple[Tensor, ...]:
    return tuple(torch.lu_unpack(*linalg.lu_factor_ex(x)[:2]))


def everything(x: Tensor) -> tuple[Tensor, ...]:
    return *linalg.lu(x), *factored(x), *unpacked(x)


@STATIC_FIRST
@SHAPES
def test_shapes(shape: tuple[int, ...], dynamic: bool) -> None:
    check(everything, torch.randn(shape), dynamic=dynamic, **CLOSE)


@pytest.mark.parametrize("shape", [slow((4, 4)), (5, 2), slow((2, 5)), (2, 3, 1, 4), slow((1, 1))], ids=str)
def test_complex_numbers(shape: tuple[int, ...]) -> None:
    check(everything, torch.randn(shape, dtype=torch.complex64), **CLOSE)


@STATIC_FIRST
@EMPTY
def test_without_elements(shape: tuple[int, ...], dynamic: bool) -> None:
    check(everything, torch.randn(shape), dynamic=dynamic)


@STATIC_FIRST
@pytest.mark.parametrize("name", SPECIAL)
def test_ties_and_singular_matrices(name: str, dynamic: bool) -> None:
    check(lambda x: (*factored(x), *unpacked(x)), SPECIAL[name], dynamic=dynamic)


@pytest.mark.parametrize("data", [False, True])
@pytest.mark.parametrize("pivots", [False, True])
def test_what_is_not_asked_for_is_empty(data: bool, pivots: bool) -> None:
    factors, places = linalg.lu_factor(torch.randn(2, 5, 3))
    fn = lambda x, p: tuple(torch.lu_unpack(x, p, data, pivots))  # noqa: E731
    check(fn, factors, places)


def test_swaps_and_rows_follow_from_each_other() -> None:
    """Whatever the swaps, the rows that they lead to are LAPACK's; and these rows lead to the same swaps."""
    torch.manual_seed(0)
    for size in (1, 2, 3, 8, 17, 64):
        last = torch.full((1, size), size)
        steps = torch.arange(1, size + 1)
        one_down = (steps + 1).clamp(max=size).unsqueeze(0)
        drawn = (steps + (torch.rand(50, size) * (size + 1 - steps)).long()).clamp(max=size)
        pivots = torch.cat([last, one_down, drawn]).int()
        packed = torch.zeros(len(pivots), size, size)
        wanted = torch.lu_unpack(packed, pivots)[0].argmax(-2)
        rows = rows_of(pivots, size)
        assert torch.equal(rows, wanted)
        # Swaps only go down: just one list of them leads to these rows.
        assert torch.equal(swaps_of(rows) + 1, pivots.long())


@STATIC_FIRST
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("adjoint", [False, True])
def test_solve(left: bool, adjoint: bool, dtype: torch.dtype, dynamic: bool) -> None:
    fn = lambda f, p, b: linalg.lu_solve(f, p, b, left=left, adjoint=adjoint)  # noqa: E731
    rhs = torch.randn(2, 4, 3, dtype=dtype)
    rhs = rhs if left else rhs.mT
    check(fn, *linalg.lu_factor(square(2, dtype=dtype)), rhs, dynamic=dynamic, **CLOSE)


def test_solve_with_batches_that_broadcast() -> None:
    check(linalg.lu_solve, *linalg.lu_factor(square(2, 1)), torch.randn(3, 4, 2), **CLOSE)
    check(linalg.lu_solve, *linalg.lu_factor(square()), torch.randn(3, 4, 2), **CLOSE)
    check(linalg.lu_solve, *linalg.lu_factor(square(3, 2)), torch.randn(4, 2), dynamic=True, **CLOSE)


@STATIC_FIRST
@pytest.mark.parametrize("batch", [(), (0,), (2,)], ids=str)
@pytest.mark.parametrize(("size", "columns"), [(0, 2), (3, 0), (3, 2)])
def test_solve_without_elements(batch: tuple[int, ...], size: int, columns: int, dynamic: bool) -> None:
    factors, pivots = linalg.lu_factor(torch.randn(*batch, size, size))
    check(linalg.lu_solve, factors, pivots, torch.randn(*batch, size, columns), dynamic=dynamic, **CLOSE)


@pytest.mark.parametrize("shape", [(5, 5), (6, 4), (4, 6)], ids=str)
def test_one_graph_serves_other_sizes(shape: tuple[int, int]) -> None:
    """Nothing of a sample's sizes is left in a graph of symbols: chains of swaps are a While."""
    graph = converted(unpacked, [torch.randn(shape)], dynamic=True)[0]
    assert "While" in {op.type for op in graph.ops}
    x = torch.randn([2 * size + 1 for size in shape])
    compare(interpret(graph, [x], torch.device("cpu")), unpacked(x), **CLOSE)
    static = converted(unpacked, [torch.randn(shape)])[0]
    assert "While" not in {op.type for op in static.ops}


@STATIC_FIRST
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
@pytest.mark.parametrize("turned", [False, True])
def test_factors_kept_for_gradients(turned: bool, dtype: torch.dtype, dynamic: bool) -> None:
    """A determinant keeps the factors of a matrix as it lies in memory."""
    x = square(2, dtype=dtype)
    view = (lambda x: x.mT) if turned else (lambda x: x)
    check(lambda x: tuple(aten._linalg_det.default(view(x))), x, dynamic=dynamic, **CLOSE)
    check(lambda x: tuple(aten._linalg_slogdet.default(view(x))), x, dynamic=dynamic, **CLOSE)
    check(lambda x: tuple(aten._linalg_solve_ex.default(view(x), x)), x, dynamic=dynamic, **CLOSE)


def test_factors_of_a_solve_for_vectors() -> None:
    solve = lambda a, b: tuple(aten._linalg_solve_ex.default(a, b))  # noqa: E731
    check(solve, square(), torch.randn(4), **CLOSE)
    check(solve, square(2), torch.randn(2, 4), **CLOSE)
    check(solve, square(2, 1), square(3), **CLOSE)


@pytest.mark.parametrize(
    "fn",
    [linalg.det, lambda x: linalg.slogdet(x)[1], lambda x: linalg.solve(x, x[:, :2]), linalg.inv],
    ids=["det", "slogdet", "solve", "inv"],
)
def test_gradients(fn: Callable[..., Tensor]) -> None:
    x = square()
    wanted = torch.autograd.functional.vjp(fn, x, torch.ones_like(fn(x)))
    given = x.clone().requires_grad_()
    config = CompilerConfig()
    config.engine_config.codegen = "eager"
    result = torch.compile(fn, backend=get_npu_backend(compiler_config=config))(given)
    result.sum().backward()
    compare([result.detach(), given.grad], wanted, **CLOSE)
