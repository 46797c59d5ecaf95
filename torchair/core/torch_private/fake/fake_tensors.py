"""Fake tensors, their symbols, and their graphs."""

# torch's own types describe one of the versions supported here, and leave out much of what is private.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import sympy
import torch
from torch import fx
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.source import ConstantSource
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.fx._graph_pickler import GraphPickler
from torch.fx._graph_pickler import Options as PickleOptions
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.fx.experimental.proxy_tensor import make_fx, snapshot_fake
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    GuardOnDataDependentSymNode,
    ShapeEnv,
    free_symbols,
    statically_known_true,
)
from torch.fx.passes.fake_tensor_prop import FakeTensorProp
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._python_dispatch import _disable_current_modes as disable_modes
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.printers import PythonPrinter
from torch.utils._sympy.reference import PythonReferenceAnalysis

from torchair.core.sym_expr import SymExpr

__all__ = [
    "DATA_ERRORS",
    "FakeTensor",
    "FakeTensorMode",
    "PythonReferenceAnalysis",
    "ShapeEnv",
    "TorchDispatchMode",
    "condition_text",
    "detect_fake_mode",
    "disable_modes",
    "dump_graph",
    "enable_python_dispatcher",
    "fake_tensor_prop",
    "faking",
    "float_seen",
    "free_symbols",
    "graph_module",
    "is_unbacked",
    "lending",
    "load_graph",
    "looked_at",
    "lower_bound",
    "make_fx",
    "reset_unbacked_symbol_memo",
    "snapshot_fake",
    "statically_known_true",
    "symbol_facts",
    "symbol_ranges",
    "sympy_interp",
    "trace_before_autograd",
    "tree_flatten",
    "tree_leaves",
    "tree_map",
    "tree_unflatten",
    "unclaimed_symbols",
    "with_shape_env",
    "without_modes",
]


def lower_bound(value: torch.SymInt) -> int:
    """Return the least value that the shape environment allows for `value`."""
    bound = value.node.shape_env.bound_sympy(value.node.expr).lower
    return int(bound) if isinstance(bound, sympy.Integer) else -1  # torch's own infinity claims to be finite


def new_size(env: ShapeEnv, name: str, example: int) -> torch.SymInt:
    """Return a new symbolic size, at least 2."""
    source = ConstantSource(name)
    symbol = env.create_symbol(example, source=source, dynamic_dim=DimDynamic.DYNAMIC, constraint_dim=None)
    made = env.create_symintnode(symbol, hint=example, source=source)
    assert isinstance(made, torch.SymInt), "a dynamic size is a symbol"
    return made


def symbol_facts(fake_mode: FakeTensorMode | None) -> list[str]:
    """Return each symbol with its hint and range, which Inductor uses for decisions."""
    env = fake_mode.shape_env if fake_mode is not None else None
    if env is None:
        return []
    hints = _hints(env)
    return sorted(f"{symbol} {hints.get(symbol)} {bounds}" for symbol, bounds in env.var_to_range.items())


def _hints(env: ShapeEnv) -> dict[sympy.Symbol, sympy.Integer]:
    return env.backed_var_to_val if hasattr(env, "backed_var_to_val") else env.var_to_val


def condition_text(env: ShapeEnv, condition: Any) -> tuple[str, dict[str, int | None]]:
    """Return a condition on sizes as a Python expression, and the value of each symbol at trace time (None if
    it depends on data). The text is empty if the condition always holds.
    """
    known = env.replace(condition)
    values = {str(symbol): _hints(env).get(symbol) for symbol in sorted(known.free_symbols, key=str)}
    text = PythonPrinter().doprint(known) if values else ""
    return text, {name: None if value is None else int(value) for name, value in values.items()}


def looked_at(fake_mode: FakeTensorMode, tensors: Sequence[torch.Tensor]) -> dict[int, torch.Tensor]:
    """Return the fake tensors of those arguments of a call that Dynamo has used while tracing it, by the
    identity of the arguments. The fake mode that backends get lacks tensors that the graph does not read.
    """
    tracked = fake_mode.shape_env.tracked_fakes if fake_mode.shape_env is not None else None
    modes = {value.fake_mode for each in tracked or () if hasattr(value := each.fake, "fake_mode")}
    pairs = ((tensor, mode.fake_tensor_converter._get_memo(tensor)) for mode in modes for tensor in tensors)
    return {id(tensor): fake for tensor, fake in pairs if fake is not None}


def _bound(number: Any) -> int | None:
    return int(number) if isinstance(number, sympy.Integer) else None


def symbol_ranges(values: Sequence[Any]) -> dict[str, tuple[int | None, int | None]]:
    """Map each symbol in these values to its bounds; None if there is no bound."""
    found: dict[str, tuple[int | None, int | None]] = {}
    for value in values:
        numbers = value.shape if isinstance(value, torch.Tensor) else (value,)
        for number in numbers:
            known = number.node.shape_env.var_to_range if isinstance(number, torch.SymInt) else {}
            # The ragged size of a nested tensor is a symbol without a range.
            for symbol in free_symbols(number) & known.keys() if known else ():
                found[str(symbol)] = (_bound(known[symbol].lower), _bound(known[symbol].upper))
    return found


@contextlib.contextmanager
def faking(fake_mode: FakeTensorMode) -> Iterator[None]:
    """Run under a fake mode. Symbolic sizes also need torch's Python dispatcher, because some composite ops
    in C++ reject them.
    """
    symbolic = fake_mode.shape_env is not None
    with fake_mode, enable_python_dispatcher() if symbolic else contextlib.nullcontext():
        yield


DATA_ERRORS = (DataDependentOutputException, DynamicOutputShapeException, GuardOnDataDependentSymNode)
"""Errors that fake tensors raise where only real data gives an answer."""


def is_unbacked(number: Any) -> bool:
    """Return whether a symbolic number depends on data."""
    if isinstance(number, SymExpr):
        return number.is_unbacked
    return isinstance(number, torch.SymInt | torch.SymFloat | torch.SymBool) and not number.node.has_hint()


def fake_tensor_prop(gm: fx.GraphModule, fake_mode: FakeTensorMode | None, inputs: Sequence[Any]) -> None:
    """Compute `meta["val"]` of every node again. Some composite ops in C++ reject symbols, as in `faking`.
    Constants of the graph may be real tensors.
    """
    symbolic = fake_mode is not None and fake_mode.shape_env is not None
    own = contextlib.nullcontext() if fake_mode is None else lending(fake_mode, "allow_non_fake_inputs", True)
    with enable_python_dispatcher() if symbolic else contextlib.nullcontext(), own:
        FakeTensorProp(gm, mode=fake_mode).propagate_dont_convert_inputs(*inputs)


@contextlib.contextmanager
def with_shape_env(fake_mode: FakeTensorMode) -> Iterator[None]:
    """Lend the fake mode a shape environment: some ops (loops) need one even if all sizes are numbers."""
    with lending(fake_mode, "shape_env", ShapeEnv() if fake_mode.shape_env is None else fake_mode.shape_env):
        yield


@contextlib.contextmanager
def lending(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Set an attribute to another value inside the context."""
    own = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, own)


_PICKLING = threading.RLock()
"""Lock for pickling: torch registers slices with pytree meanwhile."""


def graph_module(root: Any, graph: fx.Graph, name: str = "GraphModule") -> fx.GraphModule:
    """Return a module of this graph that generates its code when it is run or read. Generating it takes as
    long as many passes, and few modules are run.
    """
    return _LazyGraphModule(root, graph, name)


def dump_graph(gm: fx.GraphModule) -> bytes:
    """Serialize a graph of ATen calls with fake values, for another process."""
    with _PICKLING:
        return GraphPickler.dumps(gm, PickleOptions(ops_filter=None))


def load_graph(data: bytes, fake_mode: FakeTensorMode) -> fx.GraphModule:
    """Return the graph that `dump_graph` serialized; its values belong to `fake_mode`."""
    with _PICKLING:
        loaded = GraphPickler.loads(data, fake_mode)
    assert isinstance(loaded, fx.GraphModule), "`dump_graph` writes graph modules"
    loaded.recompile()
    return loaded


def without_modes(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function wrapped to run outside of every dispatch mode: it creates real tensors even while
    tracing.
    """

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with disable_modes():
            return function(*args, **kwargs)

    return run


@contextlib.contextmanager
def unclaimed_symbols(fake_mode: FakeTensorMode) -> Iterator[None]:
    """Allow data-dependent sizes that no traced node claims; the next trace does not report them as
    missing.
    """
    env = fake_mode.shape_env
    with env.ignore_fresh_unbacked_symbols() if env is not None else contextlib.nullcontext():
        yield


def reset_unbacked_symbol_memo(fake_mode: FakeTensorMode) -> None:
    """Forget the symbols that fake tensors remember for `nonzero` or `item`. From now on each call creates a
    new symbol, with a node that computes it.
    """
    fake_mode.epoch += 1


def float_seen(symbol: torch.SymFloat) -> float | None:
    """Return the value of a symbol when it was created. If it changes later, nothing is compiled again."""
    return symbol.node.hint


class _AsDynamo(fx.Interpreter):
    """Runs a Dynamo graph with the numbers that Dynamo has seen for symbolic floats, which tracing cannot
    determine. It also switches autocast, which such a trace records but does not apply, so that results have
    the right dtypes.
    """

    def __init__(self, gm: fx.GraphModule) -> None:
        super().__init__(gm, garbage_collect_values=False)
        self._casting: dict[Any, torch.autocast] = {}

    def run_node(self, n: fx.Node) -> Any:
        known = n.meta.get("example_value")
        number = float_seen(known) if isinstance(known, torch.SymFloat) else None
        made = super().run_node(n) if number is None else number
        with torch._C.DisableTorchFunction():
            if n.target is torch.amp._enter_autocast:
                self._casting[n] = torch.autocast(*n.args)
                self._casting[n].__enter__()
            elif n.target is torch.amp._exit_autocast:
                self._casting.pop(n.args[0]).__exit__(None, None, None)
        return made


def trace_before_autograd(gm: fx.GraphModule) -> tuple[fx.Graph, list[fx.Node]]:
    """Return the ATen calls of a Dynamo graph before any decomposition, and the Dynamo nodes whose values
    that graph returns. Symbolic floats become numbers.
    """
    inputs = [node.meta["example_value"] for node in gm.graph.find_nodes(op="placeholder")]
    fake_mode = detect_fake_mode(inputs) or FakeTensorMode(allow_non_fake_inputs=True)
    nodes: list[fx.Node] = []

    def run(*args: Any) -> list[Any]:
        interpreter = _AsDynamo(gm)
        interpreter.run(*args)
        nodes[:] = [node for node, value in interpreter.env.items() if isinstance(value, torch.Tensor)]
        return [interpreter.env[node] for node in nodes]

    # Detach, so that in-place changes of sizes do not affect Dynamo's own tensors. Scalars know their
    # numbers.
    args = [value.detach() if isinstance(value, torch.Tensor) and value.dim() else value for value in inputs]
    with contextlib.ExitStack() as around:
        around.enter_context(keeping_switches())
        around.enter_context(faking(fake_mode))
        around.enter_context(unclaimed_symbols(fake_mode))
        around.enter_context(lending(fake_mode, "allow_non_fake_inputs", True))
        around.enter_context(lending(fake_mode, "allow_scalar_outputs", True))
        traced = make_fx(run, tracing_mode="real", pre_dispatch=True, _allow_non_fake_inputs=True)(*args)
    return traced.graph, nodes


@contextlib.contextmanager
def keeping_switches() -> Iterator[None]:
    """Restore gradient mode and autocast at the end of the context, also after an error."""
    kinds = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    with contextlib.ExitStack() as kept:
        kept.enter_context(torch.set_grad_enabled(torch.is_grad_enabled()))
        for kind in kinds:
            dtype, is_on = torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)
            kept.enter_context(torch.autocast(kind, dtype=dtype, enabled=is_on))
        yield
