"""Graphs that Dynamo has captured, traced once more as data without running user code."""

# torch's own types describe one of the versions supported here, and leave out much of what is private.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch import fx
from torch._dynamo.exc import FailOnRecompileLimitHit, Unsupported
from torch._subclasses.functional_tensor import FunctionalTensor

from torchair.core.torch_private.fake.fake_tensors import (
    FakeTensorMode,
    ShapeEnv,
    detect_fake_mode,
    faking,
    keeping_switches,
    make_fx,
    new_size,
)
from torchair.core.torch_private.fake.tracing import as_in_a_compile, functionalized

__all__ = ["CapturedGraph", "NotWhole", "SizedGraph", "ends_early", "number_places", "sized_graph"]

NotWhole = (Unsupported, FailOnRecompileLimitHit)
"""Errors of a call that was required to be one graph, but is not."""
Sizes = tuple[Any, ...]
"""The sizes of a tensor: numbers, and expressions of symbols."""


class CapturedGraph:
    """A Dynamo graph and the sizes it was captured for. It holds no fake tensors, which would keep parameters
    from being swapped.
    """

    def __init__(self, gm: fx.GraphModule, copied: fx.GraphModule) -> None:
        """Read the facts of `gm`. `copied` has the same calls, and backends do not change it."""
        self.is_whole = not ends_early(gm)
        self.gm = copied
        for node in copied.graph.nodes:
            node.meta = {name: node.meta[name] for name in ("stack_trace",) if name in node.meta}
        fakes = [node.meta.get("example_value") for node in gm.graph.find_nodes(op="placeholder")]
        mode = detect_fake_mode(fakes)
        self._env: ShapeEnv | None = mode.shape_env if mode is not None else None
        self._fakes: list[Any] = fakes
        self.numbers = frozenset(n.name for n in gm.graph.nodes if _is_given_number(n))
        self.inputs: list[Sizes | Any] = []  # of each tensor its sizes, of each number its expression
        self._guards: list[Any] = []
        self._ranges: dict[Any, Any] = {}

    def settle(self) -> None:
        """Record the guards after all of them are installed."""
        env, fakes, self._env, self._fakes = self._env, self._fakes, None, []
        self.inputs = [_sizes(fake, env) for fake in fakes]
        if env is not None:
            self._guards = [guard.expr for guard in env.guards]
            self._ranges = dict(env.var_to_range)

    def admits(self, values: Mapping[Any, int]) -> bool:
        """Return whether the sizes that it was captured for include these values of symbols."""
        return _holds(self._guards, self._ranges, values)


def ends_early(gm: fx.GraphModule) -> bool:
    """Return whether a Dynamo graph ends before its function returns."""
    reason = getattr(gm, "compile_subgraph_reason", None)
    return reason is None or reason.graph_break


def number_places(gm: fx.GraphModule) -> tuple[int, ...]:
    """Return the indices of inputs that are Python numbers and affect tensors. Dynamo passes floats as
    tensors.
    """
    made_of = {node.args[0] for node in gm.graph.nodes if _is_given_number(node)}
    return tuple(
        at
        for at, node in enumerate(gm.graph.find_nodes(op="placeholder"))
        if (node in made_of or _is_number(node)) and _matters(node)
    )


def _is_number(node: fx.Node) -> bool:
    numbers = int | float | torch.SymInt | torch.SymFloat | torch.SymBool
    return isinstance(node.meta.get("example_value"), numbers)


def _matters(number: fx.Node) -> bool:
    """Return whether anything other than numbers is computed from it."""
    users = [user for user in number.users if user.op != "output"]
    return any(not _is_number(user) or _matters(user) for user in users)


def _is_given_number(node: fx.Node) -> bool:
    """Return whether the node is a number that Dynamo passes as a tensor."""
    value = node.meta.get("example_value")
    source = node.args[0] if node.op == "call_method" and node.target == "item" else None
    is_item = isinstance(source, fx.Node) and source.op == "placeholder"
    return is_item and (
        isinstance(value, float) or (isinstance(value, torch.SymFloat) and value.node.has_hint())
    )


def _sizes(fake: Any, env: ShapeEnv | None) -> Any:
    def expression(number: Any) -> Any:
        if not isinstance(number, torch.SymInt | torch.SymFloat | torch.SymBool):
            return number
        known = number.node.expr if env is None else env.replace(number.node.expr)
        return int(known) if known.is_Integer else known

    return tuple(map(expression, fake.shape)) if isinstance(fake, torch.Tensor) else expression(fake)


def _holds(guards: Sequence[Any], ranges: Mapping[Any, Any], values: Mapping[Any, int]) -> bool:
    """Return whether all guards on these symbols hold for these values; guards on other symbols count as
    fulfilled.
    """
    for symbol, value in values.items():
        bounds = ranges.get(symbol)
        if bounds is not None and not bounds.lower <= value <= bounds.upper:
            return False
    return all(guard.subs(values) != sympy.false for guard in guards)


class SizedGraph:
    """The functional ATen calls of a captured graph: one size is a symbol, all others are numbers."""

    def __init__(self, gm: fx.GraphModule, env: ShapeEnv, symbol: Any, writes: bool) -> None:
        self.gm, self.symbol = gm, symbol
        self.writes = writes  # an input
        self._env = env

    def admits(self, size: int) -> bool:
        """Return whether the calls are the same for this size."""
        guards = [guard.expr for guard in self._env.guards]
        return _holds(guards, self._env.var_to_range, {self.symbol: size})

    def forget(self) -> None:
        """Release the fake tensors."""
        for node in self.gm.graph.nodes:
            node.meta = {}

    def is_size(self, number: Any) -> bool:
        """Return whether a number is the size."""
        return isinstance(number, torch.SymInt) and self._env.replace(number.node.expr) == self.symbol

    def factors(self, number: Any) -> tuple[int, int] | None:
        """Return `(c, p)` of a number that is `c * size**p`; None for any other number."""
        if isinstance(number, int):
            return number, 0
        expr = self._env.replace(number.node.expr)
        factor, power = expr.as_coeff_exponent(self.symbol)
        is_plain = factor.is_Integer and power.is_Integer and power >= 0
        return (int(factor), int(power)) if is_plain else None

    def has_size(self, number: Any) -> bool:
        """Return whether a number, or a shape, depends on the size."""
        if isinstance(number, torch.Tensor):
            return any(map(self.has_size, number.shape))
        if not isinstance(number, torch.SymInt | torch.SymFloat | torch.SymBool):
            return False
        return self.symbol in self._env.replace(number.node.expr).free_symbols


def sized_graph(
    captured: CapturedGraph, args: Sequence[Any], dims: Mapping[int, int], size: int
) -> SizedGraph:
    """Trace a captured graph for the inputs of one call. `dims` maps the index of each input that has the
    size to its dimension, or to -1 if the input is the size itself.
    """
    env = ShapeEnv()
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=env)
    symbol = new_size(env, "size", size)

    def fake(place: int, arg: Any) -> Any:
        dim = dims.get(place)
        if not isinstance(arg, torch.Tensor):
            return symbol if dim is not None else arg
        if dim is None:
            return mode.from_tensor(arg, static_shapes=True).detach()
        shape = [symbol if at == dim else int(number) for at, number in enumerate(arg.shape)]
        return torch.empty(shape, dtype=arg.dtype, device=arg.device)

    run, written = _noting_writes(_WithNumbers(captured, args).run)
    with as_in_a_compile(), keeping_switches(), torch.no_grad(), faking(mode):
        inputs = [fake(place, arg) for place, arg in enumerate(args)]
        made = make_fx(
            functionalized(run), tracing_mode="real", record_stack_traces=True, _allow_non_fake_inputs=True
        )(*inputs)
    made.graph.eliminate_dead_code()
    made.recompile()
    return SizedGraph(made, env, symbol.node.expr, bool(written))


def _noting_writes(function: Callable[..., Any]) -> tuple[Callable[..., Any], list[int]]:
    """Return a wrapper of a function for functionalization, and a list that receives the arguments it has
    written.
    """
    written: list[int] = []

    def run(*args: Any) -> Any:
        outputs = function(*args)
        written[:] = [
            at for at, arg in enumerate(args) if isinstance(arg, FunctionalTensor) and _is_written(arg)
        ]
        return outputs

    return run, written


def _is_written(tensor: FunctionalTensor) -> bool:
    inner = tensor.elem
    return torch._functionalize_has_data_mutation(inner) or torch._functionalize_has_metadata_mutation(inner)


class _WithNumbers(fx.Interpreter):
    """Runs a graph with the numbers of a call where Dynamo's graph reads them from tensors with one
    element.
    """

    def __init__(self, captured: CapturedGraph, args: Sequence[Any]) -> None:
        super().__init__(captured.gm, garbage_collect_values=False)
        self._numbers = captured.numbers
        self._given = dict(zip(captured.gm.graph.find_nodes(op="placeholder"), args, strict=True))

    def run_node(self, n: fx.Node) -> Any:
        """Return the value of a node."""
        source = n.args[0] if n.name in self._numbers else None
        return self._given[source].item() if isinstance(source, fx.Node) else super().run_node(n)
