"""`torchair.check_op`: is an operator all that compilers take it for? Each way of running it is compared with
the eager call, and every difference is told in plain words.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from torchair.backend.doors import get_npu_backend
from torchair.capture.host import why_on_host
from torchair.configs.compiler_config import CompilerConfig
from torchair.core.errors import BadCall, DegradedWarning, first_line
from torchair.core.tables import as_text, table
from torchair.core.torch_private.aot import aot_autograd, reset_dynamo
from torchair.core.torch_private.fake import (
    FakeTensorMode,
    ShapeEnv,
    is_unbacked,
    tree_flatten,
    tree_unflatten,
)
from torchair.core.torch_private.ops import OpOverload, OpOverloadPacket, resolve_overload
from torchair.fxgraph.effects import flat, returns_views, written_names
from torchair.fxgraph.symbols import hint, is_symbol

MODES = {"graph mode": "max-autotune", "capture mode": "npugraph_ex"}
CHECKS = ("eager", "schema", "fake", "fake, any size", "functionalised", *MODES, "recorded")


@dataclass(frozen=True)
class Difference:
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
    differences: list[Difference] = field(default_factory=list[Difference])
    notes: list[Difference] = field(default_factory=list[Difference])
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
    return _Check(target, args, kwargs).run()


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
    def __init__(self, target: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self._target, self._report = target, OpReport(str(target))
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
            self._checked("fake, any size", lambda: self._fake(any_size=True))
            self._checked("functionalised", lambda: self._compiled("functionalised", "aot_eager"))
            for title, mode in MODES.items():
                config = CompilerConfig()
                config.mode = mode
                config.engine_config.codegen = "eager"
                backend = get_npu_backend(compiler_config=config)
                self._checked(title, lambda title=title, backend=backend: self._compiled(title, backend))
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
            what = f"it fails: {type(error).__name__}: {first_line(error)}"
            if type(error).__name__ == "UnsupportedOperatorException":
                what = f"{first_line(error)} has no fake function"
            self._say(check, what, _cure(check))
        is_right = len(self._report.differences) == known
        if is_right:
            self._report.passed.append(check)
        return is_right

    def _say(self, check: str, what: str, cure: str = "") -> None:
        self._report.differences.append(Difference(check, what, cure))

    def _named(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[str]:
        """What the schema calls the argument that each leaf is of."""
        known = [arg.name for arg in self._target._schema.arguments]
        groups = [*zip(known, args, strict=False), *kwargs.items()]
        return [name for name, value in groups for _ in tree_flatten(value)[0]]

    def _copies(self) -> list[Any]:
        """Fresh arguments that lie as those that were given."""
        return [_copy(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in self._leaves]

    def _call(self, leaves: Sequence[Any]) -> list[Any]:
        args, kwargs = tree_unflatten(list(leaves), self._form)
        return list(flat(self._target(*args, **kwargs)))

    # Eager, and what the schema says

    def _eager(self) -> None:
        self._written = self._copies()
        self._expected = self._call(self._written)

    def _schema(self) -> None:
        declared = set(written_names(self._target))
        cure = "name it in mutates_args, or write Tensor(a!) in the schema"
        for name, before, after in zip(self._names, self._leaves, self._written, strict=True):
            if isinstance(before, torch.Tensor) and name not in declared and not _same(before, after):
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
        check = "fake, any size" if any_size else "fake"
        self._count(check, made)
        for place, (got, want) in enumerate(zip(made, self._expected, strict=True)):
            if not isinstance(got, torch.Tensor) or not isinstance(want, torch.Tensor):
                continue
            sizes = tuple(map(_number, got.shape, want.shape))
            steps = tuple(map(_number, got.stride(), want.stride()))
            self._compare(check, place, "shape", list(sizes), list(want.shape))
            self._compare(check, place, "dtype", got.dtype, want.dtype)
            self._compare(check, place, "device", got.device, want.device)
            if sizes == tuple(want.shape) and not _steps_agree(sizes, steps, want.stride()):
                self._compare(check, place, "strides", list(steps), list(want.stride()))

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
            found.update({str(node.target): why for node, why in why_on_host(gm).items()})

            def run(args: list[Any]) -> Any:
                return gm(*args)

            setattr(run, "_boxed_call", True)  # noqa: B010 - AOTAutograd asks functions
            return run

        self._run(aot_autograd(fw_compiler=look))
        for what, why in found.items():
            cure = "recordings are split around it; leave the data on the device"
            self._say("recorded", f"{what} cannot be recorded: {why}", cure)

    def _run(self, backend: Any) -> tuple[list[Any], list[Any], list[warnings.WarningMessage]]:
        """Results, the arguments after the call, and what was told."""
        leaves = self._copies()
        places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

        def call(*tensors: torch.Tensor) -> Any:
            filled = list(leaves)
            for place, tensor in zip(places, tensors, strict=True):
                filled[place] = tensor
            args, kwargs = tree_unflatten(filled, self._form)
            return self._target(*args, **kwargs)

        reset_dynamo()
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            made = list(flat(torch.compile(call, backend=backend)(*(leaves[place] for place in places))))
        reset_dynamo()
        return made, leaves, list(told)

    def _compiled(self, check: str, backend: Any) -> None:
        made, leaves, told = self._run(backend)
        for what in dict.fromkeys(_told(each) for each in told if issubclass(each.category, DegradedWarning)):
            note = Difference(check, what)
            (self._report.notes if "carried through" in what else self._report.differences).append(note)
        self._count(check, made)
        for place, (got, want) in enumerate(zip(made, self._expected, strict=True)):
            self._compare_values(check, f"result {place}", got, want)
        for name, got, want in zip(self._names, leaves, self._written, strict=True):
            self._compare_values(check, f"argument {name!r} after the call", got, want)

    def _compare_values(self, check: str, who: str, got: Any, want: Any) -> None:
        if not isinstance(want, torch.Tensor):
            return
        try:
            torch.testing.assert_close(got, want, equal_nan=True)
        except AssertionError as error:
            self._say(check, f"{who} differs from the eager one: {first_line(error)}", _cure(check))


def _cure(check: str) -> str:
    if check.startswith("fake"):
        return "register_fake: results as the eager call makes them, of empty tensors"
    return "its converter or kernel computes something else" if check == "graph mode" else ""


def _told(warning: warnings.WarningMessage) -> str:
    return str(warning.message).splitlines()[0]


def _copy(value: torch.Tensor) -> torch.Tensor:
    """A tensor that lies as another does, in memory of its own."""
    storage = value.untyped_storage().clone()
    made = torch.empty(0, dtype=value.dtype, device=value.device)
    made.set_(storage, value.storage_offset(), value.shape, value.stride())
    return made


def _memory(value: Any) -> Any:
    """What two tensors on one piece of memory have in common; a value without memory has its own."""
    if not isinstance(value, torch.Tensor) or not value.untyped_storage().nbytes():
        return id(value)
    return ("memory", value.untyped_storage().data_ptr())


def _same(before: torch.Tensor, after: torch.Tensor) -> bool:
    """Is every byte of the memory as it was?"""
    one, other = (
        torch.empty(0, dtype=torch.uint8, device=x.device).set_(x.untyped_storage()) for x in (before, after)
    )
    return torch.equal(one, other) and before.shape == after.shape


def _number(said: Any, real: int) -> int:
    """A size that a fake tensor has; what only the data decides may be any."""
    return real if is_unbacked(said) else hint(said) if is_symbol(said) else said


def _steps_agree(sizes: Sequence[int], got: Sequence[int], want: Sequence[int]) -> bool:
    """Strides of dims of one element mean nothing."""
    if 0 in sizes:
        return True
    return all(g == w for size, g, w in zip(sizes, got, want, strict=True) if size > 1)
