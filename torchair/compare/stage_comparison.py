"""One graph of AOTAutograd's through every stage of its compile: all stages on the arguments of a real call,
and the first wrong one opened up.
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
from torchair.compare.base.check_replay import calls_of, other_inputs, play
from torchair.compare.base.culprit import Culprit, Judge, LocatedMismatch, blame_pass, node_of
from torchair.compare.base.float64_reference import Double, truth
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
    is_unset,
    random_state,
    run_fx,
    set_random_state,
    with_lists,
)
from torchair.compare.base.tolerances import EXACT, Errors, Pair, measure, spec
from torchair.compare.locate.locate_converter import blame_conversion
from torchair.compare.locate.locate_lowering import Lowered, blame_lowering
from torchair.compare.locate.minimize_codegen import CODE, Recompiler, blame_code
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
"""Against doubles, a stage may be so many times as far off as eager is."""


@dataclass(frozen=True)
class Yardstick:
    """What counts as equal, and what with."""

    tolerances: Mapping[torch.dtype, Pair]
    in_double: bool = False
    every_node: bool = False

    def judge(self, got: Any, want: Any) -> Errors:
        """How far a value is from another of the same dtype."""
        return measure(got, want, self.tolerances)

    def against_truth(self, got: Any, want: Any) -> Errors:
        """How far a value is from one computed in double."""
        return measure(got, want, self.tolerances, wider=True)


@dataclass(frozen=True)
class StageRow:
    """One stage of one graph: how far what it gave is from what it should be. `eager` is how far eager is
    from it, where the truth was computed in double.
    """

    graph: str
    stage: str
    kind: str
    errors: Errors
    eager: Errors | None = None

    @property
    def ok(self) -> bool:
        """Within tolerance, or not much further from the truth than eager?"""
        if self.errors.ok or self.eager is None or self.errors.text:
            return self.errors.ok
        return self.errors.excess <= NO_WORSE * self.eager.excess


def first_wrong(trail: GraphHistory, scene: RecordedCall, judge: Judge) -> Snapshot | None:
    """The first step whose outputs are not those of the graph that was given."""
    want = trail.steps[0].run(scene)
    for step in trail.steps[1:]:
        got = step.run(scene)
        if got.error or not judge([got.outputs, got.args], [want.outputs, want.args]).ok:
            return step
    return None


def searched(search: Callable[[], LocatedMismatch], culprit: Culprit) -> LocatedMismatch:
    """What a search finds; where it fails, the stage is to blame as a whole."""
    try:
        return search()
    except Exception as error:
        why = f"the search for the node ended in {type(error).__name__}: {first_line(error)}"
        return LocatedMismatch(replace(culprit, why=why))


def _has_gaps(node: fx.Node) -> bool:
    """Is a value that a node reads or makes not contiguous?"""
    values = [other.meta.get("val") for other in (node, *node.all_input_nodes)]
    tensors = [value for many in values for value in (many if isinstance(many, tuple | list) else [many])]
    return any(isinstance(t, torch.Tensor) and not t.is_contiguous() for t in tensors)


def lying_fake(gm: fx.GraphModule, values: Values) -> LocatedMismatch | None:
    """The first op that gives another dtype or other sizes than its fake kernel says: what is compiled rests
    on that.
    """
    for node in gm.graph.nodes:
        said, got = node.meta.get("val"), values.get(node.name)
        if (
            node.op != "call_function"
            or not isinstance(said, torch.Tensor)
            or not isinstance(got, torch.Tensor)
        ):
            continue
        sizes = zip(said.shape, got.shape, strict=False)
        is_known = said.dim() == got.dim() and all(a == b for a, b in sizes if isinstance(a, int))
        if said.dtype != got.dtype or not is_known:
            text = f"{spec(got)}, its fake kernel says {spec(said)}"
            culprit = Culprit("fake kernel", str(node.target), text)
            return LocatedMismatch(culprit, node, str(node.target), Errors(text=text), gm, (node,))
    return None


def walk(gm: fx.GraphModule, inputs: Sequence[Any], settings: Settings) -> GraphHistory:
    """The graphs of a compile, up to where code would be generated."""
    trail = GraphHistory()
    prepared, ctx = new_context(gm, inputs, settings, CompileFxArgs(observe=trail))
    back_end(front_end(prepared, ctx, strip_outputs(prepared, {})))
    return trail


@dataclass
class StageComparison:
    """A compiled graph, and all that it was made from. Called like a runner, it gives what eager gives."""

    gm: fx.GraphModule
    trail: GraphHistory
    runner: Runner
    ctx: Context
    yardstick: Yardstick
    name: str = ""
    rows: list[StageRow] = field(default_factory=list[StageRow])
    wrong: tuple[StageRow, LocatedMismatch] | None = None
    notes: list[str] = field(default_factory=list[str])  # about eager, and about the truth
    scene: RecordedCall | None = None
    draws_otherwise: bool = False  # than eager does: what comes behind that is not compared
    is_served: bool = False  # by the runner: all stages have been compared
    before: Callable[[Sequence[Any]], None] = lambda args: None  # is told of every call

    _boxed_call = True

    @property
    def boxed(self) -> StageComparison:
        """What AOTAutograd calls."""
        return self

    def fast_path(self, written: bytes) -> None:
        """There is none."""

    def __call__(self, args: list[Any]) -> Any:
        mine = list(args)
        args.clear()
        self.before(mine)
        if self.is_served:
            with same_random(self.gm):
                return self.runner.boxed(mine)
        if self.scene is None:
            random = random_state(self.ctx.device)
            self.examine(mine)
            set_random_state(random)
        outputs = run_fx(self.gm)(mine)
        # AOTAutograd wants plain tensors, also of what the graph hands through.
        return [out.detach() if isinstance(out, torch.nn.Parameter) else out for out in outputs]

    def examine(self, args: Sequence[Any]) -> None:
        """Run all stages on copies of these arguments; open the first that is wrong."""
        scene = self.scene = RecordedCall(args, self.ctx.device)
        with same_random(self.gm):
            self._compare_steps(scene)
            if self.wrong is None and not self.draws_otherwise:
                self._compare_runner(scene)

    def _compare_steps(self, scene: RecordedCall) -> None:
        given = self.trail.steps[0]
        eager = given.run(scene)
        if eager.error:
            raise NotPossible(
                f"the graph that AOTAutograd traced raises {eager.error}", next="run the model eagerly"
            )
        values = scene.values(self.trail.given).values
        self._same_twice(eager, given.run(scene), scene, values)
        true, double = truth(scene, self.trail.given) if self.yardstick.in_double else (eager, None)
        if double is not None and double.narrow:
            self.notes.append(f"not computed in double, for want of a kernel: {', '.join(double.narrow)}")
        for step in self.trail.steps:
            outcome = eager if step is given else step.run(scene)
            row = self._row(step.name, step.kind, outcome, true, eager if double else None)
            if step is given and (liar := lying_fake(self.trail.given, values)) is not None:
                self.wrong = replace(row, errors=liar.errors), liar
                self.rows[-1] = self.wrong[0]
            if step is given and double is not None and not row.errors.ok:
                self.notes += self._eager_leaves(scene, double)
            if step is not given and self.wrong is None and (not row.ok or self.yardstick.every_node):
                self._open(step, row, scene)
            if self.draws_otherwise:
                return

    def _same_twice(
        self, eager: CallOutcome, again: CallOutcome, scene: RecordedCall, values: Values
    ) -> None:
        """Without numbers that can be computed again there is nothing to compare with."""
        if self._errors(again, eager).ok:
            return
        later = scene.values(self.trail.given).values
        calls = [node for node in self.trail.given.graph.nodes if node.name in values and not is_unset(node)]
        node = next((n for n in calls if not self.yardstick.judge(later[n.name], values[n.name]).ok), None)
        where = "an op" if node is None else f"{node.target} ({node.name}) {source_of(node)}".strip()
        raise NotPossible(
            f"{where} gives other numbers when it is called again with the same inputs",
            next="compare needs ops that compute the same twice, and no memory that nobody wrote",
        )

    def _open(self, step: Snapshot, row: StageRow, scene: RecordedCall) -> None:
        """Find the first wrong node of a step; there need not be one where its outputs are right."""
        blame = searched(lambda: self._blame(step, scene), Culprit(step.kind, step.title))
        if (row.ok and blame.errors.ok) or self._is_other_draw(blame):
            return
        if row.ok:
            row = replace(row, errors=blame.errors)
            self.rows[-1] = row
        self.wrong = row, blame

    def _is_other_draw(self, blame: LocatedMismatch) -> bool:
        """Where memory is not in the order of the elements, eager draws in that of the memory, and others in
        that of the elements, or of memory of their own: other numbers, and nobody's fault.
        """
        node = blame.node
        if node is None or not draws(node) or (blame.culprit.kind != CODE and not _has_gaps(node)):
            return False
        self.draws_otherwise = True
        self.rows[-1] = replace(self.rows[-1], errors=EXACT, eager=None)
        where = f"{node.name} ({node.target}) {source_of(node)}".strip()
        stage = self.rows[-1].stage
        self.notes.append(
            f"{stage}: other random numbers than eager's at {where}; not compared from there on"
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
        judge = self.yardstick.against_truth if self.yardstick.in_double else self.yardstick.judge
        pairs = [(a, b) for a, b in zip(got.outputs, true.outputs, strict=True) if b is not None]
        pairs += [(got.args[place], true.args[place]) for place in self._watched if place < len(true.args)]
        return judge([a for a, _ in pairs], [b for _, b in pairs])

    @cached_property
    def _watched(self) -> list[int]:
        """The arguments to look at after a call: all but parameters that nobody writes."""
        gm = self.trail.given
        written = {root_of(target)[0] for node in gm.graph.nodes for target in written_by(node)}
        inputs = enumerate(placeholders(gm))
        return [
            place for place, node in inputs if place not in self.ctx.request.static_inputs or node in written
        ]

    def _compare_runner(self, scene: RecordedCall) -> None:
        """The program by itself, on these arguments and on others; then behind its runner, call by call."""
        program, lists = self.runner.program, self.trail.last(fx.GraphModule)

        def directly(args: list[Any]) -> list[Any]:
            return program(with_lists(lists, args))

        others = RecordedCall(other_inputs(self.runner, run_fx(self.gm), scene), self.ctx.device)
        others.random = scene.random
        for title, where in (("", scene), (", other inputs", others)):
            row = self._program_row(f"compiled by {program.kind}{title}", where, directly)
            if not row.ok:
                culprit = Culprit(COMPILED, program.kind)
                blame = searched(partial(self._blame_code, where), culprit)
                if not self._is_other_draw(blame):
                    self.wrong = row, blame
                return
        # In double nobody else is as right as the program, which has just been found right.
        right = directly if self.yardstick.in_double else run_fx(self.gm)
        errors, culprit = play(self.runner, right, (scene, others), self.yardstick.judge)
        row = StageRow(self.name, f"called {calls_of(self.runner)} times", REPLAYED, errors)
        self.rows.append(row)
        if culprit is not None:
            self.wrong = row, LocatedMismatch(culprit, errors=errors, graph=self.trail.given)

    def _program_row(self, title: str, scene: RecordedCall, call: Callable[[list[Any]], Any]) -> StageRow:
        eager = scene.run(run_fx(self.gm))
        if not self.yardstick.in_double:
            return self._row(title, COMPILED, scene.run(call), eager, None)
        return self._row(title, COMPILED, scene.run(call), truth(scene, self.gm)[0], eager)

    @property
    def made_from(self) -> fx.GraphModule:
        """The FX graph that was converted, or compiled where none was."""
        steps = self.trail.steps
        kinds = [step.kind for step in steps]
        end = kinds.index(CONVERSION) if CONVERSION in kinds else len(steps)
        graph = steps[end - 1].graph
        assert isinstance(graph, fx.GraphModule), "FX graphs come before conversion"
        return graph

    def _blame(self, step: Snapshot, scene: RecordedCall) -> LocatedMismatch:
        judge, graph = self.yardstick.judge, step.graph
        if step.kind in (FX_PASS, GE_PASS):
            return blame_pass(self.trail.before(step), step, scene, judge, self.made_from)
        if step.kind == CONVERSION:
            assert isinstance(graph, Graph), "conversion makes a GE graph"
            return blame_conversion(graph, self.made_from, scene, judge, self.ctx.settings)
        assert step.kind == LOWERING, f"{step.kind} is no stage that could be wrong"
        return blame_lowering(Lowered(self.trail.last(Graph), self.made_from, self.ctx), scene, judge)

    def _blame_code(self, scene: RecordedCall) -> LocatedMismatch:
        program = self.runner.program
        lowered = next(
            (s.graph for s in self.trail.steps if s.kind == LOWERING), self.trail.last(fx.GraphModule)
        )
        if program.kind not in GENERATORS or not isinstance(lowered, fx.GraphModule):
            return LocatedMismatch(
                Culprit(COMPILED, program.kind, "the graph is right op by op"), graph=self.made_from
            )
        settings = replace(self.ctx.settings, codegen=program.kind)
        ctx = replace(self.ctx, settings=settings)
        generator = Recompiler(lowered, scene.values(lowered).values, ctx, self.yardstick.judge)
        blame = blame_code(generator, scene, program)
        return replace(blame, node=self._fx_node(blame.node))

    def _fx_node(self, node: fx.Node | None) -> fx.Node | None:
        """The node of the FX graph that a lowered one comes from."""
        graph: Graph | None = self.trail.last(Graph)
        name = "" if node is None else node.meta.get("ge_op", "")
        if graph is None or name not in graph.by_name:
            return node
        return node_of(graph.by_name[name], self.made_from) or node

    def _eager_leaves(self, scene: RecordedCall, double: Double) -> Iterator[str]:
        """The first node at which eager itself is not right."""
        values = scene.values(self.trail.given).values
        for node in self.trail.given.graph.nodes:
            if node.op != "call_function" or is_unset(node):
                continue
            errors = self.yardstick.against_truth(values[node.name], double.values[node.name])
            if not errors.ok:
                where = f"{node.name} ({node.target}) {source_of(node)}".strip()
                yield f"eager itself leaves tolerance at {where}: {errors}"
                return


def exam_of(
    gm: fx.GraphModule,
    inputs: Sequence[Any],
    settings: Settings,
    yardstick: Yardstick,
    request: CompileFxArgs,
) -> StageComparison:
    """Compile a graph of AOTAutograd's as the backend does, and keep every stage."""
    trail = GraphHistory()
    request = replace(request, debug_files=None, has_guards=True)
    random = random_state(device_of(gm))
    with same_random(gm):
        runner = compile_fx(gm, inputs, settings, replace(request, observe=trail))
    set_random_state(random)
    trail.is_closed = True
    # As it was compiled in the end: without the IR, if there was none.
    fallbacks = Fallbacks(without_ir=not trail.has(CONVERSION))
    _, ctx = new_context(gm, inputs, settings, replace(request, buckets=None), fallbacks=fallbacks)
    return StageComparison(copy_graph(gm), trail, runner, ctx, yardstick, runner.strategy.name)


def same_random(gm: fx.GraphModule) -> contextlib.AbstractContextManager[Any]:
    """Inside, compiled code draws the random numbers of eager, where the graph draws any."""
    if not any(map(draws, gm.graph.nodes)):
        return contextlib.nullcontext()
    return inductor_config.patch({"fallback_random": True})
