"""Report the operators of a graph: number of calls, argument types, and which have converters."""

from __future__ import annotations

import ast
import csv
import inspect
import io
import textwrap
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_aggregate

from torchair.convert.base.case_spec import target_name
from torchair.convert.base.registry import Converter, candidates, decomposition_for
from torchair.convert.special.higher_order import inlined
from torchair.core.torch_private.operators.schemas import HigherOrderOperator, OpOverload

HEADER = ("目标函数", "函数类型", "支持状态", "调用次数", "输入统计", "输出统计")
SUPPORTED, PARTLY, STUB, UNKNOWN = "已支持", "部分支持", "未支持", "未知状态，请查看源码"
UNREGISTERED = "未注册"
BOM = "\ufeff"
_DECLINING = ("NotImplementedError", "UnsupportedOp")


@dataclass
class OpSummaryRow:
    """One operator: its calls, grouped by the types of inputs and outputs."""

    inputs: Counter[str] = field(default_factory=Counter)
    outputs: Counter[str] = field(default_factory=Counter)

    def add(self, node: fx.Node) -> None:
        """Count a call. The values come from tracing, so no op has to run."""
        args, kwargs = (map_aggregate(part, _shown) for part in (node.args, node.kwargs))
        named = [f"{key}={value!r}" for key, value in kwargs.items()] if isinstance(kwargs, Mapping) else []
        self.inputs[f"({', '.join([*map(repr, args), *named])})"] += 1  # type: ignore[arg-type]
        self.outputs[repr(map_aggregate(node.meta.get("val"), _shown))] += 1


def summary_text(gm: fx.GraphModule) -> str:
    """Return the report as CSV, including sub-graphs, with a byte order mark for spreadsheets."""
    rows: dict[Any, OpSummaryRow] = {}
    parts = [part for part in gm.modules() if isinstance(part, fx.GraphModule)]
    for node in (node for part in parts for node in part.graph.nodes):
        if node.op == "call_function":
            rows.setdefault(node.target, OpSummaryRow()).add(node)
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\r\n")
    table.writerow(HEADER)
    for target, row in rows.items():
        facts = (_name(target), kind_of(target), status_of(target), row.inputs.total())
        table.writerow([*facts, _listed(row.inputs), _listed(row.outputs)])
    return BOM + text.getvalue()


def kind_of(target: Any) -> str:
    """Return `builtin` for Python's own functions, `prims` by name, `aten` for every other op."""
    if not isinstance(target, OpOverload | HigherOrderOperator):
        return "builtin"
    return "prims" if "prim" in str(target) else "aten"


def status_of(target: Any) -> str:
    """Return whether a converter exists; `partial` if it rejects some calls. Built-in ones may decompose."""
    if kind_of(target) == "builtin":
        return SUPPORTED
    found = next(iter(candidates(target)), None)
    if found is not None:
        return _status(found)
    return SUPPORTED if decomposition_for(target) or inlined(target) else UNREGISTERED


def _status(row: Converter) -> str:
    """Derive the status from the source of the converter: whether it returns or rejects calls."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(row.fn)))
    except (OSError, TypeError, SyntaxError):
        return UNKNOWN
    nodes = list(ast.walk(tree))
    raised = [ast.unparse(node.exc) for node in nodes if isinstance(node, ast.Raise) and node.exc is not None]
    declines = row.only is not None or any(text.startswith(_DECLINING) for text in raised)
    returns = any(isinstance(node, ast.Return | ast.Lambda) for node in nodes)
    if not declines:
        return SUPPORTED
    return PARTLY if returns else STUB


def _name(target: Any) -> str:
    return str(target) if isinstance(target, HigherOrderOperator) else target_name(target)


def _listed(counts: Counter[str]) -> str:
    return "\n".join(f"{count}次：{text}" for text, count in counts.most_common())


@dataclass(frozen=True)
class _Text:
    """An object that prints as this text."""

    text: str

    def __repr__(self) -> str:
        return self.text


def _shown(value: Any) -> Any:
    """Format a tensor as `dtype(shape)`, a symbol as its name, a node as its value."""
    if isinstance(value, fx.Node):
        return map_aggregate(value.meta.get("val", _Text(value.name)), _shown)
    if isinstance(value, torch.Tensor):
        return _Text(f"{value.dtype}({', '.join(map(str, value.shape))})")
    return _Text(str(value)) if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool) else value
