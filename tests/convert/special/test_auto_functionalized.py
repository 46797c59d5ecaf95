"""Custom ops that write: whole tensors, views, parts with gaps, lists; with an IR op of their own and
without; in both modes, and in place where that is possible.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.cpp_extension import load_inline

import torchair
from tests.support.compile import compile_fn
from tests.support.slow import slow
from torchair import ge
from torchair.convert.base.registry import unregister
from torchair.core.errors import DegradedWarning
from torchair.core.torch_private.operators.alias_schema import original_of
from torchair.ge.builder.torch_op import find_target
from torchair.passes.fx.analysis import auto_functionalized

Fn = Callable[..., Any]
SEEN: list[int] = []
"""Where the tensors lie that ops have written."""


@torch.library.custom_op("functionalized_test::add_to", mutates_args=("x",))
def add_to(x: Tensor, y: Tensor) -> None:
    SEEN.append(x.data_ptr())
    x.add_(y)


@torch.library.custom_op("functionalized_test::change_two", mutates_args=("a", "b"))
def change_two(a: Tensor, b: Tensor | None = None) -> tuple[Tensor, Tensor]:
    a.add_(1)
    if b is not None:
        b.mul_(2)
    return a * 2, a.sum()


@change_two.register_fake
def _(a: Tensor, b: Tensor | None = None) -> tuple[Tensor, Tensor]:
    return torch.empty_like(a, memory_format=torch.contiguous_format), a.new_empty(())


@torch.library.custom_op("functionalized_test::read_behind", mutates_args=("y",))
def read_behind(x: Tensor, y: Tensor) -> Tensor:
    y.add_(1)
    return x * 2


@read_behind.register_fake
def _(x: Tensor, y: Tensor) -> Tensor:
    return torch.empty_like(x)


library = torch.library.Library("functionalized_test", "FRAGMENT")
library.define("scale_all(Tensor(a!)[] xs, float k) -> ()")


def scale_all(xs: list[Tensor], k: float) -> None:
    for x in xs:
        x.mul_(k)


library.impl("scale_all", scale_all, "CPU")
library.impl("scale_all", lambda xs, k: None, "Meta")
ops = torch.ops.functionalized_test
ge.register_prototype("FunctionalizedTestAddTo(x, y) -> x")
ge.register_prototype("FunctionalizedTestChangeTwo(a, b?) -> y, z, a, b")
ge.register_prototype("FunctionalizedTestReadBehind(x, y) -> z, y")
ge.register_prototype("FunctionalizedTestScaleAll(xs*; k: Float) -> xs*")


def ones(x: Tensor) -> Tensor:
    return torch.ones_like(x)


def whole(x: Tensor) -> Any:
    ops.add_to(x, x.sin())
    return x + 1


def value(x: Tensor) -> Any:
    y = x * 2
    ops.add_to(y, x)
    return y


def gaps(x: Tensor) -> Any:
    ops.add_to(x[:, ::2], ones(x[:, ::2]))
    return x.sum()


def gaps_of_a_value(x: Tensor) -> Any:
    y = x * 2
    ops.add_to(y[1:, ::2], ones(y[1:, ::2]))
    return y


def turned(x: Tensor) -> Any:
    ops.add_to(x.t()[1:], ones(x.t()[1:]))
    return x * 2


def flattened(x: Tensor) -> Any:
    ops.add_to(x.view(-1), ones(x.view(-1)))
    return x * 2


def rows(x: Tensor) -> Any:
    part = x[1:3]
    ops.add_to(part, ones(part))
    return part


def two_views(x: Tensor) -> Any:
    doubled, total = ops.change_two(x[:, ::2], x[:, 1::2])
    return doubled, total, x + 0


def one_of_two(x: Tensor) -> Any:
    doubled, total = ops.change_two(x)
    return doubled + total


def both(x: Tensor) -> Any:
    y = x + 1
    return *ops.change_two(x, y), y


def listed(x: Tensor) -> Any:
    y = x + 1
    ops.scale_all([x, y], 3.0)
    return y, x.sum()


def listed_views(x: Tensor) -> Any:
    ops.scale_all([x[0], x[1:, 1:3]], 3.0)
    return x.sum()


def read_as_written(x: Tensor) -> Any:
    return ops.read_behind(x, x), x + 1


def read_in_part(x: Tensor) -> Any:
    y = x * 2
    return ops.read_behind(y[1:], y[:, ::2]), y, ops.read_behind(y.t(), y[0])


def read_apart(x: Tensor) -> Any:
    return ops.read_behind(x.clone(), x), x + 1


CASES = (
    whole, value, gaps, gaps_of_a_value, turned, flattened, rows, two_views, one_of_two, both, listed,
    listed_views, read_as_written, read_in_part, read_apart,
)  # fmt: skip


def compile_verified(fn: Fn, mode: str, codegen: str = "eager", dynamic: bool = False) -> Fn:
    """Compile with the check of the graph between passes."""
    options = {"engine_config.verify": True}
    return compile_fn(fn, options, mode, codegen, reset=True, dynamic=dynamic, fullgraph=True)


def check(fn: Fn, run: Fn) -> None:
    for shape in ((4, 6), (5, 8)):
        x = torch.randn(*shape)
        again = x.clone()
        with torch.no_grad():
            torch.testing.assert_close(run(x), fn(again))
        torch.testing.assert_close(x, again)


@pytest.fixture
def with_converters() -> Any:
    """The ops are IR ops that have no kernel; without a warning, as strict tests show."""
    register = torchair.register_fx_node_ge_converter

    @register(ops.add_to.default)
    def _(x: Any, y: Any) -> None:
        ge.custom_op("FunctionalizedTestAddTo", x, y)

    @register(ops.change_two.default)
    def _(a: Any, b: Any = None) -> Any:
        return ge.custom_op("FunctionalizedTestChangeTwo", a, b)[:2]

    @register(ops.read_behind.default)
    def _(x: Any, y: Any) -> Any:
        return ge.custom_op("FunctionalizedTestReadBehind", x, y)[0]

    @register(ops.scale_all.default)
    def _(xs: Any, k: float) -> None:
        described = {"inputs": {"xs": xs}, "outputs": [("xs", len(xs))], "attrs": {"k": ge.attr.Float(k)}}
        ge.custom_op("FunctionalizedTestScaleAll", **described)

    yield
    for op in (ops.add_to, ops.change_two, ops.read_behind, ops.scale_all):
        unregister(op.default)


@pytest.mark.parametrize("dynamic", [slow(False), True], ids=["static", "dynamic"])
@pytest.mark.parametrize("codegen", ["eager", slow("reference"), slow("inductor")])
@pytest.mark.parametrize("fn", CASES, ids=lambda fn: fn.__name__)
@pytest.mark.usefixtures("with_converters")
def test_functionalized_op_in_graph_mode_equals_eager(fn: Fn, codegen: str, dynamic: bool) -> None:
    check(fn, compile_verified(fn, "max-autotune", codegen, dynamic))


@pytest.mark.parametrize("dynamic", [slow(False), True], ids=["static", "dynamic"])
@pytest.mark.parametrize("codegen", ["eager", slow("inductor")])
@pytest.mark.parametrize("fn", CASES, ids=lambda fn: fn.__name__)
def test_functionalized_op_in_capture_mode_equals_eager(fn: Fn, codegen: str, dynamic: bool) -> None:
    is_told = (fn, codegen, dynamic) == (listed_views, "inductor", True)
    told = pytest.warns(DegradedWarning, match="views of one tensor as a list") if is_told else nullcontext()
    with told:
        check(fn, compile_verified(fn, "npugraph_ex", codegen, dynamic))


@torch.library.custom_op("torchair_functionalized::doubled_and", mutates_args=("y",))
def doubled_and(x: Tensor, y: Tensor) -> None:
    y.mul_(2)
    y.add_(x)


@pytest.mark.parametrize("mode", ["max-autotune", "npugraph_ex"])
@pytest.mark.parametrize("codegen", ["eager", "inductor"])
@pytest.mark.filterwarnings("ignore:.*has no converter here")
def test_a_copy_of_what_is_written_is_read(mode: str, codegen: str) -> None:
    def fn(y: Tensor) -> Tensor:
        doubled_and(y.clone(), y)
        return y + 1

    ours = torch.ones(4)
    torch.testing.assert_close(compile_verified(fn, mode, codegen, False)(ours), torch.full((4,), 4.0))
    torch.testing.assert_close(ours, torch.full((4,), 3.0))


@pytest.mark.parametrize("mode", ["max-autotune", "npugraph_ex"])
@pytest.mark.parametrize(
    ("fn", "offset"),
    [(whole, 0), (gaps, 0), (turned, 1), (flattened, 0), (rows, 6)],
    ids=lambda x: str(x)[:14],
)
@pytest.mark.usefixtures("with_converters")
def test_in_place_without_a_copy(fn: Fn, offset: int, mode: str) -> None:
    run = compile_verified(fn, mode)
    for _ in range(3):
        x = torch.randn(4, 6)
        SEEN.clear()
        with torch.no_grad():
            run(x)
        begins = x.data_ptr() + offset * x.element_size()
        assert [begins] == SEEN


def test_an_input_that_is_not_to_change_is_copied() -> None:
    """The control: here the op must not write where the input lies."""
    run = compile_verified(lambda x: value(x + 0) + x, "npugraph_ex")
    x = torch.randn(4, 6)
    SEEN.clear()
    run(x)
    assert [x.data_ptr()] != SEEN


@pytest.mark.usefixtures("with_converters")
def test_the_ops_are_in_the_file(tmp_path: Path) -> None:
    class Model(torch.nn.Module):
        def forward(self, x: Tensor) -> Any:
            return gaps(x), two_views(x), listed_views(x)

    torchair.dynamo_export(torch.randn(4, 6), model=Model(), export_path=str(tmp_path), dynamic=True)
    config = torchair.CompilerConfig()
    config.engine_config.codegen = "eager"
    loaded = torchair.load_air(tmp_path / "export.air", config=config)
    types = [op.type for op in loaded.graph.ops]
    for name in ("AddTo", "ChangeTwo", "ScaleAll"):
        assert types.count(f"FunctionalizedTest{name}") == 1
    assert "TorchOp" not in types
    assert "ViewCopy" in types
    check(Model(), loaded)


def test_a_kernel_serves_ops_that_write() -> None:
    ge.register_prototype("FunctionalizedTestPlus(x, y) -> x")
    ge.register_kernel("FunctionalizedTestPlus", lambda x, y: x + y)
    register = torchair.register_fx_node_ge_converter(ops.add_to.default)
    register(lambda x, y: ge.custom_op("FunctionalizedTestPlus", x, y) and None)
    try:
        for fn in (whole, gaps, turned):
            SEEN.clear()
            run = compile_verified(fn, "max-autotune", dynamic=True)
            x = torch.randn(4, 6)
            again = x.clone()
            torch.testing.assert_close(run(x), fn(again))
            torch.testing.assert_close(x, again)
            assert len(SEEN) == 1, "only the eager call is torch's op"
    finally:
        unregister(ops.add_to.default)


def test_a_kernel_knows_no_shared_memory() -> None:
    """The operator itself runs then, and that is told."""
    ge.register_prototype("FunctionalizedTestBehind(x, y) -> z, y")
    ge.register_kernel("FunctionalizedTestBehind", lambda x, y: (x * 2, y + 1))
    register = torchair.register_fx_node_ge_converter(ops.read_behind.default)
    register(lambda x, y: ge.custom_op("FunctionalizedTestBehind", x, y)[0])
    try:
        with pytest.raises(Exception, match="it also reads what it writes, as 'x'"):
            compile_verified(read_as_written, "max-autotune")(torch.randn(4, 6))
    finally:
        unregister(ops.read_behind.default)


@pytest.mark.parametrize("mode", ["max-autotune", "npugraph_ex"])
def test_shared_memory_of_an_operator_that_is_defined_anew(mode: str) -> None:
    @torchair.op("functionalized_test::read_anew", mutates_args=("y",))
    def first(x: Tensor, y: Tensor, k: int = 2) -> Tensor:
        y.add_(1)
        return x * k

    check(lambda x: (first(x, x), x + 1), compile_verified(lambda x: (first(x, x), x + 1), mode))

    @torchair.op("functionalized_test::read_anew", mutates_args=("y",))
    def second(x: Tensor, y: Tensor, n: float = 0.5) -> Tensor:
        y.add_(3)
        return x * n

    check(lambda x: (second(x, x), x + 1), compile_verified(lambda x: (second(x, x), x + 1), mode))


def test_a_name_in_a_file_is_the_operator_with_its_other_schema() -> None:
    start = "torchair_shared.functionalized_test__and__read_behind__and__default__and__"
    assert original_of(find_target(f"{start}x.default")) == (ops.read_behind.default, ("x",))
    assert find_target(f"{start}z.default") is None
    assert find_target("torchair_shared.aten__and__add___and__Tensor__and__other.default") is None


SOURCE = """
#include <torch/extension.h>
void shift(at::Tensor x, const at::Tensor& by) { x.add_(by); }
TORCH_LIBRARY(functionalized_cpp, m) { m.def("shift(Tensor(a!) x, Tensor by) -> ()"); }
TORCH_LIBRARY_IMPL(functionalized_cpp, CPU, m) { m.impl("shift", &shift); }
"""


@pytest.mark.full
def test_an_op_in_cpp() -> None:
    load_inline("functionalized_cpp", SOURCE, functions=[], is_python_module=False)
    torch.library.register_fake("functionalized_cpp::shift", lambda x, by: None)
    ge.register_prototype("Shift(x, by) -> x")

    def fn(x: Tensor) -> Tensor:
        torch.ops.functionalized_cpp.shift(x[:, ::2], ones(x[:, ::2]))
        return x * 2

    for mode in ("max-autotune", "npugraph_ex"):
        for dynamic in (False, True):
            check(fn, compile_verified(fn, mode, dynamic=dynamic))


@torch.library.custom_op("functionalized_test::turn", mutates_args=("x",))
def turn(x: Tensor, by: Tensor) -> None:
    """As a rotary embedding does: what it writes is real, what it reads complex."""
    x.copy_(torch.view_as_real(torch.view_as_complex(x) * by))


@torch.library.custom_op("functionalized_test::maybe", mutates_args=("c",))
def maybe(x: Tensor, c: Tensor | None = None) -> Tensor:
    if c is not None:
        c.add_(1)
    return x * 2


maybe.register_fake(lambda x, c=None: torch.empty_like(x))


@pytest.mark.filterwarnings("ignore:.*(no converter|auto_functionalized)")
@pytest.mark.parametrize("codegen", ["eager", slow("inductor")])
@pytest.mark.parametrize("mode", ["max-autotune", "npugraph_ex"])
def test_what_is_written_beside_a_complex_argument(mode: str, codegen: str) -> None:
    def fn(x: Tensor, by: Tensor) -> Tensor:
        ops.turn(x, by)
        return x + 1

    x, by = torch.randn(3, 2), torch.randn(3, dtype=torch.complex64)
    mine, want = x.clone(), x.clone()
    made, expected = compile_verified(fn, mode, codegen)(mine, by), fn(want, by)
    torch.testing.assert_close((made, mine), (expected, want))


@pytest.mark.filterwarnings("ignore:.*(no converter|auto_functionalized)")
@pytest.mark.parametrize("mode", ["max-autotune", "npugraph_ex"])
def test_an_op_that_may_write_and_does_not(mode: str) -> None:
    x = torch.randn(3, 2)
    torch.testing.assert_close(compile_verified(lambda x: ops.maybe(x), mode)(x), x * 2)
    torch.testing.assert_close(compile_verified(lambda x: ops.maybe(x) + 1, mode)(x[0]), x[0] * 2 + 1)


def test_a_wrapper_that_cannot_be_taken_apart_is_run_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the write-back that passes before had found needless."""

    def fails(*args: Any) -> None:
        raise ValueError("it fails")

    monkeypatch.setattr(auto_functionalized, "_unwrap", fails)
    x = torch.randn(4, 4)
    mine, want = x.clone(), x.clone()
    with pytest.warns(DegradedWarning, match="decompose_auto_functionalized failed"):
        made = compile_verified(whole, "npugraph_ex")(mine)
    torch.testing.assert_close((made, mine), (whole(want), want))
