"""Checks and rewrites of FX graphs that code generators share. Input graphs are not changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.traceback import preserve_node_meta

from torchair.codegen.base.programs import Piece
from torchair.core.errors import NotPossible
from torchair.core.source_location import source_of
from torchair.core.torch_private.compilers.inductor import inductor_decompositions, rebases_windows
from torchair.core.torch_private.fake.fake_tensors import (
    FakeTensorMode,
    detect_fake_mode,
    faking,
    lending,
    make_fx,
)
from torchair.core.torch_private.operators.schemas import HigherOrderOperator, OpOverload
from torchair.fxgraph.edit import copy_graph
from torchair.fxgraph.effects import may_write, mutates, written_by
from torchair.fxgraph.layout import layout_of, lies, root_of, storage_relative_inputs, windows_of_copies
from torchair.fxgraph.placeholders import placeholders
from torchair.fxgraph.symbols import equal, is_symbol
from torchair.ops.numerics.self_returning import DIRECT
from torchair.ops.streams.ordered_call import take_turns

aten = torch.ops.aten
OPS_WITH_WRONG_STRIDES = (aten.unique_dim.default, aten.unique_dim_consecutive.default)
CHECKED_NAMESPACES = ("aten", "prims", "torchair", "npu", "air")
VIEWS = (aten.view.default, aten.reshape.default, aten._unsafe_view.default)
# Pointwise ops that Inductor removes if they do nothing.
REMOVABLE_OPS = (aten.clone, aten.ceil, aten.floor, aten.round, aten.trunc, aten.pow)
SCATTERS = (
    aten.slice_scatter.default,
    aten.select_scatter.default,
    aten.diagonal_scatter.default,
    aten.as_strided_scatter.default,
)


def attribute(gm: fx.GraphModule, target: str) -> Any:
    """Return the value of a `get_attr` node; targets may contain dots."""
    value: Any = gm
    for part in target.split("."):
        value = getattr(value, part)
    return value


def fake_mode_of(gm: fx.GraphModule, inputs: Sequence[Any]) -> FakeTensorMode | None:
    """Return the fake mode of this compilation."""
    found = detect_fake_mode(list(inputs))
    if found is not None:
        return found
    return detect_fake_mode([node.meta.get("val") for node in gm.graph.nodes])


def has_effect(node: fx.Node) -> bool:
    """Return whether the node must stay even if its result is unused."""
    return node.is_impure() or bool(written_by(node)) or isinstance(node.target, Piece)


def is_functional(gm: fx.GraphModule) -> bool:
    """Return whether no node writes to a tensor, except `copy_` into an input."""
    for node in gm.graph.nodes:
        for written in written_by(node) if mutates(node.target) else ():
            if node.target is not aten.copy_.default or written.op not in ("placeholder", "get_attr"):
                return False
    return True


def prepare(gm: fx.GraphModule, inputs: Sequence[Any], *, decomposed: bool) -> fx.GraphModule:
    """Return the graph in the form that Inductor needs: functional ATen after its decompositions, in a new
    graph.
    """
    _check_windows(gm)
    _check_statistics(gm)
    _check_strides(gm)
    _check_lists(gm)
    functional = is_functional(gm)
    if decomposed and functional:
        made = copy_graph(gm)
    else:
        made = _retrace(gm, inputs, {} if decomposed else inductor_decompositions(), functional)
    if not rebases_windows():
        _make_offsets_explicit(made)
    _keep_copies_for_windows(made)
    _keep_copies_for_writers(made)
    _keep_late_reads(made)
    take_turns(made.graph)
    made.recompile()  # Inductor's cache key contains the text
    return made


def _check_windows(gm: fx.GraphModule) -> None:
    """Raise if a node reads from the start of the storage of an input: Inductor ignores storage offsets of
    inputs.
    """
    for node in windows_of_copies(gm):
        raise NotPossible(
            f"{node.target} reads the whole storage of a copied input, but Inductor copies only its elements",
            at=source_of(node),
            next="call clone() on the tensor first, or index it instead",
        )
    nodes = placeholders(gm)
    for index, node in storage_relative_inputs(gm).items():
        if is_symbol(nodes[index].meta["val"].storage_offset()):
            raise NotPossible(
                f"{node.target} counts from the start of the storage of input {nodes[index].name}, whose "
                "storage offset is unknown at compile time",
                at=source_of(node),
                next="pass a tensor with storage offset 0 (clone() returns one), or index it instead",
            )


def _check_lists(gm: fx.GraphModule) -> None:
    """Raise if an op writes several parts of one tensor as a list and their offsets are read from a view.
    Inductor computes wrong results for them. (Offsets that are arithmetic on sizes are correct.)
    """
    for node in gm.graph.nodes:
        if not isinstance(node.target, HigherOrderOperator) or "_all_bases" not in node.kwargs:
            continue
        is_list = any(key.startswith("_") and key.endswith("_length") for key in node.kwargs)
        bases = [value for key, value in node.kwargs.items() if key.endswith("_base_index")]
        offset = aten.sym_storage_offset.default
        is_read = any(value.target is offset for value in node.all_input_nodes)
        if is_list and is_read and len(set(bases)) < len(bases):
            raise NotPossible(
                f"{node.target} writes several views of one tensor as a list with dynamic sizes, which torch "
                f"{torch.__version__} compiles incorrectly",
                at=source_of(node),
                next="use torch.compile(…, dynamic=False), or pass each view as a separate argument",
            )


def _check_statistics(gm: fx.GraphModule) -> None:
    """Raise for attention of doubles on the CPU: its statistics are doubles, but torch before 2.12 describes
    them to Inductor as floats, and the generated code would read them as floats.
    """
    attention = aten._scaled_dot_product_flash_attention_for_cpu.default
    for node in gm.graph.find_nodes(op="call_function", target=attention):
        result, statistics = node.meta["val"]
        if result.dtype is torch.float64 and statistics.dtype is not torch.float64:
            raise NotPossible(
                f"the fake kernel of attention in torch {torch.__version__} returns "
                f"{statistics.dtype} statistics, but the kernel returns float64",
                at=source_of(node),
                next="use torch 2.12 or newer, or float32 inputs",
            )


def _check_strides(gm: fx.GraphModule) -> None:
    """Raise for ops whose fake kernels in torch return wrong strides: generated code would read other
    elements.
    """
    for node in gm.graph.nodes:
        if node.target in OPS_WITH_WRONG_STRIDES:
            raise NotPossible(
                f"{node.target} returns strides that differ from those of its fake kernel in torch",
                at=source_of(node),
                next="call it outside of the compiled function",
            )


def is_custom(target: Any) -> bool:
    """Return whether the op is neither torch's nor torchair's, so that the layouts of its fake kernel are
    unchecked.
    """
    return isinstance(target, OpOverload) and target.namespace not in CHECKED_NAMESPACES


def _make_offsets_explicit(gm: fx.GraphModule) -> None:
    """Write the offset of each `as_strided` explicitly. In generated code, older versions of Inductor count
    it from the first element of an input, and from the start of its storage where they call `as_strided`
    itself. Both agree only if the input's storage offset is 0. They place an `as_strided` without an offset
    at 0, even on a view.
    """
    nodes = placeholders(gm)
    for index, node in storage_relative_inputs(gm).items():
        if not equal(nodes[index].meta["val"].storage_offset(), 0):
            raise NotPossible(
                f"{node.target} reads the storage of input {nodes[index].name}, whose storage offset is not "
                f"0, and Inductor of torch {torch.__version__} may read other elements",
                at=source_of(node),
                next="use torch 2.13, call clone() on the tensor first, or index it instead",
            )
    for node in gm.graph.find_nodes(op="call_function", target=aten.as_strided.default):
        offset = node.meta["val"].storage_offset()
        if (*node.args[3:], *node.kwargs.values(), None)[0] is not None:
            continue
        if is_symbol(offset):
            raise NotPossible(
                f"{node.target} starts at the storage offset of {node.args[0]}, which is unknown at "
                f"compile time, and Inductor of torch {torch.__version__} may read other elements",
                at=source_of(node),
                next="use torch 2.13, or torch.compile(…, dynamic=False)",
            )
        node.args = (*node.args[:3], offset)


def _keep_copies_for_windows(gm: fx.GraphModule) -> None:
    """Replace copies that `as_strided` reads by writes into new memory. Inductor removes copies that change
    no stride, and `as_strided` counts from the start of its memory, so it would read the memory of the
    original.
    """
    windows = gm.graph.find_nodes(op="call_function", target=aten.as_strided.default)
    roots = dict.fromkeys(root_of(window.args[0])[0] for window in windows)
    for copy in roots:
        if copy.target is not aten.clone.default:
            continue
        source: Any = copy.args[0]
        if not lies(copy.meta["val"], layout_of(source.meta["val"]), lambda number: number):
            continue
        with gm.graph.inserting_before(copy):
            copy.replace_all_uses_with(keep_copy(source))
        gm.graph.erase_node(copy)


def _keep_copies_for_writers(gm: fx.GraphModule) -> None:
    """Copy values that an op reads while it writes the same memory by another argument. Inductor passes the
    original and removes copies, so the values become writes into new memory.
    """
    for node in gm.graph.nodes:
        if not isinstance(node.target, HigherOrderOperator) or "_all_bases" not in node.kwargs:
            continue
        bases = node.kwargs["_all_bases"]
        written = {_source(base) for base in bases}
        copies: dict[fx.Node, fx.Node] = {}
        for value in node.all_input_nodes:
            if isinstance(value.meta.get("val"), torch.Tensor) and _source(value) in written:
                with gm.graph.inserting_before(node):
                    copies[value] = keep_copy(value)
        for value, copied in copies.items():
            node.replace_input_with(value, copied)
        node.kwargs = {**node.kwargs, "_all_bases": bases}
    gm.graph.eliminate_dead_code(is_impure_node=has_effect)


def _keep_late_reads(gm: fx.GraphModule) -> None:
    """Copy values that are read after a `copy_` into an input. Inductor lets an op write over an input that a
    later `copy_` changes, and does not check for reads of the op's result after that `copy_`.
    """
    for write in list(gm.graph.find_nodes(op="call_function", target=aten.copy_.default)):
        target, new = write.args[0], _source(write.args[1])  # type: ignore[arg-type]
        copies: dict[fx.Node, fx.Node] = {}
        late, user = set[fx.Node](), write.next
        while user.op != "root":
            for value in user.all_input_nodes:
                is_early = value not in late and isinstance(value.meta.get("val"), torch.Tensor)
                source = _source(value)
                if not is_early or source is new or not _may_overwrite(source, target):
                    continue
                if value not in copies:
                    with gm.graph.inserting_before(write):
                        copies[value] = keep_copy(value)
                user.replace_input_with(value, copies[value])
            late.add(user)
            user = user.next


def _source(node: fx.Node) -> fx.Node:
    """Return the node with the elements of a value, as Inductor sees it: it removes copies that change no
    stride.
    """
    while True:
        root, _ = root_of(node)
        if root.target is not aten.clone.default:
            return root
        node = root.args[0]  # type: ignore[assignment]


def _may_overwrite(node: fx.Node, target: Any) -> bool:
    """Return whether Inductor may put the result of this node into the memory of `target`."""
    if node.op != "call_function" or not (may_write(node.target) or node.target in SCATTERS):
        return False
    sources = [_source(source) for source in node.all_input_nodes]
    return any(source is target or _may_overwrite(source, target) for source in sources)


def keep_copy(source: fx.Node) -> fx.Node:
    """Return a copy that Inductor does not remove: a write into new memory."""
    graph = source.graph
    with source.meta["val"].fake_mode:
        memory = graph.call_function(aten.empty_like.default, (source,))
        memory.meta["val"] = torch.empty_like(source.meta["val"])
        where = _numbers(memory, aten.sym_size.int), _numbers(memory, aten.sym_stride.int)
        copy = graph.call_function(aten.as_strided_scatter.default, (memory, source, *where, 0))
        copy.meta = {**source.meta, "val": torch.empty_like(source.meta["val"])}
    return copy


def add_call(
    graph: fx.Graph, fake_mode: FakeTensorMode, op: OpOverload, *args: Any, **options: Any
) -> fx.Node:
    """Add a call with its fake value to the graph."""
    node = graph.call_function(op, args, options)
    with faking(fake_mode), torch.no_grad():
        node.meta["val"] = op(*fx.map_arg(args, lambda inner: inner.meta["val"]), **options)
    return node


def _computes(node: fx.Node) -> bool:
    """Return whether this is a pointwise op that no pass removes. (The input of a removed op may have another
    layout.)
    """
    target: Any = node.target
    if not isinstance(target, OpOverload) or torch.Tag.pointwise not in target.tags:
        return False
    if target is torch.ops.prims.convert_element_type.default:
        return node.args[0].meta["val"].dtype is not node.meta["val"].dtype  # type: ignore[union-attr]
    return target.overloadpacket not in REMOVABLE_OPS


def row_source(row: fx.Node) -> fx.Node | None:
    """Return the pointwise op that computed all elements of a row, through views, or None. Its memory is
    contiguous, so the row can be read from it with `as_strided`.
    """
    source: Any = row
    shape = row.meta["val"].shape
    while source.target in VIEWS:
        source = source.args[0]
    if not _computes(source):
        return None
    sizes = source.meta["val"].shape
    if not all(isinstance(size, int) for size in (*shape, *sizes)):
        return None
    is_row = all(size == 1 for size in shape[:-1])
    has_all = [size for size in sizes if size != 1] == [size for size in shape if size != 1]
    return source if is_row and has_all else None


def _numbers(source: fx.Node, op: Any) -> list[Any]:
    """Return the sizes or strides of a tensor; symbols become nodes."""
    value = source.meta["val"]
    found: list[Any] = []
    for dim in range(value.ndim):
        number = op(value, dim)
        if is_symbol(number):
            node = source.graph.call_function(op, (source, dim))
            node.meta["val"] = number
            found.append(node)
        else:
            found.append(number)
    return found


class _Traced(fx.Interpreter):
    """Runs a graph to functionalize it. Functionalization supports only ATen ops that return what they wrote
    into, so torchair's own ops run as their equivalent ATen calls.
    """

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Return the result of a node."""
        direct = DIRECT.get(target)
        return super().call_function(target, args, kwargs) if direct is None else direct(*args, **kwargs)


def _retrace(gm: fx.GraphModule, inputs: Sequence[Any], table: Any, functional: bool) -> fx.GraphModule:
    run = _Traced(gm).run
    traced = run if functional else torch.func.functionalize(run, remove="mutations")
    mode = fake_mode_of(gm, inputs)
    assert mode is not None, "codegen needs a graph with fake values"
    # Constants of the graph may be real tensors.
    with mode, lending(mode, "allow_non_fake_inputs", True), preserve_node_meta():
        return make_fx(traced, decomposition_table=table, tracing_mode="real", _allow_non_fake_inputs=True)(
            *inputs
        )
