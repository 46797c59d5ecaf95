"""Implement `torchair.debug.compare`: run a model eagerly and through every stage of its compile."""

from __future__ import annotations

import contextlib
import copy
import inspect
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch import fx

from torchair.backend.dynamo.aot import compile_dynamo
from torchair.backend.pipeline.context import CompileFxArgs
from torchair.backend.settings.settings import Settings, checked, resolve_settings
from torchair.compare.base.culprit import Culprit, LocatedMismatch
from torchair.compare.base.graph_history import COMPILED, TRACE
from torchair.compare.base.replay_call import frozen
from torchair.compare.base.tolerances import Errors, Pair, tolerances_of
from torchair.compare.report import Comparison, Finding, module_of
from torchair.compare.repro_script import make_repro
from torchair.compare.stage_comparison import ComparisonOptions, StageComparison, StageRow, compare_stages
from torchair.configs.compiler_config import CompilerConfig
from torchair.configs.resolve import Config
from torchair.core.errors import BadOption, NotPossible, first_line
from torchair.core.source_location import source_of
from torchair.core.torch_private.compilers.aot_autograd import compile_apart, isolated_dynamo
from torchair.core.torch_private.fake.fake_tensors import tree_leaves

AGAINST = ("eager", "float64")
NUMBERS = (torch.Tensor, int, float, complex)


def compare(
    model: Callable[..., Any],
    *args: Any,
    config: Config | None = None,
    tolerances: Pair | Mapping[torch.dtype, Pair] | None = None,
    against: str = "eager",
    dynamic: bool | None = None,
    backward: bool = False,
    every_node: bool = False,
    **kwargs: Any,
) -> Comparison:
    """Run a model eagerly and through every stage of its compile, and find the first stage and node that
    differ.

    All runs are on copies: model, arguments, random state and Dynamo's caches are unchanged afterwards.

    Args:
        model: The model or function.
        *args: Positional arguments of the call.
        config: The configuration to compile with.
        tolerances: A pair (relative, absolute) for all float types, or pairs by dtype.
        against: `"eager"`, or `"float64"` to compare with the graphs computed in double. The second shows
            whether eager or the compiled model is inaccurate.
        backward: Whether to compare the gradients of the sum of all outputs, too.
        dynamic: Passed to `torch.compile`.
        every_node: Whether to compare all nodes of the stages before code generation, even if their outputs
            are right. This finds errors that later ops hide.
        **kwargs: Keyword arguments of the call.

    Returns:
        A `Comparison`: `ok`, the rows of all stages, the first wrong node, and a script that reproduces the
        error.

    Raises:
        NotPossible: The model cannot be copied, compiled or repeated with the same numbers.
        BadOption: An argument is not valid.

    Example:
        >>> comparison = torchair.debug.compare(model, x)
        >>> print(comparison)
    """
    if against not in AGAINST:
        raise BadOption(f"compare does not accept against={against!r}", near=", ".join(AGAINST))
    settings = resolve_settings(checked(CompilerConfig() if config is None else config))
    settings = replace(settings, waits=True)  # wait for optimized programs, to compare them too
    session = ComparisonBackend(
        settings, ComparisonOptions(tolerances_of(tolerances), against == "float64", every_node)
    )
    call = ModelCall(model, args, kwargs, backward)
    with _untouched(), isolated_dynamo(session.backend):
        found = session.run(call, dynamic)
    found.against = against
    if found.first is not None and session.wrong is not None:
        _write_script(found, session.wrong, dynamic)
    return found


def _write_script(found: Comparison, comparison: StageComparison, dynamic: bool | None) -> None:
    try:
        with _untouched():
            found.script = make_repro(comparison, dynamic=dynamic)
    except Exception as error:
        found.notes.append(f"cannot write a script: {type(error).__name__}: {first_line(error)}")
    else:
        found.notes += (
            [] if found.script else ["no script: the graph has control flow, or calls that are not ops"]
        )


@contextlib.contextmanager
def _untouched() -> Iterator[None]:
    """Restore all random states afterwards."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(range(torch.cuda.device_count())):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


@dataclass(frozen=True)
class ModelCall:
    """A model and its arguments, to be called repeatedly on copies."""

    model: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    backward: bool

    def copy(self) -> ModelCall:
        """Copy everything; copies share memory if the originals do."""
        memo: dict[int, Any] = {}
        for value in tree_leaves((self.args, self.kwargs)):
            # A tensor with autograd history cannot be copied with it; the history is not needed.
            if isinstance(value, torch.Tensor) and not value.is_leaf:
                memo[id(value)] = value.detach().clone().requires_grad_(value.requires_grad)
        try:
            model, args, kwargs = copy.deepcopy((self.model, self.args, self.kwargs), memo)
        except Exception as error:
            raise NotPossible(
                f"compare cannot copy the model or an argument: {type(error).__name__}: {first_line(error)}",
                next="pass a model and arguments that copy.deepcopy can copy",
            ) from error
        return ModelCall(model, args, kwargs, self.backward)

    def run(self, run: Callable[..., Any]) -> list[Any]:
        """Return all visible numbers: results, gradients, and the arguments and buffers after the call."""
        torch.manual_seed(SEED)
        random.seed(SEED)
        np.random.seed(SEED)
        if not self.backward:
            with torch.no_grad():
                return self._seen(run(self.model, *self.args, **self.kwargs), [])
        results = run(self.model, *self.args, **self.kwargs)
        sums = [r.abs().sum() if r.is_complex() else r.sum() for r in tree_leaves(results) if _is_trained(r)]
        leaves = [leaf for leaf in self.tensors() if leaf.requires_grad]
        if not sums or not leaves:
            raise NotPossible(
                "compare has nothing to differentiate",
                got=f"{len(sums)} results and {len(leaves)} tensors that require gradients",
                next="omit backward=True, or pass a model in training mode",
            )
        gradients = torch.autograd.grad(torch.stack(sums).sum(), leaves, allow_unused=True)
        return self._seen(results, [gradient for gradient in gradients if gradient is not None])

    def _seen(self, results: Any, gradients: Sequence[Any]) -> list[Any]:
        values = [*tree_leaves(results), *gradients, *self.tensors()]
        return frozen([value for value in values if isinstance(value, NUMBERS)])

    def names(self) -> dict[str, str]:
        """Map the internal names of arguments to the user's names."""
        function = self.model.forward if isinstance(self.model, torch.nn.Module) else self.model
        with contextlib.suppress(ValueError, TypeError):
            known = list(inspect.signature(function).parameters)
            named = {f"args[{place}]": name for place, name in enumerate(known[: len(self.args)])}
            return named | {f"kwargs['{name}']": name for name in self.kwargs}
        return {}

    def tensors(self) -> list[torch.Tensor]:
        """Return the tensors of arguments and model."""
        mine = [value for value in tree_leaves((self.args, self.kwargs)) if isinstance(value, torch.Tensor)]
        owner = getattr(self.model, "__self__", self.model)
        if isinstance(owner, torch.nn.Module):
            mine += [*owner.parameters(), *owner.buffers()]
        return mine


SEED = 20240607


def _is_trained(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _call(model: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call the model. Dynamo stores its caches with this code, so that the code of the model stays clean."""
    return model(*args, **kwargs)


@dataclass
class ComparisonBackend:
    """One comparison: the graphs that Dynamo finds, each with all its stages."""

    settings: Settings
    options: ComparisonOptions
    comparisons: list[StageComparison] = field(default_factory=list[StageComparison])
    is_complete: bool = False
    saved: list[tuple[torch.Tensor, torch.Tensor]] = field(
        default_factory=list[tuple[torch.Tensor, torch.Tensor]]
    )
    own: set[int] = field(default_factory=set[int])  # ids of tensors that are copies
    wrong: StageComparison | None = None

    def __post_init__(self) -> None:
        # Dynamo requires a plain function.
        def backend(gm: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
            return compile_dynamo(gm, inputs, self.settings, {}, self._compile)

        self.backend = backend

    def _compile(
        self, gm: fx.GraphModule, inputs: Sequence[Any], settings: Settings, request: CompileFxArgs
    ) -> StageComparison:
        comparison = compare_stages(gm, inputs, settings, self.options, request)
        comparison.is_complete = self.is_complete
        comparison.before = self._save_tensors
        self.comparisons.append(comparison)
        return comparison

    def _save_tensors(self, args: Sequence[Any]) -> None:
        """Save tensors that a function reaches by closures or globals, which are not copied."""
        known = {id(tensor) for tensor, _ in self.saved}
        others = [arg for arg in args if isinstance(arg, torch.Tensor) and id(arg) not in self.own]
        tensors = [arg for arg in others if id(arg) not in known]
        self.saved += [(tensor, tensor.detach().clone()) for tensor in tensors]

    def _put_back(self) -> None:
        with torch.no_grad():
            for tensor, value in self.saved:
                if not torch.equal(tensor, value):
                    tensor.copy_(value)

    def run(self, call: ModelCall, dynamic: bool | None) -> Comparison:
        """Run the traced graphs with all stages, the model in eager, and the compiled model."""
        # A separate code object: its Dynamo caches are freed with it.
        entry = FunctionType(_call.__code__.replace(), _call.__globals__, "call")
        compiled = compile_apart(entry, backend=self.backend, dynamic=dynamic)
        traced = self._run(call, compiled)
        if not self.comparisons:
            raise NotPossible(
                "Dynamo found no ops to compile in this model",
                next="call torchair.explain to see the reasons",
            )
        eager, again = self._run(call, _call), self._run(call, _call)
        twice = self._whole("eager", TRACE, again, eager)
        if not twice.ok:
            raise NotPossible(
                f"the model returns other numbers in eager when it is called again: {twice.errors}",
                next="make the model deterministic for equal inputs: compare does not reset counters, "
                "caches or generators outside of modules and arguments",
            )
        found = Comparison(stages=[row for comparison in self.comparisons for row in comparison.rows])
        found.notes += [note for comparison in self.comparisons for note in comparison.notes]
        row = self._whole("traced by Dynamo", TRACE, traced, eager)
        found.stages.insert(0, row)
        found.first = self._first(call, row)
        rng_differs = any(comparison.rng_differs for comparison in self.comparisons)
        if found.first is None and not self.options.in_double and not rng_differs:
            self.is_complete = True
            for comparison in self.comparisons:
                comparison.is_complete = True
            row = self._whole("compiled, as a whole", COMPILED, self._run(call, compiled), eager)
            found.stages.append(row)
            if not row.ok:
                why = "each graph itself is right: the code of AOTAutograd or Dynamo around them is wrong"
                found.first = Finding("model", row.stage, COMPILED, Culprit("runtime", "", why), row.errors)
        return found

    def _run(self, call: ModelCall, run: Callable[..., Any]) -> list[Any]:
        mine = call.copy()
        self.own = {id(tensor) for tensor in mine.tensors()}
        try:
            return mine.run(run)
        finally:
            self._put_back()

    def _whole(self, title: str, kind: str, got: Sequence[Any], want: Sequence[Any]) -> StageRow:
        if len(got) != len(want):
            errors = Errors(text=f"{len(got)} results, should be {len(want)}")
        else:
            errors = self.options.judge(list(got), list(want))
        return StageRow("model", title, kind, errors)

    def _first(self, call: ModelCall, traced: StageRow) -> Finding | None:
        """Return the first wrong stage of the first graph that has one, otherwise the error of tracing."""
        for comparison in self.comparisons:
            if comparison.wrong is not None:
                self.wrong = comparison
                return _finding(*comparison.wrong, call.names())
        if traced.ok:
            return None
        why = "the traced graphs, run op by op, return other values than the model"
        return Finding(
            "model", traced.stage, TRACE, Culprit(TRACE, "Dynamo or AOTAutograd", why), traced.errors
        )


def _finding(row: StageRow, mismatch: LocatedMismatch, names: Mapping[str, str]) -> Finding:
    node, name = mismatch.node, mismatch.culprit.name
    source = "" if node is None else source_of(node)
    for ours, theirs in names.items():
        name = name.replace(ours, theirs)
    return Finding(
        row.graph,
        row.stage,
        row.kind,
        replace(mismatch.culprit, name=name),
        mismatch.errors if not mismatch.errors.ok else row.errors,
        "" if node is None else node.name,
        mismatch.op,
        module_of(node),
        ""
        if source.startswith(__file__)
        else source,  # a model of torch's own layers has no line in user code
        tuple(call.name for call in mismatch.nodes),
        row.eager,
    )
