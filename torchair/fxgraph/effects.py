"""What a call does to memory, by the schema of its op: what it writes, and whose memory its results share.

Schemas say it with alias annotations: `Tensor(a!)` is written, `Tensor(a) -> Tensor(a)` is a view. What the
fake values say about the very tensors of a graph is in `layout.py`.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from torchair.core.torch_private.operators.schemas import HigherOrderOperator, OpOverload, find_overload

TRITON_MUTATION = "triton_kernel_wrapper_mutation"
aten = torch.ops.aten
BY_INDEX = (
    aten.index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten._unsafe_index.Tensor,
    aten._unsafe_index_put.default,
    aten._index_put_impl.default,
    aten._index_put_impl_.default,
)
"""They take tensors of indices, or masks."""
MADE_IN_PLACE = (
    "aten::index_put",
    "aten::_unsafe_index_put",
    "_c10d_functional::all_reduce",
    "_c10d_functional::all_reduce_coalesced",
)
"""Ops that Inductor may let write into an argument, besides those on lists of tensors."""


def mutates(target: Any) -> bool:
    """Does the op write into an argument?"""
    return isinstance(target, OpOverload) and target._schema.is_mutable


def written_names(op: OpOverload) -> list[str]:
    """The arguments of an op that it writes."""
    return written_in(op._schema)


def written_in(schema: Any) -> list[str]:
    """The arguments that a schema says are written."""
    return [a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]


def written_by(node: fx.Node) -> list[fx.Node]:
    """The nodes whose memory this call writes."""
    if node.op != "call_function":
        return []
    if isinstance(node.target, HigherOrderOperator):
        # A mutating Triton kernel may write any tensor it is given.
        is_triton = node.target.name() == TRITON_MUTATION
        return [n for n in node.all_input_nodes if is_triton and isinstance(n.meta.get("val"), torch.Tensor)]
    if not mutates(node.target):
        return []
    names = written_names(node.target)  # type: ignore[arg-type]
    given = [value for argument, value in arguments(node) if argument.name in names]
    return [item for item in flat(given) if isinstance(item, fx.Node)]


def returns_views(target: Any) -> bool:
    """Does the schema say that a result shares memory with an argument?"""
    return isinstance(target, OpOverload) and any(r.alias_info is not None for r in target._schema.returns)


def makes_views(target: Any) -> bool:
    """Does the op return views, and write nothing?"""
    return returns_views(target) and not mutates(target)


def may_alias(target: Any) -> bool:
    """Could a result share memory with an argument, or an argument be written?"""
    if not isinstance(target, OpOverload):
        return True
    return any(argument.alias_info is not None for argument in target._schema.arguments)


def may_write(target: Any) -> bool:
    """Does the op write into an argument, or may a code generator make it do so?"""
    if not isinstance(target, OpOverload):
        return isinstance(target, HigherOrderOperator)
    name = target._schema.name
    return mutates(target) or name in MADE_IN_PLACE or name.startswith("aten::_foreach_")


def functional_twin(node: fx.Node) -> Any:
    """`aten.add.Scalar` for an `aten.add_.Scalar` on a value that has just been made and nothing views; none
    where the result would have another dtype, as that of `lt_` on numbers.
    """
    if not mutates(node.target) or not node.target._schema.name.endswith("_"):  # type: ignore[union-attr]
        return None
    made = node.args[0]
    if not isinstance(made, fx.Node) or made.op == "placeholder" or may_alias(made.target):
        return None
    if any(may_alias(user.target) for user in made.users if user is not node):
        return None
    overload: Any = node.target
    namespace, name = overload._schema.name.split("::")
    twin = find_overload(f"{namespace}.{name.removesuffix('_')}.{overload._overloadname}")
    return twin if twin is not None and _gives_dtype_of(made, twin, node) else None


def _gives_dtype_of(made: fx.Node, op: Any, node: fx.Node) -> bool:
    """Does the op give this dtype for the arguments of a node?"""
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda source: source.meta.get("val"))
    result = op(*args, **kwargs)
    return isinstance(result, torch.Tensor) and result.dtype == made.meta["val"].dtype


def views_of(node: fx.Node) -> Iterator[fx.Node]:
    """The arguments whose memory the node's result may share."""
    if node.target is operator.getitem and isinstance(node.args[0], fx.Node):
        if returns_views(node.args[0].target):
            yield node.args[0]
        return
    if not returns_views(node.target):
        return
    for argument, value in arguments(node):
        if argument.alias_info is not None:
            yield from (item for item in flat(value) if isinstance(item, fx.Node))


def draws(node: fx.Node) -> bool:
    """Does a call draw random numbers, or one of the graphs that it is given?"""
    if node.op != "call_function":
        return False
    if isinstance(node.target, OpOverload):
        return torch.Tag.nondeterministic_seeded in node.target.tags
    owner = node.graph.owning_module
    names = [str(source.target) for source in node.all_input_nodes if source.op == "get_attr"]
    inner = [found for name in names if isinstance(found := getattr(owner, name, None), fx.GraphModule)]
    return any(draws(call) for gm in inner for call in gm.graph.nodes)


def arguments(node: fx.Node, op: OpOverload | None = None) -> Iterator[tuple[Any, Any]]:
    """Schema argument and value, for each argument that is given to a call of an op: that of the node, or one
    that it stands for.
    """
    target: Any = node.target if op is None else op
    for place, argument in enumerate(target._schema.arguments):
        if place < len(node.args):
            yield argument, node.args[place]
        elif argument.name in node.kwargs:
            yield argument, node.kwargs[argument.name]


def flat(value: Any) -> Iterator[Any]:
    """The value, or what is in it if it is a list, all the way down."""
    if isinstance(value, list | tuple):
        for item in value:
            yield from flat(item)
    else:
        yield value
