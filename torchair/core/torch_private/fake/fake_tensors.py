"""Fake tensors, their symbols, and graphs of them."""

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
    """The least value the shape environment allows for `value`."""
    bound = value.node.shape_env.bound_sympy(value.node.expr).lower
    return int(bound) if isinstance(bound, sympy.Integer) else -1  # torch's own infinity says it is finite


def new_size(env: ShapeEnv, name: str, example: int) -> torch.SymInt:
    """A size that is not known, of at least 2."""
    source = ConstantSource(name)
    symbol = env.create_symbol(example, source=source, dynamic_dim=DimDynamic.DYNAMIC, constraint_dim=None)
    made = env.create_symintnode(symbol, hint=example, source=source)
    assert isinstance(made, torch.SymInt), "a dynamic size is a symbol"
    return made


def symbol_facts(fake_mode: FakeTensorMode | None) -> list[str]:
    """Each symbol with its hint and range: Inductor decides by them."""
    env = fake_mode.shape_env if fake_mode is not None else None
    if env is None:
        return []
    hints = _hints(env)
    return sorted(f"{symbol} {hints.get(symbol)} {bounds}" for symbol, bounds in env.var_to_range.items())


def _hints(env: ShapeEnv) -> dict[sympy.Symbol, sympy.Integer]:
    return env.backed_var_to_val if hasattr(env, "backed_var_to_val") else env.var_to_val


def condition_text(env: ShapeEnv, condition: Any) -> tuple[str, dict[str, int | None]]:
    """A condition on sizes as an expression of Python, with the value that each symbol had in tracing: None
    where only data tell it. No text: it always holds.
    """
    known = env.replace(condition)
    values = {str(symbol): _hints(env).get(symbol) for symbol in sorted(known.free_symbols, key=str)}
    text = PythonPrinter().doprint(known) if values else ""
    return text, {name: None if value is None else int(value) for name, value in values.items()}


def looked_at(fake_mode: FakeTensorMode, tensors: Sequence[torch.Tensor]) -> dict[int, torch.Tensor]:
    """What stands for tensors of a call that Dynamo is tracing, by their identity, where it has looked at
    them. Dynamo gives backends a fake mode without those that its graph does not read.
    """
    tracked = fake_mode.shape_env.tracked_fakes if fake_mode.shape_env is not None else None
    modes = {value.fake_mode for each in tracked or () if hasattr(value := each.fake, "fake_mode")}
    pairs = ((tensor, mode.fake_tensor_converter._get_memo(tensor)) for mode in modes for tensor in tensors)
    return {id(tensor): fake for tensor, fake in pairs if fake is not None}


def _bound(number: Any) -> int | None:
    return int(number) if isinstance(number, sympy.Integer) else None


def symbol_ranges(values: Sequence[Any]) -> dict[str, tuple[int | None, int | None]]:
    """Of each symbol in these values, the least number and the greatest that it may be; None for no bound."""
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
    """Run under a fake mode. Symbolic sizes need torch's Python dispatcher too: some composite ops in C++
    refuse them.
    """
    symbolic = fake_mode.shape_env is not None
    with fake_mode, enable_python_dispatcher() if symbolic else contextlib.nullcontext():
        yield


DATA_ERRORS = (DataDependentOutputException, DynamicOutputShapeException, GuardOnDataDependentSymNode)
"""What fake tensors raise where only real data could answer."""


def is_unbacked(number: Any) -> bool:
    """A symbolic size that only the data decides."""
    if isinstance(number, SymExpr):
        return number.is_unbacked
    return isinstance(number, torch.SymInt | torch.SymFloat | torch.SymBool) and not number.node.has_hint()


def fake_tensor_prop(gm: fx.GraphModule, fake_mode: FakeTensorMode | None, inputs: Sequence[Any]) -> None:
    """Compute `meta["val"]` of every node anew; some composite ops in C++ refuse symbols, as in `faking`.
    Constants of the graph may be real tensors.
    """
    symbolic = fake_mode is not None and fake_mode.shape_env is not None
    own = contextlib.nullcontext() if fake_mode is None else lending(fake_mode, "allow_non_fake_inputs", True)
    with enable_python_dispatcher() if symbolic else contextlib.nullcontext(), own:
        FakeTensorProp(gm, mode=fake_mode).propagate_dont_convert_inputs(*inputs)


@contextlib.contextmanager
def with_shape_env(fake_mode: FakeTensorMode) -> Iterator[None]:
    """Some ops (loops) ask a fake mode for its symbols even where all sizes are numbers: lend it a set."""
    with lending(fake_mode, "shape_env", ShapeEnv() if fake_mode.shape_env is None else fake_mode.shape_env):
        yield


@contextlib.contextmanager
def lending(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Inside, an attribute has another value."""
    own = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, own)


_PICKLING = threading.RLock()
"""Torch registers slices with pytree while it does this: one thread at a time."""


def graph_module(root: Any, graph: fx.Graph, name: str = "GraphModule") -> fx.GraphModule:
    """A module of this graph, whose code is written when it is run or read: writing it takes as long as many
    a pass, and few are run.
    """
    return _LazyGraphModule(root, graph, name)


def dump_graph(gm: fx.GraphModule) -> bytes:
    """A graph of ATen calls with fake values, for another process."""
    with _PICKLING:
        return GraphPickler.dumps(gm, PickleOptions(ops_filter=None))


def load_graph(data: bytes, fake_mode: FakeTensorMode) -> fx.GraphModule:
    """What `dump_graph` wrote; its values belong to `fake_mode`."""
    with _PICKLING:
        loaded = GraphPickler.loads(data, fake_mode)
    assert isinstance(loaded, fx.GraphModule), "`dump_graph` wrote a graph module"
    loaded.recompile()
    return loaded


def without_modes(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, run outside of every dispatch mode: tensors it makes are real, whatever is being
    traced.
    """

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with disable_modes():
            return function(*args, **kwargs)

    return run


@contextlib.contextmanager
def unclaimed_symbols(fake_mode: FakeTensorMode) -> Iterator[None]:
    """Inside, data-dependent sizes may be made that no traced node will claim: the next trace does not miss
    them.
    """
    env = fake_mode.shape_env
    with env.ignore_fresh_unbacked_symbols() if env is not None else contextlib.nullcontext():
        yield


def reset_unbacked_symbol_memo(fake_mode: FakeTensorMode) -> None:
    """Fake tensors remember the symbol of their `nonzero` or `item`; from here on each gets a new one, with
    a node that makes it.
    """
    fake_mode.epoch += 1


def float_seen(symbol: torch.SymFloat) -> float | None:
    """The number that a symbol stood for when it was made; nobody compiles anew when it changes."""
    return symbol.node.hint


class _AsDynamo(fx.Interpreter):
    """Symbolic floats are the numbers that Dynamo has seen: traced, they would be anybody's guess. Autocast,
    which such a trace notes and leaves as it is, is switched: results have the dtypes they will have.
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
    """The ATen calls that a graph of Dynamo's makes, none of them taken apart yet, and the nodes of Dynamo's
    whose values this graph returns. Floats in it are numbers, be they symbols in Dynamo's.
    """
    inputs = [node.meta["example_value"] for node in gm.graph.find_nodes(op="placeholder")]
    fake_mode = detect_fake_mode(inputs) or FakeTensorMode(allow_non_fake_inputs=True)
    nodes: list[fx.Node] = []

    def run(*args: Any) -> list[Any]:
        interpreter = _AsDynamo(gm)
        interpreter.run(*args)
        nodes[:] = [node for node, value in interpreter.env.items() if isinstance(value, torch.Tensor)]
        return [interpreter.env[node] for node in nodes]

    # Sizes that are changed in place are not those of Dynamo's own tensors; scalars know their numbers.
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
    """Whatever is switched inside (gradients, autocast) is as before behind it, also after an error."""
    kinds = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    with contextlib.ExitStack() as kept:
        kept.enter_context(torch.set_grad_enabled(torch.is_grad_enabled()))
        for kind in kinds:
            dtype, is_on = torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)
            kept.enter_context(torch.autocast(kind, dtype=dtype, enabled=is_on))
        yield
