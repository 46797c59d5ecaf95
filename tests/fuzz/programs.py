"""Random programs about memory: views, writes through views, and inputs that overlap or share a storage.

A program is text: lines of a function, the names it returns, and for each call the storages and the views of
them that are its inputs. It is generated against eager torch: a line that eager refuses is not part of it.
Two things that eager allows and does not define are left out as well: writing to a tensor some of whose
elements share memory, and writing to memory that the same line reads under another layout.
"""

from __future__ import annotations

import inspect
import math
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import torch

import torchair

Names = dict[str, Any]
MODES = ("max-autotune", "npugraph_ex")
SWAPPED = ("auto", "auto-eager")
"""Engines whose first program is replaced by an optimized one: by Inductor's, or by eager code."""
BEFORE, AFTER = 2, 2
"""Rounds of all calls before and after the optimized program is ready."""
LONGEST = 60  # elements of one tensor
LARGEST = 100.0  # rounding stays invisible up to here
REFUSALS = (RuntimeError, IndexError, ValueError, TypeError, NameError, KeyError)


@dataclass(frozen=True)
class Buffer:
    """A storage. With `grad` it is a result of autograd, so views of it may be written and have gradients."""

    length: int
    dtype: str
    salt: int
    grad: bool = False

    def source(self, name: str, device: str) -> Iterator[str]:
        """Lines that make it: a few dozen different numbers, all exact in binary."""
        numbers = f"(torch.arange({self.length}) * 37 + {self.salt}) % 41 - 20"
        values = {
            "bool": f"({numbers}) % 3 > 0",
            "int64": numbers,
            "complex64": f"torch.complex(({numbers}) / 8, (torch.arange({self.length}) % 7 - 3) / 2)",
        }.get(self.dtype, f"({numbers}) / 8")
        made = f"({values}).to({device!r}, torch.{self.dtype})"
        if self.grad:
            yield f"leaf_{name} = {made}.requires_grad_()"
            made = f"leaf_{name}.clone()"
        yield f"{name} = {made}"


@dataclass(frozen=True)
class View:
    """An input: where it lies in a storage. With `grad` it is a leaf."""

    buffer: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    grad: bool = False
    gears: tuple[int, tuple[int, ...]] | None = None  # a dim, and its sizes in all calls

    def source(self, name: str) -> str:
        grad = ".requires_grad_()" if self.grad else ""
        made = f"{name} = b{self.buffer}.as_strided({self.size}, {self.stride}, {self.offset}){grad}"
        if self.gears is None:
            return made
        dim, sizes = self.gears
        return f"{made}\ntorchair.inference.set_dim_gears({name}, {{{dim}: {list(sizes)}}})"


@dataclass(frozen=True)
class Feed:
    """The inputs of one call."""

    buffers: tuple[Buffer, ...]
    views: tuple[View, ...]

    def source(self, device: str) -> str:
        lines = [line for i, b in enumerate(self.buffers) for line in b.source(f"b{i}", device)]
        return "\n".join([*lines, *(view.source(f"x{i}") for i, view in enumerate(self.views))])

    def build(self, device: str) -> Names:
        """Fresh tensors by name: inputs `x0`, their storages `b0`, and `leaf_b0`, of which one was made."""
        names: Names = {"torch": torch, "torchair": torchair}
        exec(self.source(device), names)
        return names


@dataclass(frozen=True)
class Line:
    """One statement."""

    text: str
    target: str = ""  # what it writes in place
    sources: tuple[str, ...] = ()  # what it reads meanwhile
    reaches: str = ""  # whose storage it looks into with as_strided
    scope: str = ""  # what of torchair.scope it stands in

    def source(self) -> list[str]:
        """Return its lines of text."""
        return [f"with torchair.scope.{self.scope}:", f"    {self.text}"] if self.scope else [self.text]


@dataclass(frozen=True)
class Program:
    """A function, its calls, and how it is compiled."""

    lines: tuple[Line, ...]
    returns: tuple[str, ...]
    feeds: tuple[Feed, ...]
    mode: str = "max-autotune"
    dynamic: bool = False
    simulated: bool = False  # device graphs are simulated in CPU memory
    keep: bool = False  # all results are held, and looked at and differentiated only after the last call
    careless: bool = False  # lowering forgets about layouts: the runner must notice and mend
    parts: int = 1  # programs that are joined into this one

    @property
    def inputs(self) -> list[str]:
        return [f"x{i}" for i in range(len(self.feeds[0].views))]

    def source(self) -> str:
        """The function."""
        body = [
            *(text for line in self.lines for text in line.source()),
            f"return [{', '.join(self.returns)}]",
        ]
        return f"def f({', '.join(self.inputs)}):\n    " + "\n    ".join(body)

    def function(self) -> Callable[..., list[torch.Tensor]]:
        """The function with a code object of its own."""
        names: Names = {"torch": torch, "torchair": torchair, "inf": math.inf, "nan": math.nan}
        exec(self.source(), names)
        return names["f"]

    def script(self, engine: str = "eager", device: str = "cpu") -> str:
        """A script that shows what the function returns, eagerly and compiled, call after call."""
        call = f"held.append((run({', '.join(self.inputs)}), dict(locals())))"
        shown = "" if self.keep else "show(*held.pop())"
        calls = "\n".join(f"{feed.source(device)}\n{call}\n{shown}" for feed in self.feeds)
        if engine in SWAPPED:
            calls = "\n".join([*[calls] * BEFORE, "torchair.wait_until_optimised()", *[calls] * AFTER])
        return SCRIPT.format(
            function=self.source(),
            loss=inspect.getsource(loss),
            device=SIMULATED if self.simulated else "",
            mode=self.mode,
            engine="auto" if engine in SWAPPED else engine,
            dynamic=self.dynamic,
            calls=calls.replace("\n", "\n    "),
        )

    def __str__(self) -> str:
        return self.script()


SIMULATED = """
from tests.fuzz.simulated import AnyLayout
torchair.devices.install(AnyLayout())
"""
SCRIPT = """\
from __future__ import annotations
import torch, torchair
from torch import inf, nan

{function}

{loss}
def show(outputs, names):
    total = loss(outputs)
    if total is not None:
        total.backward()
    for name, t in [*((f"out{{i}}", o) for i, o in enumerate(outputs)), *names.items()]:
        if isinstance(t, torch.Tensor):
            grad = t.grad.tolist() if t.is_leaf and t.grad is not None else ""
            print(name, t.tolist(), t.stride(), t.storage_offset(), grad)
{device}
config = torchair.CompilerConfig()
config.mode, config.engine_config.codegen = {mode!r}, {engine!r}
backend = torchair.get_npu_backend(compiler_config=config)
held = []
for run in (f, torch.compile(f, backend=backend, dynamic={dynamic})):
    print(run)
    {calls}
    for each in held:
        show(*each)
    held.clear()
"""


def loss(outputs: list[torch.Tensor]) -> torch.Tensor | None:
    """The float outputs that have gradients, weighted: whole ones and, every second, element by element."""
    terms = []
    for i, o in enumerate(outputs):
        if o.requires_grad and o.is_floating_point():
            k = i % 6  # programs of many outputs have no larger weights
            weights = torch.arange(o.numel(), device=o.device).reshape(o.shape) / 8 + k if k % 2 else 1.0
            terms.append((o * weights).sum() * (k + 2) / 2)
    return sum(terms[1:], terms[0]) if terms else None


# What is legal.


def bytes_of(tensor: torch.Tensor) -> list[int]:
    """The addresses of all bytes of all elements, in order; the same one several times where they overlap."""
    starts = torch.full(tensor.shape, tensor.storage_offset())
    for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        starts += (torch.arange(size) * stride).reshape([-1 if d == dim else 1 for d in range(tensor.dim())])
    width = tensor.element_size()
    return [start * width + i for start in starts.flatten().tolist() for i in range(width)]


def storage_of(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def overlaps_itself(tensor: torch.Tensor) -> bool:
    addresses = bytes_of(tensor)
    return len(set(addresses)) < len(addresses)


def is_tame(tensor: torch.Tensor) -> bool:
    """Are its numbers so small that rounding does not show?"""
    finite = tensor.detach()[tensor.detach().isfinite()]
    return finite.numel() == 0 or finite.dtype == torch.bool or bool(finite.abs().max() <= LARGEST)


NAME = re.compile(r"\b[vx]\d+\b")


class Trial:
    """An eager run, line by line, that ends where a program stops to be legal."""

    def __init__(self, feed: Feed) -> None:
        self.names = feed.build("cpu") | {"inf": math.inf, "nan": math.nan}
        self.inputs = {name: value for name, value in self.names.items() if name[0] == "x"}
        self.written: set[int] = set()  # storages
        self.reached: set[int] = set()  # storages that as_strided looked into beyond a whole, dense tensor
        self.unfolded: set[str] = set()  # names of views through unfold

    @property
    def tensors(self) -> list[str]:
        """Names of inputs and results."""
        return [n for n, value in self.names.items() if n[0] in "xv" and isinstance(value, torch.Tensor)]

    def follow(self, line: Line) -> bool:
        """Run one line; False where eager refuses it or its meaning is open."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch gives some of them once: they must not decide
                if line.target and not self.can_write(eval(line.target, self.names), line):
                    return False
                exec(line.text, self.names)
        except REFUSALS:
            return False
        name = line.target.split("[")[0] or line.text.split(" = ")[0]
        result = self.names[name]
        if ".unfold(" in line.text or any(n in self.unfolded for n in NAME.findall(line.text)):
            self.unfolded.add(name)
        if line.target:
            self.written.add(storage_of(result))
        if line.reaches and not self.is_plain(self.names[line.reaches], line.reaches, result):
            self.reached.add(storage_of(result))
        return result.numel() <= LONGEST and is_tame(result) and not self.written & self.reached

    def can_write(self, target: torch.Tensor, line: Line) -> bool:
        """Does a write have one meaning?

        Torch.compile does not write through unfold, loses writes to inputs of no dims, and writes inputs back
        as a whole: those that contain the target must not overlap themselves either.
        """
        if line.target.split("[")[0] in self.unfolded:
            return False
        written = bytes_of(target)
        whole = [x for x in self.inputs.values() if storage_of(x) == storage_of(target)]
        whole = [x for x in whole if set(bytes_of(x)) >= set(written)]
        if any(overlaps_itself(t) for t in [target, *whole]) or any(x.dim() == 0 for x in whole):
            return False
        read = [self.names[source] for source in line.sources]
        read = [bytes_of(source) for source in read if storage_of(source) == storage_of(target)]
        return all(other == written or set(other).isdisjoint(written) for other in read)

    def is_plain(self, base: torch.Tensor, name: str, result: torch.Tensor) -> bool:
        """Does as_strided stay within a dense tensor that is an input or the start of its storage?

        Elsewhere torch.compile cannot combine it with writes.
        """
        first = name in self.inputs or base._base is None
        inside = max(bytes_of(result), default=0) < base.nbytes
        return first and inside and base.is_contiguous() and base.storage_offset() == 0

    def can_return(self, returns: tuple[str, ...]) -> bool:
        """Torch.compile makes views of inputs that share a written storage from the wrong tensor."""
        owners = [storage_of(x) for x in self.inputs.values()]
        shared = {owner for owner in owners if owners.count(owner) > 1} & self.written
        return all(storage_of(self.names[name]) not in shared for name in returns if name not in self.inputs)


def is_legal(program: Program, feed: Feed) -> bool:
    """Does eager accept this call, and its backward pass?"""
    trial = Trial(feed)
    if not all(trial.follow(line) for line in program.lines):
        return False
    try:
        total = loss([trial.names[name] for name in program.returns])
        if total is not None:
            total.backward()
    except (RuntimeError, KeyError):
        return False
    leaves = [value for name, value in trial.names.items() if name[0] in "lx" and value.is_leaf]
    return all(is_tame(t.grad) for t in leaves if t.grad is not None) and trial.can_return(program.returns)


# Layouts of inputs.


def any_size(random: Random) -> tuple[int, ...]:
    dims = [2, 2, 3, 3, 4, 5, 1] + [0] * (random.random() < 0.1)
    size = [random.choice(dims) for _ in range(random.choice((1, 1, 2, 2, 2, 3)))]
    return tuple(size) if math.prod(size) <= LONGEST else tuple(size[:2])


def like(random: Random, size: tuple[int, ...]) -> tuple[int, ...]:
    """A size that often broadcasts against this one."""
    kind = random.choice(("same", "same", "same", "tail", "ones", "swapped", "other"))
    if kind == "tail":
        return size[1:]
    if kind == "ones":
        return tuple(random.choice((1, n)) for n in size)
    if kind == "swapped":
        return size[::-1]
    return any_size(random) if kind == "other" else size


def any_stride(random: Random, size: tuple[int, ...]) -> tuple[int, ...]:
    """Dense, permuted, with gaps, expanded or overlapping."""
    kind = random.choice(2 * ["dense", "permuted", "gaps"] + ["expanded", "overlapping"])
    if kind == "overlapping":
        return tuple(random.choice((1, 1, 2, 3)) for _ in size)
    order = list(range(len(size)))
    if kind != "dense":
        random.shuffle(order)
    stride, step = [1] * len(size), 2 if kind == "gaps" and random.random() < 0.5 else 1
    for dim in reversed(order):
        stride[dim] = step
        step *= max(size[dim], 1)
        step += random.choice((0, 1, 2)) if kind == "gaps" else 0
    if kind == "expanded" and size:
        stride[random.randrange(len(size))] = 0
    return tuple(stride)


def extent(size: tuple[int, ...], stride: tuple[int, ...]) -> int:
    """Elements from the first to the last one."""
    return 1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True)) if math.prod(size) else 0


def any_feed(random: Random, sizes: list[tuple[int, ...]], dtypes: list[str], grads: list[str]) -> Feed:
    """Inputs of these sizes, in storages of their own or shared ones; `grads` says leaf, base or none."""
    buffers: list[Buffer] = []
    views: list[View] = []
    for size, dtype, grad in zip(sizes, dtypes, grads, strict=True):
        stride = any_stride(random, size)
        needed = extent(size, stride)
        shared = [
            i
            for i, b in enumerate(buffers)
            if b.dtype == dtype and b.length >= needed and b.grad == (grad == "base")
        ]
        if shared and random.random() < 0.5:
            at = random.choice(shared)
        else:
            at = len(buffers)
            length = max(needed, random.choice((1, 12, 30)))
            buffers.append(
                Buffer(length + random.choice((0, 0, 4, 9)), dtype, random.randrange(41), grad == "base")
            )
        offset = random.choice((0, random.randint(0, buffers[at].length - needed)))
        views.append(View(at, size, stride, offset, grad == "leaf"))
    return Feed(tuple(buffers), tuple(views))


def resized(random: Random, sizes: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Other sizes: what was equal stays equal, 0 and 1 stay as they are."""
    to = {n: random.choice((2, 3, 4, 5, 6)) if n > 1 else n for size in sizes for n in size}
    return [tuple(to[n] for n in size) for size in sizes]


# Lines. Each maker gives the text of an expression of the tensor `t`, whose name is `x`.

SCALARS = ("2", "0.5", "-1.5", "3", "True", "False", "1", "1.0", "0", "0.0", "-0.0", "-1")
RARE = ("inf", "-inf", "nan")
DTYPES = ("torch.float32", "torch.int64", "torch.uint8", "torch.float64", "torch.int32")


def scalar(random: Random) -> str:
    return random.choice(RARE if random.random() < 0.05 else SCALARS)


def dim_of(random: Random, t: torch.Tensor) -> int:
    return random.randrange(-t.dim(), t.dim()) if t.dim() else 0


def length_of(random: Random, x: str, t: torch.Tensor, dim: int) -> str:
    """A length along a dim: a number, or in terms of the size."""
    n = t.shape[dim] if t.dim() else 1
    return random.choice((str(random.randint(0, n)), f"{x}.size({dim}) - 1", f"{x}.size({dim}) // 2"))


def part(random: Random, x: str, t: torch.Tensor, dim: int) -> str:
    """What stands for one dim in a subscript."""
    n = t.shape[dim]
    kind = random.choice(("all", "all", "range", "range", "step", "int", "new"))
    if kind == "int":
        return str(random.randrange(-n, n)) if n else ":"
    if kind == "range":
        return random.choice((f"{random.randint(0, n)}:", f":{length_of(random, x, t, dim)}", "1:", ":-1"))
    if kind == "step":
        return f"{random.choice(('', '1'))}::{random.choice((2, 2, 3))}"
    return "None, :" if kind == "new" else ":"


def subscript(random: Random, x: str, t: torch.Tensor) -> str:
    parts = [part(random, x, t, dim) for dim in range(random.randint(0, t.dim()))]
    if random.random() < 0.2:
        parts.append("...")
    return f"{x}[{', '.join(parts) or '...'}]"


def unfold(random: Random, x: str, t: torch.Tensor) -> str:
    return f"{x}.unfold({dim_of(random, t)}, {random.choice((1, 2, 2, 3))}, {random.choice((1, 1, 2))})"


def as_strided(random: Random, x: str, t: torch.Tensor) -> str:
    room = t.untyped_storage().nbytes() // t.element_size()
    size = random.choice((tuple(t.shape), like(random, tuple(t.shape))))
    stride = any_stride(random, size)
    offset = random.randint(0, max(0, room - extent(size, stride)))
    return f"{x}.as_strided({size}, {stride}, {offset})"


def permute(random: Random, x: str, t: torch.Tensor) -> str:
    return f"{x}.permute({random.sample(range(t.dim()), t.dim())})"


def view(random: Random, x: str, t: torch.Tensor) -> str:
    n = t.numel()
    rows = [k for k in (1, 2, 3, 4) if n % k == 0] or [1]
    k = random.choice(rows)
    size = random.choice((f"{k}, -1", "-1", f"-1, {k}", f"{x}.size(0), -1"))
    return f"{x}.{random.choice(('view', 'reshape', 'reshape'))}({size})"


def expand(random: Random, x: str, t: torch.Tensor) -> str:
    size = [random.choice((-1, 2, 3)) if n == 1 else -1 for n in t.shape]
    return f"{x}.expand({[random.choice((1, 2, 3))] * (random.random() < 0.5) + size})"


def cut(random: Random, x: str, t: torch.Tensor) -> str:
    d = dim_of(random, t)
    how = random.choice((f"chunk(2, {d})", f"split({random.choice((1, 2, 3))}, {d})", f"unbind({d})"))
    return f"{x}.{how}[{random.choice((0, 1, -1))}]"


def narrow(random: Random, x: str, t: torch.Tensor) -> str:
    d = dim_of(random, t)
    return f"{x}.narrow({d}, {random.choice((0, 1, 1))}, {length_of(random, x, t, d)})"


def simple_view(random: Random, x: str, t: torch.Tensor) -> str:
    a, b = dim_of(random, t), dim_of(random, t)
    i = random.choice((0, 1, -1))
    return f"{x}." + random.choice(
        (
            f"transpose({a}, {b})", f"movedim({a}, {b})", "mT", f"select({a}, {i})", f"diagonal({i})",
            f"diagonal(0, {a}, {b})", "squeeze()", f"squeeze({a})", f"unsqueeze({a})", "flatten()",
            f"view_as({x})", "contiguous()", "detach()", "T",
        )
    )  # fmt: skip


def as_dtype(random: Random, x: str, t: torch.Tensor) -> str:
    if t.is_complex():
        return random.choice((f"torch.view_as_real({x})", f"{x}.real", f"{x}.imag", f"{x}.conj()"))
    return f"{x}.view({random.choice(DTYPES)})"


VIEWS = 4 * [simple_view] + 3 * [subscript, as_strided] + 2 * [unfold, view, permute] + [expand, cut, narrow]
UNARY = (
    # Numbers and constants that are only almost the same.
    "torch.stack([1 / ({x} * 0.0), 1 / ({x} * -0.0)])", "torch.stack([{x} * 0.0, -0.0 * {x}])[0]",
    "({x} * torch.tensor([1.0]).double() - {x} * torch.tensor([1.000000004]).double()) * 1e8",
    "{x}.cos()", "{x}.sin()", "{x}.exp()", "{x}.sigmoid()", "{x}.tanh()", "{x}.relu()", "-{x}", "{x}.abs()",
    "{x}.pow(2)", "{x}.pow(3)", "{x} ** 0.5", "{x} * {c}", "{x} + {c}", "{c} - {x}", "{x} / {c}",
    "1 / ({x} * {c})", "1 / ({x} + {c})", "{x} == {c}", "{x} * {x}", "{x} * 2", "{x}.clone()",
    "{x}.flip({d})", "{x}.roll(1, {d})", "{x}.clamp(-1, {c})", "{x}.to({t})", "{x}.cumsum({d})",
    "torch.full_like({x}, {c})", "torch.where({x} > 0, {x}, {c})", "{x}.new_zeros({x}.shape)",
)  # fmt: skip
BINARY = (
    "{x} * {y}", "{x} + {y}", "{x} - {y}", "{x} / {y}", "torch.where({x} > 0, {x}, {y})",
    "torch.cat([{x}, {y}])", "torch.stack([{x}, {y}])", "torch.maximum({x}, {y})",
)  # fmt: skip
REDUCE = (
    "{x}.sum()", "{x}.sum({d})", "{x}.sum({d}, keepdim=True)", "{x}.mean({d})", "{x}.amax({d})", "{x}.any()",
    "{x} @ {x}.mT", "{x} @ {y}", "{x}.T @ {y}", "{x}.mT @ {x}",
)  # fmt: skip
WRITES = (
    "{x}.add_({c})", "{x}.mul_({c})", "{x}.fill_({c})", "{x}.zero_()", "{x}.cos_()", "{x}.sigmoid_()",
    "{x}.neg_()", "{x}[{x} > 0] = {c}", "{x}[[0, 1]] = {c}", "{x}.index_fill_({d}, {i}, {c})",
)  # fmt: skip
WRITES_FROM = (
    "{x}.add_({y})", "{x}.mul_({y})", "{x}.copy_({y})", "{x}.copy_({y})", "{x}.sub_({y}, alpha=2)",
    "{x}.index_add_(0, {i}, {y})", "{x}.index_put_(({i},), {y})",
)  # fmt: skip


def pick(random: Random, trial: Trial) -> str:
    """One of the tensors so far, late ones more often."""
    names = trial.tensors
    return names[max(random.randrange(len(names)) for _ in range(3))]


def fill(random: Random, template: str, x: str, trial: Trial, y: str = "") -> str:
    index = f"torch.tensor([{random.choice(('0', '1', '0, 1', '1, 0'))}], device={x}.device)"
    return template.format(
        x=x,
        y=y or random.choice(trial.tensors),
        c=scalar(random),
        d=dim_of(random, trial.names[x]),
        t=random.choice(DTYPES),
        i=index,
    )


def any_write(random: Random, x: str, trial: Trial, fresh: str) -> Line:
    """A write to a tensor, or to a part of it, from a number or from another tensor."""
    y = random.choice(trial.tensors)
    if random.random() < 0.35:
        target = subscript(random, x, trial.names[x])
        sign = random.choice(("=", "=", "+=", "*="))
        number = Line(f"{target} {sign} {scalar(random)}", target)
        return random.choice((number, Line(f"{target} {sign} {y}", target, (y,))))
    if random.random() < 0.5:
        text = fill(random, random.choice(WRITES), x, trial)
        return Line(f"{fresh} = {text}" if random.random() < 0.2 and " = " not in text else text, x)
    return Line(fill(random, random.choice(WRITES_FROM), x, trial, y), x, (y,))


def any_line(random: Random, trial: Trial, fresh: str) -> Line:
    x = pick(random, trial)
    t = trial.names[x]
    kind = random.random()
    if kind < 0.45:
        view = random.choice(VIEWS)
        return Line(f"{fresh} = {view(random, x, t)}", reaches=x if view is as_strided else "")
    if kind < 0.48:
        return Line(f"{fresh} = {as_dtype(random, x, t)}")
    if kind < 0.7:
        return any_write(random, x, trial, fresh)
    templates = UNARY if kind < 0.84 else BINARY if kind < 0.93 else REDUCE
    return Line(f"{fresh} = {fill(random, random.choice(templates), x, trial)}")


def any_lines(random: Random, feed: Feed) -> tuple[list[Line], list[str]]:
    """Two to eight lines that eager accepts one by one, and the tensors there are after them."""
    lines: list[Line] = []
    for _ in range(random.randint(2, 8)):
        for _ in range(4):
            trial = Trial(feed)
            assert all(trial.follow(line) for line in lines), "they were accepted before"
            line = any_line(random, trial, f"v{len(lines)}")
            if trial.follow(line):
                lines.append(line)
                break
    trial = Trial(feed)
    assert all(trial.follow(line) for line in lines), "they were accepted before"
    return lines, trial.tensors


def any_returns(random: Random, tensors: list[str]) -> tuple[str, ...]:
    """The last tensor, and up to three more: any, inputs too, some of them twice."""
    return (tensors[-1], *(random.choice(tensors) for _ in range(random.choice((0, 1, 1, 2, 3)))))


def any_program(random: Random, mode: str | None = None, dynamic: bool | None = None) -> Program:
    """A program that eager accepts, with one to four calls, in any mode or this one."""
    dtype = random.choice(5 * ["float64"] + 3 * ["float32"] + ["int64", "bool", "complex64"])
    size = any_size(random)
    count = random.choice((1, 1, 2, 2, 3))
    sizes = [size, *(like(random, size) for _ in range(count - 1))]
    dtypes = [dtype if i == 0 or random.random() < 0.8 else "float64" for i in range(count)]
    grad = random.choice(("leaf", "leaf", "base", "none"))
    grads = [grad if d.startswith("float") and random.random() < 0.7 else "none" for d in dtypes]
    drawn, varies, simulated = random.choice(MODES), random.random() < 0.4, random.random() < 0.6
    ways = {
        "mode": mode or drawn,
        "dynamic": varies if dynamic is None else dynamic,
        "simulated": simulated,
        "keep": random.random() < 0.25,
    }
    first = any_feed(random, sizes, dtypes, grads)
    lines, tensors = any_lines(random, first)
    program = Program(tuple(lines), any_returns(random, tensors), (first,), **ways)
    if not is_legal(program, first):
        return any_program(random, mode, dynamic)
    feeds = [first]
    for _ in range(random.choice((0, 1, 1, 2))):
        for _ in range(3):
            others = resized(random, sizes) if random.random() < (0.7 if program.dynamic else 0.15) else sizes
            feed = any_feed(random, others, dtypes, grads)
            if can_follow(program, feed):
                feeds.append(feed)
                break
    again = replace(first, buffers=tuple(replace(b, salt=(b.salt + 7) % 41) for b in first.buffers))
    if is_legal(program, again):
        feeds.append(again)
    return replace(program, feeds=tuple(feeds), careless=random.random() < 0.15)


def can_follow(program: Program, feed: Feed) -> bool:
    """Is a later call legal? Torch.compile keeps the first one's offsets in the backward of as_strided."""
    differentiates = any(view.grad for view in feed.views) or any(buffer.grad for buffer in feed.buffers)
    moved = [view.offset for view in feed.views] != [view.offset for view in program.feeds[0].views]
    if moved and differentiates and any(line.reaches for line in program.lines):
        return False
    return is_legal(program, feed)
