"""Trace the forms in which a user's rule is matched, and check each form.

A match is traced again with its own values, but the pattern that finds it comes from the examples. Casts and
views that have no effect for the examples are missing from it: a norm that computes in float32 has casts only
for half precision. So `find` is traced for all float dtypes, with and without no-ops.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from torchair.core.errors import BadPass, first_line
from torchair.core.log import logger
from torchair.core.torch_private.fake.fake_tensors import disable_modes, tree_leaves
from torchair.passes.patterns.match.rule import (
    Function,
    Trace,
    as_written,
    by_user,
    returned,
    value_of,
    why_differ,
    without_noops,
)
from torchair.passes.patterns.spec.user_pattern import UserPattern, examples_like, has_floats

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
# Faults of the function itself, whatever its arguments.
OF_FUNCTION = (NameError, AttributeError, TypeError)


@dataclass(frozen=True)
class Variant:
    """`find`, traced in one way with one set of examples."""

    inputs: list[Any]
    trace: Trace
    gm: fx.GraphModule


def ways_of(trace_fn: Trace, is_default: bool) -> tuple[Trace, ...]:
    """Return the ways to trace a pattern; the last one applies no rewrite of torchair."""
    return (without_noops, as_written) if is_default else (by_user(trace_fn),)


def variants_of(given: UserPattern, trace_fn: Trace, is_default: bool) -> Iterator[Variant]:
    """Yield all forms, the given one first; raise if that one cannot be traced."""
    ways = ways_of(trace_fn, is_default)
    dtypes = (None, *FLOATS) if is_default and has_floats(given.inputs) else (None,)
    with disable_modes():
        for dtype in dtypes:
            for way in ways:
                inputs = examples_like(given.inputs, dtype)
                gm = traced(given, way, inputs, must=dtype is None)
                if gm is not None:
                    yield Variant(inputs, way, gm)


def traced(given: UserPattern, way: Trace, inputs: list[Any], must: bool) -> fx.GraphModule | None:
    """Trace one form; return None if it is undefined for these inputs, or raise if it `must` exist."""
    try:
        gm = way(given.find, _in_order(given, inputs))
    except BadPass:
        raise
    except Exception as error:
        if not must:
            logger.debug(
                "the pattern %s cannot be traced with other examples: %s", given.name, first_line(error)
            )
            return None
        what = f"search_fn {given.name} cannot be traced: {type(error).__name__}: {first_line(error)}"
        raise BadPass(
            what, next="use tensor code that does not read tensor data and that accepts these examples"
        ) from error
    if must:
        _check_pattern(given, gm)
    return gm


def _in_order(given: UserPattern, inputs: Sequence[Any]) -> list[Any]:
    rest = iter(inputs)
    return [given.scalars[name] if name in given.scalars else next(rest) for name in given.names]


def _check_pattern(given: UserPattern, gm: fx.GraphModule) -> None:
    """Check what torch's matcher would fail on later."""
    name, results = given.name, returned(gm)
    _check_closed(gm, f"search_fn {name}")
    if not results or not all(isinstance(each, fx.Node) for each in results):
        raise BadPass(f"search_fn {name} must return tensors", got=str(results))
    if any(each.op != "call_function" for each in results) or len(set(results)) < len(results):
        raise BadPass(
            f"search_fn {name} returns one of its arguments, or one result twice",
            got=str(results),
            next="return each result of the pattern once, and nothing else",
        )
    unused = _unused(given, gm)
    if unused:
        raise BadPass(
            f"search_fn {name} does not use {', '.join(unused)}",
            next="remove the parameter: a match would not determine its value",
        )


def _unused(given: UserPattern, gm: fx.GraphModule) -> list[str]:
    """Return the tensor parameters that the pattern does not read. Numbers are known by their values."""
    names = [name for name, each in zip(given.names, given.examples, strict=True) for _ in tree_leaves(each)]
    nodes = gm.graph.find_nodes(op="placeholder")
    read = zip(names, nodes, strict=False)
    return [name for name, node in read if not node.users and name not in given.scalars]


def _check_closed(gm: fx.GraphModule, title: str) -> None:
    """Check that the graph has no tensors of its own and writes nothing."""
    held = [node for node in gm.graph.nodes if node.op == "get_attr" and not _is_graph(gm, node)]
    if held:
        raise BadPass(
            f"{title} uses a tensor that is not one of its arguments",
            got=str(held[0].target),
            next="pass it as an argument, or create it with torch.full",
        )
    for node in gm.graph.nodes:
        if node.target is torch.ops.aten.copy_.default and node.args[0].op == "placeholder":
            raise BadPass(
                f"{title} writes its argument {node.args[0]}",
                next="return a new tensor: graphs contain no in-place writes when patterns are matched",
            )


def _is_graph(gm: fx.GraphModule, node: fx.Node) -> bool:
    return isinstance(getattr(gm, str(node.target), None), fx.GraphModule)


def check_results(given: UserPattern, first: Variant) -> None:
    """Check with the examples that the replacement returns what the pattern returns.

    A replacement that rejects these sizes is checked again at each match.
    """
    gm = check_replacement(given, first.trace, first.inputs)
    if gm is None:
        return
    old, new = ([value_of(each) for each in returned(graph)] for graph in (first.gm, gm))
    if why := why_differ(tree_leaves(old), new):
        raise BadPass(f"{_title(given)} does not return what it replaces: {why}")


def check_replacement(given: UserPattern, trace: Trace, inputs: Sequence[Any]) -> fx.GraphModule | None:
    """Trace the replacement with examples if possible; raise if it uses or writes tensors of others."""
    put: Function = given.put
    with disable_modes():
        try:
            gm = trace(put, _in_order(given, examples_like(inputs)))
        except BadPass:
            raise
        except OF_FUNCTION as error:
            what = f"{_title(given)} cannot be traced: {type(error).__name__}: {first_line(error)}"
            raise BadPass(what) from error
        except Exception as error:
            logger.info(
                "%s is not checked with the examples, because it cannot be traced with them: %s",
                _title(given),
                first_line(error),
            )
            return None
    _check_closed(gm, _title(given))
    return gm


def _title(given: UserPattern) -> str:
    return f"replace_fn of {given.name}"
