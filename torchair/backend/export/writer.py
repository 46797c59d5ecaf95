"""Export a model as a graph file, which other engines and `load_air` run without the model's code."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import torch

from torchair.backend.dynamo.patch_hcom import patch_for_hcom
from torchair.backend.export.assumptions import assumptions_of, spec_of
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
"""The graph attribute with the model's call signature as JSON."""
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
    """Export a model as the graph file `<export_path>/<export_name>.air`.

    `dynamo.pbtxt` is a readable form of the graph. If graph and weights exceed 1848 MiB, the weights are
    written to separate files. Nothing is written, and an error is logged, if a path is a symbolic link.

    Args:
        *args: Sample inputs that the model is traced with.
        model: The module to export.
        export_path: The directory of the files.
        export_name: The name of the graph file, without `.air`; with several processes, the rank is added.
        dynamic: Whether the graph accepts other sizes than those of the sample inputs.
        config: The options; the mode must be graph mode.
        **kwargs: Sample keyword inputs.

    Raises:
        BadOption: `model` is not a module.
        NotInThisMode: `config` selects capture mode.
        NotPossible: The model cannot be exported, for example because an op has no converter.

    Example:
        >>> torchair.dynamo_export(x, model=model, export_path="out", dynamic=True)
        >>> torchair.load_air("out/export.air")(x)
    """
    folder, name = Path(export_path), Path(export_name).name
    rank, size = rank_and_size()
    file = f"{name}.air" if size == 1 else f"{name}{rank}.air"
    for path in (folder, folder / file):
        if path.is_symlink():
            logger.error("the model is not exported: %s is a symbolic link", path)
            return
    patch_for_hcom()
    below = "" if size == 1 else f"rank_{rank}/"
    write_model(model, args, kwargs, dynamic, config, OutputPath(folder, file, below, f"{below}{READABLE}"))


@dataclass(frozen=True)
class OutputPath:
    """The paths of an export: the graph, the directory of its weights, and the readable text."""

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
    """Trace the model and write its files. If writing fails, no file is left."""
    if not isinstance(model, torch.nn.Module):
        raise BadOption("model must be a torch.nn.Module", got=f"{model!r} ({type(model).__name__})")
    settings = resolve_settings(checked(config))
    if settings.captures:
        raise NotInThisMode(
            "export requires graph mode",
            got=f"mode {settings.mode!r}",
            next="pass a torchair.CompilerConfig() with its default mode",
        )
    if settings.frozen_parameter:
        raise NotPossible(
            "frozen_parameter cannot be combined with export",
            next="set experimental_config.frozen_parameter = False",
        )
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
    templates = _cluster_templates(graph, place) if settings.cluster_templates else {}
    with air_file.writing(place.folder) as into:
        if place.readable:
            air_file.write_readable(into, place.readable, to_pbtxt(graph))
        _write_weights(
            into, graph, {op: (names[id(tensor)], tensor) for op, tensor in weights.items()}, place
        )
        air_file.write_weights(into, states, is_shown=False)
        graph.attrs[CALL] = Str(json.dumps(call))
        air_file.write_bytes(into, place.file, to_bytes(graph, normalised=True, runtime=True))
        for name, text in templates.items():
            air_file.write_bytes(into, name, text.encode())
        air_file.write_digests(into, place.file)
    logger.info("%s has %s ops and %s weights", place.folder / place.file, len(graph.ops), len(weights))


def _write_weights(
    into: air_file.Writing, graph: Graph, weights: Mapping[str, tuple[str, torch.Tensor]], place: OutputPath
) -> None:
    """Embed the weights in the graph, or write them to separate files if the graph would be too large."""
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
    """Record the module of each op, for example `layers.0.linear`, if modules are nested."""
    for op in graph.ops:
        node = None if op.origin is None else op.origin.node
        stack = [] if node is None else list((node.meta.get(MODULES) or {}).values())
        if len(stack) > 1:
            op.attrs[MODULES] = Str(module_title(str(stack[-1][0])).removeprefix("fn."))


def _cluster_templates(graph: Graph, place: OutputPath) -> dict[str, str]:
    """Return the cluster files. Only rank 0 writes them, if the graph communicates with other processes."""
    rank, size = rank_and_size()
    groups = groups_of(graph) if size > 1 and rank == 0 else {}
    name = place.file.removesuffix(f"{rank}.air")
    return cluster_files(name, range(size), groups) if groups else {}


def _check_file_names(titles: Sequence[str]) -> None:
    """Raise `NotPossible` if two weights would be written to the same file."""
    seen: dict[str, str] = {}
    for title in titles:
        other = seen.setdefault(_file_name(title), title)
        if other != title:
            raise NotPossible(
                f"cannot export the model: weights {other} and {title} have the same file name",
                got=_file_name(title),
                next="rename one of them",
            )


def _check_values(names: Mapping[int, str], tensors: Sequence[torch.Tensor]) -> None:
    empty = [names[id(tensor)] for tensor in tensors if tensor.is_meta]
    if empty:
        raise NotPossible(
            "cannot export weights on the meta device: they have no values",
            got=", ".join(empty[:8]),
            next="load the model's weights before the export",
        )


def _file_name(title: str) -> str:
    return title.replace(".", "_")


def _names_of(model: torch.nn.Module) -> dict[int, str]:
    """Return the first name of each parameter and buffer, by its `id`."""
    found: dict[int, str] = {}
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        found.setdefault(id(tensor), name)
    return found


def _weights(traced: TracedModel, names: Mapping[int, str]) -> dict[str, torch.Tensor]:
    """Return the inputs of the graph that are the model's parameters or buffers and are not mutated."""
    found: dict[str, torch.Tensor] = {}
    for op in traced.graph.inputs:
        feed = traced.graph.feeds.get(op.name)
        if op.type == "Data" and isinstance(feed, ArgumentFeed):
            value = traced.args[feed.index]
            if isinstance(value, torch.Tensor) and id(value) in names:
                found[op.name] = value
    return found


def _states(traced: TracedModel, names: Mapping[int, str]) -> list[torch.Tensor]:
    """Return the model's parameters and buffers that the graph mutates."""
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
    """Return the graph without its weights among the arguments, and its call signature."""
    graph = copy_graph(traced.graph)
    embedded = {feed.index for name in weights if isinstance(feed := graph.feeds[name], ArgumentFeed)}
    indices = sorted(_used_arguments(graph) - embedded)
    number = {old: new for new, old in enumerate(indices)}
    feeds = {name: feed for name, feed in graph.feeds.items() if name not in weights}
    graph.feeds = {name: _renumbered(feed, number) for name, feed in feeds.items()}
    graph.results = [_based(result, number) for result in graph.results]
    _renumber_inputs(graph, weights)
    call = {**_call(traced, indices, states, model, args, kwargs), "weights": sorted(weights)}
    return graph, call


def _used_arguments(graph: Graph) -> set[int]:
    """Return the indices of arguments that the graph reads or returns views of."""
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
        raise NotPossible(
            "cannot export a model that returns a view of one of its weights",
            next="return a copy, for example weight.clone()",
        )
    return replace(result, layout=replace(result.layout, base=number[result.base]))


def _renumber_inputs(graph: Graph, weights: Mapping[str, Any]) -> None:
    """Number the inputs: first those that the graph only reads, then those that it mutates."""
    inputs = [op for op in graph.ops if op.type in INPUT_TYPES and op.name not in weights]
    for index, op in enumerate(sorted(inputs, key=lambda op: op.type != "Data")):
        op.attrs["index"] = Int(index)


# The call signature


def _call(
    traced: TracedModel,
    indices: Sequence[int],
    states: Mapping[int, str],
    model: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> dict[str, Any]:
    parameters = parameters_of(model.forward)
    arguments = arguments_of(signature_of(parameters), args, kwargs)
    leaves = leaves_of(arguments)
    by_identity = {id(leaf): path for path, leaf in leaves.items() if isinstance(leaf, torch.Tensor)}
    inputs = [_input_spec(traced, index, by_identity, states) for index in indices]
    numbered = {id(output): place for place, output in enumerate(traced.outputs)}
    memory = {_memory(output): place for place, output in enumerate(traced.outputs) if _memory(output)}

    def place_of(tensor: torch.Tensor) -> list[Any]:
        if id(tensor) in numbered:
            return ["output", numbered[id(tensor)]]
        if id(tensor) in by_identity:
            return ["input", by_identity[id(tensor)]]
        if _memory(tensor) in memory:
            return ["output", memory[_memory(tensor)]]
        raise NotPossible(
            "cannot export a model that returns a tensor that its graph does not compute",
            got=_shown(tensor),
            next="return a tensor that is computed from the arguments",
        )

    symbols = _ranges(traced)
    paths = {each.get("at") for each in inputs}
    assumptions = assumptions_of(traced, arguments, defaults_of(model.forward), paths)
    unread = (size for each in assumptions["unread"] for size in each["sizes"])
    is_of_one_size = not symbols and all(isinstance(size, int) for size in unread)
    result = form_of(traced.result, place_of, is_of_one_size)
    _check_numbers(traced, result)
    return {
        "parameters": parameters,
        "inputs": inputs,
        **assumptions,
        "symbols": symbols,
        "examples": _examples(traced),
        "result": result,
    }


def _input_spec(
    traced: TracedModel, index: int, paths: Mapping[int, str], states: Mapping[int, str]
) -> dict[str, Any]:
    """Return where the graph's input comes from: an argument, a state, or a size."""
    value, fake = traced.args[index], traced.ctx.inputs[index]
    if isinstance(value, torch.Tensor) and id(value) in paths:
        return {"at": paths[id(value)], **spec_of(fake)}
    if id(value) in states:
        return {"state": states[id(value)], **spec_of(fake)}
    if is_symbol(fake):
        return {"number": str(fake.node.expr)}
    _refuse_input(traced, index, value)


def _check_numbers(traced: TracedModel, form: Any) -> None:
    """Raise `NotPossible` for a computed number that is not an output of the graph: Dynamo made it a Python
    number.
    """
    found = json.dumps(form)
    for place, result in enumerate(traced.graph.results):
        if not isinstance(result, TensorResult) or not isinstance(meta := result.tensor.meta, Host):
            continue
        if not meta.ndim and json.dumps(["output", place]) not in found:
            raise NotPossible(
                "cannot export a model that returns a computed number that is not an integer",
                got=str(result.tensor),
                next="return it as a tensor",
            )


def _refuse_input(traced: TracedModel, index: int, value: Any) -> NoReturn:
    names = traced.ctx.request.arg_names
    title = names[index] if index < len(names) and names[index] else f"argument {index}"
    is_tensor = isinstance(value, torch.Tensor)
    raise NotPossible(
        f"cannot export the model: it reads {title}, which is neither an argument nor a weight",
        got=_shown(value) if is_tensor else repr(value),
        next="pass it to the model as an argument",
    )


def _memory(tensor: Any) -> tuple[Any, ...]:
    if not isinstance(tensor, torch.Tensor) or not tensor.numel():
        return ()
    return tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()


def _shown(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype} {list(tensor.shape)} on {tensor.device}"


def _ranges(traced: TracedModel) -> dict[str, list[int | None]]:
    """Return the smallest and largest value of each symbol after tracing."""
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
    """Return the value of each symbol during tracing, for which all assumptions hold."""
    sizes = [size for fake in traced.ctx.inputs for size in (fake, *getattr(fake, "shape", ()))]
    symbols = [size for size in sizes if is_symbol(size) and size.node.expr.is_Symbol]
    return {str(size.node.expr): int(hint(size)) for size in symbols}


def _finite(bound: Any) -> int | None:
    return int(bound) if bound.is_Integer and abs(int(bound)) < 1 << 62 else None


__all__ = ["CALL", "OutputPath", "dynamo_export", "write_model"]
