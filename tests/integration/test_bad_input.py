"""Bad input gets an error that says what, where and what next; each case of the promise has a test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import torchair
from tests.backend.dynamo.test_entry_points import config
from torchair import ge
from torchair.convert.base.registry import unregister
from torchair.core.errors import AirError, BadConverter, BadPass, DegradedWarning
from torchair.ge.graph import Graph

aten = torch.ops.aten


def compile_with_config(fn: Any, cfg: torchair.CompilerConfig | None = None) -> Any:
    return torch.compile(
        fn, backend=torchair.get_npu_backend(compiler_config=cfg or config()), fullgraph=True
    )


@pytest.fixture
def sin() -> Iterator[Any]:
    """An op whose converter a test may replace."""
    yield aten.sin.default
    unregister(aten.sin.default)


def failure(fn: Any, *args: Any) -> str:
    """The text of the error a compiled call raises."""
    with pytest.raises(Exception) as caught:
        fn(*args)
    return str(caught.value)


def test_a_wrong_option_value() -> None:
    with pytest.raises(ValueError, match="fast") as caught:
        torchair.CompilerConfig().mode = "fast"
    assert isinstance(caught.value, AirError)
    assert "max-autotune" in str(caught.value)


def test_an_unknown_option_name() -> None:
    with pytest.raises(ValueError, match="oo_levl") as caught:
        torchair.CompilerConfig().ge_config.oo_levl = "O1"
    assert "oo_level" in str(caught.value)


def test_an_unknown_op_type() -> None:
    with Graph(), pytest.raises(RuntimeError, match="NoSuchOp"):
        ge.custom_op("NoSuchOp", inputs={})


def test_a_wrong_attribute() -> None:
    with Graph():
        x = ge.Data(index=0)
        with pytest.raises(ValueError, match="Acos has no attribute 'axis'; it has none"):
            ge.Acos(x, axis=1)
        with pytest.raises(ValueError, match="dst_type"):
            ge.Cast(x, dst_type="float")


def test_a_converter_with_the_wrong_number_of_outputs(sin: Any) -> None:
    @torchair.register_fx_node_ge_converter(sin)
    def convert(x: Any) -> Any:
        return x, x

    text = failure(compile_with_config(lambda x: torch.sin(x)), torch.ones(2))
    assert "returned 2 values, the op returns 1" in text
    assert "test_bad_input.py" in text, "the user's own line is named"


@pytest.mark.parametrize("made", [None, 3, 1.5, "text"])
def test_a_converter_without_a_tensor(made: Any, sin: Any) -> None:
    torchair.register_fx_node_ge_converter(sin)(lambda x: made)
    text = failure(compile_with_config(lambda x: torch.sin(x)), torch.ones(2))
    assert "returned no tensor of the graph where the op returns one" in text
    assert repr(made) in text
    assert "test_bad_input.py" in text


def test_converter_may_omit_unread_results() -> None:
    sort = aten.sort.default
    torchair.register_fx_node_ge_converter(sort)(lambda x: (x, None))
    try:
        x = torch.ones(3)
        assert torch.equal(compile_with_config(lambda x: torch.sort(x)[0])(x), x)
        assert "returned no tensor" in failure(compile_with_config(lambda x: torch.sort(x)[1]), x)
    finally:
        unregister(sort)


@pytest.mark.parametrize("target", [3, "aten.sin.default"])
def test_a_converter_of_what_is_no_op(target: Any) -> None:
    with pytest.raises(BadConverter, match=r"torch\.ops\.mylib"):
        torchair.register_fx_node_ge_converter(target)


def test_a_converter_with_the_wrong_dtype(sin: Any) -> None:
    @torchair.register_fx_node_ge_converter(sin)
    def convert(x: Any, meta_outputs: Any = None) -> Any:
        assert meta_outputs.dtype == ge.DataType.DT_FLOAT
        return ge.Cast(x, dst_type=ge.DataType.DT_INT32)

    text = failure(compile_with_config(lambda x: torch.sin(x)), torch.ones(2))
    assert "int32[2]" in text
    assert "float32[2]" in text


def test_a_converter_that_raises(sin: Any) -> None:
    @torchair.register_fx_node_ge_converter(sin)
    def convert(x: Any) -> Any:
        raise KeyError("lost")

    assert "lost" in failure(compile_with_config(lambda x: torch.sin(x)), torch.ones(2))


def test_a_users_converter_wins_and_declining_falls_through(sin: Any) -> None:
    calls = []

    @torchair.register_fx_node_ge_converter(sin)
    def convert(x: Any) -> Any:
        calls.append(x)
        if len(calls) > 1:
            raise NotImplementedError("only once")
        return ge.Cos(x)

    x = torch.randn(3)
    torch.testing.assert_close(compile_with_config(lambda x: torch.sin(x))(x), torch.cos(x))
    torch._dynamo.reset()
    torch.testing.assert_close(compile_with_config(lambda x: torch.sin(x))(x), torch.sin(x))
    assert len(calls) == 2


def test_a_user_pass_that_raises() -> None:
    cfg = config()

    def broken(gm: Any, inputs: Any, config: Any) -> None:
        raise KeyError("my pass")

    cfg.post_grad_custom_pre_pass = broken
    text = failure(compile_with_config(lambda x: x + 1, cfg), torch.ones(2))
    assert "broken" in text
    assert "my pass" in text


def test_a_user_pass_that_breaks_the_graph() -> None:
    cfg = config()

    def misplaced(gm: Any, inputs: Any, config: Any) -> None:
        calls = [node for node in gm.graph.nodes if node.op == "call_function"]
        with gm.graph.inserting_before(calls[0]):
            gm.graph.call_function(aten.relu.default, (calls[-1],))

    cfg.post_grad_custom_post_pass = misplaced
    text = failure(compile_with_config(lambda x: (x + 1) * 2, cfg), torch.ones(2))
    assert BadPass.__name__ in text
    assert "misplaced" in text


def test_a_user_pass_that_edits_well() -> None:
    cfg = config()

    def swap(gm: Any, inputs: Any, config: Any) -> None:
        for node in gm.graph.find_nodes(op="call_function", target=aten.sin.default):
            with gm.graph.inserting_after(node):
                other = gm.graph.call_function(aten.cos.default, node.args)
            node.replace_all_uses_with(other)
            gm.graph.erase_node(node)

    cfg.post_grad_custom_pre_pass = swap
    x = torch.randn(3)
    torch.testing.assert_close(compile_with_config(lambda x: torch.sin(x) + 1, cfg)(x), torch.cos(x) + 1)


def test_nothing_is_fatal() -> None:
    """An op with neither converter nor decomposition runs as it is, and explain says so."""

    @torch.library.custom_op("airtest::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @twice.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(twice(x)) + 1

    x = torch.randn(4)
    text = r"airtest.twice.default .*test_bad_input.py:\d+.*register_fx_node"
    with pytest.warns(DegradedWarning, match=text) as said:
        made = compile_with_config(fn)(x)
    torch.testing.assert_close(made, fn(x))
    assert [one.filename for one in said] == [__file__]
    found = torchair.explain(fn, x)
    assert [reason.op for reason in found.fallbacks] == ["airtest.twice.default"]
    assert "aten.relu.default" in found.converted
