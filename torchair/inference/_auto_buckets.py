"""Choose gears from the sizes of calls: frequent sizes get their own programs, other sizes run dynamically.

The states of a call signature (everything about a call except the size):

* Its first calls run dynamically, and their sizes are counted.
* Then gears are chosen (`_bucket_choice.py`) within the budgets. A call of a gear's size runs the gear's
  program. A smaller call is padded up to it, if the user declared the padding values and it is known which
  outputs to crop (`_padding/output_crop.py`). All other calls run dynamically.
* The captured graph shows whether padding may change a result (`_padding/captured_graph.py`). This is checked
  before a padded call is served, and repeated from time to time (`_padding/checks.py`). If it may, or if the
  model writes its arguments or its state, no call is padded, and a warning says why. The model itself runs
  once per call.
* If the sizes drift, gears are chosen again, a few times at most.

No call fails because of gears: a failure causes a warning, and the call runs dynamically.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from torchair.backend.dynamo.entry_points import get_npu_backend
from torchair.backend.specialize.size_buckets import set_dim_gears
from torchair.configs.compiler_config import CompilerConfig
from torchair.core.diagnostics import Diagnostics
from torchair.core.errors import Degraded, DegradedWarning, first_line
from torchair.core.text_table import text_lines
from torchair.core.torch_private.fake.fake_tensors import tree_flatten
from torchair.devices import get_device
from torchair.inference._bucket_choice import SMALLEST, choose, cost, serving
from torchair.inference._bucket_options import BucketOptions, checked, signature_of
from torchair.inference._call_signature import BoundCall, CallSignature
from torchair.inference._padding.captured_graph import (
    Apart,
    Found,
    GraphRefused,
    GraphRun,
    Padding,
    Unsuitable,
    padding_of,
    unchecked,
)
from torchair.inference._padding.checks import Checks, arguments_of, is_finite
from torchair.inference._padding.output_crop import Declared, Unknown

FORMS = 4  # maximum number of signatures with gears
WAITING = 64  # maximum number of signatures whose sizes are counted
CHOICES = 4  # maximum number of choices of gears per signature: the first, and when sizes drift
REMADE = 4  # maximum number of recompiles after torch dropped the programs of gears
LEARNED = 8  # maximum number of times that padding is determined per signature
DRIFT = 0.1  # increase of cost, as a share of all work, after which gears are chosen again
BUILDING = 3  # calls of a gear until its program is recorded
HELD = 2  # inputs and outputs exist twice: the caller's, and those of the gear
SIZES = 4096  # maximum number of sizes whose bytes are known

COUNTED = "sizes are counted"
INFINITE = "infinite or NaN inputs"
COMPARED = "compared with a padded call"
CROWDED = "other arguments differ from call to call"
SPENT = "the budget for gears is exhausted"
CURE = "docs/how-to/use-size-buckets.md lists what can be padded; check=False pads without any check"
ENOUGH = 3  # calls of a signature before its graph is analyzed


@dataclass(frozen=True)
class GearReport:
    """Statistics of the calls, and of how they were served."""

    calls: int
    sizes: Mapping[int, int]  # number of calls of each size
    gears: tuple[tuple[int, ...], ...]  # the gears of each call signature that has gears
    exact: int  # calls with the size of a gear
    padded: int
    dynamic: Mapping[str, int]  # calls without a gear, by reason
    padded_share: float  # share of padding in the elements that gears processed
    bytes: int  # memory of gears: measured on the device, or the size of their inputs and outputs
    seconds: float  # time spent on choosing and compiling gears
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
    """Wrap a model so that frequent sizes get their own programs, and other sizes run dynamically.

    Args:
        model: A module or function. It is compiled in graph mode.
        dims: The dimension with the varying size, by the name of the argument.
        pad: The padding values of these arguments (0 for a mask). Calls are padded only if each has one.
        crop: True crops outputs by their symbolic shapes. A dict names the dimensions to crop, by the key or
            index of the output (`{"logits": 1}`). False leaves outputs padded.
        most: The maximum number of gears.
        waste: The maximum padding, as a multiple of the size of a call.
        after: The number of calls after which gears are chosen.
        check: Whether calls are padded only if the captured graph shows that padding changes no result. The
            first padded call of each gear and some later ones are compared with unpadded ones.
        memory_bytes: The maximum memory of gears; None for no limit.
        seconds: The maximum time to choose and compile gears; None for no limit.
        config: The options; None for the defaults of graph mode.

    Returns:
        A callable like `model`. Its method `report()` returns a `GearReport`: sizes, gears and how calls were
        served.

    Raises:
        BadGears: An argument is invalid.

    Example:
        >>> run = auto_gears(model, dims={"tokens": 1, "mask": 1}, pad={"tokens": 0, "mask": 0})
        >>> run(tokens, mask)
        >>> print(run.report())
    """
    limits = most, waste, after, check, memory_bytes, seconds
    options = BucketOptions(_copied(dims), {} if pad is None else _copied(pad), _copied(crop), *limits)
    config = CompilerConfig() if config is None else config
    return AutoGears(model, checked(options, model, config), config)


def _copied(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else value


class AutoGears:
    """The callable that `auto_gears` returns."""

    def __init__(self, model: Callable[..., Any], options: BucketOptions, config: CompilerConfig) -> None:
        self.model = model
        self._options = options
        self._backend = get_npu_backend(compiler_config=config)
        self._signature = signature_of(model)
        self._dynamic = self._compiled(dynamic=True, keeps=options.may_pad)
        self._forms: dict[Hashable, CallSignature] = {}  # most recently used last
        self._degradations = Diagnostics()
        self._lock, self._turn = threading.Lock(), threading.RLock()
        self._building = threading.RLock()
        self._sizes: Counter[int] = Counter()
        self._without: Counter[str] = Counter()
        self._exact = self._padded = self._work = self._added = 0
        self._seconds, self._measured = 0.0, 0
        self._first = self._slowest = 0.0  # seconds of the first call, and of the slowest compile of a gear

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with self._turn:  # torch traces in one thread at a time, and any call may be traced
            return self._call(args, kwargs)

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        plan = self._planned(args, kwargs)
        if isinstance(plan, str):
            return self._dynamically(args, kwargs, plan)
        call, form, gear = plan
        if gear not in (None, call.size) and form.is_checked and not is_finite(call.bound, self._options.pad):
            return self._dynamically(args, kwargs, INFINITE)
        if gear is None:
            outputs, seen = self._watched(args, kwargs, self._why_no_gear(form))
            self._note(call, form, outputs, seen)
            return outputs
        try:
            return self._with_gear(call, form, gear)
        except (Degraded, DegradedWarning):
            raise
        except Exception as error:
            if form.has_run and not form.has_failed_alone:
                raise  # code of the model must not run twice
            # If the call itself is invalid, this raises as well.
            outputs = self._dynamically(args, kwargs, "a gear failed")
            with self._lock:
                form.gears, form.choices = (), CHOICES
            what = text_of(error)
            self._degradations.add(f"auto_gears() runs one kind of call without gears: {what}")
            return outputs

    def _planned(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[BoundCall, CallSignature, int | None] | str:
        """Return how to serve a call, or why it runs dynamically. An error here does not fail the call."""
        try:
            call = self._read(args, kwargs)
            if isinstance(call, str):
                return call
            form = self._counted(call)
            return call, form, self._serving(form, call.size)
        except (Degraded, DegradedWarning):
            raise
        except Exception as error:
            what = text_of(error)
            self._degradations.add(f"auto_gears() runs a call dynamically: {what}")
            return "arguments that cannot be analyzed"

    def _dynamically(self, args: tuple[Any, ...], kwargs: dict[str, Any], why: str) -> Any:
        return self._watched(args, kwargs, why)[0]

    def _watched(self, args: tuple[Any, ...], kwargs: dict[str, Any], why: str) -> tuple[Any, list[GraphRun]]:
        """Run a call dynamically; return its outputs, and the graphs that ran."""
        with self._lock:
            self._without[why] += 1
        began = time.perf_counter()
        found = self._dynamic.watched(args, kwargs)
        self._first = self._first or time.perf_counter() - began
        return found

    def report(self) -> GearReport:
        """Return the statistics of all calls so far."""
        with self._lock:
            forms = [form for form in self._forms.values() if form.gears]
            reasons = (form.why_not_padded for form in self._forms.values() if form.why_not_padded)
            return GearReport(
                calls=self._exact + self._padded + sum(self._without.values()),
                sizes=dict(self._sizes),
                gears=tuple(form.gears for form in forms),
                exact=self._exact,
                padded=self._padded,
                dynamic=dict(self._without),
                padded_share=self._added / self._work if self._work else 0.0,
                bytes=max(sum(form.planned for form in forms), self._measured),
                seconds=self._seconds,
                choices=sum(form.choices for form in self._forms.values()),
                why_not_padded=next(reasons, None) if self._options.may_pad else "no values to pad with",
            )

    # Analysis of a call

    def _read(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> BoundCall | str:
        """Bind the arguments of a call; return why it has no gear if it cannot have one."""
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError:
            return "arguments that do not match the model's signature"
        named: dict[str, tuple[torch.Tensor, int]] = {}
        rest: dict[str, Hashable] = {}
        for name, value in arguments_of(bound):
            dim = self._options.dims.get(name)
            if isinstance(value, torch.Tensor):
                if dim is not None and -value.dim() <= dim < value.dim():
                    named[name] = value, dim % value.dim()
                elif dim is not None:
                    what = f"{name} has no gears: it has {value.dim()} dimensions, but dims selects {dim}"
                    self._degradations.add(what)
                rest[name] = _look(value, named[name][1] if name in named else None)
            elif value is None or isinstance(value, bool | int | float | str):
                rest[name] = type(value), value
            else:
                return "an argument is neither a tensor nor a plain value"
        sizes = {tensor.size(dim) for tensor, dim in named.values()}
        if len(sizes) != 1:
            return "the named arguments have several sizes" if sizes else "no tensor has a named dimension"
        if any(tensor.requires_grad for tensor, _ in named.values()):
            return "a named argument requires gradients"
        modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled(), _autocast(named)
        form = (modes, getattr(self.model, "training", None), tuple(sorted(rest.items())))
        return BoundCall(bound, named, sizes.pop(), form)

    def _counted(self, call: BoundCall) -> CallSignature:
        """Return the signature of a call, and count its size.

        Gears are chosen after enough calls, at a call of a size that torch makes symbolic, if the bytes of
        calls are known.
        """
        enough = max(1, self._options.after)
        with self._lock:
            self._sizes[call.size] += 1
            form = self._forms.pop(call.form, None) or CallSignature(deque(maxlen=enough))
            self._forms[call.form] = form
            if len(self._forms) > WAITING:
                del self._forms[next(key for key, each in self._forms.items() if not each.gears)]
            form.recent.append(call.size)
            if len(form.recent) < enough or call.size < SMALLEST or not form.bytes:
                return form
            recent = Counter(form.recent)
            form.recent.clear()
            others = sum(bool(other.gears) for other in self._forms.values() if other is not form)
            form.is_crowded = others >= FORMS
            now = cost(recent, form.gears, self._options.waste, may_pad=self._may_pad(form))
            is_due = not form.choices or (form.choices < CHOICES and now > form.cost + DRIFT)
            is_due = is_due and not form.is_crowded
            form.choices += is_due
        if is_due:
            self._choose(call, form, recent)
        return form

    def _may_pad(self, form: CallSignature) -> bool:
        return self._options.may_pad and form.padding is not None and form.why_not_padded is None

    def _why_no_gear(self, form: CallSignature) -> str:
        if form.is_crowded:
            return CROWDED
        if not form.choices:
            return COUNTED
        return SPENT if self._is_spent() else "no gear fits"

    def _serving(self, form: CallSignature, size: int) -> int | None:
        """Return the gear of a size. If the budget is exhausted, only gears that are compiled are used."""
        waste, may_pad = self._options.waste, self._may_pad(form) and form.admits(size)
        gear = serving(size, form.gears, waste, may_pad=may_pad)
        if gear is not None and gear != size and not form.admits(gear):
            return None
        if gear is None or form.calls[gear] or not self._is_spent():
            return gear
        with self._lock:
            form.gears = tuple(each for each in form.gears if form.calls[each])
        return serving(size, form.gears, waste, may_pad=may_pad)

    def _is_spent(self) -> bool:
        """Whether the budget is exhausted, or another gear would exceed it."""
        options = self._options
        # Before the first gear, estimate its time from the first call: the graph is traced and compiled as in
        # that call, and then compiled for the gear.
        next_one = self._slowest or 2 * self._first
        is_late = options.seconds is not None and self._seconds + next_one > options.seconds
        return is_late or (options.memory_bytes is not None and self._measured >= options.memory_bytes)

    def _note(self, call: BoundCall, form: CallSignature, outputs: Any, seen: list[GraphRun]) -> None:
        """Learn from a dynamic call: its bytes, and how calls are padded."""
        if call.size < 1:
            return
        if call.size not in form.bytes and len(form.bytes) < SIZES:
            leaves = [leaf for leaf in tree_flatten(outputs)[0] if isinstance(leaf, torch.Tensor)]
            tensors = [*leaves, *(tensor for tensor, _ in call.named.values())]
            form.bytes[call.size] = HELD * sum(tensor.nbytes for tensor in tensors)
        is_open = self._options.may_pad and form.padding is None and form.why_not_padded is None
        # Gears may be chosen at the next call.
        is_time = form.choices or len(form.recent) >= min(ENOUGH, max(1, self._options.after) - 1)
        if is_open and is_time and not self._is_spent():
            self._learn(call, form, seen, outputs)

    # Choosing

    def _choose(self, call: BoundCall, form: CallSignature, recent: Counter[int]) -> None:
        """Choose new gears if they reduce the cost and fit into the budget; otherwise keep the old ones."""
        if self._is_spent():
            return
        options = self._options
        with self._building, self._timed(call):
            may_pad = self._may_pad(form)
            others = [other for other in self._forms.values() if other is not form]
            left = options.most - sum(len(other.gears) for other in others)
            fitting = dict(recent)
            if options.memory_bytes is not None:
                room = options.memory_bytes - sum(other.planned for other in others)
                fitting = {size: seen for size, seen in recent.items() if form.takes(size) <= room}
            gears = choose(fitting, left, options.waste, may_pad=may_pad)
            then = cost(recent, gears, options.waste, may_pad=may_pad)
            with self._lock:
                if gears != form.gears and then < cost(recent, form.gears, options.waste, may_pad=may_pad):
                    form.begin(self._compiled(dynamic=len(gears) > 1), gears)
                form.cost = cost(recent, form.gears, options.waste, may_pad=may_pad)

    def _learn(
        self, call: BoundCall, form: CallSignature, seen: list[GraphRun], outputs: Any
    ) -> Padding | None:
        """Determine how calls like this one are padded; None if the call does not show it or it is unsafe."""
        options = self._options
        if form.learned == LEARNED:
            self._stop_padding(form, "the graph, or a number that the model reads, changes from call to call")
            return None
        with self._building, self._timed(call):
            try:
                if options.check or options.crop is True:
                    others = [
                        value
                        for name, value in arguments_of(call.bound)
                        if isinstance(value, torch.Tensor) and name not in call.named
                    ]
                    found = padding_of(
                        seen, outputs, call.named, options.pad, options.crop, options.check, others
                    )
                else:
                    found = unchecked(outputs, options.crop)
            except Unsuitable:
                return None
            except Unknown as why:
                self._stop_padding(form, str(why), next=CURE)
                return None
        form.padding = found
        form.learned += 1
        return found

    def _stop_padding(self, form: CallSignature, why: str, next: str = "") -> None:
        form.why_not_padded = why
        self._degradations.add(f"auto_gears() pads no calls: {why}", next=next)

    def _compiled(self, *, dynamic: bool, keeps: bool = False) -> Apart:
        return Apart(self.model, self._backend, dynamic=dynamic, keeps=keeps)

    # Execution

    def _with_gear(self, call: BoundCall, form: CallSignature, gear: int) -> Any:
        size = call.size
        checks, form.program().has_run = form.checks.setdefault(gear, Checks()), False
        if gear == size:
            outputs = self._run(call, form, gear)
        elif form.is_checked and checks.is_due(gear - size):
            return self._compared(call, form, gear)
        else:
            assert form.padding is not None, "else nothing is padded"
            try:
                outputs = form.padding.crops.cut(self._run(call, form, gear), size)
            except GraphRefused:
                return self._compared(call, form, gear)
            checks.calls += 1
        with self._lock:
            self._exact += gear == size
            self._padded += gear != size
            self._work += gear
            self._added += gear - size
        return outputs

    def _compared(self, call: BoundCall, form: CallSignature, gear: int) -> Any:
        """Return the dynamic result, and check that a padded call gives the same.

        The check runs the captured graph, which writes nothing, on both inputs. If it passes, the graph of
        the gear may serve padded calls.
        """
        checks, state = form.checks[gear], random.getstate()
        graph = self._graph_of(call, form, gear)
        form.program().has_run = True  # from here on, the call itself runs
        random.setstate(state)  # Dynamo draws the model's Python random numbers before it runs the graph
        outputs, seen = self._watched(call.bound.args, call.bound.kwargs, COMPARED)
        padding = form.padding
        if not seen or padding is None or not padding.fits(seen[0]):
            padding = self._learn(call, form, seen, outputs)
        if padding is None or not padding.admits(call.size) or not padding.admits(gear):
            return outputs
        if graph is None:
            self._stop_padding(form, "torch does not run a padded call as one graph", next=CURE)
            return outputs
        with self._building:
            try:
                why, has_seen = padding.why_not(
                    seen[0].args,
                    lambda place, tensor: self._padded_to(padding.places[place], call, gear, tensor),
                    call.size,
                    gear,
                    not checks.padding,
                )
            except Unknown as error:
                why, has_seen = str(error), True
            except Exception as error:  # the outputs of the call itself are complete
                form.why_not_padded = text_of(error)
                self._degradations.add(f"auto_gears() pads no calls: {text_of(error)}", next=CURE)
                return outputs
        if why is not None:
            self._stop_padding(form, f"when size {call.size} is padded to {gear}, {why}", next=CURE)
            return outputs
        graph.approve(padding)
        if has_seen:
            checks.passed(gear - call.size)
        checks.calls += 1
        return outputs

    def _run(self, call: BoundCall, form: CallSignature, gear: int) -> Any:
        """Run the program of a gear, which its first calls compile. A program that torch recompiled because
        its caches were cleared has no gears, so a new one is compiled.
        """
        run, tensors = form.program(), self._tensors(call, gear)
        padding = form.padding if gear != call.size else None
        if form.calls[gear] < BUILDING:
            with self._building, self._timed(call, builds=True):
                return self._built(call, form, gear, padding, tensors)
        args, kwargs = call.with_tensors(tensors)
        before = run.graphs
        outputs = run(*args, **kwargs) if padding is None else run.padded(padding, args, kwargs)
        if run.graphs != before and len(form.made_for) > 1:
            self._begin_again(form)
        return outputs

    def _tensors(self, call: BoundCall, gear: int) -> dict[str, torch.Tensor]:
        return {name: self._padded_to(name, call, gear, tensor) for name, (tensor, _) in call.named.items()}

    def _marked(
        self, call: BoundCall, form: CallSignature, tensors: dict[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """Set the gears of the program on the tensors, if there are several gears."""
        if len(form.made_for) < 2:
            return tensors
        tensors = {name: tensor.detach() for name, tensor in tensors.items()}
        for name, tensor in tensors.items():
            set_dim_gears(tensor, {call.named[name][1]: list(form.made_for)})
        return tensors

    def _graph_of(self, call: BoundCall, form: CallSignature, gear: int) -> Found | None:
        """Return the graph that would serve a padded call, without running it."""
        with self._building, self._timed(call):
            args, kwargs = call.with_tensors(self._marked(call, form, self._tensors(call, gear)))
            return form.program().found(args, kwargs)

    def _built(
        self,
        call: BoundCall,
        form: CallSignature,
        gear: int,
        padding: Padding | None,
        tensors: dict[str, torch.Tensor],
    ) -> Any:
        run = form.program()
        args, kwargs = call.with_tensors(self._marked(call, form, tensors))
        is_first = not run.graphs
        outputs = run(*args, **kwargs) if padding is None else run.padded(padding, args, kwargs)
        form.calls[gear] += 1
        if is_first and run.graphs > 1 and len(form.made_for) > 1:
            what = f"auto_gears() uses gears for the first of {run.graphs} graphs only"
            self._degradations.add(what, next="TORCH_LOGS=graph_breaks shows where the model is split")
        return outputs

    def _begin_again(self, form: CallSignature) -> None:
        form.remade += 1
        if form.remade <= REMADE:
            form.begin(self._compiled(dynamic=len(form.gears) > 1), form.gears)
        elif form.remade == REMADE + 1:
            what = "auto_gears() serves some calls without gears: torch recompiles their program repeatedly"
            self._degradations.add(what, next="TORCH_LOGS=recompiles shows why")

    def _padded_to(self, name: str, call: BoundCall, gear: int, tensor: torch.Tensor) -> torch.Tensor:
        dim = call.named[name][1]
        if gear == call.size:
            return tensor
        shape = list(tensor.shape)
        shape[dim] = gear
        made = torch.full(shape, self._options.pad[name], dtype=tensor.dtype, device=tensor.device)
        made.narrow(dim, 0, call.size).copy_(tensor)
        return made

    @contextmanager
    def _timed(self, call: BoundCall, *, builds: bool = False) -> Iterator[None]:
        """Measure the time and memory of gears."""
        device = call.device
        backend = get_device(device)
        counts = backend.has_graphs and backend.why_no_graphs() is None
        began, before = time.perf_counter(), backend.reserved_bytes(device) if counts else 0
        try:
            yield
        finally:
            spent = time.perf_counter() - began
            self._seconds += spent
            self._slowest = max(self._slowest, spent) if builds else self._slowest
            self._measured += max(0, backend.reserved_bytes(device) - before) if counts else 0


def text_of(error: Exception) -> str:
    """Return the kind and the first line of an error."""
    return f"{type(error).__name__}: {first_line(error)}"


def _look(tensor: torch.Tensor, dim: int | None) -> Hashable:
    """Return all metadata that a program may depend on, except the size of one dimension."""
    shape = tuple(None if at == dim else size for at, size in enumerate(tensor.shape))
    order: Hashable = None
    if tensor.layout is torch.strided and not tensor.is_contiguous():
        order = tuple(sorted(range(tensor.dim()), key=tensor.stride, reverse=True))
    return type(tensor), tensor.dtype, tensor.device, tensor.layout, tensor.requires_grad, shape, order


def _autocast(named: Mapping[str, tuple[torch.Tensor, int]]) -> Hashable:
    """Return the dtype of autocast; None if it is disabled."""
    kind = next(iter(named.values()))[0].device.type
    if not torch.amp.is_autocast_available(kind) or not torch.is_autocast_enabled(kind):
        return None
    return torch.get_autocast_dtype(kind)
