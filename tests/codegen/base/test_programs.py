"""What every kind of program promises: eager's numbers, FX's strides, writes in place, any size or thread."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from tests.codegen.tracing import Traced, allocated, trace
from tests.support.slow import slow
from torchair.backend.settings.settings import Settings
from torchair.codegen import CodegenOptions, build
from torchair.core.errors import BadOption
from torchair.core.program import Program
from torchair.core.torch_private.fake.fake_tensors import detect_fake_mode
from torchair.fxgraph.edit import copy_graph
from torchair.ops.numerics.self_returning import DIRECT
from torchair.passes import LOWERED_PASSES, PassContext, run
from torchair.passes.fx.inplace.recover_view_inplace import recover_view_inplace

aten = torch.ops.aten
QUICK = ("eager", "inductor")
ALL = (*QUICK, "native")


def layer(w: torch.Tensor, b: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return torch.relu(torch.addmm(b, x, w.t())) * 2 + 1


def make(kind: str, traced: Traced, **options: Any) -> Program:
    gm = traced.gm
    if kind == "eager":
        # Who runs ops as they stand in the graph is told what is written in place.
        context = PassContext(Settings.of({}).switches(kind), inputs=traced.inputs)
        gm = run(LOWERED_PASSES, copy_graph(gm), context)
    return build(kind, gm, traced.inputs, CodegenOptions(**options))


@pytest.mark.parametrize("kind", [*QUICK, slow("native")])
def test_numbers_views_and_symbols(kind: str) -> None:
    def fn(size: Any, w: torch.Tensor, b: torch.Tensor, x: torch.Tensor) -> list[Any]:
        y = layer(w, b, x)
        return [y, size, x.t(), w, torch.cat([y, y, y]).size(0), y]

    w, b = torch.randn(8, 4), torch.randn(8)
    traced = trace(fn, w, b, torch.randn(5, 4), dynamic=[2], size_first=True)
    before = traced.gm.code
    program = make(kind, traced, static=[1, 2])
    assert program.kind == kind
    assert program.source
    assert traced.gm.code == before, "the caller's graph is left alone"
    for batch in (5, 3, 17):
        x = torch.randn(batch, 4)
        args = [batch, w, b, x]
        y, size, transposed, weight, triple, again = program(args)
        torch.testing.assert_close(y, layer(w, b, x))
        torch.testing.assert_close(again, y)
        assert (size, triple) == (batch, 3 * batch)
        assert transposed.data_ptr() == x.data_ptr(), "a view of an input stays a view"
        assert weight.data_ptr() == w.data_ptr()


@pytest.mark.parametrize("kind", [*QUICK, slow("native")])
def test_a_cache_update_touches_only_its_rows(kind: str) -> None:
    def update(cache: torch.Tensor, rows: torch.Tensor, index: torch.Tensor) -> list[torch.Tensor]:
        updated = aten.index_put(cache, [index], rows)
        result = aten.index_select(updated, 0, index).sum(-1)
        aten.copy_(cache, updated)
        return [result]

    cache, rows, index = torch.zeros(4096, 64), torch.randn(2, 64), torch.tensor([7, 4000])
    program = make(kind, trace(update, cache, rows, index), static=[0])
    program([cache, rows, index])
    cache.zero_()
    results: list[Any] = []
    spent = allocated(lambda: results.extend(program([cache, rows, index])))
    torch.testing.assert_close(results[0], rows.sum(-1))
    torch.testing.assert_close(cache[index], rows)
    assert cache.count_nonzero() == rows.count_nonzero()
    assert spent < cache.nbytes / 100


@pytest.mark.parametrize("kind", QUICK)
def test_the_counter_sees_a_copy(kind: str) -> None:
    """The control of the test above: the old cache is needed after the update, so it must be copied."""

    def update(cache: torch.Tensor, rows: torch.Tensor, index: torch.Tensor) -> list[torch.Tensor]:
        return [aten.index_put(cache, [index], rows), aten.index_select(cache, 0, index).sum(-1)]

    cache, rows, index = torch.zeros(4096, 64), torch.randn(2, 64), torch.tensor([7, 4000])
    program = make(kind, trace(update, cache, rows, index))
    program([cache, rows, index])
    assert allocated(lambda: program([cache, rows, index])) >= cache.nbytes
    assert cache.count_nonzero() == 0


@pytest.mark.parametrize("kind", [*QUICK, slow("native")])
def test_output_strides_constants_and_writes_to_an_input(kind: str) -> None:
    table = torch.arange(12.0).view(3, 4)
    scale = torch.tensor(3.0)

    def fn(x: torch.Tensor, count: torch.Tensor) -> list[torch.Tensor]:
        moved = (x + 1).permute(0, 3, 1, 2).clone(memory_format=torch.channels_last)
        total = (moved.sum((2, 3)) @ table) * scale
        aten.copy_(count, count + 1)
        return [moved * 2, total.t()]

    x, count = torch.randn(2, 5, 6, 3), torch.zeros(())
    traced = trace(fn, x, count)
    expected = [v.clone(memory_format=torch.preserve_format) for v in fn(x, torch.zeros(()))]
    program = make(kind, traced, static=[1])
    for call in (1, 2):
        results = program([x, count])
        assert count == call
        for got, want in zip(results, expected, strict=True):
            torch.testing.assert_close(got, want)
            assert got.stride() == want.stride()


@pytest.mark.parametrize("kind", QUICK)
def test_program_accepts_empty_tensors(kind: str) -> None:
    w, b, x = torch.randn(8, 4), torch.randn(8), torch.randn(0, 4)
    program = make(kind, trace(lambda *a: [layer(*a), a[2] + 1], w, b, x))
    y, moved = program([w, b, x])
    assert y.shape == (0, 8)
    assert moved.shape == (0, 4)


@pytest.mark.parametrize("kind", ALL)
def test_program_is_right_in_many_threads(kind: str) -> None:
    w, b = torch.randn(8, 4), torch.randn(8)
    program = make(kind, trace(lambda *a: [layer(*a)], w, b, torch.randn(5, 4), dynamic=[2]), static=[0, 1])
    wrong: list[Any] = []

    def work(seed: int) -> None:
        random = torch.Generator().manual_seed(seed)
        own_w, own_b = torch.randn(8, 4, generator=random), torch.randn(8, generator=random)
        for step in range(50):
            x = torch.randn(2 + step % 7, 4, generator=random)
            weights = (own_w, own_b) if step % 5 == 0 else (w, b)
            if not torch.allclose(program([*weights, x])[0], layer(*weights, x), atol=1e-5):
                wrong.append((seed, step))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("kind", QUICK)
def test_parameters_with_gradients_run_without(kind: str) -> None:
    w, b = torch.randn(8, 4, requires_grad=True), torch.randn(8, requires_grad=True)
    x = torch.randn(5, 4)
    program = make(kind, trace(lambda *a: [layer(*a)], w.detach(), b.detach(), x))
    (y,) = program([w, b, x])
    assert not y.requires_grad
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("kind", QUICK)
def test_a_plain_aten_graph(kind: str) -> None:
    """Capture mode: nothing has been decomposed, and a pass may already have put writes in place."""

    def fn(x: torch.Tensor, cache: torch.Tensor) -> list[torch.Tensor]:
        cache[1:3].add_(x)
        return [torch.nn.functional.layer_norm(torch.nn.functional.silu(x), (4,)), cache.sum()]

    x, cache, other = torch.randn(2, 4), torch.zeros(6, 4), torch.zeros(6, 4)
    program = make(kind, trace(fn, x, cache, decompose=False), decomposed=False)
    results = program([x, cache])
    for got, want in zip(results, fn(x, other), strict=True):
        torch.testing.assert_close(got, want)
    torch.testing.assert_close(cache, other)


def test_a_second_inductor_build_comes_from_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    first, again = (trace(lambda x: [x.sin() + 41.5], torch.randn(5, 4), dynamic=[0]) for _ in range(2))
    make("inductor", first)
    monkeypatch.setattr("torch._inductor.compile_fx.fx_codegen_and_compile", None)
    (y,) = make("inductor", again)([torch.zeros(3, 4)])
    assert (y == 41.5).all()


def test_guarded_programs_check_no_sizes() -> None:
    traced = trace(lambda x: [x.sin() + 43.5], torch.randn(5, 4))
    assert "assert_size_stride(" in make("inductor", traced, guarded=False).source.split("def call")[1]
    assert "assert_size_stride(" not in make("inductor", traced).source.split("def call")[1]


def test_build_refuses_unknown_kind() -> None:
    with pytest.raises(BadOption, match="eager, inductor, native"):
        make("fortran", trace(lambda x: [x + 1], torch.ones(1)))


@pytest.mark.parametrize("kind", [*QUICK, slow("native")])
def test_constants_are_real_tensors(kind: str) -> None:
    """A kernel's table of numbers, read by index: nothing lifts it into the fake world first."""
    table = torch.randn(100, 7)
    traced = trace(lambda index: [aten.index(table, [index]).sum(-1)], torch.tensor([3, 99]))
    mode = detect_fake_mode(traced.inputs)
    assert mode is not None
    mode.allow_non_fake_inputs = False
    index = torch.tensor([5, 0])
    torch.testing.assert_close(make(kind, traced, cached=False)([index])[0], table[index].sum(-1))
    assert not mode.allow_non_fake_inputs


@pytest.mark.parametrize("kind", [*QUICK, slow("native")])
def test_rows_of_a_cache_are_written_through_a_view(kind: str) -> None:
    """By an operator that returns what it wrote into, which torch does not make functional."""

    def fn(cache: torch.Tensor, slots: torch.Tensor, rows: torch.Tensor) -> list[torch.Tensor]:
        written = torch.ops.npu.npu_scatter_nd_update(cache.view(-1, 64), slots, rows)
        cache.copy_(written.view(cache.shape))
        return [rows * 2]

    cache, slots, rows = torch.zeros(64, 16, 64), torch.tensor([[3], [700]]), torch.randn(2, 64)
    traced = trace(fn, cache, slots, rows)
    assert recover_view_inplace(traced.gm, PassContext()) == 1
    assert any(node.target in DIRECT for node in traced.gm.graph.nodes)
    program = make(kind, traced)
    (twice,) = program([cache, slots, rows])
    assert torch.equal(twice, rows * 2)
    assert torch.equal(cache.view(-1, 64)[[3, 700]], rows)
    assert cache.count_nonzero() == rows.count_nonzero()
    assert allocated(lambda: program([cache, slots, rows])) < cache.nbytes // 8
