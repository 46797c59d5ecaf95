"""Read the Python text of a graph.

The text is parsed and interpreted step by step, never executed. Only builder calls on literals and on earlier
tensors are accepted, so a file from an untrusted source can do no harm.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Any

import torch

from torchair.core.errors import AirError, BadGraph
from torchair.core.torch_private.fake.fake_tensors import without_modes
from torchair.ge import attr
from torchair.ge.builder.build import Cast, Const, add_op, builder, is_op
from torchair.ge.graph import Graph, Op, Tensor, current_graph
from torchair.ge.schema.runtime_attrs import take_runtime_attrs

SCRIPT_WORDS = ("begin_graph", "constants_of", "run_graph", "kernel", "main", "random_tensor")
"""Names with which a script runs itself (`debug/dumps/graph_file.py`).

The first two are interpreted here. The last three are functions in the text that build nothing.
"""


def from_python(
    text: str,
    infer: Callable[[Op], None] | None = None,
    constants: Mapping[str, torch.Tensor] | None = None,
) -> Graph:
    """Read the graph that `text.to_python` printed.

    Origins are lost, and `infer` fills in descriptors. `constants` are those that the text left out.
    """
    graph = Graph("loaded", infer)
    try:
        body = ast.parse(text).body
    except SyntaxError as error:
        raise BadGraph(
            f"not valid Python: {error.msg}", got=f"line {error.lineno}: {error.text or ''}"
        ) from error
    with graph:
        _Script(constants).run(body)
    for part in (graph, *graph.subgraphs.values()):
        take_runtime_attrs(part)
    return graph


@without_modes
def literal(text: str) -> Any:
    """Evaluate a literal, which may be a torch tensor as torch prints it; raise `BadGraph` for
    anything else.
    """
    try:
        return _Script().value(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, TypeError, RuntimeError, OverflowError, RecursionError) as error:
        raise BadGraph(f"{text[:80]!r} is not a literal") from error


class _Module:
    """A name that serves only as a namespace."""

    def __init__(self, find: Callable[[str], Any]) -> None:
        self.find = find


def _ge(name: str) -> Any:
    known = {"Const": Const, "Cast": Cast, "add_op": add_op, "attr": _Module(_attr)}
    return known.get(name) or (builder(name) if is_op(name) else None)


def _attr(name: str) -> Any:
    return getattr(attr, name) if name in (*attr.__all__, "Tensor", "Layouts", "Raw") else None


def _torch(name: str) -> Any:
    found = getattr(torch, name, None)
    return found if isinstance(found, torch.dtype) else None


def _tensor(data: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
    return torch.tensor(data, dtype=dtype)


def _is_for_running(node: ast.stmt) -> bool:
    """Return whether the statement is there only to run the text."""
    if isinstance(node, ast.FunctionDef):
        return node.name in SCRIPT_WORDS
    return isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'"


# Accepted methods: those of a graph; one each for dictionaries and `attr.Tensor`.
_GRAPH = ("name", "attrs", "by_name", "subgraph")


class _Script:
    """Interpret statements; map variable names to the tensors made so far."""

    def __init__(self, constants: Mapping[str, torch.Tensor] | None = None) -> None:
        given = dict(constants or {})
        self.names: dict[str, Any] = {
            "begin_graph": current_graph,
            "constants_of": lambda file: given,
            "constants": given,
            "__file__": "",
            "ge": _Module(_ge),
            "torch": _Module(_torch),
            "tensor": _tensor,
            "float": float,
            "current_graph": current_graph,
            "inf": float("inf"),
            "nan": float("nan"),
        }

    def run(self, body: list[ast.stmt]) -> None:
        for statement in body:
            try:
                self._statement(statement)
            except BadGraph as error:
                if error.details["at"]:
                    raise
                raise BadGraph(
                    error.what,
                    at=f"line {statement.lineno}",
                    got=error.details["got"],
                    near=error.details["near"],
                ) from error
            except (AirError, TypeError, ValueError, KeyError, IndexError, RuntimeError) as error:
                raise BadGraph(
                    f"{error}", at=f"line {statement.lineno}: {ast.unparse(statement)[:120]}"
                ) from error

    def _statement(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Import | ast.ImportFrom | ast.Pass) or _is_for_running(node):
            return
        if isinstance(node, ast.Expr):
            self.value(node.value)
        elif isinstance(node, ast.Assign) and len(node.targets) == 1:
            self._assign(node.targets[0], self.value(node.value))
        elif isinstance(node, ast.With) and len(node.items) == 1:
            graph = self.value(node.items[0].context_expr)
            if not isinstance(graph, Graph):
                raise BadGraph("only a sub-graph is accepted after `with`")
            with graph:
                _Script(self.names["constants"]).run(node.body)
        else:
            raise BadGraph(
                "only calls and assignments are accepted in the text of a graph", got=ast.unparse(node)[:120]
            )

    def _assign(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, ast.Name):
            self.names[target.id] = value
        elif isinstance(target, ast.Tuple | ast.List):
            listed = [value] if isinstance(value, Tensor) else list(value)
            for part, item in zip(target.elts, listed, strict=True):
                self._assign(part, item)
        elif isinstance(target, ast.Attribute) and target.attr == "name" and isinstance(value, str):
            graph = self.value(target.value)
            if not isinstance(graph, Graph):
                raise BadGraph("only a graph has a name")
            graph.name = value
        else:
            raise BadGraph("unsupported assignment target", got=ast.unparse(target))

    def value(self, node: ast.expr) -> Any:
        follow = _FOLLOW.get(type(node))
        if follow is None:
            raise BadGraph(
                "only literals, tensors and builder calls are accepted here", got=ast.unparse(node)[:120]
            )
        return follow(self, node)

    def _constant(self, node: ast.Constant) -> Any:
        if node.value is ...:
            raise BadGraph(
                "a constant is missing from this text",
                near="print the text with to_python(graph, limit=None)",
            )
        return node.value

    def _list(self, node: ast.List) -> Any:
        return [self.value(item) for item in node.elts]

    def _tuple(self, node: ast.Tuple) -> Any:
        return tuple(self.value(item) for item in node.elts)

    def _dict(self, node: ast.Dict) -> Any:
        if any(key is None for key in node.keys):
            raise BadGraph("only plain dictionaries are accepted here", got=ast.unparse(node)[:120])
        return {
            self.value(key): self.value(item) for key, item in zip(node.keys, node.values, strict=True) if key
        }

    def _unary(self, node: ast.UnaryOp) -> Any:
        value = self.value(node.operand)
        if not isinstance(node.op, ast.USub) or not isinstance(value, int | float | complex):
            raise BadGraph("only numbers can be negated", got=ast.unparse(node)[:120])
        return -value

    def _binary(self, node: ast.BinOp) -> Any:
        """Evaluate a complex number, which is written as a sum."""
        left, right = self.value(node.left), self.value(node.right)
        if not isinstance(right, complex) or not isinstance(node.op, ast.Add | ast.Sub):
            raise BadGraph("only complex numbers can be sums", got=ast.unparse(node)[:120])
        return left + right if isinstance(node.op, ast.Add) else left - right

    def _name(self, node: ast.Name) -> Any:
        if node.id not in self.names:
            raise BadGraph(f"the name {node.id!r} is not defined here")
        return self.names[node.id]

    def _attribute(self, node: ast.Attribute) -> Any:
        owner = self.value(node.value)
        found = None
        if isinstance(owner, _Module):
            found = owner.find(node.attr)
        elif isinstance(owner, Graph) and node.attr in _GRAPH:
            found = getattr(owner, node.attr)
        elif isinstance(owner, dict) and node.attr == "update":
            found = owner.update
        elif owner is attr.Tensor and node.attr == "from_bytes":
            found = attr.Tensor.from_bytes
        if found is None:
            raise BadGraph(f"{ast.unparse(node)} is not supported here")
        return found

    def _subscript(self, node: ast.Subscript) -> Any:
        owner, key = self.value(node.value), self.value(node.slice)
        if isinstance(owner, dict) and key not in owner:
            raise BadGraph(
                f"{ast.unparse(node)} does not exist",
                near="large constants are in a separate file next to the text",
            )
        return owner[key]

    def _call(self, node: ast.Call) -> Any:
        if any(word.arg is None for word in node.keywords):
            raise BadGraph("only plain keywords are accepted here", got=ast.unparse(node)[:120])
        function = self.value(node.func)
        args = [self.value(argument) for argument in node.args]
        return function(*args, **{str(word.arg): self.value(word.value) for word in node.keywords})


_FOLLOW: dict[type[ast.expr], Callable[[_Script, Any], Any]] = {
    ast.Constant: _Script._constant,
    ast.List: _Script._list,
    ast.Tuple: _Script._tuple,
    ast.Dict: _Script._dict,
    ast.UnaryOp: _Script._unary,
    ast.BinOp: _Script._binary,
    ast.Name: _Script._name,
    ast.Attribute: _Script._attribute,
    ast.Subscript: _Script._subscript,
    ast.Call: _Script._call,
}
