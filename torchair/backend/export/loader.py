"""Load graph files as models: read them, compile them for this machine, and call them without model code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import fx

from torchair.backend.export import signature
from torchair.backend.export.assumptions import literal_of
from torchair.backend.export.file_signature import InputSpec, form_of, title_of
from torchair.backend.export.import_foreign import normalize_foreign_graph
from torchair.backend.export.shape_inference import TooLarge, infer_shapes
from torchair.backend.export.size_expr import evaluate, holds, names_in
from torchair.backend.pipeline.compile import output_layouts
from torchair.backend.pipeline.context import (
    CompileFxArgs,
    Context,
    Fallbacks,
    FrontEnd,
    GraphInfo,
    Lowered,
)
from torchair.backend.pipeline.interpreter import InterpretedProgram
from torchair.backend.pipeline.ir import pass_context
from torchair.backend.pipeline.link import link, make_runner
from torchair.backend.pipeline.plan import context_of, recording_policy
from torchair.backend.runtime.input_check_cache import LastCallCheck
from torchair.backend.settings.settings import Settings, checked, resolve_settings
from torchair.capture import Runner, RunnerOptions
from torchair.configs.compiler_config import CompilerConfig
from torchair.core import dtypes
from torchair.core.diagnostics import Diagnostics
from torchair.core.errors import AirError, BadCall, BadGraph, NotInThisMode, first_line, is_of_user
from torchair.core.torch_private.compilers.inductor import lowering_table
from torchair.core.torch_private.fake.fake_tensors import FakeTensorMode, ShapeEnv, new_size
from torchair.engine.lower import lower
from torchair.fxgraph.symbols import is_symbol
from torchair.ge.attr import Int
from torchair.ge.attr import Tensor as TensorAttr
from torchair.ge.files.air_file import read_air, read_tensor, within
from torchair.ge.files.verify import verify
from torchair.ge.graph import (
    AliasResult,
    ArgumentFeed,
    Desc,
    Graph,
    Op,
    PackFeed,
    Result,
    Slot,
    TensorResult,
    copy_graph,
)
from torchair.ops.numerics.formats import FP4, INT4, pack, unpack
from torchair.passes import GE_PASSES, PLACE_PASSES, run

LARGE = 1 << 12
"""Constants of at least this many bytes are inputs of the program instead of a part of its code."""
MANY_SIZES = 64
"""The maximum number of sizes whose programs are cached."""
SOME_SIZE = 6
"""A size to trace with if the file has no example."""


def load_air(
    path: str | Path, *, device: torch.device | str | None = None, config: CompilerConfig | None = None
) -> LoadedModel:
    """Load a graph file as a callable model, which is compiled on its first call.

    Args:
        path: The `.air` file.
        device: The device to run on; None for the device of the arguments.
        config: The options; the mode must be graph mode.

    Returns:
        A callable with the signature of the exported model. The graph of another producer is called with its
        inputs in order, and returns a tuple of its outputs.

    Raises:
        BadGraph: The file is invalid or cannot be run.
        NotInThisMode: `config` selects capture mode.
        UnsupportedOp: The graph has ops without a kernel.

    Example:
        >>> torchair.dynamo_export(x, model=model, export_path="out")
        >>> model = torchair.load_air("out/export.air", device="cpu")
        >>> y = model(x)
    """
    settings = resolve_settings(checked(CompilerConfig() if config is None else config))
    if settings.captures:
        raise NotInThisMode(
            "load_air() requires graph mode",
            got=f"mode {settings.mode!r}",
            next="pass a torchair.CompilerConfig() with its default mode",
        )
    where = torch.device("cpu" if device is None else device)
    with with_file_context(f"{path} cannot be loaded as a graph"):
        model = LoadedModel(read_air(Path(path)), settings, where, Path(path).parent)
    model.follows = device is None
    return model


@contextmanager
def with_file_context(what: str, kind: type[AirError] = BadGraph) -> Iterator[None]:
    """Raise unexpected errors, which any malformed file can cause, as `kind` with this text first."""
    try:
        yield
    except (AirError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        if is_of_user(error):
            raise
        raise kind(f"{what}: {type(error).__name__}: {first_line(error)}") from error


class LoadedModel:
    """A graph file as a callable model.

    The graph is compiled once for all sizes, and separately for each size that this program does not support.
    """

    def __init__(self, graph: Graph, settings: Settings, device: torch.device, folder: Path) -> None:
        normalize_foreign_graph(graph)
        verify(graph)
        self._graph, self._settings, self._device = graph, settings, device
        self.form = form_of(graph)
        _check_feeds(graph, len(self.form.inputs))
        graph.results = [_on(result, device) for result in graph.results]
        self._written = _written(graph)
        self._states = {
            each.state: read_tensor(within(folder, each.state), _fixed(each), each.dtype).to(device)
            for each in self.form.inputs
            if each.state
        }
        self.weights = _take_weights(graph, len(self.form.inputs), self.form.weights, device)
        self.follows = False
        """Whether the model runs on the device of its arguments."""
        self.degradations = Diagnostics(settings.strict)
        self.compiled: dict[tuple[int, ...] | None, _Compiled] = {}
        self._runners: dict[tuple[int, ...], Runner] = {}
        self._repeated: LastCallCheck | None = None

    @property
    def weight_bytes(self) -> int:
        """The size of all weights in bytes."""
        return sum(weight.nbytes for weight in self.weights)

    @property
    def graph(self) -> Graph:
        """The graph, with its weights among the inputs."""
        return self._graph

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        before = self._repeated
        given = None if before is None else before.inputs_of(args, kwargs)
        if before is None or given is None:
            return self._call_checked(args, kwargs)
        with torch.no_grad(), with_file_context(f"{self._graph.name} failed on these arguments", BadCall):
            return self._result(before.runner.run(*given, *self.weights), {})

    def _call_checked(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        arguments = signature.arguments_of(self.form.signature, args, kwargs)
        leaves = signature.leaves_of(arguments)
        self._check_constants(arguments, leaves)
        if self.follows:
            self._follow(leaves)
        values = [None if each.number else self._tensor(each, leaves) for each in self.form.inputs]
        sizes = self._sizes(values, leaves)
        with torch.no_grad(), with_file_context(f"{self._graph.name} failed on these arguments", BadCall):
            given = [
                evaluate(each.number, sizes) if value is None else self._prepared(value)
                for each, value in zip(self.form.inputs, values, strict=True)
            ]
            runner = self._runner(sizes)
            outputs = runner.run(*given, *self.weights)
            for place in self._written:
                value = values[place]
                if value is not None and given[place] is not value:
                    value.copy_(given[place])
                each = self.form.inputs[place]
                words = leaves.get(each.at)
                if each.dtype in dtypes.SMALL and isinstance(words, torch.Tensor) and words is not value:
                    words.copy_(pack(given[place], each.dtype, words.dtype))
            result = self._result(outputs, leaves)
        if not self.form.returns_arguments:
            self._repeated = LastCallCheck.of((args, kwargs), given, list(self._states.values()), runner)
        return result

    def _follow(self, leaves: Mapping[str, Any]) -> None:
        """Move the model to the device of the first argument, and drop programs for other devices."""
        devices = (value.device for value in leaves.values() if isinstance(value, torch.Tensor))
        device = next(devices, self._device)
        if device == self._device:
            return
        self._device = device
        self._graph.results = [_on(result, device) for result in self._graph.results]
        self._states = {name: state.to(device) for name, state in self._states.items()}
        self.weights = [weight.to(device) for weight in self.weights]
        self.compiled.clear()
        self._runners.clear()

    def _result(self, outputs: Sequence[Any], leaves: Mapping[str, Any]) -> Any:
        return signature.build(self.form.result, lambda place: self._found(place, outputs, leaves))

    def _found(self, place: Sequence[Any], outputs: Sequence[Any], leaves: Mapping[str, Any]) -> Any:
        match place:
            case ["output", int(number)] if 0 <= number < len(outputs):
                return outputs[number]
            case ["input", str(path)] if path in leaves:
                return leaves[path]
            case _:
                raise BadGraph("the file refers to a result that the graph does not have", got=str(place))

    def _check_constants(self, arguments: Mapping[str, Any], leaves: Mapping[str, Any]) -> None:
        """Raise `BadCall` if an argument that is a constant of the graph has another value in this call."""
        form = self.form
        known = {*form.places, *(path for path, text in form.constants.items() if text != "None")}
        new = [path for path, value in leaves.items() if path not in known and value is not None]
        if new and form.places:
            raise BadCall(
                f"the graph has no argument {title_of(new[0])}: it was not passed during the export",
                next="export the model with this argument",
            )
        for path, text in form.constants.items():
            is_left_out = path not in leaves and signature.parameter_at(path) not in arguments
            if (form.defaults.get(path) if is_left_out else literal_of(leaves.get(path, ...))) != text:
                given = "no value" if path not in leaves else repr(leaves[path])[:80]
                raise BadCall(
                    f"argument {title_of(path)} must be {text}, which is a constant of the exported graph",
                    got=given,
                    next="pass this value, or export the model again with another one",
                )
        for first, *others in form.same:
            for other in others:
                if leaves.get(first) is not leaves.get(other):
                    raise BadCall(
                        f"arguments {title_of(first)} and {title_of(other)} must be the same tensor, as when"
                        " the model was exported",
                        next="pass the same tensor, or export the model with two tensors",
                    )

    def _prepared(self, value: torch.Tensor) -> torch.Tensor:
        """Return the tensor on the device of the graph, contiguous and without conj or neg bit."""
        return value.to(self._device).resolve_conj().resolve_neg().contiguous()

    def _tensor(self, each: InputSpec, leaves: Mapping[str, Any]) -> torch.Tensor:
        value = self._states[each.state] if each.state else leaves.get(each.at)
        if not isinstance(value, torch.Tensor):
            raise BadCall(f"argument {each.title} must be a tensor", got=repr(value))
        if each.dtype in dtypes.SMALL:
            value = _one_per_element(each, value)
        wanted = dtypes.SMALL.get(each.dtype) or dtypes.BY_RUNTIME[each.dtype].torch
        if wanted is not None and value.dtype != wanted:
            raise BadCall(f"argument {each.title} must be {wanted}", got=str(value.dtype))
        if value.ndim != len(each.sizes) or any(
            isinstance(size, int) and size != have for size, have in zip(each.sizes, value.shape, strict=True)
        ):
            raise BadCall(
                f"argument {each.title} must have the sizes [{', '.join(map(str, each.sizes))}]",
                got=str(list(value.shape)),
                next="export the model with dynamic=True for other sizes",
            )
        return value

    def _sizes(self, values: Sequence[Any], leaves: Mapping[str, Any]) -> dict[str, int]:
        """Return the value of each symbol in this call; raise `BadCall` if an assumption does not hold."""
        found = {each.number: _number(each, leaves) for each in self.form.inputs if each.number and each.at}
        looked_at = [self._tensor(each, leaves) for each in self.form.unread]
        pairs = [
            (size, have, each)
            for each, value in zip((*self.form.inputs, *self.form.unread), (*values, *looked_at), strict=True)
            if value is not None
            for size, have in zip(each.sizes, value.shape, strict=True)
            if isinstance(size, str)
        ]
        for size, have, _ in pairs:
            if size.isidentifier():
                found.setdefault(size, int(have))
        for size, have, each in pairs:
            if evaluate(size, found) != have:
                raise BadCall(
                    f"a size of argument {each.title} must be {size}, which is {evaluate(size, found)} here",
                    got=str(have),
                    next="pass tensors with matching sizes",
                )
        for name, (least, most) in self.form.symbols.items():
            is_below = least is not None and least > 2 and found.get(name, least) < least
            if name in found and (is_below or (most is not None and found[name] > most)):
                raise BadCall(
                    f"the graph supports sizes {name} from {least} to {most}",
                    got=str(found[name]),
                    next="export the model again with such a size",
                )
        for text in self.form.guards:
            if not holds(text, found):
                raise BadCall(
                    f"the graph supports only sizes with {text}, because the model branches on it",
                    got=", ".join(f"{name} = {found[name]}" for name in sorted(names_in(text))),
                    near=", ".join(f"{size} is a size of {each.title}" for size, _, each in pairs),
                    next="export the model again with such sizes",
                )
        return found

    def _example(self, name: str, otherwise: int) -> int:
        """Return a size of at least 2 to trace with."""
        least = self.form.symbols.get(name, [None, None])[0] or 0
        given = self.form.examples.get(name, 0)
        return given if given >= max(least, 2) else max(otherwise, least)

    def _runner(self, sizes: Mapping[str, int]) -> Runner:
        key = tuple(sizes[name] for name in self.form.names)
        if key not in self._runners:
            if len(self._runners) >= MANY_SIZES:
                self.compiled.pop(oldest := next(iter(self._runners)), None)
                del self._runners[oldest]
            general = self._general()
            found = general if general is not None and general.accepts(sizes) else self._get(key, sizes)
            self._runners[key] = found.runner
        return self._runners[key]

    def _general(self) -> _Compiled | None:
        """Return the program for all sizes, or None if the graph must be compiled per size."""
        if self.form.is_for_each_size:
            return None
        try:
            return self._get(None, {})
        except TooLarge as error:
            if not self.form.names:
                raise
            self.form.is_for_each_size = True
            what = f"{self._graph.name} is compiled for each size separately: {first_line(error)}"
            self.degradations.add(what)
            return None

    def _get(self, key: tuple[int, ...] | None, sizes: Mapping[str, int]) -> _Compiled:
        if key not in self.compiled:
            self.compiled[key] = _compile(self, sizes)
        return self.compiled[key]

    def context(self, sizes: Mapping[str, int], fallbacks: Fallbacks) -> tuple[Context, dict[str, Any]]:
        """Create the context of a compile for these sizes, or for all sizes if none are given."""
        env = ShapeEnv()
        mode = FakeTensorMode(shape_env=env)
        known: dict[str, Any] = dict(sizes)
        if not sizes:
            known = {
                name: new_size(env, name, self._example(name, SOME_SIZE + 2 * place))
                for place, name in enumerate(self.form.names)
            }
        with mode:
            fakes: list[Any] = [
                evaluate(each.number, known)
                if each.number
                else torch.empty(
                    [evaluate(size, known) if isinstance(size, str) else size for size in each.sizes],
                    dtype=dtypes.SMALL.get(each.dtype) or dtypes.to_torch(each.dtype),
                    device=self._device,
                )
                for each in self.form.inputs
            ]
        static = tuple(range(len(fakes), len(fakes) + len(self.weights)))
        fakes += [mode.from_tensor(weight, static_shapes=True) for weight in self.weights]
        info = GraphInfo(fakes, mode, self._device, self._graph.name, len(self._graph.ops))
        # Every call is checked here, and its tensors are dense.
        request = CompileFxArgs(static_inputs=static, has_guards=True)
        settings = self._settings if not fallbacks.without_ir else replace(self._settings, run_eagerly=True)
        ctx = context_of(info, settings, request, fallbacks=fallbacks)
        return ctx, {name: size.node.expr for name, size in known.items() if is_symbol(size)}


@dataclass
class _Compiled:
    runner: Runner
    env: Any
    symbols: dict[str, Any]  # the original symbols, before guards simplified them

    def accepts(self, sizes: Mapping[str, int]) -> bool:
        """Whether all guards of the compile hold for these sizes.

        They may include sizes of arguments that the graph does not read.
        """
        values = {symbol: sizes[name] for name, symbol in self.symbols.items()}
        if any(size < 2 for size in values.values()):
            return False
        return all(guard.expr.xreplace(values) == True for guard in self.env.guards)  # noqa: E712 - sympy's


def _compile(model: LoadedModel, sizes: Mapping[str, int]) -> _Compiled:
    """Compile the graph. If a step fails, warn and compile without it: first passes, finally all lowering."""
    fallbacks = Fallbacks(degradations=model.degradations, last="its IR is interpreted, op by op")
    while True:
        ctx, symbols = model.context(sizes, fallbacks)
        try:
            runner = _runner_of(model, ctx)
        except Exception as error:
            if is_of_user(error) or isinstance(error, TooLarge) or not fallbacks.add(error):
                raise
        else:
            return _Compiled(runner, ctx.info.fake_mode.shape_env, symbols)


def _runner_of(model: LoadedModel, ctx: Context) -> Runner:
    graph = copy_graph(model.graph)
    infer_shapes(graph, ctx.inputs, ctx.info.fake_mode, ctx.device)
    layouts = (None,) * len(graph.results)
    if ctx.fallbacks.without_ir:
        return _interpreted(graph, ctx, layouts)
    passes = pass_context(ctx)
    graph = run(GE_PASSES, graph, passes)
    names = [(f"arg{place}", value) for place, value in enumerate(ctx.inputs)]
    table = lowering_table(ctx.plan.lowered_for)
    lowered = lower(graph, names, ctx.info.fake_mode, ctx.device, table)
    run(PLACE_PASSES, lowered, pass_context(ctx))
    outputs = output_layouts(lowered, ctx, layouts)
    return link(Lowered(lowered), FrontEnd(lowered, ctx, outputs, passes, graph))


def _interpreted(graph: Graph, ctx: Context, layouts: tuple[None, ...]) -> Runner:
    """Return a runner that interprets the ops one by one, as the last fallback."""
    bare = fx.Graph()
    for place, value in enumerate(ctx.inputs):
        bare.placeholder(f"arg{place}").meta["val"] = value
    bare.output(())
    gm = fx.GraphModule(torch.nn.Module(), bare)
    program = InterpretedProgram(graph, ctx.device, None, ctx.fallbacks)
    policy = recording_policy(ctx, ctx.info.num_calls)
    return make_runner(program, gm, ctx, policy, output_layouts(gm, ctx, layouts), RunnerOptions())


def _check_feeds(graph: Graph, count: int) -> None:
    """Raise `BadGraph` if the graph reads an argument that does not exist."""
    feeds = list(graph.feeds.values())
    numbers = [feed.index for feed in feeds if isinstance(feed, ArgumentFeed)]
    numbers += [index for feed in feeds if isinstance(feed, PackFeed) for index in feed.indices]
    numbers += [result.base for result in graph.results if isinstance(result, AliasResult)]
    if any(not 0 <= number < count for number in numbers):
        raise BadGraph(
            f"{graph.name} reads a nonexistent argument", got=f"argument indices {numbers}, {count} arguments"
        )


def _fixed(each: InputSpec) -> list[int]:
    sizes = [size for size in each.sizes if isinstance(size, int)]
    if len(sizes) != len(each.sizes):
        raise BadGraph(f"state {each.state!r} must have fixed sizes", got=str(list(each.sizes)))
    return sizes


def _on(result: Result, device: torch.device) -> Result:
    if isinstance(result, TensorResult | AliasResult) and result.layout is not None:
        return replace(result, layout=replace(result.layout, device=device))
    return result


_WORDS = {INT4: (torch.uint8, torch.int32), **dict.fromkeys(FP4, (torch.uint8,))}
"""The dtypes in which torch packs 4-bit values, along the last dim."""


def _one_per_element(each: InputSpec, value: torch.Tensor) -> torch.Tensor:
    """Return a tensor of 4-bit values with one value per element; unpack it if needed."""
    if value.dtype == dtypes.SMALL[each.dtype]:
        return value
    if value.dtype in _WORDS[each.dtype] and value.ndim:
        return unpack(value.contiguous(), each.dtype)
    words = " or ".join(map(str, _WORDS[each.dtype]))
    raise BadCall(
        f"argument {each.title} must have {dtypes.BY_RUNTIME[each.dtype].name} values",
        got=str(value.dtype),
        next=f"pass {dtypes.SMALL[each.dtype]} with one value per element, or {words} with packed values",
    )


def _written(graph: Graph) -> list[int]:
    """Return the indices of arguments that the graph mutates."""
    targets = [op.inputs[0].op for op in graph.ops if op.type == "Assign" and op.inputs]
    feeds = [
        graph.feeds.get(op.name) for op in (*targets, *graph.inputs) if op in targets or op.type == "RefData"
    ]
    return sorted({feed.index for feed in feeds if isinstance(feed, ArgumentFeed)})


def _number(each: InputSpec, leaves: Mapping[str, Any]) -> int:
    value = leaves.get(each.at)
    if isinstance(value, torch.Tensor) and value.ndim == 0:
        value = value.item()
    if not isinstance(value, int):
        raise BadCall(f"argument {each.title} must be an integer", got=repr(value))
    return int(value)


def _take_weights(graph: Graph, first: int, names: Sequence[str], device: torch.device) -> list[torch.Tensor]:
    """Turn constants that were weights, and large ones, into arguments: code does not contain them."""
    weights: list[torch.Tensor] = []
    for op in graph.ops:
        value = op.attrs.get("value")
        if op.type != "Const" or not isinstance(value, TensorAttr) or value.form is not None:
            continue
        tensor = value.value
        if tensor.is_quantized or (op.name not in names and tensor.nbytes < LARGE):
            continue
        _become_input(graph, op, first + len(weights))
        weights.append(tensor.to(device))
    return weights


def _become_input(graph: Graph, op: Op, index: int) -> None:
    dtype = op.outputs[0].dtype
    op.type, op.attrs = "Data", {"index": Int(index)}
    op.slots = [Slot(Desc("x"), None)]
    op.outputs[0].desc = Desc("y", dtype=dtype)
    graph.feeds[op.name] = ArgumentFeed(index)
