"""PyTorch's own table of operators as test rows: traced by AOTAutograd, compiled here, compared with eager.

One sample is traced once; the traced graph is run as it is (that is `aot_eager`), by the reference engine and
by the lowered graph. A sample that AOTAutograd itself cannot serve says nothing about us and is skipped.

`python -m tests.convert.opinfo [--dtype float32] [--dynamic] [--shard 0/2] [--samples 3] [--codegen inductor]
[--save FILE] [OP]` prints what is not perfect, and saves all of it as JSON.
"""

from __future__ import annotations

import argparse
import functools
import json
import random
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import fx
from torch._functorch.aot_autograd import aot_function
from torch.testing._internal import common_methods_invocations as table
from torch.testing._internal.common_device_type import toleranceOverride
from torch.utils._pytree import tree_flatten, tree_unflatten

from tests.support.memory import Seen, other_memory, other_strides, seen
from torchair.backend.dynamo.entry_points import get_npu_backend
from torchair.backend.pipeline.compile import compile_fx
from torchair.backend.pipeline.context import CompileFxArgs
from torchair.backend.settings.settings import resolve_settings
from torchair.configs.compiler_config import CompilerConfig
from torchair.convert.base.report import ConversionReport

DTYPES = (
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.bool,
    torch.complex64,
)
SEED = 20240607
# Results that hold whatever the memory held: only dtype and shape mean something.
UNDEFINED = (
    "empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided",
    "resize_", "resize_as_",
)  # fmt: skip
# The ways a traced graph is run, beside as traced: by the reference engine, lowered to ATen calls.
WAYS = ("reference", "eager")
CAPTURE = {"capture": "npugraph_ex"}  # what may stand before a code generator

# Operators with an ATen call that is carried through as it is, by the reason. All others convert as a whole.
_OPAQUE = {
    "the IR has no LDL factors": ("linalg.ldl_factor", "linalg.ldl_factor_ex", "linalg.ldl_solve"),
    "the IR has eigenvalues of symmetric matrices only": ("linalg.eig", "linalg.eigvals"),
    "how often to square depends on the data": ("matrix_exp",),
    "the memory behind a view is not a tensor of the IR": ("as_strided:partial_views",),
    "sparse tensors do not exist in the IR": ("to_sparse",),
    "the number of slices is not inferred": ("unique", "unique_consecutive"),
    "it makes loss and gradients chunk by chunk to save memory; taken apart it would not": (
        "nn.functional.linear_cross_entropy:chunked", "nn.functional.linear_cross_entropy:chunked_none",
    ),
}  # fmt: skip
OPAQUE = {name: why for why, names in _OPAQUE.items() for name in names}
# Rows that are not equal to eager, and why.
_TIES = "of several equal elements torch does not say which one's index it returns"
UNEQUAL = {
    ("baddbmm", torch.bfloat16): "the product is rounded before it is added to, as it is on the device",
    **{("mode", dtype): _TIES for dtype in DTYPES if dtype not in (torch.float32, torch.complex64)},
    **{("kthvalue", dtype): _TIES for dtype in (torch.int64, torch.int32)},
}
# Operators whose results do not lie as eager's do, and why.
_NEW = "its schema says that results are new tensors, and ours are; eager's are views of the input"
OTHER_MEMORY = {"unsafe_chunk": _NEW, "unsafe_split": _NEW}


def name_of(op: Any) -> str:
    """`linalg.norm` or `std_mean:unbiased`: the name, and the variant where there is one."""
    return f"{op.name}:{op.variant_test_name}" if op.variant_test_name else op.name


BY_NAME = {name_of(op): op for op in table.op_db}


@dataclass
class Outcome:
    """What became of the samples of one operator, in one dtype, static or dynamic."""

    name: str
    dtype: str
    dynamic: bool
    samples: int = 0
    equal: int = 0
    skipped: list[str] = field(default_factory=list)
    # Counted as equal: 16-bit results that differ from eager, and are no further from the float32 result.
    closer: list[str] = field(default_factory=list)
    unequal: list[str] = field(default_factory=list)
    fatal: list[str] = field(default_factory=list)
    # Neither eager's strides and aliases nor, where those are others, those of the traced graph.
    memory: list[str] = field(default_factory=list)
    # ATen op -> why it is carried through as it is
    fallbacks: dict[str, str] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass
class Traced:
    """One sample under way: which way to run next, what the compiler said."""

    ways: Sequence[str] = WAYS
    way: str = "aot_eager"
    runs: dict[str, Callable[[list[Any]], Any]] = field(default_factory=dict)
    errors: dict[str, Exception] = field(default_factory=dict)
    report: ConversionReport = field(default_factory=ConversionReport)

    def compile(self, gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """The compiler given to AOTAutograd. What fails here is told apart from what fails in AOTAutograd."""
        self.runs["aot_eager"] = AsTraced(gm).boxed
        for way in self.ways:
            config = CompilerConfig()
            mode, _, config.engine_config.codegen = way.rpartition(":")
            if mode:
                config.mode = CAPTURE[mode]
            try:
                runner = compile_fx(gm, inputs, resolve_settings(config), CompileFxArgs(has_guards=True))
            except Exception as error:
                self.errors[way] = error
                continue
            self.runs[way] = runner.boxed
            self.report = runner.conversion

        def run(args: list[Any]) -> Any:
            if self.way in self.errors:
                raise self.errors[self.way]
            return self.runs[self.way](args)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run


class AsTraced:
    """In place of a runner: the graph as AOTAutograd left it, results laid out as it says. Some kernels of
    torch leave other strides than their fake functions promise.
    """

    def __init__(self, gm: fx.GraphModule) -> None:
        self._gm = gm
        returned = gm.graph.output_node().args[0]
        self._promised = [node.meta.get("val") if isinstance(node, fx.Node) else None for node in returned]

    def boxed(self, args: list[Any]) -> list[Any]:
        """Run it, and let go of the arguments."""
        given = list(args)
        args.clear()
        return [_laid_out(*pair) for pair in zip(self._gm(*given), self._promised, strict=True)]

    boxed._boxed_call = True  # type: ignore[attr-defined]

    def fast_path(self, packed: Any) -> None:
        """No fast path."""


def _laid_out(value: Any, fake: Any) -> Any:
    """The tensor, with the strides of this fake one; as it is, where elements would lie on one another."""
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided or value.ndim != fake.ndim:
        return value
    strides = [step if isinstance(step, int) else step.node.hint for step in fake.stride()]
    if None in strides:
        return value
    made = value.new_empty_strided(value.shape, strides)
    if not other_strides(value, made) or torch._debug_has_internal_overlap(made) == 1:
        return value
    return made.copy_(value)


def samples_of(
    op: Any, dtype: torch.dtype, limit: int | None = None, requires_grad: bool = False
) -> list[Any]:
    """Sample inputs on the CPU; with a limit, that many spread evenly over all of them."""
    seeded()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = list(op.sample_inputs("cpu", dtype, requires_grad=requires_grad))
    return spread(found, limit)


def spread(found: list[Any], limit: int | None) -> list[Any]:
    """So many of them, from all over the list."""
    if limit is None or len(found) <= limit:
        return found
    if limit == 1:
        return [found[len(found) // 2]]
    step = (len(found) - 1) / (limit - 1)
    return [found[round(place * step)] for place in range(limit)]


def check_op(
    op: Any, dtype: torch.dtype, dynamic: bool, limit: int | None = None, ways: Sequence[str] = WAYS
) -> Outcome:
    """Every sample of one operator, by these code generators."""
    outcome = Outcome(name_of(op), str(dtype).removeprefix("torch."), dynamic)
    began = time.perf_counter()
    with warnings.catch_warnings(), torch.no_grad(), mock.patch.object(table, "wrapper_set_seed", unseeded):
        warnings.simplefilter("ignore")
        try:
            samples = samples_of(op, dtype, limit)
        except Exception as error:
            outcome.skipped.append(f"its samples cannot be made: {first_line(error)}")
            return outcome
        for sample in samples:
            _check_sample(op, sample, tolerance_of(op, dtype), outcome, ways)
    outcome.seconds = round(time.perf_counter() - began, 2)
    return outcome


def compiled_sample(op: Any, dtype: torch.dtype, dynamic: bool) -> tuple[Seen, Seen, dict[str, float]]:
    """One sample through `torch.compile` with default options: what is seen, in eager, and the tolerance."""
    (sample,) = samples_of(op, dtype, 1)
    call, tensors = _as_function(op, sample)
    with torch.no_grad():
        expected = _run(call, tensors)
        got = _run(torch.compile(call, backend=get_npu_backend(), dynamic=dynamic), tensors)
    return got, expected, tolerance_of(op, dtype)


def unseeded(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """In place of the table's own seeding: that happens while tracing, and so only once."""
    return function(*args, **kwargs)


def tolerance_of(op: Any, dtype: torch.dtype) -> dict[str, float]:
    """The widest tolerance that OpInfo gives this operator in this dtype; empty: torch's default."""
    rows = [part for info in op.decorators for part in getattr(info, "decorators", ())]
    found = [row.d[dtype] for row in rows if isinstance(row, toleranceOverride) and dtype in row.d]
    if not found:
        return {}
    return {"atol": max(row.atol for row in found), "rtol": max(row.rtol for row in found)}


def _as_function(op: Any, sample: Any) -> tuple[Callable[..., list[Any]], list[torch.Tensor]]:
    """The call of an operator as a function of its tensors alone, and these tensors."""
    flat, structure = tree_flatten((sample.input, sample.args, sample.kwargs))
    places = [index for index, part in enumerate(flat) if isinstance(part, torch.Tensor)]
    tensors = [flat[index] for index in places]

    def call(*given: torch.Tensor) -> list[Any]:
        filled = list(flat)
        for index, value in zip(places, given, strict=True):
            filled[index] = value
        first, args, kwargs = tree_unflatten(filled, structure)
        # What OpInfo itself compares: eigenvectors, for instance, without their signs.
        return tree_flatten(sample.output_process_fn_grad(op(first, *args, **kwargs)))[0]

    return call, tensors


def _check_sample(
    op: Any, sample: Any, tolerance: dict[str, float], outcome: Outcome, ways: Sequence[str]
) -> None:
    call, tensors = _as_function(op, sample)
    try:
        expected = _run(call, tensors)
    except Exception as error:
        outcome.skipped.append(f"eager: {first_line(error)}")
        return
    drew = not torch.equal(torch.get_rng_state(), seeded())
    differs = functools.partial(
        _differs, expected=expected, tolerance=None if drew or op.name in UNDEFINED else tolerance
    )
    traced = Traced(ways)
    compiled = aot_function(
        call, traced.compile, dynamic=outcome.dynamic, keep_inference_input_mutations=True
    )
    try:
        as_traced = _run(compiled, tensors)
        why = differs(as_traced)
    except Exception as error:
        why = first_line(error)
    if why is not None:
        outcome.skipped.append(f"aot_eager: {why}")
        return
    outcome.samples += 1
    _note(traced.report, outcome)
    equal = True
    for traced.way in ways:
        try:
            got = _run(compiled, tensors)
            why = differs(got)
        except Exception as error:
            outcome.fatal.append(
                f"{traced.way}: {type(error).__name__}: {first_line(error)}  [{shown(sample)}]"
            )
            equal = False
            continue
        if why is not None and _no_further(got, expected, call, tensors, tolerance):
            outcome.closer.append(f"{traced.way}: {why}  [{shown(sample)}]")
        elif why is not None:
            outcome.unequal.append(f"{traced.way}: {why}  [{shown(sample)}]")
            equal = False
        elif (why := other_memory(got, expected)) and other_memory(got, as_traced):
            outcome.memory.append(f"{traced.way}: {why}  [{shown(sample)}]")
            equal = False
    outcome.equal += equal


def _note(report: ConversionReport, outcome: Outcome) -> None:
    outcome.fallbacks.update((reason.op, reason.why) for reason in report.fallbacks)
    for reason in (*report.decomposed, *report.fallbacks):
        if "the converter failed" in reason.why or "the converter is wrong" in reason.why:
            outcome.broken[reason.op] = reason.why


def _run(call: Callable[..., Any], tensors: Sequence[torch.Tensor]) -> Seen:
    """A call on copies of the tensors, from the same seed."""
    seeded()
    return seen(lambda given: call(*given), tensors)


def seeded() -> torch.Tensor:
    """Seed everything; returns the state of torch's generator."""
    random.seed(SEED)
    np.random.seed(SEED)
    torch.manual_seed(SEED)
    return torch.get_rng_state()


def _differs(got: Seen, expected: Seen, tolerance: dict[str, float] | None) -> str | None:
    """Why results and arguments are not equal; without a tolerance only dtype, shape and device are
    compared.
    """
    if len(got.results) != len(expected.results):
        return f"{len(got.results)} results, expected {len(expected.results)}"
    for number, (a, b) in enumerate(zip(got.values, expected.values, strict=True)):
        why = why_other_spec(a, b) if tolerance is None else why_unequal(a, b, tolerance)
        if why is not None:
            return f"value {number}: {why}"
    return None


def _no_further(
    got: Seen,
    expected: Seen,
    call: Callable[..., Any],
    tensors: Sequence[torch.Tensor],
    tolerance: dict[str, float],
) -> bool:
    """Are 16-bit results at least as close to the float32 results as eager's are? Eager's kernels on the CPU
    round more than once here and there.
    """
    halves = (torch.float16, torch.bfloat16)
    if not any(tensor.dtype in halves for tensor in tensors):
        return False
    try:
        exact = _run(call, [tensor.float() if tensor.dtype in halves else tensor for tensor in tensors])
    except Exception:
        return False
    for a, b, truth in zip(got.values, expected.values, exact.values, strict=True):
        if isinstance(b, torch.Tensor) and b.dtype in halves:
            error = (b.float() - truth).nan_to_num(0.0).abs().max().item()
            wide = {"atol": error + tolerance.get("atol", 1e-5), "rtol": tolerance.get("rtol", 1e-3)}
            if why_other_spec(a, b) or why_unequal(a.float(), truth, wide):
                return False
        elif why_unequal(a, b, tolerance):
            return False
    return True


def why_other_spec(a: Any, b: Any) -> str | None:
    """How dtype, shape or device of a result differ, or the type of what is no tensor."""
    if not isinstance(b, torch.Tensor):
        return None if type(a) is type(b) else f"{type(a).__name__} for {type(b).__name__}"
    same = isinstance(a, torch.Tensor) and (a.dtype, a.shape, a.device) == (b.dtype, b.shape, b.device)
    return None if same else f"{_spec(a)} for {_spec(b)}"


def why_unequal(a: Any, b: Any, tolerance: dict[str, float]) -> str | None:
    """How a result differs; an empty tolerance is torch's default."""
    if not isinstance(b, torch.Tensor):
        return None if a == b or (a != a and b != b) else f"{a!r} for {b!r}"
    try:
        torch.testing.assert_close(a, b, equal_nan=True, check_stride=False, **tolerance)
    except Exception as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        return "; ".join(lines[:3])
    return None


def first_line(error: Exception) -> str:
    """What an error says first."""
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)[:300]


def _spec(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return repr(value)[:40]
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"


def shown(sample: Any) -> str:
    """The arguments of a sample: dtypes and shapes of tensors, and the rest as it is."""
    parts = [_spec(part) for part in tree_flatten((sample.input, sample.args))[0]]
    return ", ".join([*parts, *(f"{key}={_spec(value)}" for key, value in sample.kwargs.items())])[:300]


def main(arguments: Sequence[str] | None = None) -> None:
    """Sweep over the table and say what is not perfect."""
    parser = argparse.ArgumentParser(prog="python -m tests.convert.opinfo")
    parser.add_argument("names", nargs="*", help="operators, all without")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--dynamic", action="store_true", help="all sizes are symbols")
    parser.add_argument("--shard", default="0/1", help="i/n: every n-th operator, from the i-th on")
    parser.add_argument("--samples", type=int, help="at most so many samples per operator")
    codegen = "reference, eager, inductor or native; `capture:` before one is capture mode"
    parser.add_argument("--codegen", nargs="*", default=WAYS, help=codegen)
    parser.add_argument("--save", type=Path, help="write all outcomes here as JSON")
    chosen = parser.parse_args(arguments)
    dtype = getattr(torch, chosen.dtype)
    first, step = map(int, chosen.shard.split("/"))
    ops = [op for op in table.op_db if not chosen.names or {op.name, name_of(op)} & set(chosen.names)]
    outcomes: list[Outcome] = []
    for op in ops[first::step]:
        if dtype not in op.supported_dtypes("cpu"):
            continue
        outcomes.append(check_op(op, dtype, chosen.dynamic, chosen.samples, chosen.codegen))
        print(line(outcomes[-1]), flush=True)
        if chosen.save is not None:
            chosen.save.write_text(json.dumps([asdict(outcome) for outcome in outcomes], indent=1))


def line(outcome: Outcome) -> str:
    """One outcome in one line, and one for each thing that went wrong."""
    text = (
        f"{outcome.name}: {outcome.equal}/{outcome.samples} equal, {len(outcome.skipped)} skipped, "
        f"{outcome.seconds} s"
    )
    problems = [
        *(f"fatal: {why}" for why in outcome.fatal),
        *(f"unequal: {why}" for why in outcome.unequal),
        *(f"closer: {why}" for why in outcome.closer),
        *(f"memory: {why}" for why in outcome.memory),
        *(f"opaque: {op}: {why}" for op, why in outcome.fallbacks.items()),
        *(f"broken: {op}: {why}" for op, why in outcome.broken.items()),
    ]
    return "\n    ".join([text, *dict.fromkeys(problems)])


if __name__ == "__main__":
    main()
