"""Gradients of PyTorch's own table of operators: trained through graph mode, compared with eager.

A sample is a small training step. AOTAutograd traces forward and backward together and splits them, both
parts are compiled here, and the step is taken twice, its tangents in two layouts. Results and gradients,
their strides, and what the call wrote into its inputs must be eager's. What AOTAutograd does not get right
when its graphs run as they are (that is `aot_eager`) is counted apart: it says nothing about us.

`python -m tests.convert.opinfo_backward [--samples N] [--shard 0/16] [--codegen eager|inductor|reference]
[--dynamic] [--save FILE] [OP ...]` prints what is not perfect and a summary; it exits with 1 if anything is
wrong, fatal or warned of.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import fx, nn

from tests.convert.opinfo import (
    BY_NAME,
    SEED,
    AsTraced,
    first_line,
    name_of,
    samples_of,
    seeded,
    shown,
    spread,
    table,
    tolerance_of,
    unseeded,
    why_other_spec,
    why_unequal,
)
from tests.support.memory import copies, other_strides
from tests.support.training import why_around
from torchair.backend.dynamo.aot import compile_dynamo
from torchair.backend.pipeline.compile import compile_fx
from torchair.backend.pipeline.context import CompileFxArgs
from torchair.backend.settings.settings import resolve_settings
from torchair.capture.base import layout_enforcer
from torchair.configs.compiler_config import CompilerConfig
from torchair.core.torch_private.compilers.aot_autograd import TracingContext, tracing
from torchair.core.torch_private.fake.fake_tensors import (
    FakeTensorMode,
    ShapeEnv,
    tree_flatten,
    tree_unflatten,
)

CODEGENS = ("eager", "inductor", "reference")
# In this order: the first that an operator has gradients in is the one it is checked in.
DTYPES = (torch.float64, torch.complex128)
# Tangents as a loss leaves them: dense; of a transposed result; of a result that was reduced along a dim.
LAYOUTS = ("contiguous", "transposed", "expanded")
AOT_EAGER = "aot_eager"
# How the table seeds a call: while it is traced, and so only once.
SEEDING = table.wrapper_set_seed
COMPRESSED = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


def dtype_of(op: Any) -> torch.dtype | None:
    """What an operator is differentiated in here; None: there is nothing to differentiate on the CPU."""
    if not op.supports_autograd:
        return None
    return next((dtype for dtype in DTYPES if dtype in op.supported_backward_dtypes("cpu")), None)


DIFFERENTIABLE = [name for name, op in BY_NAME.items() if dtype_of(op) is not None]
# Operators with samples that fail, and why.
FAILURES: dict[str, str] = {}
# The same where all sizes are symbols, of those operators that the tests take.
SYMBOLIC_FAILURES = {
    "mean": "tangents with another stride in a dim of one element lead to other strides than promised",
}

# What may become of a sample, the worst last.
KINDS = {
    "equal": "all is eager's",
    "strides": "values are eager's; strides are aot_eager's, where those are not eager's",
    "constant": "nothing that the call returns has a gradient",
    "own": "torch's own: eager or aot_eager raises, or aot_eager is not like eager",
    "wrong": "not eager's, while aot_eager's is",
    "fatal": "an error, while aot_eager has none",
}


@dataclass(frozen=True)
class Verdict:
    """What became of one sample, and why; with how many backward graphs."""

    kind: str
    why: str = ""
    backwards: int = 0
    drawn: bool = False
    # The first warning of ours: a fallback.
    warned: str = ""


@dataclass
class Outcome:
    """What became of the samples of one operator."""

    name: str
    dtype: str
    codegen: str
    dynamic: bool
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    notes: list[tuple[str, str]] = field(default_factory=list)
    # Samples that are nothing but views of inputs: the results were used inside of a graph, too.
    views: int = 0
    # Samples with random numbers: of values only that they fit each other was compared.
    drawn: int = 0
    # Samples that torchair warned of.
    warned: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def samples(self) -> int:
        """How many there were."""
        return sum(self.counts.values())

    @property
    def failures(self) -> list[tuple[str, str]]:
        """What is ours to mend. A warning is, too: equal numbers prove no more than that a fallback works."""
        found = [note for note in self.notes if note[0] in ("wrong", "fatal")]
        return found + [("warned", text) for text in self.warned]


@dataclass(frozen=True)
class Step:
    """What one training step shows."""

    # By name: "result 0", "gradient 2", "input 1".
    seen: dict[str, Any]
    differentiable: list[bool]
    # <tangent, result> over all results, and <gradient, input> for each input: equal where results are
    # linear in that input, whatever random numbers they depend on.
    loss: torch.Tensor
    slopes: dict[int, torch.Tensor]


class Compiler:
    """Compiles the parts of one training step, and counts them."""

    def __init__(self, codegen: str) -> None:
        config = CompilerConfig()
        config.mode = "max-autotune"
        self.traces_only = codegen == AOT_EAGER
        if not self.traces_only:
            config.engine_config.codegen = codegen
        self.settings = resolve_settings(config)
        self.backwards = 0
        self.around = ""  # how a backward graph went around the IR, if one did

    def __call__(
        self, gm: fx.GraphModule, inputs: Sequence[Any], settings: Any, request: CompileFxArgs
    ) -> Any:
        """What `compile_dynamo` calls for each part."""
        backward = request.is_backward
        runner = AsTraced(gm) if self.traces_only else compile_fx(gm, inputs, settings, request)
        self.backwards += backward
        if backward and not self.traces_only:
            calls = sum(node.op == "call_function" for node in gm.graph.nodes)
            self.around = self.around or why_around(runner.conversion, calls)
        return runner


class Called(nn.Module):
    """A function of tensors as the module that AOTAutograd wants: it takes sizes first, as Dynamo's do."""

    def __init__(self, call: Callable[..., Any]) -> None:
        super().__init__()
        self.call = call

    def forward(self, *given: Any) -> Any:
        return self.call(*(value for value in given if isinstance(value, torch.Tensor)))


def symbols_of(fakes: Sequence[torch.Tensor]) -> dict[Any, tuple[int, int]]:
    """Where each symbol is the size of a tensor: the number of the tensor, and the dim."""
    found: dict[Any, tuple[int, int]] = {}
    for number, fake in enumerate(fakes):
        for dim, size in enumerate(fake.shape):
            if isinstance(size, torch.SymInt):
                found.setdefault(size.node.expr, (number, dim))
    return found


class Sample:
    """The call of an operator as a function of its tensors alone, and these tensors."""

    def __init__(self, op: Any, sample: Any, layouts: Sequence[str], used: bool = False) -> None:
        self.op, self.sample, self.layouts, self.used = op, sample, layouts, used
        self._flat, self._structure = tree_flatten((sample.input, sample.args, sample.kwargs))
        self._places = [n for n, part in enumerate(self._flat) if isinstance(part, torch.Tensor)]

    def __str__(self) -> str:
        return shown(self.sample) + (", then sin" if self.used else "")

    def __call__(self, *tensors: torch.Tensor) -> list[Any]:
        """What torch itself differentiates: eigenvectors, for instance, without their signs."""
        filled = list(self._flat)
        for place, tensor in zip(self._places, tensors, strict=True):
            filled[place] = tensor
        first, args, kwargs = tree_unflatten(filled, self._structure)
        wrapper = unseeded if self.op.gradcheck_wrapper is SEEDING else self.op.gradcheck_wrapper
        with mock.patch.object(table, "wrapper_set_seed", unseeded):
            results = wrapper(self.op.get_op(), first, *args, **kwargs)
        flat = tree_flatten(self.sample.output_process_fn_grad(results))[0]
        return [value.sin() if self.used and has_gradient(value) else value for value in flat]

    def tensors(self) -> list[torch.Tensor]:
        """Copies, strides and shared storages included; those to differentiate by are leaves."""
        given = [self._flat[place] for place in self._places]
        plain = copies([tensor.detach() for tensor in given])
        return [new.requires_grad_(old.requires_grad) for new, old in zip(plain, given, strict=True)]

    def compiled(self, compiler: Compiler, dynamic: bool) -> Callable[..., list[Any]]:
        """The function, compiled for training as Dynamo has it compiled."""
        if any(tensor.layout in COMPRESSED and tensor.requires_grad for tensor in self.tensors()):
            raise NotImplementedError("AOTAutograd ends the process; Dynamo does not hand it such tensors")
        fake_mode = FakeTensorMode(shape_env=ShapeEnv())
        fakes = [fake_mode.from_tensor(tensor, static_shapes=not dynamic) for tensor in self.tensors()]
        places = symbols_of(fakes).values()
        inputs = [*(fakes[number].shape[dim] for number, dim in places), *fakes]
        with tracing(TracingContext(fake_mode)):
            run = compile_dynamo(Called(self), inputs, compiler.settings, {}, compiler)  # type: ignore[arg-type]
        return lambda *tensors: run(*(tensors[number].shape[dim] for number, dim in places), *tensors)

    def steps(self, call: Callable[..., list[Any]]) -> list[Step]:
        """A training step for each layout of tangents."""
        return [self._step(call, layout) for layout in self.layouts]

    def _step(self, call: Callable[..., list[Any]], layout: str) -> Step:
        tensors = self.tensors()
        seeded()
        results = call(*tensors)
        ends = [value for value in results if has_gradient(value)]
        tangents = [tangent(value, layout) for value in ends]
        leaves = {n: tensor for n, tensor in enumerate(tensors) if tensor.requires_grad}
        found = torch.autograd.grad(ends, list(leaves.values()), tangents, allow_unused=True) if ends else ()
        gradients = dict(zip(leaves, found, strict=bool(ends)))
        before = self.tensors()
        return Step(
            {
                **{f"result {n}": _detached(value) for n, value in enumerate(results)},
                **{f"gradient {n}": gradient for n, gradient in gradients.items()},
                **{f"input {n}": _detached(tensor) for n, tensor in enumerate(tensors)},
            },
            [has_gradient(value) for value in results],
            _product(tangents, ends),
            {n: _product([made], [before[n]]) for n, made in gradients.items() if made is not None},
        )


def _product(a: Sequence[torch.Tensor], b: Sequence[torch.Tensor]) -> torch.Tensor:
    """<a, b>, as gradients count it."""
    parts = [torch.real(x.conj() * y.detach()).sum() for x, y in zip(a, b, strict=True)]
    return sum(parts, torch.zeros((), dtype=torch.float64))


def has_gradient(value: Any) -> bool:
    """Is there something to differentiate?"""
    return isinstance(value, torch.Tensor) and value.requires_grad


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, torch.Tensor) else value


def tangent(result: torch.Tensor, layout: str) -> torch.Tensor:
    """What a loss hands back for a result: the same random numbers each time, in this layout."""
    shape = list(result.shape)
    if layout == "expanded" and shape:
        shape[0] = min(1, shape[0])
    if layout == "transposed":
        shape.reverse()
    made = torch.randn(shape, dtype=result.dtype, generator=torch.Generator().manual_seed(SEED))
    if layout == "transposed":
        return made.permute(tuple(reversed(range(made.ndim))))
    return made.expand(result.shape)


def differences(got: Step, wanted: Step, tolerance: dict[str, float] | None) -> dict[str, str]:
    """How each thing seen differs, in values or else in strides; without a tolerance values are left out."""
    if got.differentiable != wanted.differentiable or got.seen.keys() != wanted.seen.keys():
        return {"gradients": f"of results {got.differentiable} for {wanted.differentiable}"}
    found = {what: why_different(got.seen[what], value, tolerance) for what, value in wanted.seen.items()}
    if tolerance is None:
        found["random numbers"] = why_inconsistent(got, wanted)
    return {what: why for what, why in found.items() if why is not None}


def why_different(a: Any, b: Any, tolerance: dict[str, float] | None) -> str | None:
    """The first difference in dtype and shape, values, strides."""
    why = why_other_spec(a, b)
    if why is None and tolerance is not None:
        why = why_unequal(a, b, tolerance)
    return (other_strides(a, b) or None) if why is None else why


def why_inconsistent(got: Step, wanted: Step) -> str | None:
    """Forward and backward must count on the same random numbers, whatever they are: where eager's results
    are linear in an input (dropout), ours must be.
    """
    for number, slope in wanted.slopes.items():
        ours = got.slopes.get(number)
        if torch.allclose(slope, wanted.loss) and (ours is None or not torch.allclose(ours, got.loss)):
            return f"gradient {number} has others than the results: {ours} for {got.loss}"
    return None


def check_op(op: Any, codegen: str = "eager", dynamic: bool = False, limit: int | None = None) -> Outcome:
    """Every sample of one operator, or so many of them."""
    dtype = dtype_of(op)
    assert dtype is not None, f"{op.name} is not differentiable on the CPU"
    outcome = Outcome(name_of(op), str(dtype).removeprefix("torch."), codegen, dynamic)
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            samples = _samples(op, dtype, limit)
        except Exception as error:
            outcome.counts["own"] += 1
            outcome.notes.append(("own", f"its samples cannot be made: {_said(error)}"))
            return outcome
        for number, sample in enumerate(samples):
            # Which of the other layouts: always the same for the same sample.
            other = LAYOUTS[1 + zlib.crc32(f"{outcome.name} {number}".encode()) % 2]
            _check_sample(Sample(op, sample, (LAYOUTS[0], other)), tolerance_of(op, dtype), outcome)
    outcome.seconds = round(time.perf_counter() - began, 2)
    return outcome


def _samples(op: Any, dtype: torch.dtype, limit: int | None) -> list[Any]:
    """With a limit, of those that have elements, if there are any."""
    found = samples_of(op, dtype, requires_grad=True)
    if limit is None:
        return found
    filled = [sample for sample in found if all(part.numel() for part in Sample(op, sample, ()).tensors())]
    return spread(filled or found, limit)


def _check_sample(sample: Sample, tolerance: dict[str, float], outcome: Outcome) -> None:
    verdict = judge(sample, tolerance, outcome.codegen, outcome.dynamic)
    if verdict.kind in ("equal", "strides") and verdict.backwards == 0:
        # Views of inputs are made outside of the graphs: nothing is left to differentiate in them.
        outcome.views += 1
        used = Sample(sample.op, sample.sample, sample.layouts, used=True)
        again = judge(used, tolerance, outcome.codegen, outcome.dynamic)
        if again.kind in ("equal", "strides") and again.backwards == 0:
            again = Verdict("wrong", f"no backward graph was compiled  [{used}]")
        verdict = max(verdict, again, key=lambda verdict: list(KINDS).index(verdict.kind))
    outcome.counts[verdict.kind] += 1
    outcome.drawn += verdict.drawn
    if verdict.warned:
        outcome.warned.append(f"{verdict.warned}  [{sample}]")
    if verdict.why:
        outcome.notes.append((verdict.kind, verdict.why))


def judge(sample: Sample, tolerance: dict[str, float], codegen: str, dynamic: bool) -> Verdict:
    """Take the steps in eager mode and compiled; ask aot_eager where they differ."""
    try:
        wanted = sample.steps(sample)
        drawn = not torch.equal(torch.get_rng_state(), seeded())
        again = sample.steps(sample)
    except Exception as error:
        return Verdict("own", f"eager: {_said(error)}  [{sample}]")
    if not any(wanted[0].differentiable):
        return Verdict("constant")
    drawn = drawn or any(differences(*pair, tolerance) for pair in zip(again, wanted, strict=True))
    compiler = Compiler(codegen)
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            got = sample.steps(sample.compiled(compiler, dynamic))
    except Exception as error:
        theirs = _aot_eager(sample, dynamic)
        said = f"{_said(error)}  [{sample}]"
        return Verdict("own", f"aot_eager, too: {said}") if theirs is None else Verdict("fatal", said)
    ours = next((str(warning.message) for warning in warned if _is_ours(warning)), "")
    compared = None if drawn else tolerance
    found = [differences(*pair, compared) for pair in zip(got, wanted, strict=True)]
    if compiler.around:
        return Verdict("wrong", f"backward around the IR: {compiler.around}  [{sample}]", compiler.backwards)
    if not any(found):
        return Verdict("equal", "", compiler.backwards, drawn, ours)
    theirs = _aot_eager(sample, dynamic)
    if theirs is None:
        return Verdict("own", f"aot_eager raises; ours: {found}  [{sample}]")
    also = [differences(*pair, compared) for pair in zip(theirs, wanted, strict=True)]
    between = [differences(*pair, compared) for pair in zip(got, theirs, strict=True)]
    kind, why = _blame(sample.layouts, found, also, between)
    return Verdict(kind, f"{why}  [{sample}]", compiler.backwards, drawn, ours)


def _is_ours(warning: warnings.WarningMessage) -> bool:
    return warning.category.__module__.partition(".")[0] == "torchair"


def _aot_eager(sample: Sample, dynamic: bool) -> list[Step] | None:
    """The steps by the graphs as they were traced, or None: it raises."""
    try:
        return sample.steps(sample.compiled(Compiler(AOT_EAGER), dynamic))
    except Exception:
        return None


def _blame(
    layouts: Sequence[str],
    found: list[dict[str, str]],
    also: list[dict[str, str]],
    between: list[dict[str, str]],
) -> tuple[str, str]:
    """Kind and reason, from how ours differ from eager's, aot_eager's from eager's, ours from aot_eager's."""
    reasons: dict[str, list[str]] = {"wrong": [], "own": [], "strides": []}
    for layout, ours, theirs, apart in zip(layouts, found, also, between, strict=True):
        for what, why in ours.items():
            text = f"{what}: {why}, tangents {layout}"
            if what in theirs and what not in apart:
                reasons["strides" if why.startswith("strides") else "own"].append(text)
            elif what in theirs and not why.startswith("strides"):
                reasons["own"].append(f"{text}, aot_eager otherwise: {theirs[what]}")
            elif what in theirs:
                reasons["wrong"].append(f"{text}, and of aot_eager {theirs[what]}")
            else:
                reasons["wrong"].append(text)
    kind = next(kind for kind, texts in reasons.items() if texts)
    return kind, "; ".join(reasons[kind][:3])


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {first_line(error)}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Sweep over the table and say what is not perfect; 1 if anything is ours to mend."""
    parser = argparse.ArgumentParser(prog="python -m tests.convert.opinfo_backward")
    parser.add_argument("names", nargs="*", metavar="OP", help="operators, all without")
    parser.add_argument("--samples", type=int, help="at most so many samples per operator")
    parser.add_argument(
        "--shard", type=shard, default=(0, 1), help="i/n: every n-th operator, from the i-th on"
    )
    parser.add_argument("--codegen", choices=CODEGENS, default="eager")
    parser.add_argument("--dynamic", action="store_true", help="all sizes are symbols")
    parser.add_argument("--save", type=Path, help="write all outcomes here as JSON")
    chosen = parser.parse_args(arguments)
    # As in all tests: the results of every call are held to the promised layouts.
    layout_enforcer.EVERY_CALL = True
    first, step = chosen.shard
    wanted = set(chosen.names)
    ops = [op for op in table.op_db if not wanted or {op.name, name_of(op)} & wanted]
    if unknown := wanted - {op.name for op in ops} - {name_of(op) for op in ops}:
        parser.error(f"no such operators: {', '.join(sorted(unknown))}")
    outcomes: list[Outcome] = []
    for op in ops[first::step]:
        if dtype_of(op) is None:
            if op.supports_autograd:
                print(f"{name_of(op)} has no dtype with gradients on the CPU", flush=True)
            continue
        outcomes.append(check_op(op, chosen.codegen, chosen.dynamic, chosen.samples))
        if not is_perfect(outcomes[-1]):
            print(line(outcomes[-1]), flush=True)
        if chosen.save is not None:
            chosen.save.write_text(json.dumps([asdict(outcome) for outcome in outcomes], indent=1))
    print(summary(outcomes))
    return int(any(outcome.failures for outcome in outcomes))


def shard(text: str) -> tuple[int, int]:
    """`0/16` to `15/16`."""
    first, step = map(int, text.split("/"))
    if not 0 <= first < step:
        raise argparse.ArgumentTypeError(f"{text}: shards of {step} are 0/{step} to {step - 1}/{step}")
    return first, step


def is_perfect(outcome: Outcome) -> bool:
    """Is there nothing to say? That strides are torch's own is only saved."""
    counts = outcome.counts
    good = counts["equal"] + counts["strides"] == outcome.samples
    return good and not outcome.warned and outcome.dtype == "float64"


def line(outcome: Outcome) -> str:
    """One outcome in one line, and one for each kind of thing that went wrong."""
    own = Counter(why.partition("  [")[0] for kind, why in outcome.notes if kind == "own")
    texts = [f"{kind}: {why}" for kind, why in outcome.failures]
    texts += [f"own: {why}, {count} samples" for why, count in own.items()]
    return "\n    ".join([f"{outcome.name}: {outcome.dtype}, {_numbers([outcome])}", *dict.fromkeys(texts)])


def summary(outcomes: Sequence[Outcome]) -> str:
    """All outcomes in one line."""
    return f"{len(outcomes)} ops, {_numbers(outcomes)}"


def _numbers(outcomes: Sequence[Outcome]) -> str:
    total = Counter[str]()
    for outcome in outcomes:
        total.update(outcome.counts, samples=outcome.samples, warned=len(outcome.warned))
    seconds = sum(outcome.seconds for outcome in outcomes)
    return (
        f"{total['samples']} samples: {total['equal']} equal, {total['strides']} with torch's own strides, "
        f"{total['constant']} without gradients, {total['own']} torch's own, {total['wrong']} wrong, "
        f"{total['fatal']} fatal, {total['warned']} warned; {seconds:.0f} s"
    )


if __name__ == "__main__":
    sys.exit(main())
