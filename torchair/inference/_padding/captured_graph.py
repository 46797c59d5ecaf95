"""Analyze the graph that Dynamo captured of a model: which inputs of a padded call are padded, which outputs
are cropped, and whether padding may change a result.

The graph is traced with fake tensors, or run on the inputs of a call without writing them. The Python code of
the model runs once per call and does not notice the analysis.
"""

from __future__ import annotations

import itertools
import random
import sys
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import fx

from torchair.compare.base.replay_call import random_state, set_random_state
from torchair.core.errors import first_line
from torchair.core.torch_private.dynamo.captured_graphs import (
    CapturedGraph,
    NotWhole,
    SizedGraph,
    ends_early,
    number_places,
    sized_graph,
)
from torchair.core.torch_private.fake.fake_tensors import tree_flatten
from torchair.core.torch_private.operators.schemas import HigherOrderOperator, OpOverload, OpOverloadPacket
from torchair.fxgraph.edit import copy_graph
from torchair.fxgraph.effects import mutates
from torchair.fxgraph.placeholders import returned
from torchair.inference._padding.checks import difference, tells, variants
from torchair.inference._padding.output_crop import Crops, Declared, Known, Unknown, declared_crops
from torchair.inference._padding.proof import Leak, Proof
from torchair.inference._padding.rules import rule_of

PURE = ("aten", "prims", "npu")
"""Namespaces of ops without side effects."""
TRUSTED = ("torch", "operator", "_operator", "builtins", "math")
"""Modules with functions without side effects, which Dynamo's graph calls before it is traced to ATen."""
UNTRUSTED = ("torch._higher_order_ops", "torch.distributed", "torch._dynamo")


_names = itertools.count()


class GraphRefused(Exception):
    """A graph was not run because it is not approved for a padded call."""

    def __init__(self, found: Found | None) -> None:
        super().__init__("a padded call was refused")
        self.found = found


class Unsuitable(Exception):
    """This call does not show how the graph depends on the size, but another call may."""


class Captured:
    """A graph that Dynamo captured."""

    def __init__(self, known: CapturedGraph | None, places: Sequence[int]) -> None:
        """`places` are the indices of inputs that are Python numbers."""
        self.known = known  # None for the graphs of gears, which are not analyzed
        self.approved: dict[Numbers, Padding] = {}  # approved padded calls, by the Python numbers of a call
        self.places = places

    def numbers(self, args: Sequence[Any], without: Collection[int] = ()) -> Numbers:
        """Return the Python numbers among its inputs: a model may read them from anywhere."""
        given = [args[at] for at in self.places if at not in without]
        return tuple(repr(each.item() if isinstance(each, torch.Tensor) else each) for each in given)


Numbers = tuple[str, ...]
"""Numbers as text, so that -0.0 differs from 0.0, and NaN equals NaN."""


@dataclass(frozen=True)
class Found:
    """A graph that would serve a call, and the Python numbers among its inputs."""

    graph: Captured
    numbers: Numbers

    def approve(self, padding: Padding) -> None:
        """Let the graph serve such calls, padded like this."""
        self.graph.approved[self.numbers] = padding


@dataclass(frozen=True)
class GraphRun:
    """One run of a captured graph."""

    graph: Captured
    args: Sequence[Any]
    outputs: Sequence[Any]
    is_outermost: bool  # whether the model's code called it, not a part that is compiled separately


class Apart:
    """A separately compiled model: its own code object holds the results of Dynamo."""

    def __init__(
        self, model: Callable[..., Any], backend: Callable[..., Any], *, dynamic: bool, keeps: bool
    ) -> None:
        """Compile a model; `keeps` stores its graphs for analysis."""
        self.graphs = 0  # number of compiled graphs
        self.is_whole = True  # whether each call is one graph
        self.has_run = False  # whether the model's code, or a graph, ran in the latest call
        self.has_failed_alone = False  # whether a graph failed before anything else ran
        self._name = f"auto_gears_{next(_names)}"
        self._made: list[Captured] = []
        self._random: Any = None
        self._expected: Padding | bool | None = None
        self._seen: list[GraphRun] | None = None

        def run(*args: Any, **kwargs: Any) -> Any:
            # If torch stops compiling (recompile limit), it calls this function directly.
            if torch.compiler.is_compiling() or self._expected is None:
                return model(*args, **kwargs)
            raise GraphRefused(None)

        def torchair(gm: fx.GraphModule, inputs: Any, **kwargs: Any) -> Any:  # torch's errors show this name
            self._random = random.getstate()  # no code of the call has run yet
            self.is_whole = self.is_whole and not self._is_running() and not ends_early(gm)
            known, places = CapturedGraph(gm, copy_graph(gm)) if keeps else None, number_places(gm)
            made = backend(gm, inputs, **kwargs)
            if known is not None:
                known.settle()
            graph = Captured(known, places)
            self._made.append(graph)
            self.graphs += 1  # not reached if torch restarts tracing, which raises an exception
            return lambda *args: self._met(graph, made, args)

        run.__code__ = run.__code__.replace(co_name=self._name)
        self._run = torch.compile(run, backend=torchair, dynamic=dynamic)
        # The same programs, but a graph break raises before any code of the model runs.
        self._run_whole = torch.compile(run, backend=torchair, dynamic=dynamic, fullgraph=True)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._called(self._run, args, kwargs)

    def _called(self, run: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        self.has_run = self.has_failed_alone = False
        try:
            outputs = run(*args, **kwargs)
        except Exception as error:
            frames = traceback.walk_tb(error.__traceback__)
            self.has_run = any(frame.f_code.co_name == self._name for frame, _ in frames)
            raise
        self.has_run = True
        return outputs

    def _is_running(self) -> bool:
        """Whether the model's code is running, so that this compile is after a graph break."""
        return any(frame.f_code.co_name == self._name for frame, _ in traceback.walk_stack(None))

    def _met(self, graph: Captured, made: Callable[..., Any], args: Sequence[Any]) -> Any:
        expected = self._expected
        if expected is not None:
            numbers = graph.numbers(args)
            if expected is True or graph.approved.get(numbers) is not expected:
                raise GraphRefused(Found(graph, numbers))
        self.has_failed_alone = self.is_whole and len(self._made) == 1
        outputs = made(*args)
        self.has_failed_alone = False
        if self._seen is not None:
            given = outputs if isinstance(outputs, list | tuple) else [outputs]
            self._seen.append(GraphRun(graph, args, given, _caller() == self._name))
        return outputs

    def watched(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, list[GraphRun]]:
        """Call the model; return its outputs and the graphs that ran."""
        self._seen = seen = []
        try:
            return self(*args, **kwargs), seen
        finally:
            self._seen = None

    def padded(self, padding: Padding, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run a padded call; raise `GraphRefused` before anything runs if its graph is not approved."""
        if not padding.is_checked:
            return self(*args, **kwargs)
        is_sure = all(not graph.places and padding in graph.approved.values() for graph in self._made)
        return self._expecting(padding, is_sure, args, kwargs)

    def found(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Found | None:
        """Return the graph that serves a call, without running it; None if there is no single graph."""
        try:
            self._expecting(True, False, args, kwargs)
        except GraphRefused as refused:
            return refused.found
        return None

    def _expecting(
        self, what: Padding | bool, is_sure: bool, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Run a call that may be refused. Dynamo draws the model's Python random numbers before it runs the
        graph, so the random state is restored if the call is refused.
        """
        if not self.is_whole:
            raise GraphRefused(None)
        self._expected, self._random = what, None if is_sure else random.getstate()
        try:
            return self._called(self._run_whole, args, kwargs)
        except GraphRefused:
            assert self._random is not None, "the random state is saved if a call can be refused"
            random.setstate(self._random)
            raise
        except NotWhole as error:
            raise GraphRefused(None) from error
        finally:
            self._expected = None


def _caller() -> str:
    """Return the name of the function whose compiled code calls a graph."""
    frame: Any = sys._getframe(3)
    while frame is not None and "_dynamo" in frame.f_code.co_filename:
        frame = frame.f_back
    return "" if frame is None else frame.f_code.co_name


@dataclass(eq=False)
class Padding:
    """How calls of one signature are padded."""

    crops: Crops
    graph: CapturedGraph | None = None  # the graph of dynamic calls; None without checks
    traced: SizedGraph | None = None
    values: Mapping[Any, int] = field(
        default_factory=dict[Any, int]
    )  # values of Dynamo's symbols, except the one of the size
    symbol: Any = None  # Dynamo's symbol of the size
    places: Mapping[int, str] = field(default_factory=dict[int, str])  # padded inputs: index and name
    sizes: frozenset[int] = frozenset()  # indices of inputs that are the size itself
    undecided: str | None = None  # why the proof is inconclusive, so that a test run must decide
    cuts: tuple[tuple[int, ...], ...] = ()  # dimensions to crop, per output of the graph
    numbers: Numbers = ()  # the Python numbers among the inputs, except the size
    others: frozenset[int] = frozenset()  # indices of other inputs with a floating-point dtype
    _admitted: dict[int, bool] = field(default_factory=dict[int, bool])

    @property
    def is_checked(self) -> bool:
        """Whether it is used only for graphs that are known to give the same results."""
        return self.graph is not None and self.crops.dims is not None

    def admits(self, size: int) -> bool:
        """Whether a call of this size runs the same ops."""
        if self.graph is None or self.traced is None:
            return True
        if size not in self._admitted:
            known = {**self.values, self.symbol: size}
            self._admitted[size] = self.graph.admits(known) and self.traced.admits(size)
        return self._admitted[size]

    def fits(self, seen: GraphRun) -> bool:
        """Whether it was determined from this graph, with the same Python numbers among the inputs."""
        return seen.graph.known is self.graph and seen.graph.numbers(seen.args, self.sizes) == self.numbers

    def why_not(
        self, args: Sequence[Any], tensors: Callable[[int, Any], Any], size: int, gear: int, tries: bool
    ) -> tuple[str | None, bool]:
        """Return why a padded call of these inputs has other results, and whether the test was conclusive.

        `tensors(place, tensor)` pads an input. `tries` also tests other values of the inputs.
        """
        if self.traced is None or self.crops.dims is None:
            return None, True
        device = next(args[place].device for place in self.places)
        has_seen, state = False, random_state(device)
        try:
            for given in self._variants(args) if tries and self.undecided else [args]:
                outcomes = []
                for wanted in (size, gear):
                    set_random_state(state)
                    padded = [
                        wanted
                        if at in self.sizes
                        else tensors(at, arg)
                        if at in self.places and wanted != size
                        else arg
                        for at, arg in enumerate(given)
                    ]
                    outcomes.append(self._run(padded))
                expected, found = outcomes
                why = difference(tuple(expected), self._cut(found, size))
                if why is not None:
                    return why, True
                has_seen = has_seen or tells(expected)
        finally:
            set_random_state(state)
        return None, has_seen

    def _variants(self, args: Sequence[Any]) -> Iterator[list[Any]]:
        return variants(args, self.places, self.others, self._indexes)

    def _run(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Run the graph on these inputs, without side effects."""
        assert self.traced is not None, "checks need a traced graph"
        try:
            with torch.no_grad():
                return self.traced.gm(*inputs)
        except Exception as error:
            what = f"the captured graph fails in a check: {type(error).__name__}: {first_line(error)}"
            raise Unknown(what) from error

    def _cut(self, outputs: Sequence[Any], size: int) -> Any:
        """Crop the outputs of the graph."""
        assert self.traced is not None, "checks need a traced graph"
        cut = list(outputs)
        for at, dims in enumerate(self.cuts):
            for dim in dims:
                cut[at] = cut[at].narrow(dim, 0, size)
        return tuple(cut)

    @cached_property
    def _indexes(self) -> bool:
        """Whether integer inputs may be indices into a tensor."""
        assert self.traced is not None, "checks need a traced graph"
        names = [str(node.target) for node in self.traced.gm.graph.nodes if node.op == "call_function"]
        return any(
            word in name for name in names for word in ("index", "embedding", "gather", "scatter", "npu.")
        )


def unchecked(outputs: Any, crop: bool | Declared) -> Padding:
    """Return the padding that the user declared, without any check."""
    return Padding(Crops(None) if isinstance(crop, bool) else declared_crops(outputs, crop))


def padding_of(
    seen: Sequence[GraphRun],
    outputs: Any,
    named: Mapping[str, tuple[torch.Tensor, int]],
    pads: Mapping[str, Any],
    crop: bool | Declared,
    check: bool,
    others: Collection[torch.Tensor] = (),
) -> Padding:
    """Return how calls like a watched one are padded; raise `Unknown` if they must not be."""
    if not seen:
        raise Unknown("torch does not compile the model")
    graph = seen[0].graph.known if len(seen) == 1 and seen[0].is_outermost else None
    if graph is None or not graph.is_whole:
        raise Unknown("the model has graph breaks, and the code between its graphs cannot be analyzed")
    (run,) = seen
    _check_calls(graph.gm)
    dims, places, symbol = _places(graph, run.args, named)
    try:
        (size,) = {tensor.size(dim) for tensor, dim in named.values()}
        traced = sized_graph(graph, run.args, dims, size)
        _check_writes(traced)
        crops = _crops(traced, run, outputs, named)
        if crop is False:
            crops = Crops(None)
        elif not isinstance(crop, bool):
            _check_declared(declared_crops(outputs, crop), crops)
        given = {at: (dims[at], pads[name]) for at, name in places.items()}
        undecided = _proved(traced, given, crops) if check and crops.dims is not None else None
        cuts = tuple(_dims(at, fake, traced) for at, fake in enumerate(_fakes(traced)))
    except (Unknown, Unsuitable):
        raise
    except Exception as error:
        what = f"the captured graph cannot be analyzed: {type(error).__name__}: {first_line(error)}"
        raise Unknown(what) from error
    traced.forget()
    sizes = frozenset(at for at, dim in dims.items() if dim < 0)
    return Padding(
        crops,
        graph,
        traced,
        _values(graph, run.args, symbol),
        symbol,
        places,
        sizes,
        undecided,
        cuts,
        run.graph.numbers(run.args, sizes),
        _numbers_among(others, run.args, dims),
    )


def _numbers_among(
    others: Collection[torch.Tensor], args: Sequence[Any], dims: Mapping[int, int]
) -> frozenset[int]:
    """Return the places of these tensors among the inputs, if they are floating-point numbers."""
    floats = {id(other) for other in others if other.is_floating_point()}
    return frozenset(at for at, arg in enumerate(args) if at not in dims and id(arg) in floats)


def _check_calls(gm: fx.GraphModule) -> None:
    """Raise `Unknown` if the graph calls anything that may have side effects."""
    for node in gm.graph.nodes:
        if node.op == "call_function" and not _is_pure(node.target):
            name = getattr(node.target, "__name__", str(node.target))
            raise Unknown(f"{name} may have side effects")
        if node.op == "call_module":
            raise Unknown(f"{node.target} may have side effects")


def _is_pure(target: Any) -> bool:
    if isinstance(target, OpOverload | OpOverloadPacket):
        return str(target).partition(".")[0] in PURE
    if isinstance(target, HigherOrderOperator):
        return False
    module = getattr(target, "__module__", None) or type(target).__module__
    return module.partition(".")[0] in TRUSTED and not module.startswith(UNTRUSTED)


def _places(
    graph: CapturedGraph, args: Sequence[Any], named: Mapping[str, tuple[torch.Tensor, int]]
) -> tuple[dict[int, int], dict[int, str], Any]:
    """Return where the inputs have the size.

    The result has the dimension by input (-1 for an input that is the size itself), the names of padded
    inputs, and Dynamo's symbol of the size.
    """
    dims: dict[int, int] = {}
    places: dict[int, str] = {}
    for name, (tensor, dim) in named.items():
        there = [at for at, arg in enumerate(args) if arg is tensor]
        if any(at in places for at in there):
            raise Unknown(f"{name} is the same tensor as another argument")
        for at in there:
            dims[at], places[at] = dim, name
    sizes = {graph.inputs[at][dim] for at, dim in dims.items()}
    if not sizes:
        raise Unknown("no input of the captured graph has the size")
    symbol = next(iter(sizes))
    if len(sizes) != 1 or not getattr(symbol, "is_Symbol", False):
        if any(tensor.size(dim) < 2 for tensor, dim in named.values()):
            raise Unsuitable
        raise Unknown("the model is specialized on one size")
    for at, known in enumerate(graph.inputs):
        if isinstance(known, tuple):
            others = [size for dim, size in enumerate(known) if at not in places or dim != dims[at]]
            if any(_depends(size, symbol) for size in others):
                raise Unsuitable  # another size is equal, either by chance or always
        elif _depends(known, symbol):
            dims[at] = -1
    return dims, places, symbol


def _depends(size: Any, symbol: Any) -> bool:
    return symbol in getattr(size, "free_symbols", ())


def _values(graph: CapturedGraph, args: Sequence[Any], symbol: Any) -> dict[Any, int]:
    """Return the values of Dynamo's symbols in this call, except the one of the size."""
    found: dict[Any, int] = {}
    for known, arg in zip(graph.inputs, args, strict=True):
        pairs = zip(known, arg.shape, strict=True) if isinstance(known, tuple) else [(known, arg)]
        found.update({size: int(number) for size, number in pairs if _is_size(size, number)})
    found.pop(symbol, None)
    return found


def _is_size(size: Any, number: Any) -> bool:
    return getattr(size, "is_Symbol", False) and isinstance(number, int)


def _check_writes(traced: SizedGraph) -> None:
    if traced.writes:
        raise Unknown("the model writes its arguments or its state")
    for node in traced.gm.graph.nodes:
        if node.op == "call_function" and mutates(node.target):
            raise Unknown("the model writes its arguments or its state")
        if node.op == "call_function" and not _is_pure(node.target):
            raise Unknown(f"{node.target} may have side effects")


def _fakes(traced: SizedGraph) -> Iterator[Any]:
    for each in returned(traced.gm):
        yield each.meta.get("val") if isinstance(each, fx.Node) else each


def _crops(
    traced: SizedGraph, run: GraphRun, outputs: Any, named: Mapping[str, tuple[torch.Tensor, int]]
) -> Crops:
    """Return the dimensions with the size of each output.

    A result of the graph that the model does not return is stored in its state.
    """
    fakes = list(_fakes(traced))
    leaves = tree_flatten(outputs)[0]
    places = {id(given): at for at, given in enumerate(run.outputs) if isinstance(given, torch.Tensor)}
    found: list[tuple[int, ...]] = []
    for place, leaf in enumerate(leaves):
        if not isinstance(leaf, Known):
            raise Unknown(f"output {place} is or contains a {type(leaf).__name__}, which cannot be cropped")
        own = [dim for tensor, dim in named.values() if tensor is leaf]
        at = places.get(id(leaf)) if isinstance(leaf, torch.Tensor) else None
        found.append(tuple(own) if own else () if at is None else _dims(place, fakes[at], traced))
    for fake in fakes:
        if not isinstance(fake, torch.Tensor) and traced.has_size(fake):
            raise Unknown("the model returns or stores a number that depends on the size")
    if places.keys() - {id(leaf) for leaf in leaves}:
        raise Unknown("the model stores results in its state")
    return Crops(tuple(found))


def _dims(place: int, fake: Any, traced: SizedGraph) -> tuple[int, ...]:
    if not isinstance(fake, torch.Tensor):
        return ()
    for dim, size in enumerate(fake.shape):
        if traced.has_size(size) and not traced.is_size(size):
            raise Unknown(f"dimension {dim} of output {place} has {size} elements, which is not the size")
    return tuple(dim for dim, size in enumerate(fake.shape) if traced.has_size(size))


def _check_declared(declared: Crops, found: Crops) -> None:
    assert declared.dims is not None and found.dims is not None, "crops of single outputs have dimensions"
    for place, (stated, known) in enumerate(zip(declared.dims, found.dims, strict=True)):
        if set(stated) != set(known):
            raise Unknown(
                f"output {place} has the size in dimensions {list(known)}, but crop has {list(stated)}"
            )


def _proved(traced: SizedGraph, pads: Mapping[int, tuple[int, Any]], crops: Crops) -> str | None:
    """Return None if padding provably changes no result, or why a test run must decide. Raise `Unknown` if
    padding may change a result.
    """
    proof = Proof(traced, pads, rule_of)
    try:
        proof.run()
    except Leak as leak:
        if leak.is_certain:
            raise Unknown(f"padding may change results: {leak}") from None
        return proof.undecided or str(leak)
    return proof.undecided
