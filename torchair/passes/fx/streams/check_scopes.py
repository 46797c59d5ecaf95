"""Check that scopes are closed in the graph that opened them; otherwise the placement of nodes is unknown."""

from __future__ import annotations

from torch import fx

from torchair.core.errors import BadPass
from torchair.core.source_location import calling_line, is_ours, source_of
from torchair.ops.streams import stream_ops
from torchair.passes.pass_manager import PassContext

# Functions that begin and end a named region.
BEGINS, ENDS = "super_kernel_scope_begin", "super_kernel_scope_end"
CAUSES = (
    "open and close every scope in one graph: check post_grad_custom_pre_pass, "
    "post_grad_custom_post_pass, and graph breaks inside the scope"
)


def check_scopes(gm: fx.GraphModule, ctx: PassContext) -> int:
    """Raise if a scope is not closed, or closed twice; the graph does not change."""
    opened: list[fx.Node] = []
    regions: list[tuple[object, fx.Node]] = []
    for node in gm.graph.nodes:
        if node.target in stream_ops.ENTER:
            opened.append(node)
        elif node.target in stream_ops.EXIT:
            if not opened:
                raise _bad("a scope is closed that was never opened", node)
            opened.pop()
        elif _name(node) == BEGINS:
            regions.append((node.args[0], node))
        elif _name(node) == ENDS:
            if not regions or regions[-1][0] != node.args[0]:
                raise _bad(f"the region {node.args[0]!r} ends, but it is not the innermost one", node)
            regions.pop()
    if opened:
        raise _bad(f"a scope is never closed: {stream_ops.attributes(opened[-1])}", opened[-1])
    if regions:
        raise _bad(f"the region {regions[-1][0]!r} never ends", regions[-1][1])
    return 0


def _name(node: fx.Node) -> str:
    return getattr(node.target, "__name__", "").split(".")[0] if node.op == "call_function" else ""


def _bad(what: str, node: fx.Node) -> BadPass:
    at = source_of(node)
    if is_ours(at):  # torch itself emits the scope exits of a block with a graph break
        at = calling_line()
    return BadPass(what, at=at, got=node.format_node() or node.name, next=CAUSES).of_user()
