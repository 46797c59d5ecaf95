"""`torchair.check_op`: is an operator all that compilers take it for? Each way of running it is compared with
the eager call, and every difference is told in plain words.

Each call gets copies that lie in memory as the arguments do: what shares memory shares it again. Each begins
with the same random numbers, and Dynamo keeps nothing of it, so that what the user has compiled stays.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import fx

from torchair.backend.dynamo.aot import compile_dynamo
from torchair.backend.dynamo.graph_breaks import break_graphs
from torchair.backend.pipeline.compile import compile_fx
from torchair.backend.settings.settings import resolve_settings
from torchair.capture.base.host_ops import host_op_reasons
from torchair.capture.strategies.runner import Runner
from torchair.configs.compiler_config import CompilerConfig
from torchair.core.errors import BadCall, first_line
from torchair.core.log import logger
from torchair.core.text_table import as_text, table
from torchair.core.torch_private.compilers.aot_autograd import (
    BackendCompilerFailed,
    aot_autograd,
    compile_apart,
    isolated_dynamo,
)
from torchair.core.torch_private.fake.fake_tensors import (
    FakeTensorMode,
    ShapeEnv,
    is_unbacked,
    tree_flatten,
    tree_unflatten,
)
from torchair.core.torch_private.operators.schemas import OpOverload, OpOverloadPacket, resolve_overload
from torchair.fxgraph.conj_neg import MARKS
from torchair.fxgraph.effects import flat, returns_views, written_names
from torchair.fxgraph.symbols import hint, is_symbol
from torchair.passes import PassContext
from torchair.passes.fx.inplace.aliased_arguments import tell_shared_arguments

MODES = {"graph mode": "max-autotune", "capture mode": "npugraph_ex"}
ANY_SIZE = "fake, any size"
CHECKS = ("eager", "schema", "fake", ANY_SIZE, "functionalised", *MODES, "recorded")
SEED = 0


@dataclass(frozen=True)
class Mismatch:
    """What is not as it must be: found by which check, what it is, and what to do."""

    check: str
    what: str
    cure: str = ""

    def __str__(self) -> str:
        return f"{self.check}: {self.what}" + (f" ({self.cure})" if self.cure else "")


@dataclass
class OpReport:
    """What `check_op` found. Prints itself; `ok` where nothing differs."""

    op: str
    passed: list[str] = field(default_factory=list[str])
    differences: list[Mismatch] = field(default_factory=list[Mismatch])
    notes: list[Mismatch] = field(default_factory=list[Mismatch])
    """What is right, and could be better."""

    @property
    def ok(self) -> bool:
        """Is everything as it must be?"""
        return not self.differences

    def __str__(self) -> str:
        rows = [(check, "ok", "") for check in self.passed]
        rows += [(found.check, found.what, found.cure) for found in (*self.differences, *self.notes)]
        order = {check: place for place, check in enumerate(CHECKS)}
        rows.sort(key=lambda row: order.get(row[0], len(order)))
        last = f"{self.op} is fine" if self.ok else f"{self.op}: {len(self.differences)} differences"
        return as_text(table(("check", "found", "what to do"), rows), last, width=110)


def check_op(op: Any, *args: Any, **kwargs: Any) -> OpReport:
    """Call an operator eagerly, on fake tensors, functionalised and compiled in both modes, each time with
    copies of these arguments, and report whatever differs from its schema or from the eager call.

    Takes what `torch.ops` has, what `torch.library.custom_op` and `torchair.op` return.
    """
    target = _overload(op, args, kwargs)
    # Python looks at sizes before it touches memory; kernels of libraries may not.
    takes_others = hasattr(op, "_opoverload")
    with _random_numbers_apart(args, kwargs):
        return _Check(target, args, kwargs, takes_others).run()


def _overload(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> OpOverload:
    found = getattr(op, "_opoverload", op)
    if isinstance(found, OpOverloadPacket):
        return resolve_overload(found, args, dict(kwargs))
    if not isinstance(found, OpOverload):
        raise BadCall(
            "check_op takes an operator first",
            got=f"{op!r} ({type(op).__name__})",
            next="torch.ops.mylib.my_op, or what torchair.op returned",
        )
    return found


class _Wrong(Exception):
    """The check ends here."""


class _Check:
    def __init__(
        self, target: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], takes_others: bool
    ) -> None:
        self._target, self._report = target, OpReport(str(target))
        self._takes_others = takes_others  # may it be called with sizes that were not given?
        self._leaves, self._form = tree_flatten((list(args), dict(kwargs)))
        self._names = self._named(args, kwargs)
        self._expected: list[Any] = []
        self._written: list[Any] = []

    def run(self) -> OpReport:
        """All checks; without an eager result there is nothing to compare with."""
        if not self._checked("eager", self._eager):
            return self._report
        self._checked("schema", self._schema)
        if self._checked("fake", lambda: self._fake(any_size=False)):
            self._checked(ANY_SIZE, lambda: self._fake(any_size=True))
            self._checked("functionalised", lambda: self._compiled("functionalised", _functional))
            for title, mode in MODES.items():
                self._checked(title, lambda title=title, mode=mode: self._in_mode(title, mode))
            self._checked("recorded", self._recorded)
        return self._report

    def _checked(self, check: str, run: Callable[[], None]) -> bool:
        known = len(self._report.differences)
        try:
            with torch.no_grad():
                run()
        except _Wrong:
            pass
        except Exception as error:
            # torch's own check of what custom ops return.
            if check == "eager" and "may not alias" in str(error):
                what = "a result is an argument, or shares its memory"
                self._say("schema", what, "return a copy: .clone()")
                return False
            inner = _inner(error)
            what = f"it fails: {type(inner).__name__}: {first_line(inner)}"
            cure = _cure(check) if check.startswith("fake") else ""
            if type(error).__name__ == "UnsupportedOperatorException":
                what = f"{first_line(error)} has no fake function"
            if "output has alias annotations" in what:
                what = "it fails: torch functionalises no operator that returns its argument, or a view of it"
                cure = "return a copy; of what it writes, nothing: -> ()"
            self._say(check, what, cure)
        is_right = len(self._report.differences) == known
        if is_right:
            self._report.passed.append(check)
        return is_right

    def _say(self, check: str, what: str, cure: str = "") -> None:
        self._report.differences.append(Mismatch(check, what, cure))

    def _note(self, check: str, what: str, cure: str = "") -> None:
        self._report.notes.append(Mismatch(check, what, cure))

    def _named(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[str]:
        """What the schema calls the argument that each leaf is of."""
        known = [arg.name for arg in self._target._schema.arguments]
        groups = [*zip(known, args, strict=False), *kwargs.items()]
        return [name for name, value in groups for _ in tree_flatten(value)[0]]

    def _copies(self) -> list[Any]:
        """Fresh arguments that lie as those that were given, together."""
        memory: dict[Any, Any] = {}
        made: dict[int, torch.Tensor] = {}
        for leaf in self._leaves:
            if isinstance(leaf, torch.Tensor) and id(leaf) not in made:
                made[id(leaf)] = _copy(leaf, memory)
        return [made.get(id(leaf), leaf) for leaf in self._leaves]

    def _call(self, leaves: Sequence[Any]) -> list[Any]:
        args, kwargs = tree_unflatten(list(leaves), self._form)
        _seed()
        return list(flat(self._target(*args, **kwargs)))

    # Eager, and what the schema says

    def _eager(self) -> None:
        self._written = self._copies()
        self._expected = self._call(self._written)
        again = self._call(self._copies())
        self._count("eager", again)
        for place, (got, want) in enumerate(zip(again, self._expected, strict=True)):
            if isinstance(want, torch.Tensor) and not _is_close(got, want):
                cure = "draw random numbers from torch's generators, and keep no state"
                self._say("eager", f"result {place} differs from call to call", cure)
                return

    def _schema(self) -> None:
        for place, (result, made) in enumerate(
            zip(self._target._schema.returns, self._expected, strict=False)
        ):
            if made is None and str(result.type) == "Tensor":
                self._say("schema", f"result {place} is None, and the schema says Tensor", "return a tensor")
        declared = set(written_names(self._target))
        cure = "name it in mutates_args, or write Tensor(a!) in the schema"
        rows = list(zip(self._names, self._leaves, self._written, strict=True))
        # What lies in the memory of an argument that is written may change with it.
        known = {_memory(after) for name, _, after in rows if name in declared}
        for name, before, after in rows:
            if isinstance(before, torch.Tensor) and _memory(after) not in known and not _same(before, after):
                self._say("schema", f"it changes its argument {name!r}, and the schema does not say so", cure)
        views = returns_views(self._target)
        memory = {_memory(leaf): name for name, leaf in zip(self._names, self._written, strict=True)}
        for place, result in enumerate(self._expected):
            name = memory.get(_memory(result)) if isinstance(result, torch.Tensor) else None
            if name is not None and not views:
                what = f"result {place} shares memory with the argument {name!r}"
                self._say("schema", what, "return a copy: .clone()")
        owners: dict[Any, int] = {}
        for place, result in enumerate(self._expected):
            if isinstance(result, torch.Tensor) and owners.setdefault(_memory(result), place) != place:
                what = f"results {owners[_memory(result)]} and {place} share memory"
                self._say("schema", what, "return a copy of one")

    # What its fake function says

    def _fake(self, any_size: bool) -> None:
        mode = FakeTensorMode(shape_env=ShapeEnv())
        given = [
            mode.from_tensor(leaf, static_shapes=not any_size) if isinstance(leaf, torch.Tensor) else leaf
            for leaf in self._copies()
        ]
        with mode:
            made = self._call(given)
        check = ANY_SIZE if any_size else "fake"
        self._count(check, made)
        for place, (got, want) in enumerate(zip(made, self._expected, strict=True)):
            if not isinstance(got, torch.Tensor) or not isinstance(want, torch.Tensor):
                if want is not None:
                    self._compare(check, place, "value", _number(got, want), want)
                continue
            sizes = tuple(map(_number, got.shape, want.shape))
            steps = tuple(map(_number, got.stride(), want.stride()))
            self._compare(check, place, "shape", list(sizes), list(want.shape))
            self._compare(check, place, "dtype", got.dtype, want.dtype)
            self._compare(check, place, "device", got.device, want.device)
            if sizes == tuple(want.shape) and not _steps_agree(sizes, steps, want.stride()):
                self._compare(check, place, "strides", list(steps), list(want.stride()))
        if any_size:
            self._fixed(given, made)

    def _fixed(self, given: Sequence[Any], made: Sequence[Any]) -> None:
        """Sizes that are numbers although they began as symbols, or come from such: right where the operator
        has them, too, which a call with other sizes shows.
        """
        sizes = [(n, dim, size) for n, leaf in enumerate(given) for dim, size in enumerate(_sizes(leaf))]
        decided = [(n, dim, size) for n, dim, size in sizes if is_symbol(size) and not _varies(size)]
        results = [(n, dim, size) for n, leaf in enumerate(made) for dim, size in enumerate(_sizes(leaf))]
        numbers = [(n, dim, size) for n, dim, size in results if not _varies(size)]
        if not any(is_symbol(size) for _, _, size in sizes) or not (decided or numbers):
            return
        others = self._with_other_sizes()
        arguments = [1, *(leaf for leaf in self._leaves if isinstance(leaf, int))]
        cure = "take sizes from the arguments, as they are: no int(), no numbers"
        for n, dim, size in decided:
            what = f"size {dim} of {self._names[n]!r} is fixed at {hint(size)}"
            if others is None:
                self._note(ANY_SIZE, f"{what}: others are compiled anew", cure)
            else:
                self._say(ANY_SIZE, f"{what}, and the operator takes others", cure)
        for n, dim, size in [] if decided else numbers:
            what = f"size {dim} of result {n} is {hint(size)} whatever the sizes of the arguments are"
            if others is None and not any(map(_varies, _sizes(made[n]))) and hint(size) not in arguments:
                self._note(ANY_SIZE, what, f"if it is to vary: {cure}")
            elif others is not None and _sizes(others[n])[dim : dim + 1] != (hint(size),):
                self._say(ANY_SIZE, f"{what}, eagerly it varies", cure)

    def _with_other_sizes(self) -> list[Any] | None:
        """The results of an eager call with all sizes larger by one; None where that cannot be."""
        tensors = [leaf for leaf in self._leaves if isinstance(leaf, torch.Tensor)]
        if not self._takes_others or any(leaf.device.type != "cpu" for leaf in tensors):
            return None
        grown = [_larger(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in self._leaves]
        try:
            made = self._call(grown)
        except Exception as error:
            logger.debug("%s takes no other sizes: %s", self._report.op, first_line(error))
            return None
        return made if len(made) == len(self._expected) else None

    def _count(self, check: str, made: Sequence[Any]) -> None:
        if len(made) != len(self._expected):
            what = f"it returns {len(made)} values, the eager call {len(self._expected)}"
            self._say(check, what, _cure(check))
            raise _Wrong

    def _compare(self, check: str, place: int, what: str, got: Any, want: Any) -> None:
        if got != want:
            self._say(check, f"{what} of result {place}: {got}, eagerly {want}", _cure(check))

    # Compiled

    def _recorded(self) -> None:
        """Would a recording have to stop for it?"""
        found: dict[str, str] = {}

        def look(gm: fx.GraphModule, inputs: Sequence[Any]) -> Any:
            found.update({str(node.target): why for node, why in host_op_reasons(gm).items()})
            return _boxed(gm, inputs)

        self._run(aot_autograd(fw_compiler=look))
        for what, why in found.items():
            cure = "recordings are split around it; leave the data on the device"
            self._say("recorded", f"{what} cannot be recorded: {why}", cure)

    def _run(self, backend: Callable[..., Any]) -> tuple[list[Any], list[Any]]:
        """Results, and the arguments after the call."""
        leaves = self._copies()
        places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

        def call(*tensors: torch.Tensor) -> Any:
            filled = list(leaves)
            for place, tensor in zip(places, tensors, strict=True):
                filled[place] = tensor
            args, kwargs = tree_unflatten(filled, self._form)
            return self._target(*args, **kwargs)

        def compile(gm: fx.GraphModule, inputs: list[Any]) -> Any:
            return backend(gm, inputs)

        with isolated_dynamo(compile), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compiled = compile_apart(call, backend=compile)
            _seed()
            made = list(flat(compiled(*(leaves[place] for place in places))))
        return made, leaves

    def _in_mode(self, check: str, mode: str) -> None:
        """Compiled by us; what was less than promised is told."""
        config = CompilerConfig()
        config.mode = mode
        config.engine_config.codegen = "eager"
        break_graphs()
        settings = resolve_settings(config)
        runners: list[Runner] = []

        def compile(*args: Any) -> Runner:
            runners.append(compile_fx(*args))
            return runners[-1]

        self._compiled(check, lambda gm, inputs: compile_dynamo(gm, inputs, settings, {}, compile))
        texts = [text for runner in runners for text in runner.strategy.compiled.degradations.texts]
        for what in dict.fromkeys(text.splitlines()[0] for text in texts):
            (self._note if "carried through" in what else self._say)(check, what)

    def _compiled(self, check: str, backend: Callable[..., Any]) -> None:
        made, leaves = self._run(backend)
        self._count(check, made)
        for place, (got, want) in enumerate(zip(made, self._expected, strict=True)):
            self._compare_values(check, f"result {place}", got, want)
        for name, got, want in zip(self._names, leaves, self._written, strict=True):
            self._compare_values(check, f"argument {name!r} after the call", got, want)

    def _compare_values(self, check: str, who: str, got: Any, want: Any) -> None:
        if not isinstance(want, torch.Tensor):
            if want is not None and got != want:
                self._say(check, f"{who} is {got!r}, eagerly {want!r}", _cure(check))
            return
        try:
            torch.testing.assert_close(got, want, equal_nan=True)
        except AssertionError as error:
            self._say(check, f"{who} differs from the eager one: {first_line(error)}", _cure(check))


def _cure(check: str) -> str:
    if check.startswith("fake"):
        return "register_fake: results as the eager call makes them, of empty tensors"
    return "its converter or kernel computes something else" if check == "graph mode" else ""


def _inner(error: BaseException) -> BaseException:
    """What a compiler raised, without what Dynamo puts around it."""
    return error.inner_exception if isinstance(error, BackendCompilerFailed) else error


def _functional(gm: fx.GraphModule, inputs: Sequence[Any]) -> Any:
    """The graph without writes, run op by op."""
    tell_shared_arguments(gm, PassContext())
    return aot_autograd(fw_compiler=_boxed, keep_inference_input_mutations=True)(gm, inputs)


def _boxed(gm: fx.GraphModule, inputs: Sequence[Any]) -> Any:
    """The graph as it is, for AOTAutograd."""

    def run(args: list[Any]) -> Any:
        return gm(*args)

    setattr(run, "_boxed_call", True)  # noqa: B010 - AOTAutograd asks functions
    return run


@contextmanager
def _random_numbers_apart(*values: Any) -> Iterator[None]:
    """Random states are afterwards as they were, those of the devices of these tensors included."""
    kinds = {leaf.device.type for leaf in tree_flatten(values)[0] if isinstance(leaf, torch.Tensor)}
    python, numpy = random.getstate(), np.random.get_state()
    with ExitStack() as stack:
        for kind in sorted({"cuda", *kinds} - {"cpu", "meta"}):
            count = torch.get_device_module(kind).device_count()
            stack.enter_context(torch.random.fork_rng(range(count), device_type=kind))
        stack.callback(np.random.set_state, numpy)
        stack.callback(random.setstate, python)
        yield


def _seed() -> None:
    torch.manual_seed(SEED)
    random.seed(SEED)
    np.random.seed(SEED)


def _copy(value: torch.Tensor, memory: dict[Any, Any]) -> torch.Tensor:
    """A tensor that lies as another does, in the copy of its memory."""
    key = _memory(value)
    if key not in memory:
        memory[key] = value.untyped_storage().clone()
    made = torch.empty(0, dtype=value.dtype, device=value.device)
    made.set_(memory[key], value.storage_offset(), value.shape, value.stride())
    for mark, is_on in zip(MARKS, (value.is_conj(), value.is_neg()), strict=True):
        made = mark(made) if is_on else made
    return made


def _is_close(got: Any, want: torch.Tensor) -> bool:
    try:
        torch.testing.assert_close(got, want, equal_nan=True)
    except AssertionError:
        return False
    return True


def _larger(value: torch.Tensor) -> torch.Tensor:
    """A tensor with one more of each size that may vary: its last entries, again."""
    for dim, size in enumerate(value.shape):
        if size > 1:
            value = torch.cat([value, value.narrow(dim, size - 1, 1)], dim)
    return value.clone()


def _sizes(value: Any) -> tuple[Any, ...]:
    return tuple(value.shape) if isinstance(value, torch.Tensor) else ()


def _varies(size: Any) -> bool:
    """Is it a symbol, which nothing has made a number?"""
    return is_symbol(size) and size.node.maybe_as_int() is None


def _memory(value: Any) -> Any:
    """What two tensors on one piece of memory have in common; a value without memory has its own."""
    if not isinstance(value, torch.Tensor) or not value.untyped_storage().nbytes():
        return id(value)
    return (value.device, value.untyped_storage().data_ptr())


def _same(before: torch.Tensor, after: torch.Tensor) -> bool:
    """Is every byte of the memory as it was?"""
    one, other = (
        torch.empty(0, dtype=torch.uint8, device=x.device).set_(x.untyped_storage()) for x in (before, after)
    )
    return torch.equal(one, other) and before.shape == after.shape


def _number(said: Any, real: Any) -> Any:
    """A size that a fake tensor has, or a number; what only the data decides may be any."""
    return real if is_unbacked(said) else hint(said) if is_symbol(said) else said


def _steps_agree(sizes: Sequence[int], got: Sequence[int], want: Sequence[int]) -> bool:
    """Strides of dims of one element mean nothing."""
    if 0 in sizes:
        return True
    return all(g == w for size, g, w in zip(sizes, got, want, strict=True) if size > 1)
