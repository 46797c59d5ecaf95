"""What is printed: the text itself, and that it is printed once per run, in order, wherever a graph runs."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

import torchair
from tests.support.compile import compile_fn
from tests.support.slow import slow
from torchair.capture.base.host_ops import host_op_reasons
from torchair.codegen.base.graph_prep import prepare
from torchair.ops import npu_print
from torchair.ops.io.print_tensor import ALL, free_placeholder, message, number_text, tensor_text
from torchair.ops.streams.ordered_call import take_turns

MODES = ("max-autotune", "npugraph_ex")
WAYS = [
    *((mode, "eager") for mode in MODES),
    slow("max-autotune", "reference"),
    *(slow(mode, kind) for mode in MODES for kind in ("inductor", "native", "auto")),
]


# The text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3, "3"), (True, "True"), (1.0, "1"), (-0.0, "-0"), (0.5, "0.5"), (1 / 3, "0.333333333"),
        (1e10, "10000000000"), (1e30, "1e+30"), (1.5e-7, "1.5e-07"), (2**62, str(2**62)),
        (math.nan, "nan"), (math.inf, "inf"), (-math.inf, "-inf"),
    ],
)  # fmt: skip
def test_number_text_matches_eager_printing(value: float, text: str) -> None:
    assert number_text(value) == text


@pytest.mark.parametrize(
    ("tensor", "size", "text"),
    [
        (torch.tensor(7), 3, "7"),
        (torch.tensor(0.1), 3, "0.100000001"),
        (torch.tensor(0.1, dtype=torch.float64), 3, "0.1"),
        (torch.tensor(1 / 3).bfloat16(), 3, "0.333984375"),
        (torch.tensor([1.5, -2.0]).half(), 3, "[1.5 -2]"),
        (torch.tensor([True, False]), 3, "[True False]"),
        (torch.tensor([255, 0], dtype=torch.uint8), 3, "[255 0]"),
        (torch.tensor([2**62 + 1]), 3, f"[{2**62 + 1}]"),
        (torch.tensor([[1, 2], [3, 4]]), 3, "[[1 2]\n [3 4]]"),
        (torch.arange(8).reshape(2, 2, 2), 3, "[[[0 1]\n [2 3]]\n [[4 5]\n [6 7]]]"),
        (torch.arange(6), 3, "[0 1 2 3 4 5]"),
        (torch.arange(7), 3, "[0 1 2 ... 4 5 6]"),
        (torch.arange(7), ALL, "[0 1 2 3 4 5 6]"),
        (torch.arange(12).reshape(3, 4), 1, "[[0 ... 3]\n ...\n [8 ... 11]]"),
        (torch.arange(12).reshape(4, 3).T, 1, "[[0 ... 9]\n ...\n [2 ... 11]]"),
        (torch.empty(0), 3, "[]"),
        (torch.empty(2, 0), 3, "[[]\n []]"),
        (torch.ones(2, 2).to(torch.float8_e4m3fn), 3, "[[1 1]\n [1 1]]"),
    ],
)
def test_tensor_text_is_abbreviated(tensor: torch.Tensor, size: int, text: str) -> None:
    assert tensor_text(tensor, size) == text


def test_detail_and_message() -> None:
    x = torch.ones(2, 1).bfloat16()
    assert (
        message([x], [(2, 1)], "a <> b", "<>", 3, True)
        == "a tensor([[1]\n [1]], shape=[2, 1], dtype=torch.bfloat16) b"
    )
    with pytest.raises(ValueError, match="2 tensors"):
        message([x, x], [(2, 1)] * 2, "only {}", "{}", 3, False)


def test_placeholder_is_in_no_text() -> None:
    assert free_placeholder(["a", "b"]) == "{}"
    assert free_placeholder(["a {} {_}"]) == "{__}"


# Eager


def test_eager_call_prints_at_once_and_flushes(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    class Stream:
        def write(self, text: str) -> None:
            told.append(text)

        def flush(self) -> None:
            told.append("flushed")

    monkeypatch.setattr(sys, "stdout", Stream())
    npu_print("x {}", torch.tensor([1, 2]), 3, True, 0.5, "{x}")
    assert "".join(told) == "x {} [1 2] 3 True 0.5 {x}\nflushed"


@pytest.mark.parametrize(
    ("args", "options", "error"),
    [
        ((), {}, ValueError),
        (("text", 1), {}, ValueError),
        ((torch.ones(1), None), {}, TypeError),
        ((torch.ones(1), [1]), {}, TypeError),
        ((torch.ones(1),), {"summarize_size": 1.0}, TypeError),
        ((torch.ones(1),), {"summarize_size": True}, TypeError),
        ((torch.ones(1),), {"summarize_size": 0}, ValueError),
        ((torch.ones(1),), {"summarize_size": -2}, ValueError),
        ((torch.ones(1),), {"tensor_detail": 1}, TypeError),
        ((torch.ones(1, dtype=torch.complex64),), {}, TypeError),
    ],
)
def test_what_cannot_be_printed_is_refused(args: Any, options: Any, error: Any) -> None:
    with pytest.raises(error):
        npu_print(*args, **options)


# In graphs


@pytest.mark.parametrize(("mode", "codegen"), WAYS)
def test_every_run_prints_its_own_values_in_order(mode: str, codegen: str, capsys: Any) -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        npu_print("x", x, tensor_detail=True)
        npu_print("y", y)
        npu_print("y", y)
        y.add_(x)
        npu_print("y now", y)
        dead = x * 100
        npu_print("dead", dead)
        return x + 1

    run, y = compile_fn(fn, mode=mode, codegen=codegen, fullgraph=True, dynamic=False), torch.zeros(2)
    capsys.readouterr()
    for step in range(1, 5):
        before = y.clone()
        torch.testing.assert_close(run(torch.full((2,), float(step)), y), torch.full((2,), step + 1.0))
        (old,), (new,) = {int(v) for v in before}, {int(v) for v in y}
        assert capsys.readouterr().out.splitlines() == [
            f"x tensor([{step} {step}], shape=[2], dtype=torch.float32)",
            f"y [{old} {old}]",
            f"y [{old} {old}]",
            f"y now [{new} {new}]",
            f"dead [{step}00 {step}00]",
        ]


@pytest.mark.parametrize(("mode", "codegen"), WAYS)
def test_sizes_that_differ(mode: str, codegen: str, capsys: Any) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        npu_print("n", x.shape[0], x, "k", 7, summarize_size=1, tensor_detail=True)
        return x * 2

    run = compile_fn(fn, mode=mode, codegen=codegen, fullgraph=True, dynamic=True)
    capsys.readouterr()
    for n in (2, 3, 5):
        run(torch.arange(float(n)))
        text = "[0 1]" if n == 2 else f"[0 ... {n - 1}]"
        assert capsys.readouterr().out == f"n {n} tensor({text}, shape=[{n}], dtype=torch.float32) k 7\n"


@pytest.mark.parametrize(("mode", "codegen"), WAYS)
def test_forward_and_backward_print_once_each(mode: str, codegen: str, capsys: Any) -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            npu_print("grad", grad)
            return grad * 2

    def fn(x: torch.Tensor) -> torch.Tensor:
        y = Double.apply(x) ** 2
        npu_print("y", y)
        npu_print("y", y)
        return y.sum()

    run = compile_fn(fn, mode=mode, codegen=codegen, fullgraph=True)
    x = torch.full((2,), 3.0, requires_grad=True)
    capsys.readouterr()
    for _ in range(2):
        loss = run(x)
        assert capsys.readouterr().out == "y [9 9]\ny [9 9]\n"
        loss.backward()
        assert capsys.readouterr().out == "grad [6 6]\n"
    assert x.grad is not None
    assert x.grad.tolist() == [24.0, 24.0]


@pytest.mark.parametrize("mode", MODES)
def test_checkpoint_around_a_print(mode: str, capsys: Any, monkeypatch: Any) -> None:
    """It would print twice if it were computed again."""
    monkeypatch.delenv("TORCHAIR_STRICT", raising=False)

    def part(x: torch.Tensor) -> torch.Tensor:
        h = x * 2
        npu_print("checkpointed", mode, h)
        return h.cos()

    run = compile_fn(lambda x: checkpoint(part, x, use_reentrant=False).sum(), mode=mode, fullgraph=True)
    x = torch.zeros(1)
    capsys.readouterr()
    with pytest.warns(torchair.DegradedWarning, match=r"not recomputed.*test_print_tensor\.py"):
        run(x.requires_grad_()).backward()
    assert capsys.readouterr().out == f"checkpointed {mode} [0]\n"


def test_compilers_are_given_an_order(capsys: Any) -> None:
    """A write into one tensor each: neither Inductor nor AOTInductor may change it."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        torch.ops.air.print([x, x], "{} is {}", "{}", 3, False)
        torch.ops.npu.print_npugraph_tensor(x, tensor_name="x")
        return x + 1

    gm = make_fx(fn, tracing_mode="fake")(torch.ones(1))
    inputs = [node.meta["val"] for node in gm.graph.find_nodes(op="placeholder")]
    prepared = prepare(gm, inputs, decomposed=True)
    assert len(prepared.graph.find_nodes(op="call_function", target=torch.ops.torchair.in_turn.default)) == 2
    assert take_turns(gm.graph) == 2
    gm.recompile()
    first, second = (node for node in gm.graph.nodes if node.target is torch.ops.torchair.in_turn.default)
    assert first.args[0] is second.args[0]
    assert not gm.graph.find_nodes(op="call_function", target=torch.ops.air.print.default)
    capsys.readouterr()
    gm(torch.full((1,), 2.0))
    assert capsys.readouterr().out == "[2] is [2]\nx=tensor([2], shape=[1], dtype=torch.float32)\n"


def test_devices_whose_graphs_cannot_call_the_host_record_around_a_print() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        npu_print(x * 2)
        return x + 1

    gm = make_fx(fn)(torch.ones(2, device="meta"))
    assert {str(node.target): why for node, why in host_op_reasons(gm).items()} == {
        "air.print.default": "runs on the CPU"
    }


def test_print_by_name(capsys: Any) -> None:
    large = torch.zeros(1001)
    torch.ops.npu.print_npugraph_tensor(large)
    torch.ops.npu.print_npugraph_tensor(torch.arange(9), tensor_name="{}")
    assert capsys.readouterr().out.splitlines() == [
        "tensor([0 0 0 ... 0 0 0], shape=[1001], dtype=torch.float32)",
        "{}=tensor([0 1 2 3 4 5 6 7 8], shape=[9], dtype=torch.int64)",
    ]


def test_equal_calls_print_each_their_own(capsys: Any) -> None:
    """The second is lowered as the first was, which has no value."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            x = x + 1
            torch.ops.npu.print_npugraph_tensor(x)
        return x

    compile_fn(fn, fullgraph=True)(torch.zeros(1))
    assert [line.split(",")[0] for line in capsys.readouterr().out.splitlines()] == [
        "tensor([1]",
        "tensor([2]",
    ]


# Files


class Printing(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        npu_print("x {}", x.bfloat16(), tensor_detail=True)
        y.add_(1)
        npu_print("y", y)
        return x + 1


@pytest.mark.parametrize("dynamic", [False, True])
def test_exported_graph_prints(dynamic: bool, tmp_path: Path, capsys: Any) -> None:
    given = torch.zeros(2), torch.zeros(2)
    torchair.dynamo_export(*given, model=Printing(), export_path=str(tmp_path), dynamic=dynamic)
    config = torchair.CompilerConfig()
    config.engine_config.codegen = "eager"
    loaded = torchair.load_air(next(tmp_path.glob("*.air")), config=config)
    assert capsys.readouterr().out == "", "nothing runs yet"
    for n in (2, 3) if dynamic else (2,):
        loaded(torch.full((n,), 0.5), torch.zeros(n))
        halves, ones = " ".join(["0.5"] * n), " ".join("1" * n)
        want = f"x {{}} tensor([{halves}], shape=[{n}], dtype=torch.bfloat16)\ny [{ones}]\n"
        assert capsys.readouterr().out == want


# On a GPU


@pytest.mark.cuda
@pytest.mark.parametrize("codegen", ["eager", "inductor"])
@pytest.mark.parametrize("mode", MODES)
def test_every_replay_prints_without_a_split(mode: str, codegen: str, capsys: Any) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        h = x.sin() * 0 + x
        npu_print("h", h, tensor_detail=True)
        h = h + 1
        npu_print("h", h)
        return h * 2

    run = compile_fn(fn, mode=mode, codegen=codegen, fullgraph=True)
    capsys.readouterr()
    for step in range(300):
        assert run(torch.full((2,), float(step), device="cuda")).tolist() == [2.0 * (step + 1)] * 2
        torch.cuda.synchronize()
        assert capsys.readouterr().out.splitlines() == [
            f"h tensor([{step} {step}], shape=[2], dtype=torch.float32)",
            f"h [{step + 1} {step + 1}]",
        ]


@pytest.mark.cuda
def test_replays_may_run_ahead_of_what_they_print(capsys: Any) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        npu_print(x)
        return x + 1

    run, x, steps = compile_fn(fn, mode="npugraph_ex", fullgraph=True), torch.zeros(1, device="cuda"), 5000
    capsys.readouterr()
    for _ in range(steps):
        x = run(x)
    torch.cuda.synchronize()
    assert capsys.readouterr().out.splitlines() == [f"[{step}]" for step in range(steps)]


@pytest.mark.cuda
def test_graph_by_hand_prints_on_a_gpu(capsys: Any) -> None:
    x, graph = torch.zeros(2, 3, device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        npu_print("x", x.T, x.bfloat16(), torch.empty(0, device="cuda"))
    torch.cuda.synchronize()
    assert capsys.readouterr().out == ""
    for step in range(3):
        x.fill_(step)
        graph.replay()
    torch.cuda.synchronize()
    want = [f"x [[{s} {s}]\n [{s} {s}]\n [{s} {s}]] [[{s} {s} {s}]\n [{s} {s} {s}]] []\n" for s in range(3)]
    assert capsys.readouterr().out == "".join(want)
