"""Fold views: `permute t transpose view reshape` emit no op until their result is read.

A `View` is a source tensor and a chain of steps in normal form: two consecutive reshapes become the last one,
two permutations one, and steps without effect are removed. Reading it emits the chain, once per (source,
chain).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchair import ge
from torchair.convert.base.operands import dim_of, pack
from torchair.ge.graph import Tensor
from torchair.ge.host import is_symbol

aten = torch.ops.aten


@dataclass(frozen=True)
class Step:
    """`reshape` to `sizes` (ints and rank-0 tensors), or `permute` by `perm`; `shape` is the shape
    after it.
    """

    kind: str
    shape: tuple[Any, ...]
    sizes: tuple[Any, ...] = ()
    perm: tuple[int, ...] = ()

    @property
    def key(self) -> tuple[Any, ...]:
        return (self.kind, self.perm, tuple(_expr(size) for size in self.shape))


@dataclass(frozen=True)
class View:
    """A tensor that is not computed yet: `source` seen through `steps`. `meta` is the FX value."""

    source: Tensor
    steps: tuple[Step, ...]
    meta: torch.Tensor


def permutation(target: Any, args: Sequence[Any], rank: int) -> tuple[int, ...] | None:
    """Return the permutation of a permuting view, or None if the target is not one."""
    if target is aten.permute.default:
        return tuple(dim_of(dim, rank) for dim in args[1])
    if target is aten.t.default:
        return (1, 0) if rank == 2 else tuple(range(rank))
    if target is aten.transpose.int:
        perm = list(range(rank))
        if rank:
            a, b = dim_of(args[1], rank), dim_of(args[2], rank)
            perm[a], perm[b] = perm[b], perm[a]
        return tuple(perm)
    return None


RESHAPES = (aten.view.default, aten.reshape.default, aten._unsafe_view.default)
PERMUTES = (aten.permute.default, aten.t.default, aten.transpose.int)
TARGETS = frozenset((*RESHAPES, *PERMUTES))


def fold(target: Any, x: Tensor | View, args: Sequence[Any], meta: torch.Tensor) -> Tensor | View:
    """Return the view of `x` by an FX view call; `args` are its arguments, symbols as rank-0 tensors."""
    source, steps = (x.source, x.steps) if isinstance(x, View) else (x, ())
    shape = tuple(x.meta.shape)  # type: ignore[union-attr]
    perm = permutation(target, args, len(shape))
    if perm is not None:
        steps = _permute(steps, perm, shape, tuple(meta.shape))
    else:
        steps = _reshape(steps, tuple(args[1]), tuple(meta.shape))
    assert source.meta is not None, "a view has a source with a known shape"
    if steps and steps[0].kind == "reshape" and _same(steps[0].shape, tuple(source.meta.shape)):
        steps = steps[1:]
    return View(source, steps, meta) if steps else source


def _reshape(steps: tuple[Step, ...], sizes: tuple[Any, ...], shape: tuple[Any, ...]) -> tuple[Step, ...]:
    before = steps[:-1] if steps and steps[-1].kind == "reshape" else steps
    return (*before, Step("reshape", shape, sizes))


def _permute(
    steps: tuple[Step, ...], perm: tuple[int, ...], before: tuple[Any, ...], after: tuple[Any, ...]
) -> tuple[Step, ...]:
    if steps and steps[-1].kind == "permute":
        last = steps[-1].perm
        perm = tuple(last[dim] for dim in perm)
        steps = steps[:-1]
        inverse = sorted(range(len(last)), key=last.__getitem__)
        before = tuple(before[dim] for dim in inverse)
    if perm == tuple(range(len(perm))):
        return steps
    moved = [dim for dim in perm if before[dim] != 1 or is_symbol(before[dim])]
    symbols = [size for size in after if is_symbol(size)]
    # Next to a 0, a -1 could be any size.
    zeros = [size for size in after if not is_symbol(size) and size == 0]
    inferable = len(symbols) <= (0 if zeros else 1)
    if moved == sorted(moved) and inferable:
        return _reshape(steps, tuple(-1 if is_symbol(size) else size for size in after), after)
    return (*steps, Step("permute", after, perm=perm))


def materialise(view: View, made: dict[Any, Tensor]) -> Tensor:
    """Return the IR tensor of a view; `made` caches those that exist already."""
    key = (view.source, tuple(step.key for step in view.steps))
    if key not in made:
        x = view.source
        for step in view.steps:
            x = (
                ge.Transpose(x, list(step.perm))
                if step.kind == "permute"
                else ge.Reshape(x, pack(step.sizes))
            )
        made[key] = x
    if view.steps:
        made[key].meta = view.meta
    return made[key]


def _same(a: Sequence[Any], b: Sequence[Any]) -> bool:
    return [_expr(size) for size in a] == [_expr(size) for size in b]


def _expr(size: Any) -> Any:
    return size.node.expr if is_symbol(size) else size
