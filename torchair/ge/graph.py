"""The IR: a `Graph` of `Op`s connected by `Tensor`s.

Slots are flat: a dynamic input `x` of three tensors is `x0, x1, x2`, an optional input that is not connected
is a slot without a tensor. This is the form of the wire; `Op.arguments()` groups the slots by the names of
the prototype.
"""

from __future__ import annotations

import contextvars
import itertools
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any

import torch

from torchair.core import dtypes
from torchair.core.errors import BadConverter
from torchair.fxgraph.layout import Layout
from torchair.fxgraph.symbols import Binding
from torchair.ge.attr import Attr
from torchair.ge.host import Host
from torchair.ge.prototype import Prototype, catalogue

INPUT_TYPES = ("Data", "RefData")
OUTPUT_TYPE = "NetOutput"


@dataclass
class Desc:
    """Hold the facts of a wire descriptor beyond the edge itself. `shape` None means not filled in.

    The descriptor of an input begins as a copy of its producer's; the fields set here override that. Without
    `inherit` it is not a copy. `rest` holds serialized wire fields that the IR does not represent.
    """

    name: str = ""
    dtype: int = dtypes.UNDEFINED
    shape: tuple[int, ...] | None = None
    layout: str = ""
    device: str = ""
    attrs: dict[str, Attr] = field(default_factory=dict[str, Attr])
    inherit: bool = field(default=True, compare=False)
    rest: bytes = b""


@dataclass(frozen=True)
class Origin:
    """The FX node of an op: name, target, printed call, and the user's source line."""

    name: str
    target: str
    source: str = ""
    node: Any = None
    # The node of the graph itself, if decomposing that node created this one.
    top: str = ""

    @property
    def trace(self) -> str:
        """Return the stack trace of the FX node, as torch stores it."""
        return "" if self.node is None else str(self.node.meta.get("stack_trace") or "")

    @property
    def code(self) -> str:
        """Return the FX line, printed on demand."""
        return "" if self.node is None else str(self.node.format_node() or "")


class Tensor:
    """One output of one op.

    `meta` is the value on the edge: a fake tensor, a `Host` value, or None if unknown.
    """

    __slots__ = ("desc", "index", "meta", "op")

    def __init__(self, op: Op, index: int, name: str) -> None:
        self.op = op
        self.index = index
        self.desc = Desc(name)
        self.meta: torch.Tensor | Host | None = None

    @property
    def dtype(self) -> int:
        """GE data type (runtime number); `DT_UNDEFINED` while unknown."""
        if self.meta is None:
            return self.desc.dtype
        # A GE type may be stored as another torch type (INT4, HIFLOAT8): then the descriptor is more precise.
        known = self.desc.dtype
        if known != dtypes.UNDEFINED and dtypes.carrier(known) == self.meta.dtype:
            return known
        return dtypes.to_ge(self.meta.dtype)

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        if self.meta is None:
            raise BadConverter(
                f"the rank of {self.tensor} is not known", next="use meta_outputs in the converter instead"
            )
        return self.meta.ndim

    @property
    def symsize(self) -> tuple[Any, ...] | None:
        """Sizes, some of which may be symbols; None while unknown."""
        return None if self.meta is None else tuple(self.meta.shape)

    @property
    def node(self) -> Op:
        """Op that outputs this tensor."""
        return self.op

    @property
    def tensor(self) -> str:
        """Edge as text, `<op>:<slot>`."""
        return f"{self.op.name}:{self.index}"

    @property
    def controller(self) -> str:
        """Control edge as text, `<op>:-1`."""
        return f"{self.op.name}:-1"

    def __repr__(self) -> str:
        return f"Tensor({self.tensor} {describe(self.meta)})"


@dataclass
class Slot:
    """An input of an op: its IR name (in the descriptor) and the connected tensor, if any."""

    desc: Desc
    tensor: Tensor | None

    @property
    def name(self) -> str:
        return self.desc.name


class Op:
    """A node of the IR. `after` are the ops it must run after without reading them (control edges)."""

    __slots__ = (
        "after",
        "attrs",
        "name",
        "objects",
        "origin",
        "outputs",
        "rest",
        "slots",
        "subgraphs",
        "type",
    )

    def __init__(self, name: str, type: str) -> None:
        self.name = name
        self.type = type
        self.slots: list[Slot] = []
        self.attrs: dict[str, Attr] = {}
        self.outputs: list[Tensor] = []
        self.after: list[Op] = []
        # Names of the graphs in its sub-graph slots, in slot order.
        self.subgraphs: list[str] = []
        # Python objects that the text of a TorchOp refers to (graph modules of higher-order ops).
        self.objects: dict[str, Any] = {}
        self.origin: Origin | None = None
        # Serialized wire fields that the IR does not represent.
        self.rest = b""

    @property
    def prototype(self) -> Prototype | None:
        """Return the prototype, or None for a user's op that was described inline."""
        return catalogue().get(self.type)

    @property
    def inputs(self) -> list[Tensor]:
        """Return the connected tensors, in slot order."""
        return [slot.tensor for slot in self.slots if slot.tensor is not None]

    def arguments(self) -> dict[str, Tensor | list[Tensor] | None]:
        """Group slots by the prototype's input names: a tensor, None, or a list for a dynamic input."""
        by_name = {slot.name: slot.tensor for slot in self.slots}
        proto = self.prototype
        if proto is None:
            return dict(by_name)
        grouped: dict[str, Tensor | list[Tensor] | None] = {}
        for param in proto.inputs:
            if param.kind != "dynamic":
                grouped[param.name] = by_name.get(param.name)
                continue
            names = itertools.takewhile(by_name.__contains__, (f"{param.name}{i}" for i in itertools.count()))
            grouped[param.name] = [tensor for name in names if (tensor := by_name[name]) is not None]
        return grouped

    def attributes(self) -> dict[str, Any]:
        """Return attributes as Python values, with the prototype's defaults and without private ones."""
        values = {name: attr.value for name, attr in self.attrs.items() if not name.startswith("_")}
        proto = self.prototype
        if proto is not None:
            for row in proto.attrs:
                values.setdefault(row.name, row.default)
        return values

    def __repr__(self) -> str:
        return f"Op({self.name}: {self.type})"


class Graph:
    """A named list of ops in creation order. `with graph:` makes it the graph being built."""

    def __init__(self, name: str = "", infer: Callable[[Op], None] | None = None) -> None:
        self.name = name or f"graph_{next(_graph_ids)}"
        self.ops: list[Op] = []
        self.attrs: dict[str, Attr] = {}
        self.infer = infer
        # Target chip; empty: only ops that all chips have.
        self.soc = ""
        self.by_name: dict[str, Op] = {}
        self.origin: Origin | None = None
        # Attributes that open scopes set on every new op, outer first; None removes an attribute.
        self.scopes: list[dict[str, Attr | None]] = []
        # Small constants made so far: equal ones are one op.
        self.constants: dict[Hashable, Tensor] = {}
        # How each graph input is obtained from the flat arguments of a call, by Data name.
        self.feeds: dict[str, Feed] = {}
        # The kind of each FX output.
        self.results: list[Result] = []
        # Sources of the symbols in result layouts, if the metas of inputs do not contain them.
        self.binding: Binding | None = None
        # Graphs in the sub-graph slots of ops, of this graph or of each other. Only a main graph has them.
        self.subgraphs: dict[str, Graph] = {}
        # Serialized wire fields that the IR does not represent: of the graph, and of the model that contains
        # it.
        self.rest = b""
        self.model_rest = b""
        self._counts: dict[str, int] = {}
        self._tokens: list[contextvars.Token[Graph | None]] = []

    def __enter__(self) -> Graph:
        self._tokens.append(_current.set(self))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _current.reset(self._tokens.pop())

    def new_name(self, type: str) -> str:
        """Return `Add`, then `Add_1`, `Add_2` …, skipping names that are taken."""
        while True:
            count = self._counts.get(type, 0)
            self._counts[type] = count + 1
            name = f"{type}_{count}" if count else type
            if name not in self.by_name:
                return name

    def add(self, op: Op) -> Op:
        """Append an op and infer the metas of its outputs if the graph can."""
        self.ops.append(op)
        self.by_name[op.name] = op
        op.origin = op.origin or self.origin
        inherited: dict[str, Attr | None] = {}
        for scope in self.scopes:
            inherited.update(scope)
        op.attrs.update({key: value for key, value in inherited.items() if value is not None})
        if self.infer is not None and op.outputs:
            self.infer(op)
        return op

    def subgraph(self, name: str) -> Graph:
        """Create an empty graph that ops may name in their sub-graph slots."""
        if name in self.subgraphs:
            raise BadConverter(f"{self.name} already has a sub-graph {name!r}", next="choose another name")
        self.subgraphs[name] = Graph(name)
        return self.subgraphs[name]

    def rollback(self, count: int) -> None:
        """Remove every op after the first `count`: those built for a call that then failed."""
        dead = self.ops[count:]
        self.remove(dead)
        for op in dead:
            self.feeds.pop(op.name, None)

    @property
    def inputs(self) -> list[Op]:
        """Data and RefData ops by index."""
        found = [op for op in self.ops if op.type in INPUT_TYPES]
        return sorted(found, key=lambda op: op.attrs["index"].value if "index" in op.attrs else 0)

    @property
    def output(self) -> Op | None:
        """NetOutput op."""
        return next((op for op in reversed(self.ops) if op.type == OUTPUT_TYPE), None)

    @property
    def returned(self) -> list[Tensor]:
        """Return the tensors that the results are read from."""
        return [result.tensor for result in self.results if not isinstance(result, ConstantResult)]

    def consumers(self) -> dict[Tensor, list[tuple[Op, int]]]:
        """Map every tensor to the (op, slot index) pairs that read it."""
        uses: dict[Tensor, list[tuple[Op, int]]] = {}
        for op in self.ops:
            for number, slot in enumerate(op.slots):
                if slot.tensor is not None:
                    uses.setdefault(slot.tensor, []).append((op, number))
        return uses

    def replace(self, old: Tensor, new: Tensor) -> int:
        """Make every reader of `old` read `new`, results of the graph too; return how many slots changed."""
        self.results = [
            replace(result, tensor=new)
            if not isinstance(result, ConstantResult) and result.tensor is old
            else result
            for result in self.results
        ]
        changed = 0
        for op in self.ops:
            for slot in op.slots:
                if slot.tensor is old and op is not new.op:
                    slot.tensor, slot.desc = new, Desc(slot.name)
                    changed += 1
        return changed

    def remove(self, ops: Iterable[Op]) -> None:
        """Remove ops that nothing reads any more."""
        dead = set(ops)
        self.ops = [op for op in self.ops if op not in dead]
        self.by_name = {op.name: op for op in self.ops}
        self.constants = {key: output for key, output in self.constants.items() if output.op not in dead}
        for op in self.ops:
            op.after = [before for before in op.after if before not in dead]

    def __repr__(self) -> str:
        return f"Graph({self.name}: {len(self.ops)} ops)"


def transposed(tensor: Tensor) -> Tensor | None:
    """Return `a` if the tensor is `a` with its last two dims swapped."""
    if tensor.op.type != "Transpose":
        return None
    x, perm = tensor.op.slots[0].tensor, tensor.op.slots[1].tensor
    if x is None or perm is None or not isinstance(perm.meta, Host):
        return None
    rank = len(perm.meta.items)
    swapped = (*range(rank - 2), rank - 1, rank - 2)
    return x if rank >= 2 and tuple(perm.meta.items) == swapped else None


def copy_graph(graph: Graph) -> Graph:
    """Copy the graph into new ops and tensors; attributes, metas and sub-graphs are shared."""
    copy = Graph(graph.name)
    tensors: dict[Tensor, Tensor] = {}
    for op in graph.ops:
        new = copy.by_name[op.name] = Op(op.name, op.type)
        new.attrs, new.objects, new.subgraphs = dict(op.attrs), dict(op.objects), list(op.subgraphs)
        new.origin, new.rest = op.origin, op.rest
        for tensor in op.outputs:
            tensors[tensor] = Tensor(new, tensor.index, tensor.desc.name)
            tensors[tensor].desc, tensors[tensor].meta = tensor.desc, tensor.meta
            new.outputs.append(tensors[tensor])
        copy.ops.append(new)
    for op, new in zip(graph.ops, copy.ops, strict=True):
        new.slots = [Slot(slot.desc, slot.tensor and tensors[slot.tensor]) for slot in op.slots]
        new.after = [copy.by_name[before.name] for before in op.after]
    copy.attrs, copy.feeds, copy.subgraphs = dict(graph.attrs), dict(graph.feeds), graph.subgraphs
    copy.results = [
        result if isinstance(result, ConstantResult) else replace(result, tensor=tensors[result.tensor])
        for result in graph.results
    ]
    copy.rest, copy.model_rest, copy.binding = graph.rest, graph.model_rest, graph.binding
    return copy


@dataclass(frozen=True)
class ArgumentFeed:
    """Feed one argument unchanged: a tensor, or a number as a rank-0 host value."""

    index: int


@dataclass(frozen=True)
class PackFeed:
    """Feed several number arguments as one int64 host vector."""

    indices: tuple[int, ...]


@dataclass(frozen=True)
class RandomFeed:
    """Feed offsets of the graph's random state (`random_state.py`)."""

    count: int


Feed = ArgumentFeed | PackFeed | RandomFeed
"""How a graph input is obtained from the flat arguments of a call."""


@dataclass(frozen=True)
class TensorResult:
    """Return a tensor in its own memory with this `layout`; None means any layout."""

    tensor: Tensor
    layout: Layout | None = None


@dataclass(frozen=True)
class AliasResult:
    """Return the view of an argument that `layout` describes; `tensor` has its values."""

    tensor: Tensor
    layout: Layout

    @property
    def base(self) -> int:
        """Index of the argument."""
        assert self.layout.base is not None, "an alias has a base"
        return self.layout.base


@dataclass(frozen=True)
class NumberResult:
    """Return a host value as a Python number."""

    tensor: Tensor


@dataclass(frozen=True)
class ConstantResult:
    """Return a Python value that is the same in every call."""

    value: Any


Result = TensorResult | AliasResult | NumberResult | ConstantResult
"""The kind of one FX output."""


_graph_ids = itertools.count(1)
_current: contextvars.ContextVar[Graph | None] = contextvars.ContextVar("graph being built", default=None)


def current_graph() -> Graph:
    """Return the graph being built; outside any, create one for this context."""
    graph = _current.get()
    if graph is None:
        graph = Graph("default")
        _current.set(graph)
    return graph


def describe(meta: Any) -> str:
    """Format the value on an edge for errors and dumps: `float32[2, s0]`, or a host tensor's numbers."""
    if meta is None:
        return "?"
    if isinstance(meta, Host):
        return f"host {list(meta.items) if meta.ndim else meta.value}"
    if not isinstance(meta, torch.Tensor):
        return str(meta)
    sizes = ", ".join(str(size) for size in meta.shape)
    return f"{str(meta.dtype).removeprefix('torch.')}[{sizes}]"
