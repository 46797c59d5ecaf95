"""Effects of a call on memory, from the schema of its op: what it writes, and which arguments its results
alias.

Schemas express this with alias annotations: `Tensor(a!)` is written, `Tensor(a) -> Tensor(a)` is a view.
Facts about the tensors of a graph, which come from fake values, are in `layout.py`.
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
"""Ops whose indices may be tensors of indices, or masks."""
MADE_IN_PLACE = (
    "aten::index_put",
    "aten::_unsafe_index_put",
    "_c10d_functional::all_reduce",
    "_c10d_functional::all_reduce_coalesced",
)
"""Ops that Inductor may make write into an argument, in addition to those on lists of tensors."""


def mutates(target: Any) -> bool:
    """Return whether the op writes into an argument."""
    return isinstance(target, OpOverload) and target._schema.is_mutable


def written_names(op: OpOverload) -> list[str]:
    """Return the names of the arguments that an op writes."""
    return written_in(op._schema)


def written_in(schema: Any) -> list[str]:
    """Return the names of the arguments that a schema marks as written."""
    return [a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]


def written_by(node: fx.Node) -> list[fx.Node]:
    """Return the nodes whose memory this call writes."""
    if node.op != "call_function":
        return []
    if isinstance(node.target, HigherOrderOperator):
        # A mutating Triton kernel may write any of its tensors.
        is_triton = node.target.name() == TRITON_MUTATION
        return [n for n in node.all_input_nodes if is_triton and isinstance(n.meta.get("val"), torch.Tensor)]
    if not mutates(node.target):
        return []
    names = written_names(node.target)  # type: ignore[arg-type]
    given = [value for argument, value in arguments(node) if argument.name in names]
    return [item for item in flat(given) if isinstance(item, fx.Node)]


def returns_views(target: Any) -> bool:
    """Return whether the schema says that a result shares memory with an argument."""
    return isinstance(target, OpOverload) and any(r.alias_info is not None for r in target._schema.returns)


def makes_views(target: Any) -> bool:
    """Return whether the op returns views and writes nothing."""
    return returns_views(target) and not mutates(target)


def may_alias(target: Any) -> bool:
    """Return whether a result may share memory with an argument, or an argument may be written."""
    if not isinstance(target, OpOverload):
        return True
    return any(argument.alias_info is not None for argument in target._schema.arguments)


def may_write(target: Any) -> bool:
    """Return whether the op writes into an argument, or a code generator may make it do so."""
    if not isinstance(target, OpOverload):
        return isinstance(target, HigherOrderOperator)
    name = target._schema.name
    return mutates(target) or name in MADE_IN_PLACE or name.startswith("aten::_foreach_")


def functional_twin(node: fx.Node) -> Any:
    """Return the functional variant of an in-place op: `aten.add.Scalar` for `aten.add_.Scalar`. The written
    value must be new and have no views. Return None if the result would have another dtype, like that of
    `lt_` on numbers.
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
    """Return whether the op returns this dtype for the arguments of a node."""
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda source: source.meta.get("val"))
    result = op(*args, **kwargs)
    return isinstance(result, torch.Tensor) and result.dtype == made.meta["val"].dtype


def views_of(node: fx.Node) -> Iterator[fx.Node]:
    """Yield the arguments whose memory the node's result may share."""
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
    """Return whether a call, or a subgraph it calls, draws random numbers."""
    if node.op != "call_function":
        return False
    if isinstance(node.target, OpOverload):
        return torch.Tag.nondeterministic_seeded in node.target.tags
    owner = node.graph.owning_module
    names = [str(source.target) for source in node.all_input_nodes if source.op == "get_attr"]
    inner = [found for name in names if isinstance(found := getattr(owner, name, None), fx.GraphModule)]
    return any(draws(call) for gm in inner for call in gm.graph.nodes)


def arguments(node: fx.Node, op: OpOverload | None = None) -> Iterator[tuple[Any, Any]]:
    """Yield schema argument and value for each argument of a call. `op` replaces the op of the node."""
    target: Any = node.target if op is None else op
    for place, argument in enumerate(target._schema.arguments):
        if place < len(node.args):
            yield argument, node.args[place]
        elif argument.name in node.kwargs:
            yield argument, node.kwargs[argument.name]


def flat(value: Any) -> Iterator[Any]:
    """Yield the value, or all leaves of a nested list."""
    if isinstance(value, list | tuple):
        for item in value:
            yield from flat(item)
    else:
        yield value
