"""Layouts: what a graph promises of its results, values that are given a layout, and programs held to it."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from torch import fx, nn
from torch._dynamo.backends.common import aot_autograd

import torchair
from tests.models.sweep import backend
from tests.support.memory import strides
from tests.support.slow import slow
from tests.support.training import backward_through_the_ir
from torchair.backend.pipeline.compile import compile_fx
from torchair.backend.settings.settings import Settings
from torchair.capture.base.inputs import KeyPart
from torchair.capture.base.layout_enforcer import LayoutEnforcer
from torchair.configs.compiler_config import CompilerConfig
from torchair.core.errors import DegradedWarning
from torchair.core.log import logger
from torchair.core.native.memory_overlap import overlap_safe_writes
from torchair.core.torch_private.compilers.inductor import rebases_windows
from torchair.core.torch_private.fake.fake_tensors import make_fx
from torchair.fxgraph.layout import layout_of, layouts_of, lies, materialize_layout
from torchair.fxgraph.layout_check import OutputLayouts
from torchair.fxgraph.symbols import Binding

BASE = torch.arange(60.0)
# Views of memory that begins at 0: dense, permuted, with gaps, overlapping, expanded, empty, unit dims.
VIEWS: dict[str, torch.Tensor] = {
    "dense": BASE.as_strided((3, 4), (4, 1)),
    "permuted": BASE.as_strided((3, 4), (1, 3)),
    "gaps": BASE.as_strided((3, 4), (10, 2)),
    "overlapping": BASE.as_strided((3, 4), (2, 1)),
    "windows": BASE.unfold(0, 3, 1)[:5],
    "expanded": BASE[:3].unsqueeze(1).expand(3, 4),
    "empty": BASE.as_strided((0, 4), (7, 1)),
    "unit": BASE.as_strided((1, 4), (9, 1)),
    "scalar": BASE[0],
}


# The reference engine runs the IR, which capture mode does not have.
WAYS = [
    ("max-autotune", "reference"),
    ("max-autotune", "eager"),
    ("max-autotune", "inductor"),
    ("npugraph_ex", "eager"),
    ("npugraph_ex", "inductor"),
]


@pytest.mark.parametrize("name", VIEWS)
def test_a_value_gets_any_layout(name: str) -> None:
    promised = VIEWS[name]
    value = promised.clone(memory_format=torch.contiguous_format)
    (made,) = materialize_layout([value], [layout_of(promised)])
    assert made.tolist() == promised.tolist()
    # Strides that no element tells are left to the runner.
    assert lies(made, layout_of(promised), int, loosely=True)
    assert made.stride() == promised.stride() or name in ("empty", "unit")


def test_what_lies_right_stays_where_it_is() -> None:
    x = torch.randn(3, 4).t()
    assert materialize_layout([x], [layout_of(torch.empty(3, 4).t())])[0] is x


@pytest.mark.parametrize(
    "views",
    [
        [BASE[:12].view(3, 4), BASE[4:8], BASE[:12].view(3, 4).t()],
        [BASE[2:8], BASE[:4]],
        [BASE[::3], BASE[1::3]],
        [BASE[:10].unfold(0, 4, 2), BASE[3:5]],
    ],
    ids=["one covers all", "none covers all", "woven", "windows"],
)
def test_values_of_one_storage_share_it_again(views: list[torch.Tensor]) -> None:
    values = [view.clone(memory_format=torch.contiguous_format) for view in views]
    made = materialize_layout(values, [layout_of(view) for view in views])
    assert [t.tolist() for t in made] == [t.tolist() for t in views]
    assert [t.stride() for t in made] == [t.stride() for t in views]
    assert len({t.untyped_storage().data_ptr() for t in made}) == 1
    starts = {got.data_ptr() - want.data_ptr() for got, want in zip(made, views, strict=True)}
    assert len(starts) == 1


def promises(fn: Callable[..., Any], *args: Any) -> Any:
    return layouts_of(make_fx(fn, tracing_mode="fake")(*args))


def test_an_alias_is_a_view_of_the_input_it_is_made_from() -> None:
    buffer = torch.arange(12.0)

    def fn(a: torch.Tensor, b: torch.Tensor) -> list[Any]:
        return [b[1:], a, a.split(2)[1], (a + b)[1:], 3, b.view(torch.int32)]

    first, same, part, owned, number, bits = promises(fn, buffer[:4], buffer[4:8])
    assert (first.base, same.base, part.base, owned.base, bits.base) == (1, 0, 0, None, 1)
    assert number is None
    assert same.steps == ()
    x = torch.randn(9)[3:7]
    assert first.view(x, int).data_ptr() == x[1:].data_ptr()
    assert part.view(x, int).data_ptr() == x[2:].data_ptr()
    assert bits.view(x, int).dtype == torch.int32


def test_strides_that_new_memory_cannot_have_are_no_promise() -> None:
    """As torch 2.11 with MKL tells them of FFTs over several dims."""
    gm = make_fx(lambda x: x * 2)(torch.ones(2, 4))
    (maker,) = gm.graph.find_nodes(op="call_function", target=torch.ops.aten.mul.Tensor)
    maker.meta["val"] = torch.empty_strided((2, 4), (2, 1), device="meta")
    (layout,) = layouts_of(gm)
    assert layout is not None
    value = torch.arange(8.0).view(2, 4)
    assert materialize_layout([value], [layout])[0].tolist() == value.tolist()


def test_who_asks_for_elements_on_each_other_gets_them() -> None:
    gm = make_fx(lambda x: x.new_empty_strided((2, 4), (2, 1)))(torch.ones(1))
    (layout,) = layouts_of(gm)
    assert layout is not None
    assert (layout.strides, layout.is_example) == ((2, 1), False)


def test_outputs_that_share_memory_have_one_storage() -> None:
    def fn(x: torch.Tensor) -> list[Any]:
        y, z = x + 1, x + 2
        return [y, y[1:], z, y]

    layouts = promises(fn, torch.randn(4))
    assert [layout.storage for layout in layouts] == [0, 0, 1, 0]


class Body:
    """A program that is a function."""

    kind, source = "body", ""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn

    def __call__(self, args: list[Any]) -> list[Any]:
        results = self.fn(*args)
        args.clear()
        return results


def wrongly(promised: Callable[..., Any], done: Callable[..., Any], *args: torch.Tensor) -> list[Any]:
    """The results of a program that does something else than its graph promised, three calls alike."""
    logger.forget()
    gm = make_fx(promised, tracing_mode="fake")(*args)
    fakes = tuple(node.meta["val"] for node in gm.graph.find_nodes(op="placeholder"))
    held = LayoutEnforcer(Body(done), OutputLayouts(layouts_of(gm), Binding(fakes)))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        results = [held(list(args)) for _ in range(3)]
    assert {warning.category for warning in said} == {DegradedWarning}
    for result in results:
        want = promised(*args)
        for got, wanted in zip(result, want, strict=True):
            assert got.tolist() == wanted.tolist()
            assert got.stride() == wanted.stride()
    return results


def storages(tensors: list[torch.Tensor]) -> list[int]:
    return [t.untyped_storage().data_ptr() for t in tensors]


@pytest.mark.parametrize("every_call", [True, False])
def test_wrong_layouts_are_found_and_fixed(every_call: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchair.capture.base.layout_enforcer.EVERY_CALL", every_call)
    x = torch.arange(12.0).view(3, 4)
    # Strides.
    wrongly(lambda x: [(x * 2).t()], lambda x: [(x * 2).t().contiguous()], x)
    wrongly(lambda x: [(x * 2).unfold(1, 2, 1)], lambda x: [(x * 2).unfold(1, 2, 1).contiguous()], x)
    # An alias that is none, one of something else, and a result that must be none.
    for result in wrongly(lambda x: [x[1]], lambda x: [x[1].clone()], x):
        assert result[0].data_ptr() == x[1].data_ptr()
    for result in wrongly(lambda x, y: [y[1]], lambda x, y: [x[1]], x, x.clone()):
        assert storages(result) != storages([x])
    for result in wrongly(lambda x: [x.clone()], lambda x: [x], x):
        assert storages(result) != storages([x])
    # Results that share memory, and others that do not.
    for result in wrongly(lambda x: (lambda y: [y, y[1:]])(x + 1), lambda x: [x + 1, (x + 1)[1:].clone()], x):
        assert len(set(storages(result))) == 1
    for result in wrongly(lambda x: [x + 1, x + 1], lambda x: [x + 1] * 2, x):
        assert len(set(storages(result))) == 2


def test_unit_dims_cost_no_copy_and_no_warning() -> None:
    """Nobody can tell them apart but `stride()`."""
    gm = make_fx(lambda x: [x.sin().as_strided((1, 4), (9, 1), 0)])(torch.randn(1, 4))
    memory = torch.randn(1, 4)
    fakes = tuple(node.meta["val"] for node in gm.graph.find_nodes(op="placeholder"))
    held = LayoutEnforcer(Body(lambda x: [memory]), OutputLayouts(layouts_of(gm), Binding(fakes)))
    for _ in range(2):
        (result,) = held([torch.randn(1, 4)])
        assert result.stride() == (9, 1)
        assert result.data_ptr() == memory.data_ptr()


# Programs that were wrong or fatal once.


def gradients(fn: Callable[..., Any], x: torch.Tensor) -> torch.Tensor:
    (made,) = torch.autograd.grad(fn(x), x)
    return made


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("codegen", ["reference", "eager", slow("auto")])
@pytest.mark.parametrize(
    "fn",
    [
        lambda x: (x * 2).unfold(1, 2, 1).cos().sum(),
        lambda x: (x + 1).unfold(0, 2, 1).sin().sum(),
        lambda x: (x + 1).expand(2, *x.shape).sin().sum(),
        lambda x: (x * 3)[:, 1::2].cos().sum(),
    ],
    ids=["unfold 1", "unfold 0", "expand", "gaps"],
)
def test_saved_tensors_keep_their_layout(fn: Callable[..., Any], codegen: str, dynamic: bool) -> None:
    x = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    compiled = torch.compile(fn, backend=backend("max-autotune", codegen), dynamic=dynamic)
    torch.testing.assert_close(gradients(compiled, x), gradients(fn, x))


@pytest.mark.parametrize(("mode", "codegen"), WAYS)
def test_a_view_of_an_input_is_a_view_of_the_input_of_the_call(mode: str, codegen: str) -> None:
    config = CompilerConfig()
    config.mode, config.engine_config.codegen = mode, codegen
    buffer = torch.arange(16.0)
    run = torchair.get_compiler(config)(make_fx(lambda x: [x[1:3], x + 1])(buffer[4:8]), [buffer[4:8]])
    for x in (buffer[4:8], buffer[8:12], buffer[:4].clone()):
        view, made = run(x)
        assert view.data_ptr() == x[1:].data_ptr()
        assert view.tolist() == x[1:3].tolist()
        assert made.tolist() == (x + 1).tolist()


@pytest.mark.parametrize("codegen", ["reference", "eager", "inductor"])
def test_a_view_of_the_second_of_two_inputs_on_one_storage(codegen: str) -> None:
    def fn(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return b[1:], a * 2

    buffer = torch.arange(16.0)
    run = torch.compile(fn, backend=backend("max-autotune", codegen))
    for a, b in ((buffer[:4], buffer[8:12]), (buffer[:4], torch.arange(4.0)), (buffer[4:8], buffer[:4])):
        view, _ = run(a, b)
        assert (view.data_ptr(), view.tolist()) == (b[1:].data_ptr(), b[1:].tolist())


@pytest.mark.parametrize(("mode", "codegen"), WAYS)
def test_as_strided_counts_from_the_start_of_the_storage(mode: str, codegen: str) -> None:
    """Dynamo guards no offsets: a second call may begin elsewhere. Where that takes another program, it is
    said.
    """

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.as_strided((2,), (1,), 5).square(), x[1:].as_strided((2,), (2,), 0) + 1

    buffer = torch.arange(16.0)
    run = torch.compile(fn, backend=backend(mode, codegen), dynamic=False)
    if codegen == "inductor" and not rebases_windows():
        # This Inductor counts windows from the first element of an input, and so has none before it.
        with pytest.warns(DegradedWarning, match="inductor could not compile"):
            run(buffer[4:8])
    # A window is taken of memory, which the IR has not.
    told_once = pytest.warns(DegradedWarning, match="as_strided.*carried through")
    with told_once if mode == "max-autotune" else contextlib.nullcontext():
        assert [t.tolist() for t in run(buffer[4:8])] == [t.tolist() for t in fn(buffer[4:8])]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", DegradedWarning)
        for x in (buffer[8:12], buffer[:4], torch.arange(30.0)[20:24], buffer[4:8]):
            assert [t.tolist() for t in run(x)] == [t.tolist() for t in fn(x)]
    told = ["begins at 8" in str(warning.message) for warning in said]
    assert told == ([] if (mode, codegen) == ("npugraph_ex", "eager") else [True])


class Convolutions(nn.Module):
    """Three equal layers: the backward of a layer without bias has a result that is None."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(3, 3, 3, padding=1, bias=False) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).relu()
        return x.sum()


def test_repeated_ops_of_which_a_result_is_none(device: torch.device) -> None:
    model, x = Convolutions().to(device), torch.randn(2, 3, 6, 6, device=device)
    model(x).backward()
    wanted = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    with backward_through_the_ir():
        torch.compile(model, backend=backend("max-autotune", "eager"))(x).backward()
    torch.testing.assert_close([p.grad for p in model.parameters()], wanted)


@pytest.mark.cuda
def test_masked_attention_of_grouped_heads_in_bfloat16() -> None:
    """The fused attention of a GPU has results that are None or numbers; layers repeat."""

    def fn(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            key = x[:, :2]
            x = nn.functional.scaled_dot_product_attention(x, key, key, mask, enable_gqa=True)
        return x

    x = torch.randn(2, 4, 16, 64, device="cuda", dtype=torch.bfloat16)
    mask = torch.ones(16, 16, dtype=torch.bool, device="cuda").tril()
    for codegen in ("eager", "auto"):
        torch.compiler.reset()
        got = torch.compile(fn, backend=backend("max-autotune", codegen))(x, mask)
        torch.testing.assert_close(got, fn(x, mask), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("mode", ["max-autotune", "npugraph_ex"])
@pytest.mark.parametrize("codegen", ["eager", "inductor"])
def test_nothing_is_read_from_an_empty_source(device: torch.device, codegen: str, mode: str) -> None:
    def fn(x: torch.Tensor, mask: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = x.clone()
        x[mask] = values
        return x, x.masked_scatter(mask.unsqueeze(-1), values)

    x, mask = torch.randn(2, 8, 4, device=device), torch.zeros(2, 8, dtype=torch.bool, device=device)
    values = torch.empty(0, 4, device=device)
    got = torch.compile(fn, backend=backend(mode, codegen), dynamic=False)(x, mask, values)
    torch.testing.assert_close(got, fn(x, mask, values))


@pytest.mark.parametrize(("mode", "codegen"), [way for way in WAYS if way[1] != "inductor"])
@pytest.mark.parametrize(
    "fn",
    [
        lambda x: (x[1:].add_(1), x[1:, :2])[1],
        lambda x: (x.flatten()[:].sub_(3), x.flatten()[2:])[1],
        lambda x: (x.narrow(0, 1, x.size(0) - 1).mul_(2), x.select(1, 1))[1],
    ],
    ids=["slice", "flatten", "select"],
)
def test_views_of_written_inputs_cost_nothing(fn: Callable[..., Any], mode: str, codegen: str) -> None:
    """AOTAutograd asks only where they lie; they are views of the input of the call, at any offset."""
    run = torch.compile(fn, backend=backend(mode, codegen), dynamic=True)
    for first in (7, 5, 7):
        x, y = (torch.arange(40.0).as_strided((3, 4), (4, 1), first) for _ in range(2))
        got, want = run(x), fn(y)
        assert got.tolist() == want.tolist()
        assert (got.stride(), got.storage_offset()) == (want.stride(), want.storage_offset())
        assert got.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


def test_a_copy_made_before_a_write_keeps_what_was_there() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        kept = x.contiguous()
        y.copy_(x)
        x[1:] = 0
        return kept.flatten()

    for codegen in ("reference", "eager"):
        torch.compiler.reset()
        given, wanted = (
            [torch.arange(60.0).as_strided((2, 2), (1, 10)), torch.zeros(2, 2)] for _ in range(2)
        )
        got = torch.compile(fn, backend=backend("max-autotune", codegen))(*given)
        assert got.tolist() == fn(*wanted).tolist()
        assert [t.tolist() for t in given] == [t.tolist() for t in wanted]


def test_results_whose_size_the_data_decides_are_not_cut() -> None:
    """What was learnt from one call of a key does not hold for the next."""
    calls = [torch.ones(3, 4), torch.eye(3, 4), torch.ones(3, 4)]
    for mode in ("max-autotune", "npugraph_ex"):
        torch.compiler.reset()
        run = torch.compile(lambda x: torch.unique(x, dim=1), backend=backend(mode, "eager"), dynamic=False)
        with (
            torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True),
            warnings.catch_warnings(),
        ):
            # Fake tensors tell other strides of `unique` than it has.
            warnings.simplefilter("ignore", DegradedWarning)
            assert [run(x).shape[1] for x in calls] == [1, 4, 1]


def no_warning() -> Any:
    return warnings.catch_warnings(action="error", category=DegradedWarning)


@pytest.mark.parametrize("codegen", ["reference", "eager"])
def test_conjugated_results_look_at_the_memory_of_others(codegen: str) -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        v = x * 1
        return (
            v.conj(),
            v,
            v.conj()[1:].conj(),
            v[1:].conj().flip(0),
            (x * 2).conj().as_strided((3,), (1,), 0),
        )

    x = torch.complex(torch.arange(4.0), torch.arange(4.0))
    for mode in ("max-autotune", "npugraph_ex"):
        torch.compiler.reset()
        run = torch.compile(fn, backend=backend(mode, "eager" if mode == "npugraph_ex" else codegen))
        without_ir = mode == "max-autotune" and codegen == "reference"
        for first in (True, False):
            # Marks have no IR: that the reference engine does not run is told once, and nothing else.
            with pytest.warns(DegradedWarning, match="no IR") if first and without_ir else no_warning():
                got = run(x)
            want = fn(x)
            assert [t.tolist() for t in got] == [t.tolist() for t in want]
            assert [t.is_conj() for t in got] == [t.is_conj() for t in want]
            assert len(set(storages(list(got[:3])))) == 1


@pytest.mark.parametrize(("mode", "codegen"), WAYS)
def test_marks_of_arguments_are_read(mode: str, codegen: str) -> None:
    """Also of tensors saved for backward, and by code that reads memory."""

    def loss(x: torch.Tensor) -> torch.Tensor:
        part = (x * 1j).conj().imag
        return (part * part).sum()

    def write(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * 2

    warnings.filterwarnings("ignore", ".*carried through", DegradedWarning)
    x = torch.complex(torch.arange(4.0), torch.ones(4))
    grads = []
    for run in (loss, torch.compile(loss, backend=backend(mode, codegen))):
        leaf = x.clone().requires_grad_()
        run(leaf).backward()
        grads.append(leaf.grad)
    torch.testing.assert_close(*grads)
    marked, wanted = x.clone(), x.clone()
    made = torch.compile(write, backend=backend(mode, codegen))(marked.conj().imag)
    assert made.tolist() == write(wanted.conj().imag).tolist()
    assert marked.tolist() == wanted.tolist()


@pytest.mark.parametrize("codegen", ["reference", "eager"])
def test_marks_of_several_views_and_behind_a_users_pass(codegen: str) -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = (x * 2).conj()
        return (*y.unbind(), y)

    x = torch.complex(torch.arange(4.0), torch.ones(4)).view(2, 2)
    for user_pass in (None, lambda gm, inputs, config: None):
        torch.compiler.reset()
        config = CompilerConfig()
        config.engine_config.codegen = codegen
        config.post_grad_custom_pre_pass = user_pass
        got = torch.compile(fn, backend=torchair.get_npu_backend(compiler_config=config))(x)
        assert [t.tolist() for t in got] == [t.tolist() for t in fn(x)]
        assert [t.is_conj() for t in got] == [True] * 3
        assert len(set(storages(list(got)))) == 1


def test_what_was_compiled_without_care_is_not_taken_from_the_cache() -> None:
    tag = torch.compiler.config.cache_key_tag
    with overlap_safe_writes():
        assert torch.compiler.config.cache_key_tag != tag
    assert torch.compiler.config.cache_key_tag == tag


@pytest.mark.parametrize(("mode", "codegen"), WAYS)
def test_results_may_be_written_in_place(mode: str, codegen: str) -> None:
    """A result that is no view in eager is none here, whatever the program looked at."""

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.exp().reshape(()).sum(0), x * 2

    def train(run: Callable[..., Any]) -> tuple[Any, ...]:
        x = torch.ones(1, requires_grad=True)
        total, _ = run(x)
        total[total > 0] = 3
        total.mul_(2)
        return total.tolist(), total._is_view()

    run = torch.compile(fn, backend=backend(mode, codegen), dynamic=False)
    assert [train(run) for _ in range(2)] == [train(fn)] * 2


def test_views_with_other_unit_strides_are_no_fault() -> None:
    """A view that changes nothing is taken out, but for the stride of a dim of size 1."""
    x = torch.arange(12.0).as_strided((1, 5, 4), (20, 0, 1))
    assert x.view_as(x).stride() != x.stride()
    run = torch.compile(lambda x: x.view_as(x), backend=backend("npugraph_ex", "eager"), dynamic=False)
    for _ in range(2):
        with no_warning():
            got = run(x)
        assert (got.stride(), got.data_ptr()) == (x.view_as(x).stride(), x.data_ptr())


def test_a_value_that_leaves_twice_is_not_copied() -> None:
    """As a result and for backward, say."""
    graphs = []

    def fn(x: torch.Tensor) -> list[torch.Tensor]:
        y = x.exp()
        return [y, y, y.view(4)]

    def compiler(gm: fx.GraphModule, inputs: list[Any]) -> Any:
        runner = compile_fx(gm, inputs, Settings.of({"engine_config.codegen": "eager"}))
        graphs.append(runner.program.source)
        return make_boxed_func(lambda *args: runner(list(args)))

    got = torch.compile(fn, backend=aot_autograd(fw_compiler=compiler))(torch.ones(2, 2))
    assert len(set(storages(got))) == 1
    assert "clone" not in graphs[0]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("mode", ["max-autotune", "npugraph_ex"])
def test_inductor_keeps_copies_that_windows_look_at(mode: str, dynamic: bool) -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        part = x[1:3].clone()
        return part.as_strided((1,), (1,), 1).cos(), part.view(1, -1).as_strided((2,), (1,), 0) + 1

    x = torch.arange(5.0)
    got = torch.compile(fn, backend=backend(mode, "inductor"), dynamic=dynamic)(x)
    torch.testing.assert_close(got, fn(x))


@pytest.mark.parametrize("codegen", ["reference", "eager"])
def test_results_on_one_copy_of_an_input_share_it(codegen: str) -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.clone()
        return y, y.view(-1), y[1:]

    for mode in ("max-autotune", "npugraph_ex"):
        torch.compiler.reset()
        x = torch.ones(2, 2)
        run = torch.compile(fn, backend=backend(mode, "eager" if mode == "npugraph_ex" else codegen))
        with no_warning():
            got = run(x)
        assert len(set(storages(list(got)))) == 1
        assert storages(list(got[:1])) != storages([x])


@pytest.mark.parametrize("codegen", ["reference", "eager", "inductor"])
def test_which_result_reaches_over_others_is_no_matter_of_one_call(codegen: str) -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = -x
        return y.as_strided((2,), (1,), 0), y

    run = torch.compile(fn, backend=backend("max-autotune", codegen), dynamic=True)
    for size in (2, 6, 3):
        got = run(torch.arange(float(size)))
        assert [t.tolist() for t in got] == [t.tolist() for t in fn(torch.arange(float(size)))]
        assert len(set(storages(list(got)))) == 1


# What mending rests on.


def symbolic(fn: Callable[..., Any], *args: torch.Tensor) -> OutputLayouts:
    gm = make_fx(fn, tracing_mode="symbolic")(*args)
    fakes = tuple(node.meta["val"] for node in gm.graph.find_nodes(op="placeholder"))
    return OutputLayouts(layouts_of(gm), Binding(fakes))


def test_overlapping_elements_are_fixed_by_one_write() -> None:
    """A tensor with stride 0 cannot be written as a whole."""
    x = torch.arange(3.0)
    for result in wrongly(lambda x: [(x * 2).expand(4, 3)], lambda x: [(x * 2).expand(4, 3).contiguous()], x):
        assert result[0].untyped_storage().nbytes() == x.untyped_storage().nbytes()


def test_views_are_made_with_the_numbers_of_the_call() -> None:
    """Not with those of the call that was traced."""
    contract = symbolic(lambda x: [x[x.size(0) // 2 :], (x + 1).t()], torch.randn(4, 6))
    held = LayoutEnforcer(
        Body(lambda x: [x[:1].clone(), (x + 1).t().contiguous()]),
        contract,
        (KeyPart(0, "size", 0), KeyPart(0, "size", 1)),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for sizes in ((4, 6), (8, 5), (4, 6), (2, 3)):
            x = torch.randn(sizes)
            view, other = held([x])
            assert (view.data_ptr(), view.shape) == (x[sizes[0] // 2 :].data_ptr(), x[sizes[0] // 2 :].shape)
            assert other.stride() == (1, sizes[1])


def test_layout_fault_of_one_key_does_not_affect_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchair.capture.base.layout_enforcer.EVERY_CALL", False)
    contract = symbolic(lambda x: [(x + 1).t()], torch.randn(4, 6))

    def sometimes(x: torch.Tensor) -> list[torch.Tensor]:
        return [(x + 1).t() if x.size(0) < 5 else (x + 1).t().contiguous()]

    held = LayoutEnforcer(Body(sometimes), contract, (KeyPart(0, "size", 0), KeyPart(0, "size", 1)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for sizes in ((4, 6), (6, 4), (4, 6), (6, 4)):
            assert held([torch.randn(sizes)])[0].stride() == (1, sizes[1])


def test_strides_of_what_the_data_decides_are_checked() -> None:
    """The size comes from the result, the strides from the size."""
    contract = symbolic(lambda x: [x.nonzero()], torch.eye(3))
    x = torch.ones(2, 2)
    before = contract.before([x], looks=True)
    assert x.nonzero().stride() == (1, 4)
    assert contract.faults(before, [x.nonzero()]) == {}
    assert list(contract.faults(before, [x.nonzero().contiguous()])) == [0]


# Found by the fuzzer, shrunk: a function, and sizes and strides of its arguments.


def writes_rows_after_a_copy(x: torch.Tensor) -> list[torch.Tensor]:
    rows = x.narrow(0, 1, 2)
    copied = rows.flatten()
    rows.narrow(0, 1, 1).fill_(1.0)
    return [copied.view(3, -1).flip(-1)]


def writes_through_two_views(x: torch.Tensor) -> list[torch.Tensor]:
    x.mul_(0)
    y = x / x
    part = y[:1]
    y[...] = x
    return [part.add_(True)]


def writes_itself(x: torch.Tensor) -> list[torch.Tensor]:
    view = x.permute([0]).squeeze()
    view[...] = x
    return [view]


def writes_a_diagonal_twice(x: torch.Tensor) -> list[torch.Tensor]:
    diagonal = x.diagonal(1)
    x.add_(0)
    diagonal[:] *= 1
    cubes = diagonal.pow(3)
    diagonal[...] += -0.0
    return [cubes.permute([0])]


def writes_all_but_the_first(x: torch.Tensor) -> list[torch.Tensor]:
    column = x.reshape(-1, 1)
    column[1:][:] = -1.5
    return [column]


def strides_that_are_sizes(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    return [((y @ y.mT) / x).transpose(1, 1).unsqueeze(1)]


def part_of_a_copied_input(x: torch.Tensor) -> list[torch.Tensor]:
    y = x.relu()
    y.copy_(x)
    return [y.narrow(-1, 1, 2)]


def view_of_a_copied_input(x: torch.Tensor) -> list[torch.Tensor]:
    y = x * x
    view = y.expand(1, -1, -1)
    y.copy_(x)
    return [view]


def copied_into_memory_with_gaps(x: torch.Tensor) -> list[torch.Tensor]:
    y = x.new_empty_strided((2, 3, 4), (16, 4, 1))
    y.copy_(x)
    return [y.view(2, 12), y]


def window_of_an_alias(x: torch.Tensor) -> list[torch.Tensor]:
    return [x[...].as_strided((1, 4), (1, 1), 0), x[...].as_strided((2,), (0,), 9)]


SHRUNK: list[tuple[Callable[..., Any], list[tuple[tuple[int, ...], tuple[int, ...]]]]] = [
    (writes_rows_after_a_copy, [((5, 3), (4, 1))]),
    (window_of_an_alias, [((1, 4), (4, 1))]),
    (writes_through_two_views, [((2, 4), (2, 6))]),
    (writes_itself, [((1,), (2,))]),
    (writes_a_diagonal_twice, [((1, 5), (5, 1))]),
    (writes_all_but_the_first, [((5, 5), (5, 1))]),
    (view_of_a_copied_input, [((2, 4), (4, 1))]),
    (copied_into_memory_with_gaps, [((2, 3, 4), (12, 4, 1))]),
    (part_of_a_copied_input, [((3, 2, 3), (6, 3, 1))]),
    (strides_that_are_sizes, [((3, 4, 1), (4, 1, 1)), ((1, 1, 1), (3, 4, 1))]),
]


# Inductor takes seconds for each: with sizes of one call only, and quickly in one mode only.
WAYS_AND_SIZES = [
    ((mode, codegen, dynamic) if is_quick else slow(mode, codegen, dynamic))
    for mode, codegen in WAYS
    for dynamic in (False, True)
    if codegen != "inductor" or not dynamic
    for is_quick in [mode == "max-autotune" if codegen == "inductor" else dynamic]
]


@pytest.mark.parametrize(("mode", "codegen", "dynamic"), WAYS_AND_SIZES)
@pytest.mark.parametrize(("fn", "lies_like"), SHRUNK, ids=lambda fn: getattr(fn, "__name__", ""))
def test_programs_that_were_wrong(
    fn: Callable[..., Any], lies_like: Any, mode: str, codegen: str, dynamic: bool
) -> None:
    run = torch.compile(fn, backend=backend(mode, codegen), dynamic=dynamic)
    for offset in (7, 2):
        made = []
        for call in (fn, run):
            memories = [torch.arange(1.0, 60.0) for _ in lies_like]
            pairs = zip(memories, lies_like, strict=True)
            with warnings.catch_warnings():
                # Inductor has layouts of its own, which are mended.
                warnings.simplefilter("ignore" if codegen == "inductor" else "error", DegradedWarning)
                warnings.filterwarnings("ignore", ".*as_strided", DegradedWarning)
                outputs = call(*(memory.as_strided(*like, offset) for memory, like in pairs))
            made.append(([t.tolist() for t in (*outputs, *memories)], list(map(strides, outputs))))
        assert made[0] == made[1]


def test_a_detached_view_of_a_result_has_no_gradient() -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        return y.detach().as_strided((2, 2), (1, 2), 0), y

    for mode, codegen in WAYS:
        torch.compiler.reset()
        got = torch.compile(fn, backend=backend(mode, codegen))(torch.ones(2, 2, requires_grad=True))
        assert [t.requires_grad for t in got] == [False, True], (mode, codegen)


@pytest.mark.parametrize("dynamic", [False, True])
def test_gradients_take_the_way_of_the_views(dynamic: bool) -> None:
    """Eager loses the gradient of what a window shows from outside its tensor; a view is as it was made."""

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows = x[:].view(x.size(0), -1)
        return rows**0.5, rows[None, :, 2].as_strided((1, 1), (1, 1), 1).transpose(-1, -2)

    for mode, codegen in WAYS:
        if codegen == "inductor":
            continue  # stock Inductor gives that gradient, too
        torch.compiler.reset()
        gradients = []
        for run in (fn, torch.compile(fn, backend=backend(mode, codegen), dynamic=dynamic)):
            x = (torch.arange(6.0) + 1).view(2, 3).requires_grad_()
            one, two = run(x)
            (one.sum() + 10 * two.sum()).backward()
            gradients.append(x.grad)
        assert torch.equal(*gradients), (mode, codegen)
