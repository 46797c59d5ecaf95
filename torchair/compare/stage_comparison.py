"""Run one graph of AOTAutograd through every stage of its compile, with the arguments of a real call, and
locate the error in the first wrong stage.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import fx

from torchair.backend.pipeline.compile import back_end, compile_fx, front_end
from torchair.backend.pipeline.context import CompileFxArgs, Context, Fallbacks
from torchair.backend.pipeline.ir import strip_outputs
from torchair.backend.pipeline.plan import new_context
from torchair.backend.settings.settings import Settings
from torchair.capture import Runner
from torchair.compare.base.check_replay import calls_of, other_inputs, run_calls
from torchair.compare.base.culprit import Culprit, Judge, LocatedMismatch, locate_in_pass, node_of
from torchair.compare.base.float64_reference import Float64Interpreter, float64_reference
from torchair.compare.base.graph_history import (
    COMPILED,
    CONVERSION,
    FX_PASS,
    GE_PASS,
    LOWERING,
    REPLAYED,
    GraphHistory,
    Snapshot,
)
from torchair.compare.base.replay_call import (
    CallOutcome,
    RecordedCall,
    Values,
    is_uninitialized,
    random_state,
    run_fx,
    set_random_state,
    with_lists,
)
from torchair.compare.base.tolerances import EXACT, Errors, Pair, measure, spec
from torchair.compare.locate.locate_converter import locate_wrong_converter
from torchair.compare.locate.locate_lowering import LoweredGraph, locate_wrong_lowering
from torchair.compare.locate.minimize_codegen import CODE, Recompiler, locate_wrong_code
from torchair.core.errors import NotPossible, first_line
from torchair.core.source_location import source_of
from torchair.core.torch_private.compilers.inductor import inductor_config
from torchair.fxgraph.edit import copy_graph
from torchair.fxgraph.effects import draws, written_by
from torchair.fxgraph.fake_values import device_of
from torchair.fxgraph.layout import root_of
from torchair.fxgraph.placeholders import placeholders
from torchair.ge.graph import Graph

GENERATORS = ("eager", "inductor", "native")
NO_WORSE = 2.0
"""A stage may be this many times as far from the float64 reference as eager."""


@dataclass(frozen=True)
class ComparisonOptions:
    """Tolerances, and the reference to compare with."""

    tolerances: Mapping[torch.dtype, Pair]
    in_double: bool = False
    every_node: bool = False

    def judge(self, got: Any, want: Any) -> Errors:
        """Measure how far a value is from another of the same dtype."""
        return measure(got, want, self.tolerances)

    def against_float64(self, got: Any, want: Any) -> Errors:
        """Measure how far a value is from one computed in double."""
        return measure(got, want, self.tolerances, wider=True)


@dataclass(frozen=True)
class StageRow:
    """One stage of one graph, with its errors and those of eager against the float64 reference."""

    graph: str
    stage: str
    kind: str
    errors: Errors
    eager: Errors | None = None

    @property
    def ok(self) -> bool:
        """Whether the stage is within tolerance, or not much further from the reference than eager."""
        if self.errors.ok or self.eager is None or self.errors.text:
            return self.errors.ok
        return self.errors.excess <= NO_WORSE * self.eager.excess


def first_wrong(history: GraphHistory, recorded: RecordedCall, judge: Judge) -> Snapshot | None:
    """Return the first stage with outputs that differ from those of the original graph."""
    want = history.steps[0].run(recorded)
    for step in history.steps[1:]:
        got = step.run(recorded)
        if got.error or not judge([got.outputs, got.args], [want.outputs, want.args]).ok:
            return step
    return None


def searched(search: Callable[[], LocatedMismatch], culprit: Culprit) -> LocatedMismatch:
    """Return the result of a search; if the search fails, blame the stage as a whole."""
    try:
        return search()
    except Exception as error:
        why = f"cannot locate the node: {type(error).__name__}: {first_line(error)}"
        return LocatedMismatch(replace(culprit, why=why))


def _has_gaps(node: fx.Node) -> bool:
    """Return whether a node reads or returns a tensor that is not contiguous."""
    values = [other.meta.get("val") for other in (node, *node.all_input_nodes)]
    tensors = [value for many in values for value in (many if isinstance(many, tuple | list) else [many])]
    return any(isinstance(t, torch.Tensor) and not t.is_contiguous() for t in tensors)


def wrong_fake_kernel(gm: fx.GraphModule, values: Values) -> LocatedMismatch | None:
    """Return the first op with wrong dtype or sizes in its fake kernel, which compiled code relies on."""
    for node in gm.graph.nodes:
        predicted, got = node.meta.get("val"), values.get(node.name)
        if (
            node.op != "call_function"
            or not isinstance(predicted, torch.Tensor)
            or not isinstance(got, torch.Tensor)
        ):
            continue
        sizes = zip(predicted.shape, got.shape, strict=False)
        is_known = predicted.dim() == got.dim() and all(a == b for a, b in sizes if isinstance(a, int))
        if predicted.dtype != got.dtype or not is_known:
            text = f"{spec(got)}, but its fake kernel returns {spec(predicted)}"
            culprit = Culprit("fake kernel", str(node.target), text)
            return LocatedMismatch(culprit, node, str(node.target), Errors(text=text), gm, (node,))
    return None


def trace_stages(gm: fx.GraphModule, inputs: Sequence[Any], settings: Settings) -> GraphHistory:
    """Return the graphs of a compile, up to code generation."""
    history = GraphHistory()
    prepared, ctx = new_context(gm, inputs, settings, CompileFxArgs(observe=history))
    back_end(front_end(prepared, ctx, strip_outputs(prepared, {})))
    return history


@dataclass
class StageComparison:
    """A compiled graph and all its stages. It is called like a runner and returns the results of eager."""

    gm: fx.GraphModule
    history: GraphHistory
    runner: Runner
    ctx: Context
    options: ComparisonOptions
    name: str = ""
    rows: list[StageRow] = field(default_factory=list[StageRow])
    wrong: tuple[StageRow, LocatedMismatch] | None = None
    notes: list[str] = field(default_factory=list[str])  # about eager and the float64 reference
    recorded: RecordedCall | None = None
    rng_differs: bool = False  # random numbers differ from eager; later stages are not compared
    is_complete: bool = False  # by the runner: all stages have been compared
    before: Callable[[Sequence[Any]], None] = lambda args: None  # called before every call

    _boxed_call = True

    @property
    def boxed(self) -> StageComparison:
        """The callable for AOTAutograd."""
        return self

    def fast_path(self, written: bytes) -> None:
        """Return None: there is no fast path."""

    def __call__(self, args: list[Any]) -> Any:
        mine = list(args)
        args.clear()
        self.before(mine)
        if self.is_complete:
            with same_random(self.gm):
                return self.runner.boxed(mine)
        if self.recorded is None:
            random = random_state(self.ctx.device)
            self.examine(mine)
            set_random_state(random)
        outputs = run_fx(self.gm)(mine)
        # AOTAutograd expects plain tensors, also for inputs that the graph returns.
        return [out.detach() if isinstance(out, torch.nn.Parameter) else out for out in outputs]

    def examine(self, args: Sequence[Any]) -> None:
        """Run all stages on copies of these arguments; open the first that is wrong."""
        recorded = self.recorded = RecordedCall(args, self.ctx.device)
        with same_random(self.gm):
            self._compare_steps(recorded)
            if self.wrong is None and not self.rng_differs:
                self._compare_runner(recorded)

    def _compare_steps(self, recorded: RecordedCall) -> None:
        given = self.history.steps[0]
        eager = given.run(recorded)
        if eager.error:
            raise NotPossible(
                f"the graph that AOTAutograd traced raises {eager.error}", next="run the model eagerly"
            )
        values = recorded.values(self.history.given).values
        self._same_twice(eager, given.run(recorded), recorded, values)
        true, double = (
            float64_reference(recorded, self.history.given) if self.options.in_double else (eager, None)
        )
        if double is not None and double.narrow:
            self.notes.append(
                f"not computed in double, because a kernel is missing: {', '.join(double.narrow)}"
            )
        for step in self.history.steps:
            outcome = eager if step is given else step.run(recorded)
            row = self._row(step.name, step.kind, outcome, true, eager if double else None)
            if step is given and (fake_mismatch := wrong_fake_kernel(self.history.given, values)) is not None:
                self.wrong = replace(row, errors=fake_mismatch.errors), fake_mismatch
                self.rows[-1] = self.wrong[0]
            if step is given and double is not None and not row.errors.ok:
                self.notes += self._eager_exceeds(recorded, double)
            if step is not given and self.wrong is None and (not row.ok or self.options.every_node):
                self._locate_in_stage(step, row, recorded)
            if self.rng_differs:
                return

    def _same_twice(
        self, eager: CallOutcome, again: CallOutcome, recorded: RecordedCall, values: Values
    ) -> None:
        """Raise if eager does not return the same numbers twice, because nothing could be compared."""
        if self._errors(again, eager).ok:
            return
        later = recorded.values(self.history.given).values
        calls = [
            node
            for node in self.history.given.graph.nodes
            if node.name in values and not is_uninitialized(node)
        ]
        node = next((n for n in calls if not self.options.judge(later[n.name], values[n.name]).ok), None)
        where = "an op" if node is None else f"{node.target} ({node.name}) {source_of(node)}".strip()
        raise NotPossible(
            f"{where} returns other numbers when it is called again with the same inputs",
            next="make it deterministic, and initialize all memory that it reads",
        )

    def _locate_in_stage(self, step: Snapshot, row: StageRow, recorded: RecordedCall) -> None:
        """Locate the first wrong node of a stage; there may be none if its outputs are right."""
        mismatch = searched(lambda: self._locate(step, recorded), Culprit(step.kind, step.title))
        if (row.ok and mismatch.errors.ok) or self._is_other_random_order(mismatch):
            return
        if row.ok:
            row = replace(row, errors=mismatch.errors)
            self.rows[-1] = row
        self.wrong = row, mismatch

    def _is_other_random_order(self, mismatch: LocatedMismatch) -> bool:
        """Return whether the mismatch comes from another order of random numbers, which is not an error.

        If memory is not in the order of the elements, eager draws in memory order. Others draw in element
        order, or in the order of their own memory.
        """
        node = mismatch.node
        if node is None or not draws(node) or (mismatch.culprit.kind != CODE and not _has_gaps(node)):
            return False
        self.rng_differs = True
        self.rows[-1] = replace(self.rows[-1], errors=EXACT, eager=None)
        where = f"{node.name} ({node.target}) {source_of(node)}".strip()
        stage = self.rows[-1].stage
        self.notes.append(
            f"{stage}: random numbers differ from those of eager at {where}; not compared after that"
        )
        return True

    def _row(
        self, title: str, kind: str, got: CallOutcome, true: CallOutcome, eager: CallOutcome | None
    ) -> StageRow:
        errors = self._errors(got, true)
        row = StageRow(self.name, title, kind, errors, None if eager is None else self._errors(eager, true))
        self.rows.append(row)
        return row

    def _errors(self, got: CallOutcome, true: CallOutcome) -> Errors:
        if got.error:
            return Errors(text=f"raises {got.error}")
        judge = self.options.against_float64 if self.options.in_double else self.options.judge
        pairs = [(a, b) for a, b in zip(got.outputs, true.outputs, strict=True) if b is not None]
        pairs += [(got.args[place], true.args[place]) for place in self._watched if place < len(true.args)]
        return judge([a for a, _ in pairs], [b for _, b in pairs])

    @cached_property
    def _watched(self) -> list[int]:
        """Return the arguments to check after a call: all except parameters that are never written."""
        gm = self.history.given
        written = {root_of(target)[0] for node in gm.graph.nodes for target in written_by(node)}
        inputs = enumerate(placeholders(gm))
        return [
            place for place, node in inputs if place not in self.ctx.request.static_inputs or node in written
        ]

    def _compare_runner(self, recorded: RecordedCall) -> None:
        """Compare the program alone, on these and on other arguments, and then each call of its runner."""
        program, lists = self.runner.program, self.history.last(fx.GraphModule)

        def directly(args: list[Any]) -> list[Any]:
            return program(with_lists(lists, args))

        others = RecordedCall(other_inputs(self.runner, run_fx(self.gm), recorded), self.ctx.device)
        others.random = recorded.random
        for title, where in (("", recorded), (", other inputs", others)):
            row = self._program_row(f"compiled by {program.kind}{title}", where, directly)
            if not row.ok:
                culprit = Culprit(COMPILED, program.kind)
                mismatch = searched(partial(self._locate_in_code, where), culprit)
                if not self._is_other_random_order(mismatch):
                    self.wrong = row, mismatch
                return
        # In double, only the program itself is as accurate as the program, which has just been found right.
        right = directly if self.options.in_double else run_fx(self.gm)
        errors, culprit = run_calls(self.runner, right, (recorded, others), self.options.judge)
        row = StageRow(self.name, f"called {calls_of(self.runner)} times", REPLAYED, errors)
        self.rows.append(row)
        if culprit is not None:
            self.wrong = row, LocatedMismatch(culprit, errors=errors, graph=self.history.given)

    def _program_row(self, title: str, recorded: RecordedCall, call: Callable[[list[Any]], Any]) -> StageRow:
        eager = recorded.run(run_fx(self.gm))
        if not self.options.in_double:
            return self._row(title, COMPILED, recorded.run(call), eager, None)
        return self._row(title, COMPILED, recorded.run(call), float64_reference(recorded, self.gm)[0], eager)

    @property
    def made_from(self) -> fx.GraphModule:
        """The FX graph that was converted, or compiled without conversion."""
        steps = self.history.steps
        kinds = [step.kind for step in steps]
        end = kinds.index(CONVERSION) if CONVERSION in kinds else len(steps)
        graph = steps[end - 1].graph
        assert isinstance(graph, fx.GraphModule), "FX graphs come before conversion"
        return graph

    def _locate(self, step: Snapshot, recorded: RecordedCall) -> LocatedMismatch:
        judge, graph = self.options.judge, step.graph
        if step.kind in (FX_PASS, GE_PASS):
            return locate_in_pass(self.history.before(step), step, recorded, judge, self.made_from)
        if step.kind == CONVERSION:
            assert isinstance(graph, Graph), "conversion makes a GE graph"
            return locate_wrong_converter(graph, self.made_from, recorded, judge, self.ctx.settings)
        assert step.kind == LOWERING, f"a stage of kind {step.kind} cannot be wrong"
        return locate_wrong_lowering(
            LoweredGraph(self.history.last(Graph), self.made_from, self.ctx), recorded, judge
        )

    def _locate_in_code(self, recorded: RecordedCall) -> LocatedMismatch:
        program = self.runner.program
        lowered = next(
            (s.graph for s in self.history.steps if s.kind == LOWERING), self.history.last(fx.GraphModule)
        )
        if program.kind not in GENERATORS or not isinstance(lowered, fx.GraphModule):
            return LocatedMismatch(
                Culprit(COMPILED, program.kind, "the graph is right op by op"), graph=self.made_from
            )
        settings = replace(self.ctx.settings, codegen=program.kind)
        ctx = replace(self.ctx, settings=settings)
        generator = Recompiler(lowered, recorded.values(lowered).values, ctx, self.options.judge)
        mismatch = locate_wrong_code(generator, recorded, program)
        return replace(mismatch, node=self._fx_node(mismatch.node))

    def _fx_node(self, node: fx.Node | None) -> fx.Node | None:
        """Return the node of the FX graph that a lowered node comes from."""
        graph: Graph | None = self.history.last(Graph)
        name = "" if node is None else node.meta.get("ge_op", "")
        if graph is None or name not in graph.by_name:
            return node
        return node_of(graph.by_name[name], self.made_from) or node

    def _eager_exceeds(self, recorded: RecordedCall, double: Float64Interpreter) -> Iterator[str]:
        """Yield the first node at which eager itself is wrong."""
        values = recorded.values(self.history.given).values
        for node in self.history.given.graph.nodes:
            if node.op != "call_function" or is_uninitialized(node):
                continue
            errors = self.options.against_float64(values[node.name], double.values[node.name])
            if not errors.ok:
                where = f"{node.name} ({node.target}) {source_of(node)}".strip()
                yield f"eager itself exceeds the tolerance at {where}: {errors}"
                return


def compare_stages(
    gm: fx.GraphModule,
    inputs: Sequence[Any],
    settings: Settings,
    options: ComparisonOptions,
    request: CompileFxArgs,
) -> StageComparison:
    """Compile a graph of AOTAutograd's as the backend does, and keep every stage."""
    history = GraphHistory()
    request = replace(request, debug_files=None, has_guards=True)
    random = random_state(device_of(gm))
    with same_random(gm):
        runner = compile_fx(gm, inputs, settings, replace(request, observe=history))
    set_random_state(random)
    history.is_closed = True
    # As it was compiled in the end: without the IR, if there was none.
    fallbacks = Fallbacks(without_ir=not history.has(CONVERSION))
    _, ctx = new_context(gm, inputs, settings, replace(request, buckets=None), fallbacks=fallbacks)
    return StageComparison(copy_graph(gm), history, runner, ctx, options, runner.strategy.name)


def same_random(gm: fx.GraphModule) -> contextlib.AbstractContextManager[Any]:
    """Context manager: compiled code draws the random numbers of eager, if the graph draws any."""
    if not any(map(draws, gm.graph.nodes)):
        return contextlib.nullcontext()
    return inductor_config.patch({"fallback_random": True})
