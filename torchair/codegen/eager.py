"""Generate readable Python from FX: one line per node, without control flow; dead values are deleted and
constants created once.

Ops are called through `torch.<name>` if that is the same op (half the cost of calling an overload), else
through the overload. A functional update of an input followed by `copy_` becomes one write into the input.
"""

from __future__ import annotations

import builtins
import hashlib
import keyword
import linecache
import math
import operator
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from torchair.codegen.base import graph_prep
from torchair.codegen.base.programs import Boxed
from torchair.core.torch_private.fake.fake_tensors import disable_modes
from torchair.core.torch_private.operators.schemas import OpOverload
from torchair.fxgraph.edit import copy_graph
from torchair.fxgraph.effects import may_alias
from torchair.fxgraph.fake_values import device_of
from torchair.fxgraph.placeholders import placeholders, returned
from torchair.ops.streams import stream_ops
from torchair.ops.streams.scope_analysis import stream_of_nodes

aten = torch.ops.aten

# Overloads that `torch.<name>` reaches with the same arguments in the same order.
_FUNCTIONS: dict[str, str] = {
    "default": "abs addmm amax amin argmax baddbmm bmm cat clone cos cumsum embedding erf exp gather "
    "index_select log logical_and logical_not maximum minimum mm neg permute reciprocal relu rsqrt sigmoid "
    "sin sqrt t tanh unsqueeze",
    "Tensor": "add div eq ge gt le lt mul ne sub",
    "Scalar": "eq ge gt le lt ne",
    "Tensor_Scalar": "pow",
    "dim": "mean squeeze",
    "dim_IntList": "sum",
    "int": "select transpose",
    "self": "where",
}
TORCH_FUNCTIONS = frozenset(f"{name}.{kind}" for kind, names in _FUNCTIONS.items() for name in names.split())
# The same for methods.
TENSOR_METHODS: dict[Any, str] = {
    aten.copy_.default: "copy_",
    aten.view.default: "view",
    aten.reshape.default: "reshape",
    aten.sym_size.int: "size",
    aten.sym_stride.int: "stride",
    aten.sym_numel.default: "numel",
}
INFIX: dict[Any, str] = {
    operator.add: "+",
    operator.sub: "-",
    operator.mul: "*",
    operator.floordiv: "//",
    operator.mod: "%",
    operator.truediv: "/",
    operator.eq: "==",
    operator.ne: "!=",
    operator.lt: "<",
    operator.le: "<=",
    operator.gt: ">",
    operator.ge: ">=",
}
# Modules with functions that graphs call, and their expressions in a standalone module.
OWNERS: dict[Any, str] = {
    stream_ops: "__import__('torchair').ops.streams",
    torch: "torch",
    operator: "__import__('operator')",
    math: "__import__('math')",
}
# Calls with constant arguments. Their results can be shared between calls if no op writes to them.
CONSTANT_CALLS = (aten.full.default, aten.scalar_tensor.default, aten.arange.start_step, aten.arange.default)

# The end of a standalone module: the function that accepts the inputs as separate arguments.
KERNEL = """
def kernel(*args):
    return {}(list(args))
"""
# Names that the generated function uses itself.
RESERVED = ("args", "torch", "program")
# Tensors with more elements are not written as text.
LITERAL_LIMIT = 4096


def build(gm: fx.GraphModule, inputs: Sequence[Any]) -> Boxed:
    """Generate the Python function and load it."""
    return generate(gm).load()


def generate(gm: fx.GraphModule) -> EagerCode:
    """Return the Python function of a graph, as data."""
    gm = copy_graph(gm)
    gm.graph.eliminate_dead_code(is_impure_node=graph_prep.has_effect)
    writer = Writer(gm)
    source = writer.write()
    return EagerCode(source, writer.functions, writer.values, stream_ops.events_of(gm))


@dataclass(frozen=True)
class EagerCode:
    """The source of a function `program(args)`, and its globals."""

    source: str
    functions: dict[str, Any]
    """The operators and functions it calls."""
    values: dict[str, Any]
    """Its constants."""
    events: list[stream_ops.Event]
    """Events created for this graph. They live as long as the code."""
    kind = "eager"

    def load(self) -> Boxed:
        """Load the program."""
        calls = {name: _called(target) for name, target in self.functions.items()}
        return Boxed(self, load(self.source, {"torch": torch, **self.values, **calls, "_kept": self.events}))

    def standalone(self, beside: dict[str, torch.Tensor] | None = None) -> str | None:
        """Return the program as a standalone module with `kernel(*args)`.

        Args:
            beside: if given, receives large tensors. The module reads them from a dictionary `constants`.

        Returns:
            The source, or None if a constant cannot be written as text.
        """
        lines = ["import torch", ""]
        for name, value in (self.functions | self.values).items():
            text = _spelled(value) if name in self.functions else literal(value)
            if text is None and beside is not None and isinstance(value, torch.Tensor):
                beside[name] = value
                text = f"constants[{name!r}]"
            if text is None:
                return None
            lines.append(f"{name} = {text}")
        return "\n".join([*lines, "", "", self.source, KERNEL.format("program")])


def _called(target: Any) -> Any:
    """Return the function to call: the bound C++ function takes one Python frame less than the overload."""
    if not isinstance(target, OpOverload):
        return target
    return getattr(torch, _short_name(target)) if _is_torch_function(target) else target._op


def _spelled(target: Any) -> str | None:
    """Return the expression for a function in a standalone module, or None if there is none."""
    if isinstance(target, OpOverload):
        return f"torch.{_short_name(target)}" if _is_torch_function(target) else f"torch.ops.{target}"
    name = getattr(target, "__name__", "")
    owners = (text for owner, text in OWNERS.items() if getattr(owner, name, None) is target)
    return next((f"{owner}.{name}" for owner in owners), None)


def _short_name(target: OpOverload) -> str:
    return target._schema.name.removeprefix("aten::")


def _is_torch_function(target: OpOverload) -> bool:
    return target.namespace == "aten" and f"{_short_name(target)}.{target._overloadname}" in TORCH_FUNCTIONS


def literal(value: Any) -> str | None:
    """Return a constant as Python source: numbers, torch's types, small tensors. Values without digits
    (infinity, a NaN with its sign) are written as bytes.
    """
    if isinstance(value, float) and math.isnan(value):
        return f"__import__('struct').unpack('<d', bytes.fromhex({struct.pack('<d', value).hex()!r}))[0]"
    if isinstance(value, float | complex):
        return f"{type(value).__name__}({str(value)!r})"
    if isinstance(value, torch.device):
        return f"torch.device({str(value)!r})"
    if isinstance(value, torch.Tensor) and value.numel() <= LITERAL_LIMIT and not value.is_quantized:
        return _tensor_literal(value)
    return None


def _tensor_literal(value: torch.Tensor) -> str:
    where = f"dtype={value.dtype}, device={str(value.device)!r}"
    plain = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
    if not value.numel() or (not plain.is_floating_point() and not plain.is_complex()):
        digits = f"torch.tensor({plain.tolist()!r}, {where})"
        return digits if value.numel() else f"torch.empty({tuple(value.shape)}, {where})"
    data = plain.reshape(-1).view(torch.uint8).numpy().tobytes().hex()
    text = f"torch.frombuffer(bytearray.fromhex({data!r}), dtype={value.dtype})"
    return f"{text}.reshape({tuple(value.shape)}).to({str(value.device)!r})"


def load(source: str, names: dict[str, Any]) -> Callable[[list[Any]], Sequence[Any]]:
    """Compile generated Python; tracebacks show its lines."""
    filename = f"<torchair {hashlib.sha256(source.encode()).hexdigest()[:12]}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    namespace = dict(names)
    exec(compile(source, filename, "exec"), namespace)
    return namespace["program"]


class Writer:
    """Writes one graph as Python. `names` are the globals of the generated function: ops, constants,
    subgraphs.
    """

    def __init__(self, gm: fx.GraphModule) -> None:
        self.gm = gm
        self.names: dict[str, Any] = {}
        self.called: set[str] = set()  # the functions among them
        self.local: dict[fx.Node, str] = {}
        self.taken: set[str] = set()
        self.lines: list[str] = []
        # Whether each open scope is a `with` block.
        self.blocks: list[bool] = []

    @property
    def functions(self) -> dict[str, Any]:
        """The globals that are called."""
        return {name: value for name, value in self.names.items() if name in self.called}

    @property
    def values(self) -> dict[str, Any]:
        """The other globals."""
        return {name: value for name, value in self.names.items() if name not in self.called}

    def write(self) -> str:
        """Return the source of the function."""
        inputs = placeholders(self.gm)
        for node in inputs:
            self.local[node] = self.fresh(node.name)
        dies = self.deaths()
        for node in self.gm.graph.nodes:
            if node.op in ("placeholder", "output"):
                continue
            if node.op == "get_attr":
                self.bind(node, graph_prep.attribute(self.gm, str(node.target)))
            elif self.is_constant(node):
                self.bind(node, _evaluate(node))
            elif node.target in stream_ops.SCOPES:
                self.write_scope(node)
            else:
                self.write_node(node)
            self.drop(dies.get(node, ()))
        results = ", ".join(self.text(value) for value in returned(self.gm))
        head = ["def program(args):"]
        if inputs:
            head.append(f"    {', '.join(self.local[node] for node in inputs)}, = args")
        head.append("    args.clear()")
        unused = [self.local[node] for node in inputs if not node.users]
        if unused:
            head.append(f"    del {', '.join(unused)}")
        body = [f"    {line}" for line in self.lines]
        return "\n".join([*head, *body, f"    return [{results}]", ""])

    def write_node(self, node: fx.Node) -> None:
        """Write one node as one line."""
        assert node.op == "call_function", (
            f"an ATen graph contains only function calls, but {node.name} is a {node.op}"
        )
        call = self.call(node)
        if not node.users:
            self.emit(call)
            return
        self.local[node] = self.fresh(node.name)
        self.emit(f"{self.local[node]} = {call}")

    def emit(self, line: str) -> None:
        """Write one line, indented by the open `with` blocks."""
        self.lines.append("    " * sum(self.blocks) + line)

    def write_scope(self, node: fx.Node) -> None:
        """Write a scope that has an effect as a `with` block, so that an error leaves no stream or limit
        active.
        """
        if node.target in stream_ops.ENTER:
            is_block = stream_ops.acts(node)
            if is_block:
                scope = self.function(stream_ops.StreamScope)
                where = ", 'cpu'" if stream_ops.is_limit(node) and device_of(self.gm).type == "cpu" else ""
                self.emit(f"with {scope}({self.text(node.args[0])}, {self.text(node.args[1])}{where}):")
            else:
                self.write_node(node)
            self.blocks.append(is_block)
        elif self.blocks[-1]:
            if self.lines[-1].lstrip().startswith("with "):
                self.emit("pass")
            self.blocks.pop()
        else:
            self.blocks.pop()
            self.write_node(node)

    def call(self, node: fx.Node) -> str:
        """Return the right side of the line."""
        target = node.target
        arguments = [self.text(value) for value in node.args]
        if target is operator.getitem:
            return f"{arguments[0]}[{arguments[1]}]"
        if target in INFIX and len(arguments) == 2:
            return f" {INFIX[target]} ".join(arguments)
        keywords = [f"{key}={self.text(value)}" for key, value in node.kwargs.items()]
        if target in TENSOR_METHODS and isinstance(node.args[0], fx.Node):
            return f"{arguments[0]}.{TENSOR_METHODS[target]}({', '.join(arguments[1:] + keywords)})"
        return f"{self.function(target)}({', '.join(arguments + keywords)})"

    def function(self, target: Any) -> str:
        """Return the name by which the generated code calls `target`."""
        if not isinstance(target, OpOverload):
            label = getattr(target, "__name__", "function")
        elif _is_torch_function(target):
            label = f"torch_{_short_name(target)}"
        else:
            label = str(target).replace(".", "_").replace("::", "_")
        name = self.hoist(label, target)
        self.called.add(name)
        return name

    def text(self, value: Any) -> str:
        """Return an argument as Python source; values without a literal become globals."""
        if isinstance(value, fx.Node):
            return self.local[value]
        if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
            inner = ", ".join(self.text(item) for item in value)
            return f"[{inner}]" if isinstance(value, list) else f"({inner},)" if value else "()"
        if isinstance(value, dict):
            return "{" + ", ".join(f"{key!r}: {self.text(item)}" for key, item in value.items()) + "}"
        if isinstance(value, slice):
            return f"slice({self.text(value.start)}, {self.text(value.stop)}, {self.text(value.step)})"
        if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
            return str(value)
        if isinstance(value, float) and not math.isfinite(value):
            return self.hoist("constant_float", value)
        if value is None or isinstance(value, (bool, int, float, str)):
            return repr(value)
        return self.hoist(f"constant_{type(value).__name__}", value)

    def is_constant(self, node: fx.Node) -> bool:
        """Return whether the value is small and constant, and no op can write to it or reveal that it is
        shared.
        """
        value = node.meta.get("val")
        if node.target not in CONSTANT_CALLS or not isinstance(value, torch.Tensor) or value.dim() > 1:
            return False
        arguments = [*node.args, *node.kwargs.values()]
        flat = [x for item in arguments for x in (item if isinstance(item, (list, tuple)) else [item])]
        if any(isinstance(item, fx.Node) for item in flat) or value.numel() > 4096:
            return False
        return all(_only_reads(user) for user in node.users)

    def bind(self, node: fx.Node, value: Any) -> None:
        """Make a node with a known value a global of the generated function."""
        self.local[node] = self.hoist(node.name, value)

    def hoist(self, name: str, value: Any) -> str:
        """Return the name of a global for `value`; the same value gets the same name."""
        name = _identifier(name)
        while self.names.get(name, value) is not value or name in self.taken or name in RESERVED:
            name += "_"
        self.names[name] = value
        return name

    def fresh(self, name: str) -> str:
        """Return an unused local name."""
        name = _identifier(name)
        while name in self.taken or name in self.names or name in RESERVED:
            name += "_"
        self.taken.add(name)
        return name

    def deaths(self) -> dict[fx.Node, list[fx.Node]]:
        """Map each node to the values that are not needed after it. Values used on several streams live until
        the end: otherwise their memory could be reused while another stream still reads it.
        """
        shared = _on_several_streams(self.gm)
        last: dict[fx.Node, fx.Node] = {}
        for node in self.gm.graph.nodes:
            for used in node.all_input_nodes:
                last[used] = node
        result: dict[fx.Node, list[fx.Node]] = {}
        for used, node in last.items():
            if node.op != "output" and used not in shared:
                result.setdefault(node, []).append(used)
        return result

    def drop(self, nodes: Sequence[fx.Node]) -> None:
        """Delete values that are not needed any more."""
        dead = [self.local[node] for node in nodes if self.local[node] not in self.names]
        if dead:
            self.emit(f"del {', '.join(dead)}")


def _on_several_streams(gm: fx.GraphModule) -> set[fx.Node]:
    """Return the values that nodes on more than one stream write or read."""
    if not any(node.target in stream_ops.ENTER for node in gm.graph.nodes):
        return set()
    places: dict[fx.Node, set[Any]] = {}
    for node, stream in stream_of_nodes(gm.graph).items():
        for value in (node, *node.all_input_nodes) if node.op != "output" else ():
            places.setdefault(value, set()).add(stream)
    return {node for node, found in places.items() if len(found) > 1}


def _evaluate(node: fx.Node) -> Any:
    with disable_modes(), torch.no_grad():
        return node.target(*node.args, **node.kwargs)  # type: ignore[operator]


def _only_reads(user: fx.Node) -> bool:
    return user.op == "call_function" and not may_alias(user.target)


def _identifier(name: str) -> str:
    name = "".join(c if c.isalnum() or c == "_" else "_" for c in name)
    return f"{name}_" if keyword.iskeyword(name) or hasattr(builtins, name) else name
