"""Compute an FX graph in float64, as a reference for both eager and compiled values."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from torchair.compare.base.replay_call import (
    CallOutcome,
    RecordedCall,
    ValueRecorder,
    copies,
    frozen,
    set_random_state,
)
from torchair.core.torch_private.fake.fake_tensors import tree_map
from torchair.fxgraph.effects import flat
from torchair.fxgraph.placeholders import placeholders

WIDER = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex32: torch.complex128,
    torch.complex64: torch.complex128,
}


def widened(value: Any) -> Any:
    """Convert floats and float dtypes to double; return everything else unchanged."""
    if isinstance(value, torch.Tensor):
        return value.to(WIDER[value.dtype]) if value.dtype in WIDER else value
    return WIDER.get(value, value) if isinstance(value, torch.dtype) else value


class Float64Interpreter(ValueRecorder):
    """Run every op in double. An op without a double kernel runs with the dtypes of the graph.

    Random numbers are drawn with the dtypes of the graph, because other dtypes would give other numbers.
    """

    def __init__(self, gm: fx.GraphModule) -> None:
        super().__init__(gm)
        self.garbage_collect_values = False  # the end of the run needs the writers of arguments
        self.narrow: list[str] = []  # nodes that could not be computed in double

    def placeholder(self, target: Any, args: Any, kwargs: Any) -> Any:
        return tree_map(widened, super().placeholder(target, args, kwargs))

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        value = super().get_attr(target, args, kwargs)
        return widened(value) if isinstance(value, torch.Tensor) else value

    def run_node(self, n: fx.Node) -> Any:
        self._node = n
        return super().run_node(n)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if self._node.name not in self.random:
            wide_args, wide_kwargs = tree_map(widened, (args, kwargs))
            if str(target) in HALF_TO_FLOAT:
                wide_args = (*wide_args[:2], False)
            try:
                return tree_map(widened, super().call_function(target, wide_args, wide_kwargs))
            except (RuntimeError, TypeError, ValueError):
                self.narrow.append(self._node.name)
        args, kwargs = fx.map_arg((self._node.args, self._node.kwargs), self._as_given)
        return tree_map(widened, super().call_function(target, args, kwargs))

    def _as_given(self, node: fx.Node) -> Any:
        """Cast a value to the dtype that it has in the graph."""
        value, meta = self.env[node], node.meta.get("val")
        if isinstance(value, torch.Tensor) and isinstance(meta, torch.Tensor):
            return value.to(meta.dtype)
        if isinstance(value, list | tuple) and isinstance(meta, list | tuple):
            metas = list(flat(meta))
            return [
                v.to(m.dtype) if isinstance(m, torch.Tensor) else v for v, m in zip(value, metas, strict=True)
            ]
        return value


def float64_reference(recorded: RecordedCall, gm: fx.GraphModule) -> tuple[CallOutcome, Float64Interpreter]:
    """Compute the outputs of the graph for a recorded call, and return them with the interpreter."""
    run = Float64Interpreter(gm)
    set_random_state(recorded.random)
    with torch.no_grad():
        outputs = run.run(*copies(recorded.args))
    args = [run.env[node] for node in placeholders(gm)]
    return CallOutcome(frozen(list(outputs)), args), run


HALF_TO_FLOAT = ("aten._softmax.default", "aten._log_softmax.default")
"""Ops whose last argument requests another dtype than the input has, which a double may not have."""
