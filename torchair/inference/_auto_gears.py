"""Gears chosen from the sizes that come: a model behind a call that serves any size, and the frequent ones
with programs of their own.

The life of a form (everything about a call but the size):

* its first calls run dynamically, and sizes are counted;
* then gears are chosen (`_gear_choice.py`) under the budgets. A call of a gear's size runs with the gear's
  program; one below is padded up to it, if the user said with which values and it is known which outputs to
  crop (`_crops.py`); all others run dynamically;
* the first padded call of each gear runs both ways, and the dynamic result is returned: where the padded one
  differs, or the model writes its arguments or its state, padding ends, and that is told;
* when the sizes drift, gears are chosen again, a few times at most.

A call never fails for any of this: what goes wrong with gears is told, and the call runs dynamically.
"""

from __future__ import annotations

import inspect
import itertools
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from torchair.backend.doors import get_npu_backend
from torchair.backend.gears import MOST, set_dim_gears
from torchair.configs.compiler_config import CompilerConfig
from torchair.core.degraded import Degradations
from torchair.core.errors import BadGears, Degraded, first_line
from torchair.core.tables import text_lines
from torchair.core.torch_private.fake import tree_flatten
from torchair.devices import device_row
from torchair.inference._crops import Crops, Declared, Unknown, declared_crops, symbolic_crops
from torchair.inference._gear_choice import choose, cost, serving

FORMS = 4  # that have gears
CHOICES = 4  # of the gears of one form: once, and when sizes drift
DRIFT = 0.1  # of all work: how much worse gears may do than they did, before they are chosen again
BUILDING = 3  # calls of a gear until its own program is recorded
HELD = 2  # times: what the caller has, and what a gear has of inputs and outputs
CLOSE = {torch.float64: 1e-6, torch.float32: 1e-3}  # as a share of the largest number; of others:
CLOSE_ENOUGH = 3e-2

_names = itertools.count()


@dataclass(frozen=True)
class Wishes:
    """What the user said."""

    dims: Mapping[str, int]
    pad: Mapping[str, Any]
    crop: bool | Declared
    most: int
    waste: float
    after: int
    check: bool
    memory_bytes: int | None
    seconds: float | None


@dataclass(frozen=True)
class GearReport:
    """What calls came, and how they were served."""

    calls: int
    sizes: Mapping[int, int]  # how often each size came
    gears: tuple[tuple[int, ...], ...]  # of each form of calls that has some
    exact: int  # calls of a gear's own size
    padded: int
    dynamic: Mapping[str, int]  # calls without a gear, and why
    padded_share: float  # of the elements that gears worked on
    bytes: int  # taken for gears: measured on the device, or what their inputs and outputs take
    seconds: float  # spent on choosing and building gears
    choices: int
    why_not_padded: str | None

    def __str__(self) -> str:
        gears = ", ".join(str(list(each)) for each in self.gears) or "none"
        rows = [("gears", gears), ("calls", self.calls), ("of a gear", self.exact), ("padded", self.padded)]
        rows += [(f"dynamic: {why}", count) for why, count in self.dynamic.items()]
        rows += [("padded share", f"{self.padded_share:.1%}"), ("bytes", self.bytes)]
        rows += [("seconds", f"{self.seconds:.1f}"), ("choices", self.choices)]
        rows += [("not padded", self.why_not_padded)] if self.why_not_padded else []
        seen = ", ".join(f"{size}: {count}" for size, count in sorted(self.sizes.items()))
        return "\n".join(text_lines(("what", "value"), [*rows, ("sizes", seen)]))


def auto_gears(
    model: Callable[..., Any],
    *,
    dims: Mapping[str, int],
    pad: Mapping[str, Any] | None = None,
    crop: bool | Declared = True,
    most: int = 8,
    waste: float = 1.0,
    after: int = 32,
    check: bool = True,
    memory_bytes: int | None = None,
    seconds: float | None = None,
    config: CompilerConfig | None = None,
) -> AutoGears:
    """A callable like `model` that learns which sizes come and has programs for the frequent ones.

    `dims`: of each argument that has the varying size, by its name, the dimension. `pad`: the value that
    fills up each of them (0 for a mask); sizes are padded only if each named argument has one. `crop`: True
    crops outputs by their symbolic shapes, a dict says which dimensions (`{"logits": 1}`, or by place), False
    leaves them padded. `most` gears at most; padding adds at most `waste` times the size of a call; gears are
    chosen `after` so many calls. `check`: the first padded call of each gear is compared with a dynamic one.
    `memory_bytes` and `seconds` are what gears may take. `report()` says what came and how it was served.
    """
    wishes = Wishes(
        dict(dims) if isinstance(dims, Mapping) else dims,
        dict(pad or {}),
        crop if isinstance(crop, bool) else dict(crop),
        most,
        waste,
        after,
        check,
        memory_bytes,
        seconds,
    )
    return AutoGears(model, _checked(wishes, model), CompilerConfig() if config is None else config)


def _checked(wishes: Wishes, model: Any) -> Wishes:
    """Mistakes are told where they are made."""
    if not callable(model):
        raise BadGears("a model is a module or a function", got=type(model).__name__)
    if not isinstance(wishes.dims, Mapping) or not wishes.dims:
        raise BadGears("dims names arguments and the dimension of each", got=repr(wishes.dims))
    parameters = inspect.signature(model.forward if isinstance(model, nn.Module) else model).parameters
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    for name, dim in wishes.dims.items():
        if isinstance(dim, bool) or not isinstance(dim, int):
            raise BadGears(f"the dimension of {name} is an int", got=repr(dim))
        if name not in parameters and not takes_any:
            raise BadGears(f"the model has no argument {name!r}", near=", ".join(parameters))
    if unknown := [name for name in wishes.pad if name not in wishes.dims]:
        raise BadGears(f"pad names {unknown[0]!r}, which dims does not", near=", ".join(wishes.dims))
    if isinstance(wishes.most, bool) or not isinstance(wishes.most, int) or not 1 <= wishes.most <= MOST:
        raise BadGears(f"there are 1 to {MOST} gears at most", got=repr(wishes.most))
    for what in ("waste", "after", "memory_bytes", "seconds"):
        number = getattr(wishes, what)
        if number is None and what in ("memory_bytes", "seconds"):
            continue
        if isinstance(number, bool) or not isinstance(number, int | float) or number < 0:
            raise BadGears(f"{what} is a number of 0 and more", got=repr(number))
    return wishes


@dataclass
class Call:
    """One call, its arguments bound to names."""

    bound: inspect.BoundArguments
    named: dict[str, tuple[torch.Tensor, int]]  # of each tensor with the size, which dimension
    size: int
    form: Hashable

    def with_tensors(self, tensors: Mapping[str, torch.Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments, some of them others."""
        bound = inspect.BoundArguments(self.bound.signature, self.bound.arguments.copy())
        for name, tensor in tensors.items():
            if name in bound.arguments:
                bound.arguments[name] = tensor
            else:
                extra = _extra(bound)
                bound.arguments[extra] = {**bound.arguments[extra], name: tensor}
        return bound.args, bound.kwargs


def _extra(bound: inspect.BoundArguments) -> str:
    """The parameter that takes all other names."""
    return next(p.name for p in bound.signature.parameters.values() if p.kind is p.VAR_KEYWORD)


def _arguments(bound: inspect.BoundArguments) -> Iterator[tuple[str, Any]]:
    for name, value in bound.arguments.items():
        if bound.signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
            yield from value.items()
        else:
            yield name, value


@dataclass
class Form:
    """Calls that differ in nothing but the size."""

    run: Callable[..., Any] | None = None
    recent: deque[int] = field(default_factory=deque[int])
    gears: tuple[int, ...] = ()
    cost: float = 0.0  # expected of these gears
    choices: int = 0
    calls: Counter[int] = field(default_factory=Counter[int])  # of each gear
    checked: set[int] = field(default_factory=set[int])
    crops: Crops | None = None
    unit_bytes: float = 0.0  # of inputs and outputs, by the size


class AutoGears:
    """See `auto_gears`."""

    def __init__(self, model: Callable[..., Any], wishes: Wishes, config: CompilerConfig) -> None:
        if config.mode.value not in (None, "max-autotune"):
            raise BadGears("gears are of graph mode", got=f"mode {config.mode.value!r}")
        self.model = model
        self._wishes = wishes
        self._backend = get_npu_backend(compiler_config=config)
        self._signature = inspect.signature(model.forward if isinstance(model, nn.Module) else model)
        self._dynamic = self._compiled(dynamic=True)
        self._forms: dict[Hashable, Form] = {}
        self._degradations = Degradations()
        self._lock, self._turn = threading.Lock(), threading.RLock()
        self._building = threading.RLock()
        self._why_not_padded = None if set(wishes.dims) <= set(wishes.pad) else "no values to pad with"
        self._sizes: Counter[int] = Counter()
        self._without: Counter[str] = Counter()
        self._exact = self._padded = self._work = self._added = 0
        self._seconds, self._measured, self._slowest = 0.0, 0, 0.0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with self._turn:  # torch traces in one thread at a time, and any call may be one that is traced
            return self._call(args, kwargs)

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        call = self._read(args, kwargs)
        if isinstance(call, str):
            return self._dynamically(args, kwargs, call)
        form = self._counted(call)
        if form is None:
            return self._dynamically(args, kwargs, "other arguments differ from call to call")
        gear = self._serving(form, call.size)
        if gear is None:
            outputs = self._dynamically(args, kwargs, "no gear fits" if form.choices else "sizes are counted")
            self._note(call, form, outputs)
            return outputs
        try:
            return self._with_gear(call, form, gear)
        except Degraded:
            raise
        except Exception as error:
            # Where the call itself is at fault, this raises as well.
            outputs = self._dynamically(args, kwargs, "a gear failed")
            with self._lock:
                form.gears, form.choices = (), CHOICES
            what = f"{type(error).__name__}: {first_line(error)}"
            self._degradations.add(f"auto_gears runs calls of one form dynamically: {what}")
            return outputs

    def _dynamically(self, args: tuple[Any, ...], kwargs: dict[str, Any], why: str) -> Any:
        with self._lock:
            self._without[why] += 1
        return self._dynamic(*args, **kwargs)

    def report(self) -> GearReport:
        """What came so far, and how it was served."""
        with self._lock:
            forms = [form for form in self._forms.values() if form.gears]
            planned = sum(int(form.unit_bytes * form.gears[-1]) for form in forms)
            return GearReport(
                calls=self._exact + self._padded + sum(self._without.values()),
                sizes=dict(self._sizes),
                gears=tuple(form.gears for form in forms),
                exact=self._exact,
                padded=self._padded,
                dynamic=dict(self._without),
                padded_share=self._added / self._work if self._work else 0.0,
                bytes=max(planned, self._measured),
                seconds=self._seconds,
                choices=sum(form.choices for form in self._forms.values()),
                why_not_padded=self._why_not_padded,
            )

    # Looking at a call

    def _read(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | str:
        """The call; or why it has no gear."""
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError:
            return "arguments that the model does not take"
        named: dict[str, tuple[torch.Tensor, int]] = {}
        rest: list[Hashable] = []
        for name, value in _arguments(bound):
            dim = self._wishes.dims.get(name)
            if isinstance(value, torch.Tensor):
                if dim is not None and -value.dim() <= dim < value.dim():
                    named[name] = value, dim % value.dim()
                rest.append((name, _look(value, named[name][1] if name in named else None)))
            elif value is None or isinstance(value, bool | int | float | str):
                rest.append((name, type(value), value))
            else:
                return "an argument is neither a tensor nor a plain value"
        sizes = {tensor.size(dim) for tensor, dim in named.values()}
        if len(sizes) != 1:
            return "the named arguments have several sizes" if sizes else "no named argument was given"
        if any(tensor.requires_grad for tensor, _ in named.values()):
            return "a named argument requires gradients"
        modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        return Call(bound, named, sizes.pop(), (modes, getattr(self.model, "training", None), tuple(rest)))

    def _counted(self, call: Call) -> Form | None:
        """The form of a call, whose gears are chosen when it is time; None where there are too many."""
        with self._lock:
            self._sizes[call.size] += 1
            if call.form not in self._forms and len(self._forms) >= FORMS:
                return None
            form = self._forms.setdefault(call.form, Form())
            form.recent.append(call.size)
            if len(form.recent) < max(1, int(self._wishes.after)):
                return form
            recent = Counter(form.recent)
            form.recent.clear()
            now = cost(recent, form.gears, self._wishes.waste, may_pad=self._may_pad(form))
            is_due = not form.choices or (form.choices < CHOICES and now > form.cost + DRIFT)
            form.choices += is_due
        if is_due:
            self._choose(call, form, recent)
        return form

    def _may_pad(self, form: Form) -> bool:
        return form.crops is not None and self._why_not_padded is None

    def _serving(self, form: Form, size: int) -> int | None:
        """The gear of a size; where nothing is left to build others with, of those that are built."""
        waste, may_pad = self._wishes.waste, self._may_pad(form)
        gear = serving(size, form.gears, waste, may_pad=may_pad)
        if gear is None or form.calls[gear] or not self._is_spent():
            return gear
        with self._lock:
            form.gears = tuple(each for each in form.gears if form.calls[each])
        return serving(size, form.gears, waste, may_pad=may_pad)

    def _is_spent(self) -> bool:
        """Has what gears may take been taken, or would another one be too much?"""
        wishes = self._wishes
        is_late = wishes.seconds is not None and self._seconds + self._slowest > wishes.seconds
        return is_late or (wishes.memory_bytes is not None and self._measured >= wishes.memory_bytes)

    def _note(self, call: Call, form: Form, outputs: Any) -> None:
        """What calls take, and how their outputs are cropped if the user says it."""
        if form.unit_bytes or call.size < 1:
            return
        leaves = [leaf for leaf in tree_flatten(outputs)[0] if isinstance(leaf, torch.Tensor)]
        tensors = [*leaves, *(tensor for tensor, _ in call.named.values())]
        form.unit_bytes = HELD * sum(tensor.nbytes for tensor in tensors) / call.size
        if self._wishes.crop is False:
            form.crops = Crops(None)
        elif self._wishes.crop is not True:
            try:
                form.crops = declared_crops(outputs, self._wishes.crop)
            except Unknown as why:
                self._stop_padding(str(why))

    # Choosing

    def _choose(self, call: Call, form: Form, recent: Counter[int]) -> None:
        wishes = self._wishes
        with self._building, self._timed(call):
            if form.crops is None and wishes.crop is True and self._why_not_padded is None and call.size > 1:
                self._find_crops(call, form)
            may_pad = self._may_pad(form)
            left = wishes.most - sum(len(other.gears) for other in self._forms.values() if other is not form)
            limit = wishes.memory_bytes
            fitting = {n: seen for n, seen in recent.items() if limit is None or form.unit_bytes * n <= limit}
            gears = () if self._is_spent() else choose(fitting, left, wishes.waste, may_pad=may_pad)
            with self._lock:
                form.cost = cost(recent, gears, wishes.waste, may_pad=may_pad)
                if gears != form.gears:
                    form.gears, form.calls, form.checked = gears, Counter(), set()
                    form.run = self._compiled(dynamic=len(gears) > 1)

    def _find_crops(self, call: Call, form: Form) -> None:
        """From symbolic shapes."""
        args, kwargs = call.bound.args, call.bound.kwargs
        names = [p.name for p in self._signature.parameters.values()][: len(args)]
        dims = {name: dim for name, (_, dim) in call.named.items()}
        try:
            form.crops = symbolic_crops(self.model, dict(zip(names, args, strict=True)), kwargs, dims)
        except Unknown as why:
            self._stop_padding(str(why), next='say which with crop={"logits": 1}, or crop=False')

    def _stop_padding(self, why: str, next: str = "") -> None:
        self._why_not_padded = why
        self._degradations.add(f"auto_gears pads no calls: {why}", next=next)

    def _compiled(self, *, dynamic: bool) -> Callable[..., Any]:
        """Compiled apart from all others: with a code object of its own, where Dynamo keeps its results."""
        model = self.model

        def run(*args: Any, **kwargs: Any) -> Any:
            return model(*args, **kwargs)

        run.__code__ = run.__code__.replace(co_name=f"auto_gears_{next(_names)}")
        return torch.compile(run, backend=self._backend, dynamic=dynamic)

    # Running

    def _with_gear(self, call: Call, form: Form, gear: int) -> Any:
        is_padded = gear != call.size
        if is_padded and self._wishes.check and self._wishes.crop is not False and gear not in form.checked:
            return self._compared(call, form, gear)
        outputs = self._run(call, form, gear)
        if is_padded:
            assert form.crops is not None, "else nothing is padded"
            outputs = form.crops.cut(outputs, call.size)
        with self._lock:
            self._exact += not is_padded
            self._padded += is_padded
            self._work += gear
            self._added += gear - call.size
        return outputs

    def _compared(self, call: Call, form: Form, gear: int) -> Any:
        """The dynamic result; the padded one is held against it."""
        with self._building:
            before = self._versions(call)
            outputs = self._dynamically(call.bound.args, call.bound.kwargs, "to compare with")
            if self._versions(call) != before:
                self._stop_padding("the model writes its arguments or its state")
                return outputs
            assert form.crops is not None, "else nothing is padded"
            padded = form.crops.cut(self._run(call, form, gear), call.size)
            if (why := _difference(outputs, padded)) is None:
                form.checked.add(gear)
            else:
                self._stop_padding(f"from {call.size} to {gear}, {why}", next="see that masks are 0 there")
        return outputs

    def _versions(self, call: Call) -> list[int]:
        state = [value for _, value in _arguments(call.bound)]
        if isinstance(self.model, nn.Module):
            state += [*self.model.buffers(), *self.model.parameters()]
        tensors = [value for value in state if isinstance(value, torch.Tensor)]
        return [tensor._version for tensor in tensors if not tensor.is_inference()]

    def _run(self, call: Call, form: Form, gear: int) -> Any:
        """With the program of a gear; the first calls of each make it."""
        tensors = {name: self._padded_to(name, call, gear) for name in call.named}
        run = form.run
        assert run is not None, "there are gears"
        if form.calls[gear] >= BUILDING:
            args, kwargs = call.with_tensors(tensors)
            return run(*args, **kwargs)
        with self._building, self._timed(call):
            if not form.calls.total() and len(form.gears) > 1:
                tensors = {name: tensor.detach() for name, tensor in tensors.items()}
                for name, tensor in tensors.items():
                    set_dim_gears(tensor, {call.named[name][1]: list(form.gears)})
            args, kwargs = call.with_tensors(tensors)
            outputs = run(*args, **kwargs)
            form.calls[gear] += 1
            return outputs

    def _padded_to(self, name: str, call: Call, gear: int) -> torch.Tensor:
        tensor, dim = call.named[name]
        if gear == call.size:
            return tensor
        shape = list(tensor.shape)
        shape[dim] = gear
        made = torch.full(shape, self._wishes.pad[name], dtype=tensor.dtype, device=tensor.device)
        made.narrow(dim, 0, call.size).copy_(tensor)
        return made

    @contextmanager
    def _timed(self, call: Call) -> Iterator[None]:
        """Time and memory that gears take."""
        device = next(iter(call.named.values()))[0].device
        row = device_row(device)
        counts = row.has_graphs and row.why_no_graphs() is None
        began, before = time.perf_counter(), row.reserved_bytes(device) if counts else 0
        try:
            yield
        finally:
            spent = time.perf_counter() - began
            self._seconds += spent
            self._slowest = max(self._slowest, spent)
            self._measured += max(0, row.reserved_bytes(device) - before) if counts else 0


def _look(tensor: torch.Tensor, dim: int | None) -> Hashable:
    """All about a tensor that a program may depend on, but its size in one dimension."""
    shape = tuple(None if at == dim else size for at, size in enumerate(tensor.shape))
    return tensor.dtype, tensor.device, shape


def _difference(expected: Any, found: Any) -> str | None:
    """What differs between the outputs of two calls, beyond what other kernels make."""
    pairs = list(zip(tree_flatten(expected)[0], tree_flatten(found)[0], strict=True))
    for place, (a, b) in enumerate(pairs):
        if not isinstance(a, torch.Tensor):
            continue
        if a.shape != b.shape:
            return f"output {place} would have the shape {tuple(b.shape)} and not {tuple(a.shape)}"
        if not a.numel():
            continue
        exact = not (a.is_floating_point() or a.is_complex())
        limit = 0.0 if exact else CLOSE.get(a.dtype, CLOSE_ENOUGH)
        wide = [x.to(torch.complex128 if x.is_complex() else torch.float64) for x in (a, b)]
        most = float(torch.nan_to_num(wide[0]).abs().max())
        if not torch.allclose(*wide, rtol=0.0, atol=limit * most, equal_nan=True):
            return f"output {place} would have other numbers"
    return None
