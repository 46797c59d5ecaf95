"""`register_replacement`: every parameter, what is found and what is refused, errors at registration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._inductor import pattern_matcher
from torch._subclasses.fake_tensor import FakeTensorMode

import npugraph_ex
import torchair
from tests.passes.graphs import calls, in_scope, node, ops, traced
from tests.passes.pattern_rules import after, fires, separate_sets, why
from tests.passes.programs import functional
from torchair.core.errors import BadOptionType, BadPass
from torchair.core.registries.user_registrations import EXTENSIONS
from torchair.ops.streams import stream_ops
from torchair.passes import PassContext
from torchair.passes.patterns.sets import registry
from torchair.passes.patterns.sets.registry import apply_pattern_passes

register = torchair.register_replacement
aten = torch.ops.aten
T = torch.ones(2, 4)
X, Y = torch.randn(3, 5), torch.randn(3, 5)


own_sets = pytest.fixture(autouse=True)(separate_sets)


def add_exp(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.exp(a + b)


def apart(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The same numbers from other ops."""
    return torch.exp(a) * torch.exp(b)


# Examples


def test_one_example_given_twice_is_two_arguments() -> None:
    register(add_exp, apart, (T, T))
    assert fires(add_exp, X, Y) == 1
    assert fires(lambda x: add_exp(x, x), X) == 1  # two arguments may be one


def test_a_plain_sum_of_two() -> None:
    register(lambda a, b: a + b, lambda a, b: torch.sub(a, -b), (T, T))
    assert after(lambda x, y: x + y, X, Y)[0] == ["aten.neg.default", "aten.sub.Tensor"]


def test_examples_in_containers() -> None:
    def find(pair: tuple[torch.Tensor, torch.Tensor], rest: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.exp(pair[0] + pair[1]) * rest["c"]

    def put(pair: tuple[torch.Tensor, torch.Tensor], rest: dict[str, torch.Tensor]) -> torch.Tensor:
        return apart(*pair) * rest["c"]

    register(find, put, ((T, T), {"c": T}))
    assert fires(lambda x, y, z: find((x, y), {"c": z}), X, Y, X + 1) == 1


def test_examples_by_name_and_parameters_that_have_only_names() -> None:
    def find(a: torch.Tensor, *, b: torch.Tensor) -> torch.Tensor:
        return torch.exp(a - b)

    register(find, lambda a, *, b: torch.exp(a) / torch.exp(b), {"b": T, "a": T})
    assert fires(lambda x, y: torch.exp(x - y), X, Y) == 1


def test_neither_sizes_nor_dtypes_of_examples_matter() -> None:
    """A cast that does nothing for the example is there in the model, and the other way round."""

    def find(x: torch.Tensor) -> torch.Tensor:
        return torch.exp(x.to(torch.float32) + 1).to(x.dtype)

    def put(x: torch.Tensor) -> torch.Tensor:
        return torch.exp(1 + x.to(torch.float32)).to(x.dtype).clone()

    for example in (T, T.bfloat16()):
        registry.OF_TORCHAIR = registry.RuleSet("torchair", "")
        register(find, put, [example])
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            assert fires(find, torch.randn(7, 1, 3).to(dtype)) == 1


def test_an_op_that_does_nothing_for_the_example() -> None:
    def find(x: torch.Tensor) -> torch.Tensor:
        return torch.exp(x).view(-1, 4) + 1

    register(find, lambda x: 1 + torch.exp(x.view(-1, 4)), [T])
    assert fires(find, torch.randn(2, 3, 4)) == 1
    assert fires(lambda x: torch.exp(x) + 1, torch.randn(2, 4)) == 1


def test_a_view_that_does_nothing_for_the_example() -> None:
    register(lambda x: torch.exp(x.reshape(-1, 4)), lambda x: torch.exp(x).reshape(-1, 4), [T])
    assert fires(lambda x: torch.exp(x.reshape(-1, 4)), torch.randn(2, 3, 4)) == 1


def test_fake_and_real_examples_together() -> None:
    with FakeTensorMode():
        fake = torch.empty(1, 4)
    with FakeTensorMode():
        register(add_exp, apart, (fake, torch.empty(1, 4)))
    assert fires(add_exp, X, Y) == 1


def test_a_parameter_with_a_default_is_a_constant() -> None:
    def find(x: torch.Tensor, scale: float = 3.0, bias: torch.Tensor | None = None) -> torch.Tensor:
        return torch.exp(x * scale) if bias is None else torch.exp(x * scale + bias)

    register(find, lambda x: torch.exp(x) ** 3, [T])
    assert fires(lambda x: torch.exp(x * 3.0), X) == 1
    assert fires(lambda x: torch.exp(x * 4.0), X) == 0


# Numbers


def scaled(x: torch.Tensor, n: float) -> torch.Tensor:
    return torch.exp(x * n)


@pytest.mark.parametrize("how", ["workaround", "both", "example"])
def test_numbers_are_wildcards(how: str) -> None:
    seen: list[float] = []

    def put(x: torch.Tensor, n: float) -> torch.Tensor:
        seen.append(n)
        return torch.exp(x) ** n

    inputs = [T] if how == "workaround" else [T, 7.5]
    register(scaled, put, inputs, scalar_workaround=None if how == "example" else {"n": 7.5})
    seen.clear()
    assert fires(lambda x: torch.exp(x * 3), X) == 1
    assert fires(lambda x: torch.exp(x * 2.5), X) == 1
    assert set(seen) == {3, 2.5}


def test_a_number_in_the_middle() -> None:
    def find(x: torch.Tensor, n: float, y: torch.Tensor) -> torch.Tensor:
        return torch.exp(x * n + y)

    def put(x: torch.Tensor, n: float, y: torch.Tensor) -> torch.Tensor:
        return torch.exp(x * n) * torch.exp(y)

    register(find, put, [T, T], scalar_workaround={"n": 7.5})
    assert fires(lambda x, y: torch.exp(x * 2 + y), X, Y) == 1


def test_a_number_is_no_tensor() -> None:
    register(scaled, lambda x, n: torch.exp(x) ** n, [T, 7.5])
    assert "a number of the pattern is a tensor here" in why(lambda x, y: torch.exp(x * y), X, Y)


def test_a_tensor_is_no_number() -> None:
    register(add_exp, apart, (T, T))
    assert "a tensor of the pattern is 1 here" in why(lambda x: torch.exp(x + 1), X)


def test_whole_numbers_and_floats_are_alike_where_the_result_is() -> None:
    register(lambda x: torch.exp(x * 2), lambda x: torch.exp(x) ** 2, [T])
    assert fires(lambda x: torch.exp(x * 2.0), X) == 1
    assert fires(lambda x: torch.exp(x * 3), X) == 0
    assert "has 3, expected 2" in why(lambda x: torch.exp(x * 3), X)


def test_results_of_another_dtype_are_refused() -> None:
    register(lambda x: torch.neg(x * 2), lambda x: x * -2.0, [T])
    assert fires(lambda x: torch.neg(x * 2), X) == 1
    assert "float32[4] on cpu" in why(lambda x: torch.neg(x * 2), torch.arange(4))


# Matches


def test_arguments_that_the_pattern_does_not_have() -> None:
    """torch's matcher does not look at them: the results would be wrong."""
    register(add_exp, apart, (T, T))
    assert "alpha=2" in why(lambda x, y: torch.exp(torch.add(x, y, alpha=2)), X, Y)
    assert fires(lambda x, y: torch.exp(torch.add(x, y, alpha=1)), X, Y) == 1


def test_gelu_is_not_its_other_form() -> None:
    gelu = torch.nn.functional.gelu
    register(lambda x: gelu(x) + 1, lambda x: 1 + torch.clone(gelu(x)), [T])
    assert "approximate='tanh'" in why(lambda x: gelu(x, approximate="tanh") + 1, X)
    assert fires(lambda x: gelu(x) + 1, X) == 1


def two(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    total = a + b
    return torch.exp(total), total


def two_apart(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return apart(a, b), a - (-b)


def test_pattern_with_several_results_fires() -> None:
    register(two, two_apart, (T, T))
    assert fires(lambda x, y: two(x, y), X, Y) == 1
    # The sum is there anyway, whether others read it or not.
    assert fires(lambda x, y: two(x, y)[0], X, Y) == 1


def test_pattern_with_unused_result_fires() -> None:
    register(lambda a: (torch.exp(a), torch.sin(a)), lambda a: (a.exp().clone(), a.sin().clone()), [T])
    assert fires(lambda x: (x.exp(), x.sin()), X) == 1
    assert "an output of the pattern is not used: no aten.sin.default" in why(torch.exp, X)


def test_results_in_containers() -> None:
    register(lambda a: {"x": [torch.exp(a)], "y": torch.sin(a)}, lambda a: [a.exp() * 1, a.sin() * 1], [T])
    assert fires(lambda x: (x.exp(), x.sin()), X) == 1


def test_a_value_that_comes_from_a_result_is_refused() -> None:
    def pair(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.exp(a), torch.atan2(a, b)

    register(pair, lambda a, b: (torch.exp(a) * 1, torch.atan2(a, b) * 1), (T, T))
    assert fires(pair, X, Y) == 1

    def directly(x: torch.Tensor) -> Any:
        first = torch.exp(x)
        return first, torch.atan2(x, first)

    assert "one of its own results" in why(directly, X)

    def through(x: torch.Tensor) -> Any:
        first = torch.exp(x)
        return first, torch.atan2(x, first + 1)

    assert "is made from exp" in why(through, X)


def test_a_value_that_comes_late_is_computed_before() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> Any:
        first = torch.exp(x)
        return first, torch.atan2(x, torch.sin(y) + 1)

    register(
        lambda a, b: (torch.exp(a), torch.atan2(a, b)),
        lambda a, b: (torch.exp(a) * 1, torch.atan2(a, b) * 1),
        (T, T),
    )
    assert fires(fn, X, Y) == 1


def test_a_part_that_others_read() -> None:
    register(add_exp, apart, (T, T))

    def fn(x: torch.Tensor, y: torch.Tensor) -> Any:
        total = x + y
        return torch.exp(total), total.sin()

    assert "add is used elsewhere: exp, sin read it" in why(fn, X, Y)


def test_what_is_written_in_place() -> None:
    """The model and the pattern: graphs are functional when patterns are looked for."""

    def find(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        made = a + b
        return made.exp_()

    register(find, apart, (T, T))
    gm, ctx = functional(lambda x, y: (x + y).exp_(), X, Y)
    assert apply_pattern_passes(gm, ctx) == 1
    torch.testing.assert_close(gm(X, Y), torch.exp(X + Y))


@pytest.mark.parametrize("tracing", ["fake", "symbolic"])
def test_sizes_in_views(tracing: str) -> None:
    def find(x: torch.Tensor) -> torch.Tensor:
        return torch.exp(x.view(x.shape[0] * x.shape[1], x.shape[2]))

    register(find, lambda x: torch.exp(x).view(x.shape[0] * x.shape[1], x.shape[2]), [torch.ones(2, 3, 4)])
    assert fires(find, torch.randn(3, 5, 7), tracing=tracing) == 1


def test_a_pattern_that_is_not_defined_for_a_match() -> None:
    def find(x: torch.Tensor) -> torch.Tensor:
        _rows, _columns = x.shape
        return torch.exp(x + 1)

    register(find, lambda x: torch.exp(1 + x).clone(), [T])
    assert "is not defined here: ValueError" in why(lambda x: torch.exp(x + 1), torch.ones(3))
    assert fires(lambda x: torch.exp(x + 1), X) == 1


def test_a_replacement_of_another_shape_for_a_match() -> None:
    register(lambda x: torch.exp(x), lambda x: torch.exp(x)[:2] * 1, [T])
    assert "float32[2, 5] on cpu, that of the pattern float32[3, 5]" in why(torch.exp, X)


def test_streams_and_synchronisations() -> None:
    register(add_exp, apart, (T, T))
    gm, ctx = traced(add_exp, X, Y)
    ctx.explains = True
    in_scope(gm, node(gm, aten.exp.default))
    assert apply_pattern_passes(gm, ctx) == 0
    assert "stream of add is None, of exp 'side'" in ctx.rules[0].why
    gm, ctx = traced(add_exp, X, Y)
    ctx.explains = True
    with gm.graph.inserting_before(node(gm, aten.exp.default)):
        gm.graph.call_function(ops.tagged_event_record.default, ("e",))
    assert apply_pattern_passes(gm, ctx) == 0
    assert "synchronisations before it of add is 0, of exp 1" in ctx.rules[0].why
    for keys in ([stream_ops.DETERMINISTIC_LEVEL], list(stream_ops.CORE_LIMITS), [stream_ops.SUPER_KERNEL]):
        gm, ctx = traced(add_exp, X, Y)
        in_scope(gm, node(gm, aten.exp.default))
        node(gm, ops.scope_enter.default).args = (keys, ["1"] * len(keys))
        assert apply_pattern_passes(gm, ctx) == 0
    gm, ctx = traced(add_exp, X, Y)
    in_scope(gm, node(gm, aten.exp.default))
    node(gm, ops.scope_enter.default).args = ([stream_ops.SUPER_KERNEL], [""])
    assert apply_pattern_passes(gm, ctx) == 1


# Memory


def turned(x: torch.Tensor) -> torch.Tensor:
    return torch.exp(x).t()


def rows(x: torch.Tensor) -> torch.Tensor:
    """The same numbers, one row after another."""
    return torch.exp(x.t().contiguous())


READERS: dict[str, tuple[Callable[[torch.Tensor], Any], int]] = {
    "returned": (turned, 1),
    "behind_a_sum": (lambda x: turned(x) + 1, 1),
    "looked_at": (lambda x: turned(x).as_strided((3,), (1,)).sum(), 1),
    "a_product": (lambda x: turned(x) @ x, 0),
    "a_total": (lambda x: (turned(x) + 1).sum(), 0),
}


@pytest.mark.parametrize("tracing", ["fake", "symbolic"])
@pytest.mark.parametrize("name", READERS)
def test_other_strides_are_put_right_where_somebody_sees_them(name: str, tracing: str) -> None:
    register(turned, rows, [T])
    fn, copies = READERS[name]
    gm, ctx = traced(fn, X, tracing=tracing)
    ctx.switches["captures"] = True
    assert apply_pattern_passes(gm, ctx) == 1
    assert calls(gm).count("aten.permute.default") == 2 * copies
    got, want = gm(X), fn(X)
    torch.testing.assert_close(got, want)
    assert got.stride() == want.stride()


def test_graph_mode_arranges_results_by_itself() -> None:
    register(turned, rows, [T])
    for name, copies in (("returned", 0), ("looked_at", 1)):
        gm, ctx = traced(READERS[name][0], X)
        assert apply_pattern_passes(gm, ctx) == 1
        assert calls(gm).count("aten.permute.default") == 2 * copies


def test_strides_that_no_copy_can_have() -> None:
    register(lambda x: torch.exp(x)[:, ::2], lambda x: torch.exp(x[:, ::2]), [T])
    gm, ctx = traced(lambda x: torch.exp(x)[:, ::2], X)
    ctx.switches["captures"], ctx.explains = True, True
    assert apply_pattern_passes(gm, ctx) == 0
    assert ctx.rules[0].why == "its result has the strides (5, 2), that of the replacement (3, 1)"


def test_a_result_that_was_new_memory_stays_so() -> None:
    register(lambda x: x * 1, lambda x: x, [T])
    gm, ctx = traced(lambda x: (x * 1).view(-1), X)
    ctx.switches["captures"] = True
    assert apply_pattern_passes(gm, ctx) == 1
    assert gm(X).data_ptr() != X.data_ptr()
    gm, ctx = traced(lambda x: (x * 1).exp(), X)
    ctx.switches["captures"] = True
    assert apply_pattern_passes(gm, ctx) == 1
    assert calls(gm) == ["aten.exp.default"]


# The other parameters


def test_extra_check_sees_the_match() -> None:
    seen: list[Any] = []

    def check(match: Any) -> bool:
        seen.append((match.kwargs["a"].name, [n.name for n in match.nodes]))
        return len(seen) > 1

    register(add_exp, apart, (T, T), extra_check=check)
    assert why(add_exp, X, Y) == "extra_check said no"
    assert fires(add_exp, X, Y) == 1
    assert seen[0] == ("a_1", ["add", "exp"])


def test_search_fn_pattern_is_taken_instead() -> None:
    KeywordArg, CallFunction = pattern_matcher.KeywordArg, pattern_matcher.CallFunction
    pattern = CallFunction(
        aten.exp.default, CallFunction([aten.add.Tensor, aten.sub.Tensor], KeywordArg("a"), KeywordArg("b"))
    )

    def signature(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        raise AssertionError("only its parameters are read")

    register(signature, lambda a, b: torch.hypot(a, b), (T, T), search_fn_pattern=pattern)
    for fn in (add_exp, lambda a, b: torch.exp(a - b)):
        gm, ctx = traced(fn, X, Y)
        assert apply_pattern_passes(gm, ctx) == 1
        assert calls(gm) == ["aten.hypot.default"]
    with pytest.raises(BadPass, match="registered already"):
        register(signature, apart, (T, T), search_fn_pattern=pattern)


def test_trace_fn_of_the_user() -> None:
    used: list[Any] = []

    def trace(fn: Any, args: Any) -> Any:
        used.append(fn)
        return pattern_matcher.fwd_only(fn, args)

    register(lambda x: torch.nn.functional.silu(x), lambda x: x * torch.sigmoid(x), [T], trace_fn=trace)
    assert used
    # It takes silu apart, so the graph, which does not, has no such pattern.
    assert fires(lambda x: torch.nn.functional.silu(x), X) == 0
    register(add_exp, apart, (T, T), trace_fn=pattern_matcher.fwd_only)
    assert fires(add_exp, X, Y) == 1


def test_duplicate_patterns_are_registered_once() -> None:
    register(add_exp, apart, (T, T))
    with pytest.raises(BadPass, match=r"add_exp \(test_registry.py"):
        register(add_exp, apart, (T, T))
    with pytest.raises(RuntimeError, match="registered already"):
        register(lambda p, q: torch.exp(p + q), apart, (T, T))
    known = len(EXTENSIONS)
    register(add_exp, lambda a, b: torch.hypot(a, b), (T, T), skip_duplicates=True)
    assert len(EXTENSIONS) == known
    assert len(registry.OF_TORCHAIR.of_users) == 1
    assert fires(add_exp, X, Y) == 1  # with the first replacement
    register(
        lambda a: torch.exp(a + 1), lambda a: torch.exp(a) * torch.e, [T]
    )  # other numbers are another rule
    register(lambda a: torch.exp(a + 2), lambda a: torch.exp(a) * torch.e**2, [T])


def test_two_sets_of_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    own = registry.RuleSet("npugraph_ex", "npugraph_ex.register_replacement")
    monkeypatch.setattr(registry, "OF_CAPTURE", own)
    monkeypatch.setattr("torchair.npugraph_ex.patterns.OF_CAPTURE", own)
    npugraph_ex.register_replacement(add_exp, apart, (T, T))
    capture, tree = npugraph_ex.CompilerConfig(), torchair.CompilerConfig()
    tree.mode = "npugraph_ex"
    for config, fired in ((capture, 1), (tree, 0), (None, 0)):
        gm, ctx = traced(add_exp, X, Y)
        ctx.config = config
        assert apply_pattern_passes(gm, ctx) == fired
    assert [o.why for o in registry.of_the_other(tree)] == [
        "registered with npugraph_ex.register_replacement, and this configuration has the rules of "
        "torchair.register_replacement"
    ]


def test_our_own_rules_are_in_both_sets() -> None:
    left, right = torch.randn(3, 4, 128), torch.randn(3, 128, 256)
    for config in (npugraph_ex.CompilerConfig(), torchair.CompilerConfig()):
        gm, ctx = traced(lambda a, b: torch.bmm(a, b).transpose(0, 1), left, right)
        ctx.config = config
        assert apply_pattern_passes(gm, ctx) == 1


# Errors at registration


def same(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a + b


HELD = torch.ones(4)
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "search_fn": ({"search_fn": 3}, "search_fn of register_replacement must be a function"),
    "replace_fn": ({"replace_fn": None}, "replace_fn of register_replacement must be a function"),
    "trace_fn": ({"trace_fn": "fwd_only"}, "trace_fn of register_replacement must be a function"),
    "extra_check": ({"extra_check": True}, "extra_check of register_replacement must be a function"),
    "pattern": ({"search_fn_pattern": same}, "search_fn_pattern must be a pattern"),
    "one_tensor": ({"example_inputs": T}, "example_inputs must be a list or a tuple"),
    "too_few": ({"example_inputs": [T]}, "takes 2 examples, and example_inputs has 1"),
    "too_many": ({"example_inputs": [T, T, T]}, "takes 2 examples, and example_inputs has 3"),
    "names": ({"example_inputs": {"a": T, "c": T}}, "without b"),
    "no_tensor": ({"example_inputs": [1, 2]}, "takes no tensor"),
    "scalars": ({"scalar_workaround": {"c": 1}}, "'c', which is no parameter of search_fn same"),
    "scalar_type": ({"scalar_workaround": {"b": "x"}}, "must be a number"),
    "scalars_map": ({"scalar_workaround": 3}, "must map parameters to numbers"),
    "flag": ({"skip_duplicates": "yes"}, "skip_duplicates of register_replacement must be a bool"),
    "complex": (
        {"search_fn": lambda a, n: a * n, "example_inputs": [T, 2 + 1j]},
        "example of n of the pattern <lambda> is a complex number",
    ),
    "alike": (
        {"search_fn": lambda a, m, n: a * m + n, "example_inputs": [T, 2, 2.0]},
        "the numbers m and n of the pattern <lambda> are both 2",
    ),
    "any_number": ({"search_fn": lambda *a: a[0]}, "takes any number of arguments"),
    "untraceable": ({"search_fn": lambda a, b: a + b.item()}, "cannot be traced"),
    "data": ({"search_fn": lambda a, b: a if bool(a.sum() > 0) else b}, "cannot be traced"),
    "unused": ({"search_fn": lambda a, b: a + 1}, "does not use b"),
    "itself": ({"search_fn": lambda a, b: (a + b, a)}, "returns an argument of its own"),
    "nothing": ({"search_fn": lambda a, b: None}, "must return tensors"),
    "held": ({"search_fn": lambda a, b: a + b + HELD}, "has a tensor that is none of its arguments"),
    "writes": ({"replace_fn": lambda a, b: a.add_(b)}, "replace_fn of same writes its argument"),
    "puts_held": ({"replace_fn": lambda a, b: a + b + HELD}, "has a tensor that is none of its arguments"),
    "arity": ({"replace_fn": lambda a: a}, "does not take the values of the pattern"),
    "number": ({"replace_fn": lambda a, b: (a, b)}, "returns 2 values, the pattern 1"),
    "shape": ({"replace_fn": lambda a, b: a.sum()}, r"is float32\[\] on cpu"),
    "dtype": ({"replace_fn": lambda a, b: a.half()}, r"is float16\[2, 4\] on cpu"),
    "typo": ({"replace_fn": lambda a, b: torch.no_such_op(a, b)}, "replace_fn of same cannot be traced"),
}


@pytest.mark.parametrize("name", WRONG)
def test_register_replacement_refuses_invalid_pattern(name: str) -> None:
    changes, text = WRONG[name]
    arguments = {"search_fn": same, "replace_fn": same, "example_inputs": [T, T]} | changes
    known = dict(EXTENSIONS)
    with pytest.raises((BadPass, BadOptionType), match=text):
        register(**arguments)
    assert known == EXTENSIONS
    assert registry.OF_TORCHAIR.of_users == []


def test_a_replacement_that_refuses_the_examples_is_looked_at_later() -> None:
    def put(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        if a.shape[-1] % 5:
            raise ValueError("rows of five")
        return apart(a, b)

    register(add_exp, put, (T, T))
    assert fires(add_exp, X, Y) == 1


def test_counts_for_statistics() -> None:
    register(add_exp, apart, (T, T), extra_check=lambda match: match.kwargs["a"].name == "x_1")
    gm, _ = traced(lambda x, y: (torch.exp(x + y), torch.exp(y + x)), X, Y)
    ctx = PassContext()
    assert apply_pattern_passes(gm, ctx) == 1
    assert (ctx.tallies["add_exp"].matches, ctx.tallies["add_exp"].effects) == (2, 1)
