"""Runs a program and says where what the caller can see differs from eager torch.

Looked at for every call:

* outputs: values with the signs of zeros, dtype, sizes, strides, whether they have gradients. Strides are
  compared where they say something: of dims of more than one element, of tensors with elements.
* aliases: each output shares its storage with the same outputs and inputs as in eager, and starts as many
  bytes behind them; an output that the function returns under an input's name, or twice, is that very object.
* the whole storage behind each input, so a write beside the view shows.
* gradients of the leaves, strides included. None and zeros are the same: a compiled function is one node of
  autograd, and each of its inputs gets some gradient.
"""

from __future__ import annotations

import contextlib
import pickle
import threading
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch._dynamo
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd

import torchair
from tests.fuzz.programs import AFTER, BEFORE, SWAPPED, Feed, Names, Program, loss
from tests.fuzz.simulated import AnyLayout
from tests.support.memory import distance, strides
from torchair.backend.pipeline import partitioned
from torchair.backend.service import scheduler
from torchair.backend.service.request import CompileRequest, CompileResult
from torchair.backend.service.scheduler import SCHEDULER, Job
from torchair.backend.settings import settings
from torchair.core.log import logger
from torchair.core.storage.serialization import pack, unpack
from torchair.devices import get_device, installed
from torchair.engine import lower as lowering

TOLERANCE = {torch.float32: (1e-4, 1e-4), torch.complex64: (1e-4, 1e-4), torch.float64: (1e-8, 1e-9)}
LONGEST_BUILD = 900.0  # seconds
Function = Callable[..., list[torch.Tensor]]
_view = lowering._view
# Lowering that leaves results as they come, and returns copies in place of views of inputs.
CARELESS: dict[str, Any] = {
    "_lay_out": lambda state, results, outputs: None,
    "_view": lambda state, layout: lowering._own(state, _view(state, layout), None),
}


@dataclass
class Facts:
    """What is compared of one tensor."""

    value: torch.Tensor
    stride: list[int]
    grad: bool = False


@dataclass
class Seen:
    """What the caller sees of one call."""

    tensors: dict[str, Facts] = field(default_factory=dict)  # outputs, storages, gradients
    aliases: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Failure:
    """A difference from eager: the kind is the same for all that look alike."""

    kind: str
    detail: str = ""
    places: frozenset[tuple[int, str]] = frozenset()  # calls, and names of what differs

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}"


def facts(tensor: torch.Tensor) -> Facts:
    value = tensor.detach().resolve_conj().cpu().clone(memory_format=torch.contiguous_format)
    return Facts(value, strides(tensor), tensor.requires_grad)


def look(program: Program, outputs: list[torch.Tensor], names: Names) -> Seen:
    """Note what the caller sees after a call and its backward pass."""
    seen = Seen()
    tensors = {name: value for name, value in names.items() if isinstance(value, torch.Tensor)}
    for name, tensor in tensors.items():
        if name[0] == "b":
            seen.tensors[f"storage {name}"] = facts(tensor)
        elif tensor.is_leaf and tensor.grad is not None:
            seen.tensors[f"gradient {name}"] = facts(tensor.grad)
    for i, output in enumerate(outputs):
        seen.tensors[f"output {i}"] = facts(output)
    named = list(enumerate(zip(program.returns, outputs, strict=True)))
    for i, (name, output) in named:
        for x in program.inputs:
            seen.aliases[f"output {i} and {x}"] = distance(output, names[x]), name == x and output is names[x]
        for j, (other, earlier) in named[:i]:
            seen.aliases[f"output {i} and output {j}"] = (
                distance(output, earlier), name == other and output is earlier,
            )  # fmt: skip
    return seen


def observe(
    run: Function, program: Program, device: str = "cpu", before: Callable[[int], None] = lambda number: None
) -> list[Seen]:
    """Make the calls of a program; `before` is called with the number of each."""
    seen: list[Seen] = []
    held: list[tuple[list[torch.Tensor], Names]] = []
    for number, feed in enumerate(program.feeds):
        before(number)
        held.append(call_with_feed(run, program, feed, device))
        if not program.keep:
            seen.append(finish(program, *held.pop()))
    return seen + [finish(program, *each) for each in held]


def call_with_feed(
    run: Function, program: Program, feed: Feed, device: str
) -> tuple[list[torch.Tensor], Names]:
    names = feed.build(device)
    return list(run(*(names[name] for name in program.inputs))), names


def finish(program: Program, outputs: list[torch.Tensor], names: Names) -> Seen:
    total = loss(outputs)
    if total is not None:
        total.backward()
    return look(program, outputs, names)


def differences(want: Seen, got: Seen) -> Iterator[Failure]:
    """Where two runs of one call differ."""
    for name in want.tensors.keys() ^ got.tensors.keys():
        if (want.tensors | got.tensors)[name].value.any():
            yield Failure(f"{name.split()[0]} {'missing' if name in want.tensors else 'added'}", name)
    for name in want.tensors.keys() & got.tensors.keys():
        a, b = want.tensors[name], got.tensors[name]
        what = difference(a, b)
        if what:
            detail = f"{name}: want {a.value.tolist()} {a.stride}, got {b.value.tolist()} {b.stride}"
            yield Failure(f"{name.split()[0]} {what}", detail)
    for name in want.aliases:
        if want.aliases[name] != got.aliases[name]:
            yield Failure("alias", f"{name}: want {want.aliases[name]}, got {got.aliases[name]}")


def difference(want: Facts, got: Facts) -> str:
    """In what two tensors differ."""
    a, b = want.value, got.value
    if a.dtype != b.dtype:
        return "dtype"
    if a.shape != b.shape:
        return "size"
    if a.is_complex():
        a, b = torch.view_as_real(a), torch.view_as_real(b)
    rtol, atol = TOLERANCE.get(a.dtype, (0.0, 0.0))
    if not torch.allclose(a, b, rtol=rtol, atol=atol, equal_nan=True):
        return "values"
    if ((a == 0) & (b == 0) & (a.signbit() != b.signbit())).any():
        return "sign of zero"
    if want.stride != got.stride:
        return "strides"
    return "requires_grad" if want.grad != got.grad else ""


def compare(want: list[Seen], got: list[Seen]) -> Failure | None:
    """The first difference, by call and then by how much it says, and the places of all."""
    found = [
        (number, failure)
        for number, (a, b) in enumerate(zip(want, got, strict=True))
        for failure in sorted(
            differences(a, b), key=lambda failure: ("strides" in failure.kind, failure.kind)
        )
    ]
    if not found:
        return None
    number, first = found[0]
    places = frozenset((number, failure.detail.partition(":")[0]) for number, failure in found)
    return Failure(first.kind, f"call {number}, {first.detail}", places)


@dataclass
class Count:
    """What happened in a run of many programs."""

    programs: int = 0
    calls: int = 0
    simulated: int = 0  # programs on a simulated device
    recordable: int = 0  # of these, those that nothing keeps from being recorded
    recorded: int = 0
    replayed: int = 0
    own: Counter[str] = field(default_factory=Counter)  # torch's own, by kind
    mended: int = 0  # programs whose results the runner had to mend
    swaps: Counter[str] = field(default_factory=Counter)  # optimized programs taken, by kind
    swapped: int = 0  # programs all of whose graphs took an optimized program
    unswapped: Counter[str] = field(default_factory=Counter)  # why there was none
    failures: int = 0

    def __iadd__(self, other: Count) -> Count:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)
        return self

    def __str__(self) -> str:
        share = self.own.total() / max(1, self.programs)
        swaps = f"{self.swapped} swapped {dict(self.swaps)}, not built {dict(self.unswapped)}; "
        return (
            f"{self.programs} programs, {self.calls} calls; on a simulated device {self.simulated}: "
            f"{self.recordable} recordable, {self.recorded} recorded, {self.replayed} replayed; "
            f"{swaps if self.swaps or self.unswapped else ''}"
            f"{self.mended} mended; torch's own {share:.1%} {dict(self.own)}; {self.failures} failures"
        )


def backend_of(program: Program, engine: str, **experimental: Any) -> Callable[..., Any]:
    """Our backend; what runs without codegen exists in graph mode only."""
    config = torchair.CompilerConfig()
    for name, value in experimental.items():
        setattr(config.experimental_config, name, value)
    config.mode = program.mode
    interprets = engine == "reference" and program.mode == "npugraph_ex"
    codegen = "auto" if engine in SWAPPED else engine
    config.engine_config.codegen = "eager" if interprets else codegen
    return torchair.get_npu_backend(compiler_config=config)


def attempt(
    program: Program,
    backend: Any,
    want: list[Seen],
    device: str,
    before: Callable[[int], None] = lambda number: None,
) -> Failure | None:
    """Compile and compare; what is raised is a difference, too."""
    torch.compiler.reset()
    limits = {"recompile_limit": 64, "accumulated_recompile_limit": 256, "fail_on_recompile_limit_hit": True}
    try:
        with torch._dynamo.config.patch(**limits):
            run = torch.compile(program.function(), backend=backend, dynamic=program.dynamic)
            return compare(want, observe(run, program, device, before))
    except Exception as error:
        return raised(error)


def raised(error: Exception) -> Failure:
    """An exception, told by its type and by where it comes from; Dynamo wraps what a backend raises."""
    cause = getattr(error, "inner_exception", None) or error.__cause__ or error
    frame = traceback.extract_tb(cause.__traceback__)[-1]
    where = f"{frame.filename.rsplit('/', 1)[-1]}:{frame.name}"
    return Failure(f"raised {type(cause).__name__} in {where}", " ".join(str(cause).split())[:300])


def check(program: Program, engine: str, count: Count, device: str = "cpu") -> Failure | None:
    """Compare a program with eager. None also where stock torch.compile is not eager's equal either, which is
    not asked about joined programs: one of them would excuse the others.
    """
    count.programs += program.parts
    if engine in SWAPPED:
        program = replace(program, feeds=program.feeds * (BEFORE + AFTER))
    count.calls += len(program.feeds) * program.parts
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            want = observe(program.function(), program, device)
        except NotImplementedError:  # programs are made on the CPU, and a device may lack an op
            return None
        failure = ours(program, engine, want, count, device)
        own = None if failure is None or program.parts > 1 else torchs_own(program, engine, want, device)
    if own is not None:
        count.own[own.kind] += 1
        return None
    count.failures += failure is not None and program.parts == 1
    return failure


def torchs_own(program: Program, engine: str, want: list[Seen], device: str) -> Failure | None:
    """How stock torch.compile differs from eager: `aot_eager`, Inductor where it makes our code, and fake
    tensors, whose strides are all that a compiler knows of eager's.
    """
    makers = ["aot_eager"] + ["inductor"] * (engine in ("inductor", "native", "auto"))
    found = [attempt(program, maker, want, device) for maker in makers]
    found.append(wrong_fakes(program, want, device))
    return next((failure for failure in found if failure is not None), None)


def excused(program: Program, failure: Failure, engine: str, device: str) -> bool:
    """Does stock torch.compile differ from eager in the same way, in a joined program none of whose parts
    fails alone?
    """
    if engine in SWAPPED:
        program = replace(program, feeds=program.feeds * (BEFORE + AFTER))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        own = attempt(program, "aot_eager", observe(program.function(), program, device), device)
    if own is None:
        return False
    both_raise = own.kind.startswith("raised") and failure.kind.startswith("raised")
    return both_raise or own.kind == failure.kind or bool(own.places & failure.places)


def wrong_fakes(program: Program, want: list[Seen], device: str) -> Failure | None:
    """Does a graph of torch's tell another dtype or strides of what leaves it than its own ops give?"""
    found: list[Failure] = []

    def compiler(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        returned: Any = gm.graph.output_node().args[0]
        told = [node.meta["val"] if isinstance(node, torch.fx.Node) else None for node in returned]

        def run(*args: Any) -> Any:
            outputs = torch.fx.Interpreter(gm).run(*args)
            # Symbols have the values of the first call.
            for place, (fake, output) in enumerate(zip(told, outputs, strict=True)):
                if isinstance(fake, torch.Tensor) and output.dtype != fake.dtype:
                    found.append(Failure("fake dtype", f"output {place} has {output.dtype}"))
                elif isinstance(fake, torch.Tensor) and strides(output) != strides(fake):
                    found.append(Failure("fake strides", f"output {place} has {strides(output)}"))
            told[:] = [None] * len(told)
            return outputs

        return make_boxed_func(run)

    attempt(program, aot_autograd(fw_compiler=compiler), want, device)
    return found[0] if found else None


def may_be_mended(program: Program, engine: str) -> bool:
    """Where the runner may have to put results right: Inductor has layouts of its own, and memory that is
    seen as two dtypes cannot be lowered as one piece.
    """
    two_dtypes = any(word in program.source() for word in (".real", ".imag", "view(torch.", "view_as_"))
    return program.careless or two_dtypes or engine not in ("reference", "eager")


class Swap:
    """Waits for optimized programs between two calls, and notes which of them serve afterwards."""

    def __init__(self, program: Program, engine: str) -> None:
        self._number = len(program.feeds) * BEFORE // (BEFORE + AFTER) if engine in SWAPPED else -1
        self._is_eager = engine == "auto-eager"
        self._jobs: list[Job] = []
        self._taken: list[Job] = []
        self._gate = threading.Event()

    def __call__(self, number: int) -> None:
        """Wait before this call, if it is the one."""
        if number == self._number:
            self.build()
            assert SCHEDULER.wait(LONGEST_BUILD), "the optimized programs are not ready in time"

    def build(self) -> None:
        """From now on, builds that replace the other process go on."""
        self._gate.set()

    @property
    def taken(self) -> int:
        """Count the optimized programs that serve."""
        return sum(job.peek() is not None for job in self._taken)

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Note the jobs that are made and taken."""
        begin, take = Job.__init__, Job.take

        def noted(job: Job, *args: Any) -> None:
            self._jobs.append(job)
            begin(job, *args)

        def taken(job: Job) -> Any:
            self._taken.append(job)
            return take(job)

        with contextlib.ExitStack() as patches:
            patches.enter_context(mock.patch.object(Job, "__init__", noted))
            patches.enter_context(mock.patch.object(Job, "take", taken))
            if self._is_eager:
                patches.enter_context(mock.patch.object(scheduler, "compile_in_worker", self._fill))
            try:
                yield
            finally:
                self._gate.set()

    def _fill(
        self, order: CompileRequest, folder: Path, seconds: float | None = None
    ) -> tuple[CompileResult | None, str]:
        """Do the work of the other process with the eager code generator, while no call is served."""
        self._gate.wait(LONGEST_BUILD)
        there = pickle.loads(pickle.dumps(order))
        return unpack(pack(replace(there, kinds=("eager",)).fill())), ""

    def note(self, count: Count, parts: int) -> None:
        """Add what happened to the count, and forget the jobs."""
        programs = [program for job in self._taken if (program := job.peek()) is not None]
        count.swaps.update(program.kind for program in programs)
        count.unswapped.update(" ".join(job.failed.split())[:120] for job in self._jobs if job.failed)
        is_whole = bool(self._jobs) and all(job in self._taken and not job.failed for job in self._jobs)
        count.swapped += is_whole * parts
        self._jobs, self._taken = [], []


def ours(program: Program, engine: str, want: list[Seen], count: Count, device: str) -> Failure | None:
    """Compare our backend with eager, on a simulated device where the program says so."""
    backend = backend_of(program, engine)
    row = AnyLayout()
    is_simulated = program.simulated and device == "cpu"
    swap = Swap(program, engine)
    with (
        swap.watched(),
        warnings.catch_warnings(record=True) as said,
        installed(row if is_simulated else get_device(torch.device(device))),
        mock.patch.dict(vars(lowering), CARELESS if program.careless else {}),
        mock.patch.object(settings, "PATIENCE", 0),
        mock.patch.object(partitioned, "PATIENCE", 0),
    ):
        logger.forget()
        warnings.simplefilter("always", torchair.DegradedWarning)
        failure = attempt(program, backend, want, device, swap)
    swap.note(count, program.parts)
    mends = [str(warning.message) for warning in said if "puts it right" in str(warning.message)]
    count.mended += bool(mends) * program.parts
    if failure is None and mends and not may_be_mended(program, engine):
        failure = Failure("mended", mends[0])
    if not is_simulated:
        return failure
    count.simulated += program.parts
    # A copy of an input has no memory beside it, where as_strided may look.
    is_recordable = not any(line.reaches for line in program.lines) and len(program.feeds) > 1
    count.recordable += is_recordable * program.parts
    count.recorded += (row.records > 0) * program.parts
    count.replayed += (row.replays > 0) * program.parts
    return failure
