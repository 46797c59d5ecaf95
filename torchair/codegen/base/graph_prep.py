"""What every code generator asks of an FX graph, and the rewrites they share. Inputs stay as they are."""

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
WRONG_STRIDES = (aten.unique_dim.default, aten.unique_dim_consecutive.default)
OURS = ("aten", "prims", "torchair", "npu", "air")
VIEWS = (aten.view.default, aten.reshape.default, aten._unsafe_view.default)
# Pointwise ops that Inductor takes out where they change nothing.
MAY_VANISH = (aten.clone, aten.ceil, aten.floor, aten.round, aten.trunc, aten.pow)
SCATTERS = (
    aten.slice_scatter.default,
    aten.select_scatter.default,
    aten.diagonal_scatter.default,
    aten.as_strided_scatter.default,
)


def attribute(gm: fx.GraphModule, target: str) -> Any:
    """The value behind a `get_attr` node; targets may be dotted."""
    value: Any = gm
    for part in target.split("."):
        value = getattr(value, part)
    return value


def fake_mode_of(gm: fx.GraphModule, inputs: Sequence[Any]) -> FakeTensorMode | None:
    """The one fake mode of this compile."""
    found = detect_fake_mode(list(inputs))
    if found is not None:
        return found
    return detect_fake_mode([node.meta.get("val") for node in gm.graph.nodes])


def has_effect(node: fx.Node) -> bool:
    """The node must stay even if nobody uses its result."""
    return node.is_impure() or bool(written_by(node)) or isinstance(node.target, Piece)


def is_functional(gm: fx.GraphModule) -> bool:
    """No node writes to a tensor, except `copy_` into an input."""
    for node in gm.graph.nodes:
        for written in written_by(node) if mutates(node.target) else ():
            if node.target is not aten.copy_.default or written.op not in ("placeholder", "get_attr"):
                return False
    return True


def prepare(gm: fx.GraphModule, inputs: Sequence[Any], *, decomposed: bool) -> fx.GraphModule:
    """The form Inductor wants: functional ATen after its decompositions, in nodes of our own."""
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
        _state_windows(made)
    _keep_copies_for_windows(made)
    _keep_copies_for_writers(made)
    _keep_what_is_read_late(made)
    take_turns(made.graph)
    made.recompile()  # Inductor's cache goes by the text
    return made


def _check_windows(gm: fx.GraphModule) -> None:
    """Inductor does not read the offset of an input."""
    for node in windows_of_copies(gm):
        raise NotPossible(
            f"{node.target} reads a copy of the whole storage of an input, and Inductor copies elements only",
            at=source_of(node),
            next="clone the tensor first, or index it instead",
        )
    nodes = placeholders(gm)
    for index, node in storage_relative_inputs(gm).items():
        if is_symbol(nodes[index].meta["val"].storage_offset()):
            raise NotPossible(
                f"{node.target} counts from the start of the storage of input {nodes[index].name}, and where "
                "the input begins in it is not known before the call",
                at=source_of(node),
                next="pass a tensor that begins at the start of its storage, or index it instead",
            )


def _check_lists(gm: fx.GraphModule) -> None:
    """Of several parts of one tensor, given to an op that writes them as a list, torch's Inductor gets those
    wrong whose place in the tensor is read from a view. (Where it is arithmetic on sizes, it is right.)
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
                f"torch {torch.__version__} writes parts of tensors wrongly that an op takes as a list, "
                "where sizes are dynamic",
                at=source_of(node),
                next="torch.compile(…, dynamic=False), or one argument for each part",
            )


def _check_statistics(gm: fx.GraphModule) -> None:
    """Of doubles, attention on the CPU keeps statistics that are doubles; torch before 2.12 tells Inductor
    that they are floats, and code is generated that reads them as such.
    """
    attention = aten._scaled_dot_product_flash_attention_for_cpu.default
    for node in gm.graph.find_nodes(op="call_function", target=attention):
        result, statistics = node.meta["val"]
        if result.dtype is torch.float64 and statistics.dtype is not torch.float64:
            raise NotPossible(
                f"torch {torch.__version__} tells {statistics.dtype} of statistics that are doubles",
                at=source_of(node),
                next="take torch 2.12, or float32",
            )


def _check_strides(gm: fx.GraphModule) -> None:
    """Of some ops torch tells Inductor other strides than their results have; its code would read others."""
    for node in gm.graph.nodes:
        if node.target in WRONG_STRIDES:
            raise NotPossible(
                f"{node.target} has other strides than torch tells Inductor",
                at=source_of(node),
                next="compile what comes before and after it",
            )


def is_custom(target: Any) -> bool:
    """Is it neither torch's op nor ours? Then nobody has checked that results have the layouts it tells."""
    return isinstance(target, OpOverload) and target.namespace not in OURS


def _state_windows(gm: fx.GraphModule) -> None:
    """Older versions of Inductor count a window from the first element of an input in generated code, and
    from the start of its storage where they run `as_strided` itself. Only for an input that begins there are
    both the same. A window without an offset they place at 0, also where it is taken from a view.
    """
    nodes = placeholders(gm)
    for index, node in storage_relative_inputs(gm).items():
        if not equal(nodes[index].meta["val"].storage_offset(), 0):
            raise NotPossible(
                f"{node.target} reads the storage of input {nodes[index].name}, which does not begin there, "
                f"and Inductor of torch {torch.__version__} may read other elements",
                at=source_of(node),
                next="use torch 2.13, clone the tensor first, or index it instead",
            )
    for node in gm.graph.find_nodes(op="call_function", target=aten.as_strided.default):
        offset = node.meta["val"].storage_offset()
        if (*node.args[3:], *node.kwargs.values(), None)[0] is not None:
            continue
        if is_symbol(offset):
            raise NotPossible(
                f"{node.target} begins where {node.args[0]} does, which is known only in the call, "
                f"and Inductor of torch {torch.__version__} may read other elements",
                at=source_of(node),
                next="use torch 2.13, or torch.compile(…, dynamic=False)",
            )
        node.args = (*node.args[:3], offset)


def _keep_copies_for_windows(gm: fx.GraphModule) -> None:
    """Inductor takes copies out that change no stride. A window counts from the start of its memory, so it
    would look at the memory of what was copied: such a copy becomes a write into new memory.
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
            copy.replace_all_uses_with(lasting_copy(source))
        gm.graph.erase_node(copy)


def _keep_copies_for_writers(gm: fx.GraphModule) -> None:
    """An op that writes a value may read it, as it was, by another argument. Inductor lets it write what it
    is given, and takes copies out: what it reads becomes a write into new memory.
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
                    copies[value] = lasting_copy(value)
        for value, copied in copies.items():
            node.replace_input_with(value, copied)
        node.kwargs = {**node.kwargs, "_all_bases": bases}
    gm.graph.eliminate_dead_code(is_impure_node=has_effect)


def _keep_what_is_read_late(gm: fx.GraphModule) -> None:
    """Inductor lets an op write over an input that a later `copy_` gives another value, and does not ask who
    reads the result behind that `copy_`: who does gets a copy from before.
    """
    for write in list(gm.graph.find_nodes(op="call_function", target=aten.copy_.default)):
        target, new = write.args[0], _source(write.args[1])  # type: ignore[arg-type]
        copies: dict[fx.Node, fx.Node] = {}
        late, user = set[fx.Node](), write.next
        while user.op != "root":
            for value in user.all_input_nodes:
                is_early = value not in late and isinstance(value.meta.get("val"), torch.Tensor)
                source = _source(value)
                if not is_early or source is new or not _may_lie_over(source, target):
                    continue
                if value not in copies:
                    with gm.graph.inserting_before(write):
                        copies[value] = lasting_copy(value)
                user.replace_input_with(value, copies[value])
            late.add(user)
            user = user.next


def _source(node: fx.Node) -> fx.Node:
    """What has the elements of a value, for Inductor, which takes copies out that change no stride."""
    while True:
        root, _ = root_of(node)
        if root.target is not aten.clone.default:
            return root
        node = root.args[0]  # type: ignore[assignment]


def _may_lie_over(node: fx.Node, target: Any) -> bool:
    """May Inductor put the result of this node into the memory of `target`?"""
    if node.op != "call_function" or not (may_write(node.target) or node.target in SCATTERS):
        return False
    sources = [_source(source) for source in node.all_input_nodes]
    return any(source is target or _may_lie_over(source, target) for source in sources)


def lasting_copy(source: fx.Node) -> fx.Node:
    """A copy that Inductor does not take out: a write into new memory."""
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
    """One more call, with its fake value."""
    node = graph.call_function(op, args, options)
    with faking(fake_mode), torch.no_grad():
        node.meta["val"] = op(*fx.map_arg(args, lambda inner: inner.meta["val"]), **options)
    return node


def _computes(node: fx.Node) -> bool:
    """Is this a pointwise op that no pass takes out for doing nothing? Its input may lie otherwise."""
    target: Any = node.target
    if not isinstance(target, OpOverload) or torch.Tag.pointwise not in target.tags:
        return False
    if target is torch.ops.prims.convert_element_type.default:
        return node.args[0].meta["val"].dtype is not node.meta["val"].dtype  # type: ignore[union-attr]
    return target.overloadpacket not in MAY_VANISH


def row_source(row: fx.Node) -> fx.Node | None:
    """The pointwise op that computed all elements of a row, looking through views. Its memory is one piece,
    so the row is a window onto it. None for anything else.
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
    """The sizes or strides of a tensor; nodes for those that are symbols."""
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
    """Runs a graph so that it can be made functional: that takes no operators which return what they wrote
    into, other than ATen's. Those of ours are run as the calls of ATen that they are.
    """

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """The result of a node."""
        direct = DIRECT.get(target)
        return super().call_function(target, args, kwargs) if direct is None else direct(*args, **kwargs)


def _retrace(gm: fx.GraphModule, inputs: Sequence[Any], table: Any, functional: bool) -> fx.GraphModule:
    run = _Traced(gm).run
    traced = run if functional else torch.func.functionalize(run, remove="mutations")
    mode = fake_mode_of(gm, inputs)
    assert mode is not None, "codegen is given a graph with fake values"
    # Constants of the graph may be real tensors.
    with mode, lending(mode, "allow_non_fake_inputs", True), preserve_node_meta():
        return make_fx(traced, decomposition_table=table, tracing_mode="real", _allow_non_fake_inputs=True)(
            *inputs
        )
