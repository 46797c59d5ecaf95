"""Limits of cores on a GPU: kernels keep to so many SMs, inside of recorded graphs too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import torchair
from tests.support.compile import compile_fn, watching
from torchair.core.errors import DegradedWarning

pytestmark = pytest.mark.cuda

MODES = pytest.mark.parametrize("mode", ["max-autotune", "npugraph_ex"])
CODEGENS = pytest.mark.parametrize("codegen", ["eager", "inductor"])
scope, ops = torchair.scope, torchair.ops
triton = pytest.importorskip("triton", reason="kernels here are Triton's")
tl: Any = triton.language


def tell_sm(out):  # type: ignore[no-untyped-def]
    """A kernel whose blocks take long enough for all SMs to get some."""
    number = tl.inline_asm_elementwise("mov.u32 $0, %smid;", "=r", [], dtype=tl.int32, is_pure=False, pack=1)
    turn = 0
    while turn < 2000:
        turn += 1
        tl.debug_barrier()
    tl.store(out + tl.program_id(0), number)


@pytest.fixture(scope="module")
def used() -> Callable[[torch.Tensor], torch.Tensor]:
    """An op that tells on which SM each of 1024 blocks ran."""
    kernel = triton.jit(tell_sm)

    @torch.library.custom_op("scope_test::sms", mutates_args=())
    def sms(x: torch.Tensor) -> torch.Tensor:
        told = torch.empty(1024, dtype=torch.int32, device=x.device)
        kernel[(1024,)](told)
        return told

    sms.register_fake(lambda x: torch.empty(1024, dtype=torch.int32, device=x.device))
    return sms


# Streams of one priority are taken in turn from 32: one of another is nobody else's, nor a capture's.
SIDE = torch.cuda.Stream(priority=-1) if torch.cuda.is_available() else None
LIMITS: dict[str, Callable[[Any, torch.Tensor], tuple[Any, Any, Any]]] = {}


def limits(fn: Callable[[Any, torch.Tensor], tuple[Any, Any, Any]]) -> Callable[..., Any]:
    LIMITS[fn.__name__] = fn
    return fn


@limits
def block(sms: Any, x: torch.Tensor) -> tuple[Any, Any, Any]:
    with scope.limit_core_num(16, 16):
        inside = sms(x)
    return sms(x), inside, None


@limits
def on_a_label(sms: Any, x: torch.Tensor) -> tuple[Any, Any, Any]:
    with scope.npu_stream_switch("side"):
        before = sms(x)
        with scope.limit_core_num(16, 16):
            inside = sms(x)
        done = ops.record()
    ops.wait([done])
    return before, inside, None


@limits
def beside_each_other(sms: Any, x: torch.Tensor) -> tuple[Any, Any, Any]:
    with scope.npu_stream_switch("left"), scope.limit_core_num(16, 16):
        left = sms(x)
    with scope.npu_stream_switch("right"), scope.limit_core_num(16, 16):
        right = sms(x)
        done = ops.record()
    ops.wait([done])
    return None, left, right


@limits
def of_a_stream(sms: Any, x: torch.Tensor) -> tuple[Any, Any, Any]:
    SIDE.wait_stream(torch.cuda.current_stream())
    with torchair.npugraph_ex.scope.limit_core_num(16, 16, stream=SIDE):
        outside = sms(x)
        with torch.cuda.stream(SIDE):
            inside = sms(x)
            torch.cuda.current_stream().wait_stream(SIDE)
    torch.cuda.current_stream().wait_stream(SIDE)
    return outside, inside, None


@pytest.mark.filterwarnings("ignore:scope_test.sms.default has no converter")  # it computes nothing
@MODES
@CODEGENS
@pytest.mark.parametrize("name", LIMITS)
def test_cores_are_limited(name: str, mode: str, codegen: str, used: Any) -> None:
    """In a replay, too."""
    fn, x = LIMITS[name], torch.randn(64, device="cuda")
    # In the IR an op has a limit, a stream has none: all of the block is limited.
    outside = {16} if name == "of_a_stream" and mode == "max-autotune" else range(65, 1000)
    torch.compiler.reset()
    with watching() as seen, torch.no_grad():
        run = compile_fn(lambda x: fn(used, x), {"engine_config.codegen": codegen}, mode)
        for _ in range(4):
            plain, inside, other = run(x)
            torch.cuda.synchronize()
            assert len(inside.unique()) == 16
            assert plain is None or len(plain.unique()) in outside
            assert other is None or not set(other.tolist()) & set(inside.tolist()), "parts of their own"
    assert sum(row.replays for row in seen.runner.report().recordings) > 0


def test_cores_are_limited_outside_of_graphs(used: Any) -> None:
    x = torch.randn(64, device="cuda")
    with torchair.npugraph_ex.scope.limit_core_num(16, 16):
        inside = used(x)
        with torchair.npugraph_ex.scope.limit_core_num(32, 32):
            wider = used(x)
    assert len(inside.unique()) == 16
    assert len(wider.unique()) == 32
    assert len(used(x).unique()) > 64
    with pytest.warns(DegradedWarning, match="on a CUDA stream that is not the current one"):
        torchair.npugraph_ex.scope.limit_core_num(16, 16, stream=torch.cuda.Stream())


def test_results_after_core_limit_equal_eager() -> None:
    """The streams behind it are ordered, and their memory is not given away too early."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        for _ in range(8):
            with scope.limit_core_num(8, 8):
                y = (x @ x).tanh()
            z = x.exp().sum() + y
            with scope.limit_core_num(8, 8):
                x = torch.tanh(z @ y)
        return x

    for mode in ("npugraph_ex", "max-autotune"):
        torch.compiler.reset()
        run = compile_fn(fn, {}, mode)
        with torch.no_grad():
            for _ in range(10):
                x = torch.randn(512, 512, device="cuda", dtype=torch.float64) / 32
                torch.testing.assert_close(run(x), fn(x))
