"""Print graphs as text: `to_python` (builder calls), `to_pbtxt` (TensorBoard, Netron), `to_txt` (the
message).

The Python text follows the format of other tools, and adds what makes it loadable (`from_python`, also plain
`exec`):

* `attrs=` for attributes that are not keywords of the builder, `outputs=` and `dependencies=`,
* `node_name=` where the automatic name would differ, and the name and attributes of the graph,
* sub-graphs as `with` blocks, and `ge.add_op` for ops that no builder can express.

It omits the descriptors of ops inside the graph: inference fills them in.
"""

from __future__ import annotations

import json
import keyword
import math
import re
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from torchair.core.errors import AirError, NotPossible
from torchair.core.lazy_module import LazyModule
from torchair.core.torch_private.fake.fake_tensors import without_modes
from torchair.ge.attr import BY_PROTOTYPE, KNOWN, Attr, Form, Str, raw
from torchair.ge.attr import Tensor as TensorAttr
from torchair.ge.builder.build import SHARED_LIMIT, const_attr, const_key
from torchair.ge.files.script import SCRIPT_WORDS, from_python, literal
from torchair.ge.graph import INPUT_TYPES, OUTPUT_TYPE, Graph, Op, Origin, Tensor
from torchair.ge.host import is_symbol
from torchair.ge.proto import schema
from torchair.ge.proto.write import add_graph_attributes, normalise, to_graph_def
from torchair.ge.prototype import Prototype, catalogue
from torchair.ge.schema.descriptor import output_desc
from torchair.ge.schema.runtime_attrs import runtime_attrs

if TYPE_CHECKING:
    from google.protobuf import text_format
else:
    text_format = LazyModule("google.protobuf.text_format")

__all__ = ["from_python", "fx_code", "to_pbtxt", "to_python", "to_txt"]

HEADER = (
    "# -*- coding: utf-8 -*-",
    "from torch import tensor",
    "from torchair import ge",
    "from torchair.ge.graph import current_graph",
    "",
)

# Names that a self-running script defines besides its tensors (`debug/dumps/graph_file.py`).
RESERVED = ("graph", "constants", *SCRIPT_WORDS)


def to_txt(graph: Graph, *, normalised: bool = False) -> str:
    """Return the protobuf text of the `GraphDef`, or of a `ModelDef` if the graph has sub-graphs.

    `normalised` is the form that an engine reads.
    """
    written = _written(graph, normalised)
    if len(written) == 1:
        return text_format.MessageToString(written[0])
    model = schema.message("ModelDef")
    model.graph.extend(written)
    return text_format.MessageToString(model)


def to_pbtxt(graph: Graph, *, normalised: bool = False) -> str:
    """Return a node list that viewers read as a TensorFlow graph.

    Descriptors are attributes `[i]name` and `[o]name`; the nodes of a sub-graph are in a scope with its name.
    """
    lines: list[str] = []
    for number, part in enumerate(_written(graph, normalised)):
        lines += _pbtxt_nodes(part.op, f"{part.name}/" if number else "")
    return "\n".join(lines) + "\n" if lines else ""


def _written(graph: Graph, normalised: bool) -> list[Any]:
    """Return the messages of a graph and of its sub-graphs."""
    messages = [to_graph_def(part) for part in (graph, *graph.subgraphs.values())]
    for message in messages if normalised else ():
        add_graph_attributes(message)
        normalise(message)
    return messages


def _pbtxt_nodes(ops: Iterable[Any], scope: str) -> Iterator[str]:
    for op in ops:
        yield from ("node {", f"    name: {json.dumps(scope + op.name)}", f"    op: {json.dumps(op.type)}")
        yield from (f"    input: {json.dumps(_pbtxt_edge(edge, scope))}" for edge in op.input)
        shown = [(name, op.attr[name]) for name in sorted(op.attr)]
        shown += [(f"[i]{desc.name}", desc) for desc in op.input_desc]
        shown += [(f"[o]{desc.name}", desc) for desc in op.output_desc]
        for key, value in shown:
            # A bytes literal without its b: newlines and quotes are escaped.
            text = repr(text_format.MessageToString(value).encode())[1:]
            yield from (
                "    attr {",
                f"        key: {json.dumps(key)}",
                "        value {",
                f"            s: {text}",
            )
            yield from ("        }", "    }")
        yield "}"


def _pbtxt_edge(edge: str, scope: str) -> str:
    if edge.endswith(":-1"):
        return f"^{scope}{edge.removesuffix(':-1')}"
    return scope + edge if edge else edge


@without_modes
def to_python(
    graph: Graph, *, limit: int | None = 4096, beside: dict[str, torch.Tensor] | None = None
) -> str:
    """Return a script of builder calls.

    Constants of more than `limit` elements are put into `beside` and read from a dictionary `constants`;
    without `beside` they are printed as `...`, and the text cannot be loaded.
    """
    lines = list(HEADER)
    lines += _Printer(graph, Large(limit, beside)).lines()
    for part in graph.subgraphs.values():
        lines += ["", f"with current_graph().subgraph({part.name!r}):"]
        printer = _Printer(part, Large(limit, beside), named=True)
        lines += [f"    {line}" if line else "" for line in printer.lines()]
    if any("torch." in line for line in lines if not line.startswith(("from", "#"))):
        lines.insert(1, "import torch")
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Large:
    """Handle constants of more than `limit` elements: store them in `beside` or omit them."""

    limit: int | None
    beside: dict[str, torch.Tensor] | None

    def has(self, stored: TensorAttr) -> bool:
        """Return whether this is such a constant; one that `ge.Const` would change is not."""
        if self.limit is None or stored.value.numel() <= self.limit:
            return False
        return self.beside is None or const_attr(stored.value, stored.dtype) == stored

    def text(self, op: Op, stored: TensorAttr) -> str:
        """Return the first argument of its `ge.Const`."""
        if self.beside is None:
            return "..."
        key = f"{op.name}_{len(self.beside)}"  # sub-graphs may use a name again
        self.beside[key] = stored.value
        return f"constants[{key!r}]"


class _Printer:
    """Print one graph. A shadow graph is named in parallel to determine which names are automatic."""

    def __init__(self, graph: Graph, large: Large, named: bool = False) -> None:
        self.graph = graph
        self.named = named
        self.shadow = Graph("shadow")
        self.variables = _variables(graph)
        self.readers = {tensor: len(uses) for tensor, uses in graph.consumers().items()}
        self.waited_for = {before for op in graph.ops for before in op.after}
        self.calls = {op: _const_call(op, large) for op in graph.ops if op.type == "Const"}
        self.inlined = {op for op in self.calls if self._can_inline(op)}
        # Constants written without a name, by the key that `ge.Const` uses for equal ones: writing it again
        # gives the same op.
        self.shared: dict[Hashable, Op] = {}
        # Lines that must come before the one being printed.
        self.before: list[str] = []
        self.source = ""
        self.origin: Origin | None = None

    def lines(self) -> list[str]:
        lines = [] if self.named else [f"current_graph().name = {self.graph.name!r}"]
        for op in self.graph.ops:
            if op in self.inlined:
                continue
            line = f"{self._targets(op)} = {self._call(op)}"
            lines += [*self._comments(op), *self.before]
            self.before.clear()
            if op.type == OUTPUT_TYPE:
                lines.append("")
            lines.append(line)
        return [*lines, *self._attributes()] or ["pass"]

    def _attributes(self) -> list[str]:
        """Return the attributes of the graph, and how it is fed and what it returns."""
        attrs, lines = dict(self.graph.attrs), []
        try:
            attrs |= runtime_attrs(self.graph)
        except NotPossible as error:
            lines.append(f"# feeds and results are omitted: {error.what}")
        return [*lines, f"current_graph().attrs.update({_mapping(attrs)})"] if attrs else lines

    def _comments(self, op: Op) -> list[str]:
        """Return the user's source line and the FX node, when they change."""
        origin = op.origin
        if origin is None or not origin.source or origin is self.origin:
            return []
        self.origin = origin
        lines = [] if origin.source == self.source else ["", f"# File {_one_line(origin.source)}"]
        self.source = origin.source
        return [*lines, f"## FX Code: {_one_line(fx_code(origin))}"]

    def _targets(self, op: Op) -> str:
        names = [self.variables[tensor] for tensor in op.outputs]
        proto = op.prototype
        if not names:
            return "_"
        if proto is None or op.type == "Const" or _is_general(op, proto):
            return ", ".join(names)
        parts: list[str] = []
        for kind, count in _output_counts(op, proto).values():
            taken, names = names[:count], names[count:]
            parts.append(f"[{', '.join(taken)}]" if kind == "dynamic" else taken[0])
        return ", ".join(parts)

    def _call(self, op: Op) -> str:
        """Return the builder call, or the general call if no builder fits.

        Inputs come first: they may create constants.
        """
        proto = op.prototype
        if op.type == "Const" and self.calls[op] is not None and not op.after:
            return self._const(op)
        if op.type == "Const" or proto is None or _is_general(op, proto):
            return self._general(op)
        parts = [] if op.type in INPUT_TYPES else self._inputs(op)
        parts += self._keywords(op, proto)
        parts += self._dependencies(op)
        if name := self._node_name(op, always=len(op.outputs) <= 1):
            parts.append(name)
        return f"ge.{op.type}({', '.join(parts)})"

    def _inputs(self, op: Op) -> list[str]:
        shown: list[str] = []
        for value in op.arguments().values():
            if isinstance(value, list):
                shown.append(f"[{', '.join(self._operand(tensor) for tensor in value)}]")
            else:
                shown.append("None" if value is None else self._operand(value))
        return shown

    def _operand(self, tensor: Tensor) -> str:
        """Return a variable, or the constant itself.

        A constant that is read again needs a variable, unless equal ones are one op.
        """
        op = tensor.op
        if op not in self.inlined:
            return self.variables[tensor]
        text = self._const(op)
        if self.readers[tensor] == 1 or "node_name=" not in text:
            return text
        self.before.append(f"{self.variables[tensor]} = {text}")
        self.inlined.discard(op)
        return self.variables[tensor]

    def _keywords(self, op: Op, proto: Prototype) -> list[str]:
        parts: list[str] = []
        others: dict[str, Attr] = {}
        for name, attr in op.attrs.items():
            if _is_keyword(name, attr, proto):
                parts.append(f"{name}={_value(attr.value)}")
            else:
                others[name] = attr
        if op.type in INPUT_TYPES:
            desc = output_desc(op.outputs[0])
            shape = None if desc.shape is None else list(desc.shape)
            parts += [f"dtype={desc.dtype}", f"shape={shape}", f"placement={desc.device!r}"]
            parts += [] if desc.layout == "ND" else [f"format={desc.layout!r}"]
        lists = {
            name: count for name, (kind, count) in _output_counts(op, proto).items() if kind == "dynamic"
        }
        if lists:
            parts.append(f"outputs={next(iter(lists.values())) if len(lists) == 1 else lists}")
        if others:
            parts.append(f"attrs={_mapping(others)}")
        return parts

    def _dependencies(self, op: Op) -> list[str]:
        if not op.after:
            return []
        shown = [
            self.variables[before.outputs[0]]
            if before.outputs
            else f"current_graph().by_name[{before.name!r}]"
            for before in op.after
        ]
        return [f"dependencies=[{', '.join(shown)}]"]

    def _general(self, op: Op) -> str:
        """Return `ge.add_op(type, inputs, attributes, outputs)`: slots and outputs exactly as they are."""
        slots = [
            f"{slot.name!r}: {'None' if slot.tensor is None else self._operand(slot.tensor)}"
            for slot in op.slots
        ]
        outputs = [(tensor.desc.name, None) for tensor in op.outputs]
        parts = [
            repr(op.type),
            f"{{{', '.join(slots)}}}",
            _mapping(op.attrs),
            repr(outputs),
            *self._dependencies(op),
        ]
        if op.subgraphs:
            parts.append(f"subgraphs={op.subgraphs!r}")
        return f"ge.add_op({', '.join([*parts, self._node_name(op, always=True)])})"

    def _node_name(self, op: Op, always: bool) -> str:
        """Return `node_name="…"`, or nothing if the builder chooses the same name by itself."""
        if not always and self._comes_by_itself(op):
            return ""
        self.shadow.by_name[op.name] = op
        return f"node_name={json.dumps(op.name, ensure_ascii=False)}"

    def _comes_by_itself(self, op: Op) -> bool:
        counts = dict(self.shadow._counts)
        if self.shadow.new_name(op.type) == op.name:
            self.shadow.by_name[op.name] = op
            return True
        self.shadow._counts = counts
        return False

    def _can_inline(self, op: Op) -> bool:
        """Return whether the constant is read, one call can write it, and it needs no variable."""
        call = self.calls[op]
        count = self.readers.get(op.outputs[0], 0) if op.outputs else 0
        if call is None or not count or op.after or op in self.waited_for:
            return False
        return count == 1 or call.key is not None

    def _const(self, op: Op) -> str:
        call = self.calls[op]
        assert call is not None, "checked by the caller"
        if call.key is not None and self.shared.get(call.key) is op:
            return f"ge.Const({call.text})"
        if (call.key is None or call.key not in self.shared) and self._comes_by_itself(op):
            if call.key is not None:
                self.shared[call.key] = op
            return f"ge.Const({call.text})"
        return f"ge.Const({call.text}, {self._node_name(op, always=True)})"


@dataclass(frozen=True)
class _ConstCall:
    """Hold the arguments of `ge.Const`; `key` is what equal constants share, None when each call
    makes an op.
    """

    text: str
    key: Hashable | None


def _const_call(op: Op, large: Large) -> _ConstCall | None:
    """Return how one call writes this constant exactly, or None if none can."""
    stored, readable = op.attrs.get("value"), op.attrs.get("_readable_value")
    known = {"value", "_readable_value"} >= op.attrs.keys() and not op.slots and not op.subgraphs
    if not known or not isinstance(stored, TensorAttr) or [t.desc.name for t in op.outputs] != [""]:
        return None
    if stored.form is not None and stored.form != Form(stored.dtype, stored.shape):
        return None
    if large.has(stored):
        shown = "" if readable is not None or large.beside is None else ", readable=False"
        return _ConstCall(f"{large.text(op, stored)}, dtype={stored.dtype}{shown}", None)
    text = readable.value if isinstance(readable, Str) else _stored_text(stored)
    try:
        value = literal(text)
        again = const_attr(value, stored.dtype)
    except (AirError, ValueError, TypeError, RuntimeError, OverflowError):
        return None
    # Constants from a plain file have no more digits than are stored; they are printed as they were written.
    same_digits = stored.exact is None or again.exact == stored.exact
    if again != stored or not same_digits or (readable is not None and repr(value) != text):
        return None
    if readable is None:
        return _ConstCall(f"{text}, dtype={stored.dtype}, readable=False", None)
    key = const_key(value, stored) if stored.value.numel() <= SHARED_LIMIT else None
    return _ConstCall(f"{text}, dtype={stored.dtype}", key)


def _stored_text(stored: TensorAttr) -> str:
    """Return a number with all its digits, or all values of a tensor; `ge.Const` sets their data type."""
    if stored.exact is not None:
        return repr(stored.exact)
    value = stored.value
    listed = value.tolist() if not value.is_quantized else value.int_repr().tolist()
    return f"tensor({_value(listed)})"


def _is_keyword(name: str, attr: Attr, proto: Prototype) -> bool:
    row = proto.attr_by_name.get(name)
    if row is None or type(attr) is not BY_PROTOTYPE.get(row.type) or isinstance(attr, TensorAttr):
        return False
    return name.isidentifier() and not keyword.iskeyword(name) and name not in proto.input_names


def _is_general(op: Op, proto: Prototype) -> bool:
    """Return whether the op differs from what its builder would create."""
    expected: list[tuple[str, Tensor | None]] = []
    for param, value in zip(proto.inputs, op.arguments().values(), strict=True):
        if isinstance(value, list):
            expected += [(f"{param.name}{number}", tensor) for number, tensor in enumerate(value)]
        elif value is None and param.kind == "required" and op.type not in INPUT_TYPES:
            return True
        else:
            expected.append((param.name, value))
    outputs = [
        name if kind != "dynamic" else f"{name}{number}"
        for name, (kind, count) in _output_counts(op, proto).items()
        for number in range(count)
    ]
    return (
        expected != [(slot.name, slot.tensor) for slot in op.slots]
        or outputs != [tensor.desc.name for tensor in op.outputs]
        or bool(op.subgraphs)
        # Readers of the text may not have the user's prototypes.
        or not catalogue().is_builtin(op.type)
        or not all(_builder_accepts(name, attr, proto) for name, attr in op.attrs.items())
        or any(row.required and row.name not in op.attrs for row in proto.attrs)
        or (op.type in INPUT_TYPES and "index" not in op.attrs)
    )


def _builder_accepts(name: str, attr: Attr, proto: Prototype) -> bool:
    row = proto.attr_by_name.get(name)
    if row is not None:
        return type(attr) is BY_PROTOTYPE.get(row.type)
    return isinstance(attr, KNOWN[name]) if name in KNOWN else name.startswith("_")


def _output_counts(op: Op, proto: Prototype) -> dict[str, tuple[str, int]]:
    """Return for every output of the prototype its kind and how many tensors it has here."""
    names = {tensor.desc.name for tensor in op.outputs}
    counts: dict[str, tuple[str, int]] = {}
    for param in proto.outputs:
        count = 1
        if param.kind == "dynamic":
            count = next(number for number in range(len(names) + 1) if f"{param.name}{number}" not in names)
        counts[param.name] = (param.kind, count)
    return counts


def _variables(graph: Graph) -> dict[Tensor, str]:
    """Name the variables: `Add_1:0` is `Add_1_0`; names that would collide get underscores."""
    results: dict[Tensor, str] = {}
    taken = {"ge", "torch", "tensor", "float", "current_graph", "inf", "nan", "_", *RESERVED}
    for op in graph.ops:
        for tensor in op.outputs:
            name = re.sub(r"\W", "_", tensor.tensor)
            name = f"_{name}" if not name.isidentifier() else name
            while name in taken:
                name += "_"
            taken.add(name)
            results[tensor] = name
    return results


def _mapping(attrs: Mapping[str, Attr]) -> str:
    return f"{{{', '.join(f'{name!r}: {_attr(attr)}' for name, attr in attrs.items())}}}"


def _attr(attr: Attr) -> str:
    if not isinstance(attr, TensorAttr):
        return f"ge.attr.{type(attr).__name__}({_value(attr.value)})"
    form = attr.form or Form(attr.dtype, attr.shape)
    more = f", {form.layout!r}, {form.rest!r}" if form.rest or form.layout != "ND" else ""
    more += f", exact={attr.exact!r}" if attr.exact is not None else ""
    return f"ge.attr.Tensor.from_bytes({raw(attr.value)!r}, {form.dtype}, {form.shape}{more})"


def _value(value: Any) -> str:
    """Return the `repr` of a value, with calls for floats that have no literal."""
    if isinstance(value, list | tuple):
        inner = ", ".join(map(_value, value))
        return f"[{inner}]" if isinstance(value, list) else f"({inner}{',' if len(value) == 1 else ''})"
    if isinstance(value, float) and not math.isfinite(value):
        return f"float({str(value)!r})"
    return repr(value)


def _one_line(text: str) -> str:
    return " ".join(text.split("\n"))


def fx_code(origin: Origin) -> str:
    """Print an FX call with its fake values.

    For example: `add: float32[2, s0]cpu = aten.add.Tensor(x: float32[2, s0]cpu, 1)`.
    """
    node = origin.node
    if node is None:
        return f"{origin.name} = {origin.target}"
    args = [_fx_argument(argument) for argument in node.args]
    args += [f"{key} = {_fx_argument(argument)}" for key, argument in node.kwargs.items()]
    return f"{_fx_annotated(node)} = {origin.target}({', '.join(args)})"


def _fx_argument(argument: Any) -> str:
    if isinstance(argument, torch.fx.Node):
        return _fx_annotated(argument)
    if isinstance(argument, list | tuple):
        return f"[{', '.join(map(_fx_argument, argument))}]"
    return str(argument)


def _fx_annotated(node: torch.fx.Node) -> str:
    shown = ", ".join(_fx_spec(node.meta.get("val")))
    return f"{node.name}: {shown}" if shown else node.name


def _fx_spec(value: Any) -> Iterator[str]:
    if isinstance(value, list | tuple):
        for item in value:
            yield from _fx_spec(item)
    elif isinstance(value, torch.Tensor):
        sizes = ", ".join(str(size) for size in value.shape)
        yield f"{str(value.dtype).removeprefix('torch.')}[{sizes}]{value.device}"
    elif is_symbol(value):
        yield f'"Sym({value})"'
