"""Export: a model as a graph file that other engines, and `load_air`, run without its code."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from torchair.backend.dynamo.patch_hcom import patch_for_hcom
from torchair.backend.export.assumptions import granted, spec_of
from torchair.backend.export.cluster_config import cluster_files, groups_of
from torchair.backend.export.signature import (
    arguments_of,
    defaults_of,
    form_of,
    leaves_of,
    parameters_of,
    signature_of,
)
from torchair.backend.export.trace import TracedModel, trace
from torchair.backend.settings.settings import checked, resolve_settings
from torchair.configs.compiler_config import CompilerConfig
from torchair.core.errors import BadOption, NotInThisMode, NotPossible
from torchair.core.log import logger
from torchair.core.torch_private.compilers.aot_autograd import module_title
from torchair.debug.dumps.files import rank_and_size
from torchair.fxgraph.symbols import hint, is_symbol
from torchair.ge.attr import Int, Str
from torchair.ge.files import air_file
from torchair.ge.files.text import to_pbtxt
from torchair.ge.graph import (
    INPUT_TYPES,
    AliasResult,
    ArgumentFeed,
    Feed,
    Graph,
    PackFeed,
    Result,
    TensorResult,
    copy_graph,
)
from torchair.ge.host import Host
from torchair.ge.proto.write import to_bytes

CALL = "_torchair_call"
"""How the graph is called like the model it is of, as JSON: an attribute of the graph."""
READABLE = "dynamo.pbtxt"
MODULES = "nn_module_stack"


def dynamo_export(
    *args: Any,
    model: torch.nn.Module,
    export_path: str = "export_file",
    export_name: str = "export",
    dynamic: bool = False,
    config: CompilerConfig = CompilerConfig(),  # noqa: B008 - read, never written
    **kwargs: Any,
) -> None:
    """Write `model`, traced with these sample inputs, as `<export_path>/<export_name>.air`, with
    `dynamo.pbtxt` to read and, from 1848 MiB on, its weights in files of their own.
    """
    folder, name = Path(export_path), Path(export_name).name
    rank, size = rank_and_size()
    file = f"{name}.air" if size == 1 else f"{name}{rank}.air"
    for path in (folder, folder / file):
        if path.is_symlink():
            logger.error("nothing is exported: %s is a symbolic link", path)
            return
    patch_for_hcom()
    below = "" if size == 1 else f"rank_{rank}/"
    write_model(model, args, kwargs, dynamic, config, OutputPath(folder, file, below, f"{below}{READABLE}"))


@dataclass(frozen=True)
class OutputPath:
    """Where the files of a graph are: the graph, its weights below a folder of their own, a text to read."""

    folder: Path
    file: str
    below: str = ""
    readable: str = ""


def write_model(
    model: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    dynamic: bool,
    config: CompilerConfig,
    place: OutputPath,
) -> None:
    """Trace, and write all files or none."""
    if not isinstance(model, torch.nn.Module):
        raise BadOption("model must be a torch.nn.Module", got=f"{model!r} ({type(model).__name__})")
    settings = resolve_settings(checked(config))
    if settings.captures:
        raise NotInThisMode("only graph mode has graphs that can be written", got=f"mode {settings.mode!r}")
    if settings.frozen_parameter:
        raise NotPossible("frozen_parameter cannot be combined with export", next="leave it out")
    settings = replace(settings, options={**settings.options, "experimental_config.enable_ref_data": True})
    traced = trace(model, args, kwargs, dynamic, settings)
    names = _names_of(model)
    weights = _weights(traced, names)
    _check_file_names([names[id(tensor)] for tensor in _states(traced, names)])
    # Several models may be exported into one folder.
    stem = f"{place.below}{Path(place.file).stem}_state_"
    states = {stem + _file_name(names[id(tensor)]): tensor for tensor in _states(traced, names)}
    _check_values(names, [*weights.values(), *states.values()])
    titles = {id(tensor): title for title, tensor in states.items()}
    graph, call = exported(traced, weights, titles, model, args, kwargs)
    if settings.module_stacks:
        _record_modules(graph)
    beside = _beside(graph, place) if settings.cluster_templates else {}
    with air_file.writing(place.folder) as into:
        if place.readable:
            air_file.write_readable(into, place.readable, to_pbtxt(graph))
        _write_weights(
            into, graph, {op: (names[id(tensor)], tensor) for op, tensor in weights.items()}, place
        )
        air_file.write_weights(into, states, is_shown=False)
        graph.attrs[CALL] = Str(json.dumps(call))
        air_file.write_bytes(into, place.file, to_bytes(graph, normalised=True, runtime=True))
        for name, text in beside.items():
            air_file.write_bytes(into, name, text.encode())
        air_file.write_digests(into, place.file)
    logger.info("%s has %s ops and %s weights", place.folder / place.file, len(graph.ops), len(weights))


def _write_weights(
    into: air_file.Writing, graph: Graph, weights: Mapping[str, tuple[str, torch.Tensor]], place: OutputPath
) -> None:
    """Into the ops that stand for them, or into files of their own where the graph would be too large."""
    size = sum(tensor.nbytes for _, tensor in weights.values())
    if size + len(to_bytes(graph, normalised=True)) <= air_file.EXTERNAL_FROM:
        for op_name, (_, tensor) in weights.items():
            air_file.embed(graph.by_name[op_name], tensor)
        return
    _check_file_names([title for title, _ in weights.values()])
    for op_name, (title, tensor) in weights.items():
        air_file.refer(graph.by_name[op_name], tensor, str(place.folder / place.below / _file_name(title)))
    air_file.write_weights(
        into, {place.below + _file_name(title): tensor for title, tensor in weights.values()}
    )


def _record_modules(graph: Graph) -> None:
    """Which module each op is of, as `layers.0.linear`, where modules are nested."""
    for op in graph.ops:
        node = None if op.origin is None else op.origin.node
        stack = [] if node is None else list((node.meta.get(MODULES) or {}).values())
        if len(stack) > 1:
            op.attrs[MODULES] = Str(module_title(str(stack[-1][0])).removeprefix("fn."))


def _beside(graph: Graph, place: OutputPath) -> dict[str, str]:
    """Written by one of several processes, where the graph talks to the others."""
    rank, size = rank_and_size()
    groups = groups_of(graph) if size > 1 and rank == 0 else {}
    name = place.file.removesuffix(f"{rank}.air")
    return cluster_files(name, range(size), groups) if groups else {}


def _check_file_names(titles: Sequence[str]) -> None:
    """Two weights in one file would be one weight."""
    seen: dict[str, str] = {}
    for title in titles:
        other = seen.setdefault(_file_name(title), title)
        if other != title:
            raise NotPossible(
                f"the weights {other} and {title} would have one file name, {_file_name(title)}",
                next="rename one of them",
            )


def _check_values(names: Mapping[int, str], tensors: Sequence[torch.Tensor]) -> None:
    empty = [names[id(tensor)] for tensor in tensors if tensor.is_meta]
    if empty:
        raise NotPossible(
            "weights on the meta device have no values to write",
            got=", ".join(empty[:8]),
            next="load the model's weights first",
        )


def _file_name(title: str) -> str:
    return title.replace(".", "_")


def _names_of(model: torch.nn.Module) -> dict[int, str]:
    """The first name of each parameter and buffer, by its identity."""
    found: dict[int, str] = {}
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        found.setdefault(id(tensor), name)
    return found


def _weights(traced: TracedModel, names: Mapping[int, str]) -> dict[str, torch.Tensor]:
    """The inputs of the graph that are the model's own tensors, and are not written."""
    found: dict[str, torch.Tensor] = {}
    for op in traced.graph.inputs:
        feed = traced.graph.feeds.get(op.name)
        if op.type == "Data" and isinstance(feed, ArgumentFeed):
            value = traced.args[feed.index]
            if isinstance(value, torch.Tensor) and id(value) in names:
                found[op.name] = value
    return found


def _states(traced: TracedModel, names: Mapping[int, str]) -> list[torch.Tensor]:
    """The model's own tensors that the graph writes."""
    feeds = [traced.graph.feeds.get(op.name) for op in traced.graph.inputs if op.type == "RefData"]
    values = [traced.args[feed.index] for feed in feeds if isinstance(feed, ArgumentFeed)]
    return [value for value in values if id(value) in names]


def exported(
    traced: TracedModel,
    weights: Mapping[str, torch.Tensor],
    states: Mapping[int, str],
    model: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> tuple[Graph, dict[str, Any]]:
    """The graph without its weights among the arguments, and how it is called."""
    graph = copy_graph(traced.graph)
    taken = {feed.index for name in weights if isinstance(feed := graph.feeds[name], ArgumentFeed)}
    kept = sorted(_read(graph) - taken)
    number = {old: new for new, old in enumerate(kept)}
    feeds = {name: feed for name, feed in graph.feeds.items() if name not in weights}
    graph.feeds = {name: _renumbered(feed, number) for name, feed in feeds.items()}
    graph.results = [_based(result, number) for result in graph.results]
    _renumber_inputs(graph, weights)
    call = {**_call(traced, kept, states, model, args, kwargs), "weights": sorted(weights)}
    return graph, call


def _read(graph: Graph) -> set[int]:
    """The arguments that matter."""
    feeds = list(graph.feeds.values())
    plain = [feed.index for feed in feeds if isinstance(feed, ArgumentFeed)]
    packed = [index for feed in feeds if isinstance(feed, PackFeed) for index in feed.indices]
    bases = [result.base for result in graph.results if isinstance(result, AliasResult)]
    return {*plain, *packed, *bases}


def _renumbered(feed: Feed, number: Mapping[int, int]) -> Feed:
    match feed:
        case ArgumentFeed(index):
            return ArgumentFeed(number[index])
        case PackFeed(indices):
            return PackFeed(tuple(number[index] for index in indices))
        case _:
            return feed


def _based(result: Result, number: Mapping[int, int]) -> Result:
    if not isinstance(result, AliasResult):
        return result
    if result.base not in number:
        raise NotPossible("the model returns a view of one of its own weights", next="return a copy of it")
    return replace(result, layout=replace(result.layout, base=number[result.base]))


def _renumber_inputs(graph: Graph, weights: Mapping[str, Any]) -> None:
    """Plain inputs first, then those that the graph writes."""
    inputs = [op for op in graph.ops if op.type in INPUT_TYPES and op.name not in weights]
    for index, op in enumerate(sorted(inputs, key=lambda op: op.type != "Data")):
        op.attrs["index"] = Int(index)


# How it is called


def _call(
    traced: TracedModel,
    kept: Sequence[int],
    states: Mapping[int, str],
    model: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> dict[str, Any]:
    parameters = parameters_of(model.forward)
    arguments = arguments_of(signature_of(parameters), args, kwargs)
    leaves = leaves_of(arguments)
    fakes = traced.ctx.inputs
    by_identity = {id(leaf): path for path, leaf in leaves.items() if isinstance(leaf, torch.Tensor)}
    inputs: list[dict[str, Any]] = []
    for index in kept:
        value, fake = traced.args[index], fakes[index]
        if isinstance(value, torch.Tensor) and id(value) in by_identity:
            inputs.append({"at": by_identity[id(value)], **spec_of(fake)})
        elif id(value) in states:
            inputs.append({"state": states[id(value)], **spec_of(fake)})
        elif is_symbol(fake):
            inputs.append({"number": str(fake.node.expr)})
        else:
            inputs.append(_unfound(traced, index, value))
    numbered = {id(output): place for place, output in enumerate(traced.outputs)}
    memory = {_memory(output): place for place, output in enumerate(traced.outputs) if _memory(output)}

    def place_of(tensor: torch.Tensor) -> list[Any]:
        if id(tensor) in numbered:
            return ["output", numbered[id(tensor)]]
        if id(tensor) in by_identity:
            return ["input", by_identity[id(tensor)]]
        if _memory(tensor) in memory:
            return ["output", memory[_memory(tensor)]]
        raise NotPossible("the model returns a tensor that its graph does not make", got=_shown(tensor))

    symbols = _ranges(traced)
    taken = granted(traced, arguments, defaults_of(model.forward), {each.get("at") for each in inputs})
    unread = (size for each in taken["unread"] for size in each["sizes"])
    is_of_one_size = not symbols and all(isinstance(size, int) for size in unread)
    result = form_of(traced.result, place_of, is_of_one_size)
    _check_numbers(traced, result)
    return {
        "parameters": parameters,
        "inputs": inputs,
        **taken,
        "symbols": symbols,
        "examples": _examples(traced),
        "result": result,
    }


def _check_numbers(traced: TracedModel, form: Any) -> None:
    """What Dynamo turns into a number of Python is nothing that a graph makes."""
    found = json.dumps(form)
    for place, result in enumerate(traced.graph.results):
        if not isinstance(result, TensorResult) or not isinstance(meta := result.tensor.meta, Host):
            continue
        if not meta.ndim and json.dumps(["output", place]) not in found:
            raise NotPossible(
                "the model returns a number that is no integer and is not the same in each call",
                got=str(result.tensor),
                next="return it as a tensor",
            )


def _unfound(traced: TracedModel, index: int, value: Any) -> dict[str, Any]:
    names = traced.ctx.request.arg_names
    title = names[index] if index < len(names) and names[index] else f"argument {index}"
    is_tensor = isinstance(value, torch.Tensor)
    raise NotPossible(
        f"the graph reads {title}, which is no argument of the model and no weight that stays as it is",
        got=_shown(value) if is_tensor else repr(value),
        next="pass what the model writes or reads from elsewhere as an argument",
    )


def _memory(tensor: Any) -> tuple[Any, ...]:
    if not isinstance(tensor, torch.Tensor) or not tensor.numel():
        return ()
    return tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()


def _shown(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype} {list(tensor.shape)} on {tensor.device}"


def _ranges(traced: TracedModel) -> dict[str, list[int | None]]:
    """The smallest and largest value of each symbol, as tracing left them."""
    env = traced.ctx.info.fake_mode.shape_env
    found: dict[str, list[int | None]] = {}
    for fake in traced.ctx.inputs:
        for size in (fake, *getattr(fake, "shape", ())):
            for symbol in size.node.expr.free_symbols if is_symbol(size) else ():
                bounds = env.bound_sympy(symbol) if env is not None else None
                if bounds is not None:
                    found[str(symbol)] = [_finite(bounds.lower), _finite(bounds.upper)]
    return found


def _examples(traced: TracedModel) -> dict[str, int]:
    """The value that each symbol had when the model was traced: what tracing took for granted holds there."""
    sizes = [size for fake in traced.ctx.inputs for size in (fake, *getattr(fake, "shape", ()))]
    symbols = [size for size in sizes if is_symbol(size) and size.node.expr.is_Symbol]
    return {str(size.node.expr): int(hint(size)) for size in symbols}


def _finite(bound: Any) -> int | None:
    return int(bound) if bound.is_Integer and abs(int(bound)) < 1 << 62 else None


__all__ = ["CALL", "OutputPath", "dynamo_export", "write_model"]
