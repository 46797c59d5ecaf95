"""Fuse before autograd: a chain of calls in the model becomes one op of the `npu` library with its own
backward.

After autograd, the parts of a backward are mixed with those of its neighbors and cannot be found.

Dynamo's graph has many forms of one idea (methods, functions, operators), so it is traced to ATen calls. Each
fusion is a function that recognizes the last ATen call of the chain it replaces. In Dynamo's graph, one new
call then replaces the node that this last call came from. All other nodes stay; those without readers are not
computed. A fusion is declined if

* another node reads a value between its operands and its result: it would be computed twice,
* one of its operands or its result is not a value of Dynamo's graph,
* between its first call and its last something is written, or gradients or autocast are switched.

Casts between floats are ignored: fused ops compute in float32. Their operands get one dtype that holds each
of them and the result; operands that matmul rounds under autocast are passed rounded.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
from torch import fx

from torchair.core.torch_private.fake.fake_tensors import (
    float_seen,
    statically_known_true,
    trace_before_autograd,
)
from torchair.core.torch_private.operators.schemas import OpOverload, find_overload
from torchair.fxgraph.effects import mutates
from torchair.fxgraph.placeholders import output
from torchair.passes.pass_manager import PassContext

aten, npu = torch.ops.aten, torch.ops.npu
Found = Mapping[str, Any]
"""Operands of a fusion by name: nodes, numbers, and the dtype in which tensors are passed."""


@dataclass(frozen=True)
class Fusion:
    """Define a fusion: `find(node)` returns the operands if this is the last call of such a chain.

    `put(**operands)` calls the fused op, `op` is its name in the library.
    """

    name: str
    op: str
    find: Callable[[fx.Node], Found | None]
    put: Callable[..., Any]


# Read ATen calls

FLOATS = (torch.float16, torch.bfloat16, torch.float32)
CASTS = (aten.to.dtype, aten.to.dtype_layout, aten._to_copy.default, aten.type_as.default, aten.to.other)


def is_call(value: Any, *targets: Any) -> TypeGuard[Any]:
    """Return whether this is a call of one of these ops."""
    return isinstance(value, fx.Node) and value.target in targets


def tensor_of(value: Any) -> torch.Tensor | None:
    """Return the fake tensor of a node if it has a float dtype that fused ops accept."""
    result = value.meta.get("val") if isinstance(value, fx.Node) else None
    return result if isinstance(result, torch.Tensor) and result.dtype in FLOATS else None


def widest(*nodes: Any) -> torch.dtype:
    """Return the dtype that holds the values of all nodes."""
    values = [value for node in nodes if (value := tensor_of(node)) is not None]
    return functools.reduce(torch.promote_types, [value.dtype for value in values])


def bare(value: Any) -> Any:
    """Return the value before casts between floats, copies and inactive dropout."""
    while isinstance(value, fx.Node) and value.args and _is_neutral(value):
        value = value.args[0]
    return value


def _is_neutral(node: Any) -> bool:
    if is_call(node, *CASTS):
        return tensor_of(node) is not None and tensor_of(node.args[0]) is not None
    if is_call(node, aten.dropout.default):
        return node.args[1] == 0 or node.args[2] is False
    if is_call(node, aten.slice.Tensor):
        start, end, step = (*node.args[2:], *(None, None, 1)[len(node.args) - 2 :])
        return start in (None, 0) and (end is None or (_is_number(end) and end >= 2**62)) and step == 1
    return is_call(node, aten.contiguous.default)


def _is_itself(node: Any) -> bool:
    """Return whether this call returns its argument unchanged."""
    if not node.args or not is_call(node, *CASTS, aten.dropout.default, aten.contiguous.default):
        return False
    old, new = tensor_of(node.args[0]), tensor_of(node)
    if old is None or new is None or old.dtype != new.dtype or not _is_neutral(node):
        return False
    if is_call(node, *CASTS):
        return True not in (*node.args[2:], *node.kwargs.values())  # no copy is requested
    return is_call(node, aten.dropout.default) or old.is_contiguous()


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def both_ways(value: Any, target: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the operands of a commutative call, in either order."""
    if is_call(value, target) and value.kwargs.get("alpha", 1) == 1:
        first, second = value.args[:2]
        yield first, second
        yield second, first


def same(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Return whether these sizes are equal, whatever the values of symbols."""
    return len(a) == len(b) and all(statically_known_true(x == y) for x, y in zip(a, b, strict=True))


def heads_of(*nodes: Any) -> list[torch.Tensor] | None:
    """Return the fake tensors of these nodes if all have four dims: [batch, heads, sequence, dim]."""
    found = [value for node in nodes if (value := tensor_of(node)) is not None and value.dim() == 4]
    return found if len(found) == len(nodes) else None


def last_dim(node: Any, dim: Any) -> bool:
    """Return whether this number is the last dim of a node's value."""
    result = tensor_of(node)
    return result is not None and dim in (-1, result.dim() - 1)


# x / sqrt(mean(x²) + epsilon) * gamma


def match_rms_norm(node: Any) -> Found | None:
    """Match the product with gamma."""
    for gamma, normed in both_ways(node, aten.mul.Tensor):
        for x, epsilon in _normed(bare(normed)):
            gamma_is, x_is = tensor_of(gamma), tensor_of(x)
            if gamma_is is None or x_is is None or gamma_is.dim() != 1 or x_is.dim() < 2:
                continue
            if same(gamma_is.shape, x_is.shape[-1:]):
                return {"x": x, "gamma": gamma, "epsilon": epsilon, "dtype": widest(node, x, gamma)}
    return None


def _normed(value: Any) -> Iterator[tuple[fx.Node, float]]:
    """Yield (x, epsilon) of x · rsqrt(mean(x²) + epsilon), or of x / sqrt(…)."""
    for x, rstd in both_ways(value, aten.mul.Tensor):
        if is_call(bare(rstd), aten.rsqrt.default):
            yield from _mean_square(bare(x), bare(bare(rstd).args[0]))
    if is_call(value, aten.div.Tensor) and is_call(bare(value.args[1]), aten.sqrt.default):
        yield from _mean_square(bare(value.args[0]), bare(bare(value.args[1]).args[0]))


def _mean_square(x: Any, summed: Any) -> Iterator[tuple[fx.Node, float]]:
    if not is_call(summed, aten.add.Tensor) or not _is_number(summed.args[1]) or summed.kwargs:
        return
    mean = bare(summed.args[0])
    if not is_call(mean, aten.mean.dim) or not isinstance(x, fx.Node):
        return
    square, dims, keeps = (*mean.args, False)[:3]
    is_last = isinstance(dims, list | tuple) and len(dims) == 1 and last_dim(square, dims[0])
    if is_last and keeps and _squared(bare(square)) is x:
        yield x, float(summed.args[1])


def _squared(value: Any) -> Any:
    """Return x of x², or None."""
    if is_call(value, aten.pow.Tensor_Scalar) and value.args[1] == 2:
        return bare(value.args[0])
    if is_call(value, aten.square.default):
        return bare(value.args[0])
    if is_call(value, aten.mul.Tensor) and bare(value.args[0]) is bare(value.args[1]):
        return bare(value.args[0])
    return None


def match_torch_rms_norm(node: Any) -> Found | None:
    """Match torch's own op, which is decomposed on devices without an implementation."""
    if not is_call(node, aten.rms_norm.default):
        return None
    x, shape, (gamma, epsilon) = *node.args[:2], (*node.args[2:], None, None)[:2]
    if tensor_of(x) is None or len(shape) != 1 or tensor_of(gamma) is None:
        return None
    epsilon = torch.finfo(torch.float32).eps if epsilon is None else epsilon
    return {"x": x, "gamma": gamma, "epsilon": epsilon, "dtype": widest(node, x, gamma)}


def emit_rms_norm(x: torch.Tensor, gamma: torch.Tensor, epsilon: float, dtype: torch.dtype) -> torch.Tensor:
    """Return the normalized values; the op also returns its statistics."""
    return npu.npu_rms_norm(x.to(dtype), gamma.to(dtype), epsilon)[0]


# x · cos + (-second half of x, first half of x) · sin


def match_rotary_mul(node: Any) -> Found | None:
    """Match the sum."""
    for straight, turned in both_ways(node, aten.add.Tensor):
        for half_turn, sin in both_ways(bare(turned), aten.mul.Tensor):
            for x, cos in both_ways(bare(straight), aten.mul.Tensor):
                if bare(x) is _turned(bare(half_turn)) and _are_rotary(node, bare(x), cos, sin):
                    operands = {"x": bare(x), "cos": bare(cos), "sin": bare(sin)}
                    return {**operands, "dtype": widest(node, *operands.values())}
    return None


def _are_rotary(node: fx.Node, *operands: Any) -> bool:
    values = heads_of(node, *operands)
    if values is None:
        return False
    result, x, cos, sin = (value.shape for value in values)
    return same(result, x) and same(cos, sin) and same(cos[3:], x[3:])


def _turned(value: Any) -> Any:
    """Return x of (-second half, first half), or None."""
    if not is_call(value, aten.cat.default) or len(value.args[0]) != 2:
        return None
    second, first = map(bare, value.args[0])
    if len(value.args) < 2 or not last_dim(value, value.args[1]) or not is_call(second, aten.neg.default):
        return None
    whole, is_second = _half(bare(second.args[0]))
    other, is_not_second = _half(first)
    return whole if whole is other and is_second is True and is_not_second is False else None


def _half(value: Any) -> tuple[Any, bool | None]:
    """Return (x, whether it is the second half of x)."""
    if is_call(value, operator.getitem) and is_call(value.args[0], aten.chunk.default, aten.split.Tensor):
        cut = value.args[0]
        x, size, dim = (*cut.args, 0)[:3]
        x_is = tensor_of(x)
        wanted = 2 if cut.target is aten.chunk.default else x_is is not None and x_is.shape[-1] / 2
        return (bare(x), bool(value.args[1])) if last_dim(x, dim) and size == wanted else (None, None)
    if not is_call(value, aten.slice.Tensor) or not last_dim(value.args[0], value.args[1]):
        return None, None
    x, _, start, end, step = (*value.args, 1)[:5]
    width = value.args[0].meta["val"].shape[-1]
    if step != 1 or not isinstance(width, int) or width % 2:
        return None, None
    if start in (None, 0) and end == width // 2:
        return bare(x), False
    return (bare(x), True) if start == width // 2 and _is_number(end) and end >= width else (None, None)


def emit_rotary_mul(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """Call the fused op."""
    return npu.npu_rotary_mul(x.to(dtype), cos.to(dtype), sin.to(dtype))


# softmax(scale · q @ k.T + mask) @ v


def match_attention(node: Any) -> Found | None:
    """Match the product with v."""
    if not is_call(node, aten.matmul.default):
        return None
    shares, v = bare(node.args[0]), node.args[1]
    if not is_call(shares, aten.softmax.int) or not last_dim(shares, shares.args[1]):
        return None
    for scores, mask in _masked(bare(shares.args[0])):
        for q, k, scale, product in _scores(bare(scores)):
            if _are_attention(node, q, k, v, *([] if mask is None else [mask])):
                dtype = widest(node, product)
                return {"q": q, "k": k, "v": v, "mask": mask, "scale": scale, "dtype": dtype}
    return None


def _masked(value: Any) -> Iterator[tuple[Any, Any]]:
    yield value, None
    yield from both_ways(value, aten.add.Tensor)


def _scores(value: Any) -> Iterator[tuple[Any, Any, float, Any]]:
    """Yield (q, k, scale, q @ k.T) of q @ k.T multiplied or divided by a number."""
    scale = 1.0
    if is_call(value, aten.mul.Tensor, aten.div.Tensor) and _is_number(value.args[1]):
        number = value.args[1]
        scale = number if value.target is aten.mul.Tensor else 1 / number if number else math.inf
        value = bare(value.args[0])
    if is_call(value, aten.matmul.default):
        k = _transposed(bare(value.args[1]))
        if k is not None and math.isfinite(scale):
            yield value.args[0], k, float(scale), value


def _transposed(value: Any) -> Any:
    """Return k of k.T, or None."""
    if is_call(value, aten.transpose.int) and {dim % 4 for dim in value.args[1:]} == {2, 3}:
        return value.args[0]
    if is_call(value, aten.permute.default) and [dim % 4 for dim in value.args[1]] == [0, 1, 3, 2]:
        return value.args[0]
    return value.args[0] if is_call(value, aten.mT.default) else None


def _are_attention(*operands: Any) -> bool:
    """Return whether these are the result, queries, keys, values and mask of an attention.

    Keys must have as many heads as queries, a known number, and the mask must not add a batch dim.
    """
    values = heads_of(*operands)
    if values is None or not all(isinstance(size, int) for size in values[1].shape[1::2]):
        return False
    out, q, k, v, *masks = (value.shape for value in values)
    is_one = same(q[:2], k[:2]) and same(k[:3], v[:3]) and same(q[3:], k[3:]) and same(out[:3], q[:3])
    return is_one and all(same(mask[2:], (q[2], k[2])) for mask in masks)


def emit_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Return the result; the op also returns the statistics of its softmax."""
    shift = None if mask is None else _narrowed(mask, dtype).expand(q.shape[0], q.shape[1], -1, -1)
    q, k, v = (x.to(dtype) for x in (q, k, v))
    return npu.npu_fusion_attention(q, k, v, q.shape[1], "BNSD", pse=shift, scale=scale)[0]


def _narrowed(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Narrow a mask so that finite numbers stay finite.

    Otherwise a row of the lowest finite numbers would become a row of infinities, which masks everything.
    """
    if torch.promote_types(mask.dtype, dtype) == dtype:
        return mask.to(dtype)
    ends = torch.finfo(dtype)
    return torch.where(mask.isinf(), mask, mask.clamp(ends.min, ends.max)).to(dtype)


FUSIONS = (
    Fusion("fuse_attention", "npu_fusion_attention", match_attention, emit_attention),
    Fusion("fuse_rotary_mul", "npu_rotary_mul", match_rotary_mul, emit_rotary_mul),
    Fusion("fuse_rms_norm", "npu_rms_norm", match_rms_norm, emit_rms_norm),
    Fusion("fuse_torch_rms_norm", "npu_rms_norm", match_torch_rms_norm, emit_rms_norm),
)


def fusion_names() -> list[str]:
    """Return the names that switch the fusions."""
    return [fusion.name for fusion in FUSIONS]


# Transfer to Dynamo's graph


def fuse_before_autograd(gm: fx.GraphModule, ctx: PassContext) -> int:
    """Fuse written-out RMSNorm, rotary multiplication and attention into ops of the `npu` library."""
    traced = TracedPattern(gm)
    changed = 0
    for node, fusion in itertools.product(traced.order, FUSIONS):
        found = fusion.find(node) if find_overload(f"npu.{fusion.op}.default") is not None else None
        if found is None:
            continue
        why = traced.why_not(node, found)
        is_on = why is None and ctx.named.asked(fusion.name, fusion=True)
        ctx.tally(fusion.name, matches=1, effects=int(is_on))
        if why is not None:
            ctx.skip(node, f"{fusion.name}: {why}")
        if is_on:
            traced.replace(node, found, fusion)
            changed += 1
    if changed:
        gm.graph.lint()
        gm.recompile()
    return changed


class TracedPattern:
    """Hold Dynamo's graph and the ATen calls that it makes."""

    def __init__(self, gm: fx.GraphModule) -> None:
        self._gm = gm
        calls, nodes = trace_before_autograd(gm)
        for node in filter(_is_itself, list(calls.nodes)):
            node.replace_all_uses_with(node.args[0])
            calls.erase_node(node)
        result: Any = calls.output_node().args[0]
        values: dict[fx.Node, fx.Node] = dict(zip(nodes, result, strict=True))
        self.order = {node: place for place, node in enumerate(calls.nodes)}
        # The first node of Dynamo's graph that stands for a value.
        self._own = {value: node for node, value in reversed(values.items())}
        self._floats = [
            value
            for node in gm.graph.nodes
            if isinstance(value := node.meta.get("example_value"), torch.SymFloat)
        ]
        self._returned = {values[node] for node in output(gm).all_input_nodes if node in values}

    def why_not(self, node: fx.Node, found: Found) -> str | None:
        """Return the reason to leave a chain unchanged, or None."""
        operands = _operands(found)
        if node not in self._own or not operands <= self._own.keys():
            return "an operand or the result is not a value of the model's graph"
        inside = _between(node, operands)
        parts = inside - {node}
        readers = {user for part in parts for user in part.users if user.op != "output"}
        if not readers <= inside or parts & self._returned:
            return "another node reads an intermediate value"
        first, last = min(self.order[part] for part in inside), self.order[node]
        calls = [other for other, place in self.order.items() if first <= place <= last]
        return (
            None
            if all(map(_is_pure, calls))
            else ("something between the first and last call is written or switched")
        )

    def replace(self, node: fx.Node, found: Found, fusion: Fusion) -> None:
        """Replace the node with this value in Dynamo's graph by one call."""
        self._fix(_between(node, _operands(found)))
        old, graph = self._own[node], self._gm.graph
        dtype = node.meta["val"].dtype

        def fused(**given: Any) -> torch.Tensor:
            return fusion.put(**given).to(dtype)

        fused.__name__ = fused.__qualname__ = fusion.op
        operands: dict[str, Any] = {name: self._own.get(part, part) for name, part in found.items()}
        with graph.inserting_before(old):
            result = graph.call_function(fused, kwargs=operands)
        result.meta.update(old.meta)
        old.replace_all_uses_with(result)
        graph.erase_node(old)
        self._own[node] = result

    def _fix(self, calls: set[fx.Node]) -> None:
        """Make Dynamo recompile when a number changes that these calls were recognized by.

        The graph may have a symbol for it.
        """
        numbers = {number for call in calls for number in call.args if isinstance(number, float)}
        for symbol in self._floats:
            if float_seen(symbol) in numbers:
                float(symbol)


def _operands(found: Found) -> set[fx.Node]:
    return {part for part in found.values() if isinstance(part, fx.Node)}


def _between(node: fx.Node, operands: set[fx.Node]) -> set[fx.Node]:
    """Return the calls that compute a result from its operands."""
    seen, rest = set[fx.Node](), [node]
    while rest:
        part = rest.pop()
        if part not in seen and part not in operands:
            seen.add(part)
            rest.extend(part.all_input_nodes)
    return seen


def _is_pure(node: fx.Node) -> bool:
    """Return whether the call neither writes nor switches anything; scopes, hooks and regions count as
    impure.
    """
    if isinstance(node.target, OpOverload):
        return not mutates(node.target)
    return node.op != "call_function" or getattr(node.target, "__module__", "") in ("_operator", "math")
