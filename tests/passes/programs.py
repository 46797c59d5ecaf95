"""Random programs that read and write tensors and parts of them, to compare rewritten graphs with torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from hypothesis import strategies as st
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from torchair.passes import PassContext

ROWS, COLUMNS = 4, 6

# Every step picks tensors made so far by number; shapes are brought together by `fit`.
STEPS: dict[str, Callable[..., Any]] = {
    "exp": lambda a, b, n: torch.exp(a.clamp(-2, 2)),
    "relu": lambda a, b, n: torch.relu(a),
    "add": lambda a, b, n: a + fit(b, a),
    "mul": lambda a, b, n: a * fit(b, a),
    "where": lambda a, b, n: torch.where(a > 0, a, fit(b, a)),
    "rows": lambda a, b, n: a[n % a.shape[0] :],
    "columns": lambda a, b, n: a[..., : n % a.shape[-1] + 1],
    "turned": lambda a, b, n: a.transpose(0, -1),
    "flat": lambda a, b, n: a.reshape(-1),
    "joined": lambda a, b, n: torch.cat([torch.sin(a), torch.cos(a)]),
    "copied": lambda a, b, n: a.clone(),
    "sum": lambda a, b, n: a.sum(0, keepdim=True),
}
WRITES: dict[str, Callable[..., Any]] = {
    "add_": lambda a, b, n: a.add_(fit(b, a)),
    "sin_": lambda a, b, n: a.sin_(),
    "part_": lambda a, b, n: a[n % a.shape[0]].mul_(2),
    "set_": lambda a, b, n: a.__setitem__((slice(0, n % a.shape[0] + 1),), 0.5),
    "put_": lambda a, b, n: a.index_put_((torch.tensor([0, a.shape[0] - 1]),), torch.tensor(0.25)),
    "flat_": lambda a, b, n: a.view(-1)[: n % 3 + 1].add_(1) if a.is_contiguous() else a.neg_(),
    "fill_": lambda a, b, n: a.copy_(fit(b, a)),
}
Step = tuple[str, int, int, int]


def fit(b: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A tensor of the shape of `like`: the values of `b` over and over."""
    flat = b.reshape(-1)
    return flat.repeat(like.numel() // flat.numel() + 1)[: like.numel()].view(like.shape)


def programs() -> st.SearchStrategy[list[Step]]:
    """Lists of steps: name, two tensors, a number."""
    step = st.tuples(
        st.sampled_from([*STEPS, *WRITES]), st.integers(0, 30), st.integers(0, 30), st.integers(0, 9)
    )
    return st.lists(step, min_size=2, max_size=12)


def function_of(steps: Sequence[Step]) -> Callable[..., list[torch.Tensor]]:
    """The program as a function of two tensors; returns some of what it made."""

    def run(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        made = [x, y]
        for name, first, second, number in steps:
            a, b = made[first % len(made)], made[second % len(made)]
            if name in STEPS:
                made.append(STEPS[name](a, b, number))
            else:
                WRITES[name](a, b, number)
        return [made[-1] * 1.5, made[len(made) // 2] + 1, made[-1].clone()]

    return run


def functional(fn: Callable[..., Any], *args: torch.Tensor) -> tuple[fx.GraphModule, PassContext]:
    """The graph as AOTAutograd would make it: functional, inputs written back at the end."""
    gm = make_fx(torch.func.functionalize(fn, remove="mutations"), tracing_mode="fake")(*args)
    gm.graph.eliminate_dead_code()
    gm.recompile()
    return gm, PassContext(inputs=[node.meta["val"] for node in gm.graph.find_nodes(op="placeholder")])
