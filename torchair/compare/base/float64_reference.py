"""The truth: an FX graph computed in double, so that neither eager nor compiled is taken at its word."""

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
    """Floats in double, and dtypes of floats as double; everything else as it is."""
    if isinstance(value, torch.Tensor):
        return value.to(WIDER[value.dtype]) if value.dtype in WIDER else value
    return WIDER.get(value, value) if isinstance(value, torch.dtype) else value


class Double(ValueRecorder):
    """Every op on doubles. An op that has no kernel for them is given, and gives, what the graph says.

    Random numbers are drawn as the graph draws them: other dtypes would be other numbers.
    """

    def __init__(self, gm: fx.GraphModule) -> None:
        super().__init__(gm)
        self.garbage_collect_values = False  # who wrote an argument is asked at the end
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
        """A value in the dtype that the graph says it has."""
        value, meta = self.env[node], node.meta.get("val")
        if isinstance(value, torch.Tensor) and isinstance(meta, torch.Tensor):
            return value.to(meta.dtype)
        if isinstance(value, list | tuple) and isinstance(meta, list | tuple):
            metas = list(flat(meta))
            return [
                v.to(m.dtype) if isinstance(m, torch.Tensor) else v for v, m in zip(value, metas, strict=True)
            ]
        return value


def truth(scene: RecordedCall, gm: fx.GraphModule) -> tuple[CallOutcome, Double]:
    """What the graph should give for the arguments of a scene, and the run that found out."""
    run = Double(gm)
    set_random_state(scene.random)
    with torch.no_grad():
        outputs = run.run(*copies(scene.args))
    args = [run.env[node] for node in placeholders(gm)]
    return CallOutcome(frozen(list(outputs)), args), run


HALF_TO_FLOAT = ("aten._softmax.default", "aten._log_softmax.default")
"""Their last argument asks for another dtype than the input's, which a double may not have."""
