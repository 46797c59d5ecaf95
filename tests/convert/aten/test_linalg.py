"""Matrices against eager: every op in float and complex, batches, both triangles, vectors; what stays opaque
says why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, linalg

from tests.convert import harness
from tests.convert.harness import converted
from tests.support.slow import STATIC_FIRST, slow
from torchair import ge
from torchair.backend.dynamo.entry_points import get_npu_backend
from torchair.configs.compiler_config import CompilerConfig
from torchair.convert.base.report import ConversionReport
from torchair.engine.interpret import interpret
from torchair.ge.graph import ArgumentFeed, Graph

FORMS = pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, slow(torch.float64), torch.complex64], ids=str)
CLOSE = {"rtol": 1e-3, "atol": 1e-4}


# What raises in eager raises here too: the op itself checks.
RAISES = "aten._linalg_check_errors.default"


def check(fn: Callable[..., Any], *args: Any, allow: Sequence[str] = (), **rest: Any) -> ConversionReport:
    return harness.check(fn, *args, allow=[RAISES, *allow], **rest)


def square(*batch: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Matrices that are far from singular."""
    return torch.randn(*batch, 4, 4, dtype=dtype) + 4 * torch.eye(4, dtype=dtype)


def definite(*batch: int, dtype: torch.dtype = torch.float32) -> Tensor:
    x = square(*batch, dtype=dtype)
    return x @ x.mH


def fallbacks(fn: Callable[..., Any], *args: Any) -> dict[str, str]:
    return {reason.op: reason.why for reason in converted(fn, args)[1].fallbacks}


@FORMS
@DTYPES
@pytest.mark.parametrize(
    "fn",
    [linalg.inv, torch.inverse, linalg.det, torch.det, linalg.slogdet, torch.slogdet, linalg.lu],
    ids=lambda fn: fn.__name__,
)
def test_of_square_matrices(fn: Callable[..., Any], dtype: torch.dtype, dynamic: bool) -> None:
    check(fn, square(dtype=dtype), dynamic=dynamic, **CLOSE)
    check(fn, square(2, 3, dtype=dtype), dynamic=dynamic, **CLOSE)


def test_a_singular_matrix_still_raises() -> None:
    graph, *_ = converted(linalg.inv, [square()])
    with pytest.raises(RuntimeError, match="singular"):
        interpret(graph, [torch.zeros(4, 4)], torch.device("cpu"))


@pytest.mark.parametrize("codegen", ["reference", "eager"])
def test_checks_survive_in_compiled_graphs(codegen: str) -> None:
    """Nobody reads their results; the second one raises as well, and both in eager's words."""
    config = CompilerConfig()
    config.engine_config.codegen = codegen
    backend = get_npu_backend(compiler_config=config)
    fn = torch.compile(lambda x: (linalg.inv(x), linalg.cholesky(x)), backend=backend)
    x = definite()
    with torch.no_grad():
        harness.compare(fn(x), (linalg.inv(x), linalg.cholesky(x)), **CLOSE)
        with pytest.raises(linalg.LinAlgError, match=r"linalg.inv: .*singular"):
            fn(torch.zeros(4, 4))
        with pytest.raises(linalg.LinAlgError, match=r"linalg.cholesky: .*positive-definite"):
            fn(-x)


def test_an_assert_of_something_else() -> None:
    """Its data is only shown."""
    with Graph("asserts") as graph:
        holds = ge.Data(index=0, node_name="holds")
        graph.feeds["holds"] = ArgumentFeed(0)
        ge.Assert(holds, [ge.Const([1.0, 2.0])])
    interpret(graph, [torch.tensor(True)], torch.device("cpu"))
    with pytest.raises(RuntimeError, match="Assert of the graph failed"):
        interpret(graph, [torch.tensor(False)], torch.device("cpu"))


def test_logdet() -> None:
    check(torch.logdet, definite(2), **CLOSE)


@pytest.mark.filterwarnings("ignore:torch.cholesky is deprecated")
@DTYPES
@pytest.mark.parametrize("upper", [False, True])
def test_cholesky(upper: bool, dtype: torch.dtype) -> None:
    x = definite(2, dtype=dtype)
    factor = linalg.cholesky(x, upper=upper)
    check(lambda x: linalg.cholesky(x, upper=upper), x, **CLOSE)
    check(lambda x: linalg.cholesky_ex(x, upper=upper), x, **CLOSE)
    check(lambda x: torch.cholesky(x, upper=upper), x, **CLOSE)
    check(lambda f: torch.cholesky_inverse(f, upper=upper), factor, **CLOSE)
    check(lambda b, f: torch.cholesky_solve(b, f, upper=upper), square(2, dtype=dtype), factor, **CLOSE)
    check(lambda b, f: torch.cholesky_solve(b, f, upper=upper), square(dtype=dtype), factor, **CLOSE)


def test_failures_are_counted() -> None:
    good, bad = definite(), -definite()
    check(lambda x: linalg.cholesky_ex(x).info, torch.stack([good, good]))
    fn = lambda x: linalg.cholesky_ex(x).info > 0  # noqa: E731 - which leading minor it was, the IR cannot say
    check(fn, torch.stack([good, bad]))
    check(lambda x: linalg.inv_ex(x).info > 0, torch.stack([good, torch.zeros(4, 4)]))
    check(lambda x: linalg.solve_ex(x, x).info > 0, torch.stack([good, torch.zeros(4, 4)]))


@DTYPES
@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("unit", [False, True])
def test_triangles(upper: bool, left: bool, unit: bool, dtype: torch.dtype) -> None:
    def fn(a: Tensor, b: Tensor) -> Tensor:
        return linalg.solve_triangular(a, b, upper=upper, left=left, unitriangular=unit)

    check(fn, square(dtype=dtype), square(dtype=dtype), **CLOSE)
    check(fn, square(3, 1, dtype=dtype), square(2, dtype=dtype), **CLOSE)
    check(fn, square(2, dtype=dtype), square(2, dtype=dtype), dynamic=True, **CLOSE)


@pytest.mark.filterwarnings("ignore:torch.triangular_solve is deprecated")
@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("transpose", [False, True])
def test_triangular_solve(upper: bool, transpose: bool) -> None:
    check(lambda b, a: torch.triangular_solve(b, a, upper, transpose), square(2), square(2), **CLOSE)


@FORMS
@DTYPES
@pytest.mark.parametrize("left", [False, True])
def test_solve(left: bool, dtype: torch.dtype, dynamic: bool) -> None:
    fn = lambda a, b: linalg.solve(a, b, left=left)  # noqa: E731
    check(fn, square(dtype=dtype), square(dtype=dtype), dynamic=dynamic, **CLOSE)
    check(fn, square(2, dtype=dtype), square(2, dtype=dtype), dynamic=dynamic, **CLOSE)


def test_solve_for_vectors() -> None:
    check(linalg.solve, square(), torch.randn(4), **CLOSE)
    check(linalg.solve, square(2), torch.randn(2, 4), **CLOSE)


@DTYPES
@pytest.mark.parametrize("mode", ["reduced", "complete", "r"])
@pytest.mark.parametrize("shape", [(4, 3), (3, 4), (2, 3, 3)], ids=str)
def test_qr(shape: tuple[int, ...], mode: str, dtype: torch.dtype) -> None:
    x = torch.randn(shape, dtype=dtype)
    check(lambda x: tuple(linalg.qr(x, mode)), x, **CLOSE)


@DTYPES
@pytest.mark.parametrize(
    "shape", [slow((4, 4)), (5, 3), slow((3, 5)), slow((2, 1, 3)), slow((0, 3, 3)), (0, 2), (3, 0)], ids=str
)
def test_geqrf(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.randn(shape, dtype=dtype)
    check(torch.geqrf, x, **CLOSE)
    check(torch.geqrf, torch.zeros_like(x))
    check(torch.geqrf, torch.tril(x).mT.contiguous() if x.numel() else x, **CLOSE)


def test_geqrf_of_many_columns_is_left_to_lapack() -> None:
    assert "16 columns" in fallbacks(torch.geqrf, torch.randn(20, 17))["aten.geqrf.default"]
    check(torch.geqrf, torch.randn(20, 17), allow=["aten.geqrf.default"], **CLOSE)


REFLECTED = pytest.mark.parametrize("shape", [(4, 4), (5, 3), (2, 5, 3)], ids=str)


def reflected(shape: tuple[int, ...], dtype: torch.dtype, fewer: int = 0) -> tuple[Tensor, Tensor]:
    """Reflectors as LAPACK packs them; weights of any size, one of them 0, do not have to come from a QR."""
    tau = torch.randn(*shape[:-2], shape[-1] - fewer, dtype=dtype)
    tau[..., :1] = 0
    return torch.randn(shape, dtype=dtype), tau


@STATIC_FIRST
@DTYPES
@REFLECTED
def test_householder_product(shape: tuple[int, ...], dtype: torch.dtype, dynamic: bool) -> None:
    check(linalg.householder_product, *reflected(shape, dtype), dynamic=dynamic, **CLOSE)
    check(linalg.householder_product, *reflected(shape, dtype, fewer=1), dynamic=dynamic, **CLOSE)
    if not dynamic:
        check(linalg.householder_product, *reflected(shape, dtype, fewer=shape[-1]), **CLOSE)


@DTYPES
@REFLECTED
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("transpose", [False, True])
def test_ormqr(left: bool, transpose: bool, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    sizes = (shape[-2], 2) if left else (2, shape[-2])
    other = torch.randn(*shape[:-2], *sizes, dtype=dtype)
    fn = lambda x, tau, other: torch.ormqr(x, tau, other, left, transpose)  # noqa: E731
    check(fn, *reflected(shape, dtype), other, **CLOSE)


@DTYPES
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("shape", [(4, 3), (2, 3, 4)], ids=str)
def test_svd(shape: tuple[int, ...], full: bool, dtype: torch.dtype) -> None:
    x = torch.randn(shape, dtype=dtype)
    check(lambda x: tuple(linalg.svd(x, full_matrices=full)), x, **CLOSE)
    check(linalg.svdvals, x, **CLOSE)


@DTYPES
@pytest.mark.parametrize("uplo", ["L", "U"])
def test_symmetric_eigenvalues(uplo: str, dtype: torch.dtype) -> None:
    x = definite(2, dtype=dtype)
    half = torch.triu if uplo == "U" else torch.tril

    def rebuilt(x: Tensor) -> tuple[Tensor, Tensor]:
        """Eigenvectors without their phases, which are nobody's promise."""
        values, vectors = linalg.eigh(half(x), uplo)
        return values, vectors @ (values.unsqueeze(-1) * vectors.mH)

    check(rebuilt, x, **CLOSE)
    torch.testing.assert_close(rebuilt(x)[1], x, **CLOSE)
    check(lambda x: linalg.eigvalsh(x, uplo), x, **CLOSE)
    check(lambda x: linalg.eigvalsh(half(x), uplo), x, **CLOSE)


@DTYPES
@pytest.mark.parametrize("hermitian", [False, True])
def test_pinv(hermitian: bool, dtype: torch.dtype) -> None:
    x = definite(2, dtype=dtype)
    x[0, :, 0] = x[0, 0, :] = 0  # of lower rank
    check(lambda x: linalg.pinv(x, hermitian=hermitian), x, **CLOSE)
    check(lambda x: linalg.pinv(x, atol=0.5, hermitian=hermitian), x, **CLOSE)
    check(lambda x: linalg.pinv(x, atol=0.1, rtol=0.2, hermitian=hermitian), x, **CLOSE)


def test_pinv_of_rectangles() -> None:
    check(linalg.pinv, torch.randn(4, 3), **CLOSE)
    check(linalg.pinv, torch.randn(4, 3), dynamic=True, **CLOSE)
    for shape in ((0, 3), (2, 3, 0), (0, 3, 3)):
        check(linalg.pinv, torch.randn(shape))
        check(linalg.pinv, torch.randn(shape), dynamic=True)
    check(lambda x, t: linalg.pinv(x, rtol=t), torch.randn(2, 3, 4), torch.tensor([0.1, 0.5]), **CLOSE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.complex64], ids=str)
def test_cross(dtype: torch.dtype) -> None:
    x, y = (torch.randn(2, 3, 3).mul(9).to(dtype) for _ in range(2))
    check(linalg.cross, x, y)
    check(lambda x, y: linalg.cross(x, y, dim=1), x, y, dynamic=True)
    check(lambda x, y: linalg.cross(x, y[:1]), x, y)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: linalg.matrix_power(x, 3),
        lambda x: linalg.matrix_power(x, -2),
        lambda x: linalg.multi_dot([x, x, x]),
        lambda x: linalg.cond(x),
        lambda x: linalg.matrix_norm(x, "nuc"),
        lambda x: linalg.matrix_norm(x, 2),
        lambda x: linalg.matrix_rank(x),
        lambda x: linalg.tensorinv(x.reshape(2, 2, 4), ind=2),
        lambda x: linalg.tensorsolve(x.reshape(2, 2, 4), x[:, 0].reshape(2, 2)),
        lambda x: linalg.vander(x[0]),
        lambda x: torch.linalg.vecdot(x, x),
        lambda x: torch.trace(x),
        lambda x: torch.kron(x, x),
        lambda x: torch.outer(x[0], x[1]),
    ],
    ids=range(14),
)
def test_composites_end_in_ir_ops(fn: Callable[..., Any]) -> None:
    check(fn, square(), **CLOSE)


OPAQUE: dict[str, tuple[Callable[..., Any], str]] = {
    "aten.linalg_ldl_factor_ex.default": (lambda x: tuple(linalg.ldl_factor(x)), "LDL"),
    "aten.linalg_eig.default": (lambda x: linalg.eig(x).eigenvalues.abs().sum(), "symmetric"),
    "aten.linalg_matrix_exp.default": (linalg.matrix_exp, "data"),
}  # fmt: skip


@pytest.mark.parametrize("name", OPAQUE)
def test_op_without_ir_op_has_fallback_reason(name: str) -> None:
    fn, word = OPAQUE[name]
    x = square()
    assert word in fallbacks(fn, x)[name]
    check(fn, x, allow=list(OPAQUE), **CLOSE)


def test_true_ir_ops() -> None:
    def types(fn: Callable[..., Any]) -> set[str]:
        return {op.type for op in converted(fn, [square()])[0].ops}

    assert "MatrixInverse" in types(linalg.inv)
    assert "MatrixDeterminant" in types(linalg.det)
    assert "LogMatrixDeterminant" in types(linalg.slogdet)
    assert "Svd" in types(linalg.svdvals)
    assert "SelfAdjointEig" in types(linalg.eigvalsh)
    assert {"Lu", "OneHot"} <= types(lambda x: tuple(linalg.lu(x)))
    assert "MatrixSolve" in types(lambda x: linalg.solve(x, x))
    assert "Cross" in types(lambda x: linalg.cross(x[:, :3], x[:, 1:]))
