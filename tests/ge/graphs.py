"""Random graphs over the whole catalogue, to test printer, wire format and verifier."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st

from torchair import ge
from torchair.core import dtypes
from torchair.ge import attr as attrs
from torchair.ge.graph import Graph, Op, Tensor
from torchair.ge.prototype import AttrParam, Prototype, catalogue

OPS = sorted(name for name in catalogue() if name not in ("Data", "RefData", "NetOutput", "Const"))
DTYPES = sorted(row.runtime for row in dtypes.ROWS)
INTS = st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats(width=32)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "Int": INTS,
    "Float": FLOATS,
    "Bool": st.booleans(),
    "String": TEXTS,
    "Type": st.sampled_from(DTYPES),
    "ListInt": st.lists(INTS, max_size=4),
    "ListFloat": st.lists(FLOATS, max_size=4),
    "ListBool": st.lists(st.booleans(), max_size=4),
    "ListString": st.lists(TEXTS, max_size=3),
    "ListType": st.lists(st.sampled_from(DTYPES), max_size=3),
    "ListListInt": st.lists(st.lists(INTS, max_size=3), max_size=3),
    "ListListFloat": st.lists(st.lists(FLOATS, max_size=3), max_size=3),
    "Tensor": st.lists(st.floats(-8, 8, width=16), max_size=3).map(torch.tensor),
}
# Attributes that ops carry besides their prototype's.
PRIVATE: list[attrs.Attr] = [
    attrs.Int(1),
    attrs.Float(0.25),
    attrs.Bool(True),
    attrs.Str("a\n'\"Ω"),
    attrs.DataType(3),
    *(kind([]) for kind in attrs.PUBLIC if kind.__name__.startswith("List")),
    attrs.Tensor(torch.tensor([[1, 2]], dtype=torch.int16)),
    attrs.Raw(b"\x3a\x01a"),
]
# What torch can make from numbers.
NUMERIC = [row.runtime for row in dtypes.ROWS if row.runtime not in attrs.STORED_AS_BYTES]
SIZES = st.none() | st.lists(st.sampled_from([-1, 0, 1, 5]), max_size=3)


@st.composite
def graphs(draw: st.DrawFn, max_ops: int = 6) -> Graph:
    """A valid graph: inputs, constants, ops of any type, control edges, one NetOutput."""
    graph = Graph(draw(st.sampled_from(["graph_1", "g/1"])))
    with graph:
        tensors = [_input(draw, index) for index in range(draw(st.integers(0, 3)))]
        for _ in range(draw(st.integers(0, 3))):
            tensors.append(_constant(draw))
        for _ in range(draw(st.integers(0, max_ops))):
            tensors += _op(draw, graph, tensors).outputs
        ge.NetOutput(draw(_some(tensors, 3)), dependencies=draw(_some(graph.ops, 2)))
    if draw(st.booleans()):
        graph.attrs["_output_dtypes"] = attrs.ListInt([0, 9])
    return graph


def _some(pool: list[Any], most: int) -> st.SearchStrategy[list[Any]]:
    return st.lists(st.sampled_from(pool), max_size=most) if pool else st.just([])


def _input(draw: st.DrawFn, index: int) -> Tensor:
    made: Tensor = ge.Data(
        index=index,
        dtype=draw(st.sampled_from(DTYPES)),
        shape=draw(SIZES),
        placement=draw(st.sampled_from(["CPU", "NPU"])),
        node_name=draw(st.sampled_from([f"arg{index}_1", f"model.layer/{index}"])),
    )
    return made


def _constant(draw: st.DrawFn) -> Tensor:
    values = st.lists(st.integers(0, 100), max_size=4)
    dtype = draw(st.sampled_from(DTYPES))
    if dtype not in NUMERIC:
        return ge.Const(torch.tensor(draw(values), dtype=torch.uint8), dtype=dtype)
    value: Any = draw(st.integers(0, 100) | st.booleans() | values | values.map(torch.tensor))
    return ge.Const(value, dtype=dtype, readable=draw(st.booleans()))


def _op(draw: st.DrawFn, graph: Graph, tensors: list[Tensor]) -> Op:
    usable = draw(st.sampled_from(OPS))
    proto = catalogue()[usable]
    if not tensors and any(param.kind == "required" for param in proto.inputs):
        proto = catalogue()["FileConstant"]
    inputs: dict[str, Any] = {}
    for param in proto.inputs:
        if param.kind == "dynamic":
            inputs[param.name] = draw(_some(tensors, 3))
        elif param.kind == "required" or (tensors and draw(st.booleans())):
            inputs[param.name] = draw(st.sampled_from(tensors))
        else:
            inputs[param.name] = None
    outputs = [
        (param.name, draw(st.integers(0, 3)) if param.kind == "dynamic" else None) for param in proto.outputs
    ]
    before = draw(_some(graph.ops, 2))
    names = draw(st.sampled_from([None, None, f"named/{len(graph.ops)}.x"]))
    subgraphs = [_subgraph(draw, graph) for param in proto.graphs if param.kind == "required"]
    made = _attributes(draw, proto)
    ge.add_op(proto.name, inputs, made, outputs, dependencies=before, node_name=names, subgraphs=subgraphs)
    return graph.ops[-1]


def _attributes(draw: st.DrawFn, proto: Prototype) -> dict[str, attrs.Attr]:
    made = {row.name: _attribute(draw, row) for row in proto.attrs if row.required or draw(st.booleans())}
    if draw(st.booleans()):
        made["_private"] = draw(st.sampled_from(PRIVATE))
    if proto.inputs and proto.inputs[0].kind == "required" and draw(st.booleans()):
        made["input_layout_info"] = attrs.Layouts([(0, "NCHW")])
    return made


def _attribute(draw: st.DrawFn, row: AttrParam) -> attrs.Attr:
    return attrs.BY_PROTOTYPE[row.type](draw(VALUES[row.type]))


def _subgraph(draw: st.DrawFn, graph: Graph) -> str:
    name = f"part_{len(graph.subgraphs)}"
    with graph.subgraph(name):
        ge.NetOutput([_input(draw, 0)])
    return name
