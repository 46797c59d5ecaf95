"""Tensors that are made of others: jagged nested tensors and other traceable subclasses, in both modes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_map

MODES = ("npu", "npugraph_ex")
ROWS = ([2, 3, 4], [5, 1, 2], [2, 3, 4], [1, 2, 6, 4])
"""Lengths of the sequences of each call."""


def jagged(lengths: list[int], *sizes: int) -> torch.Tensor:
    rows = [torch.randn(length, *sizes) for length in lengths]
    return torch.nested.nested_tensor(rows, layout=torch.jagged)


def heads(x: torch.Tensor) -> torch.Tensor:
    return x.unflatten(-1, [2, 4]).transpose(1, 2)


class Attention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (heads(part(x)) for part in self.parts)
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2)


NESTED: dict[str, Callable[..., Any]] = {
    "pointwise": lambda x: (x * 2 + 1).sin(),
    "attention": Attention(),
    "softmax and sum": lambda x: (x.softmax(-1), x.sum()),
    "sizes": lambda x: (x * x.size(0), x.size(0)),
    "itself": lambda x: (x, x + 1),
}
PLAIN: dict[str, Callable[..., Any]] = {
    "sum over what is ragged": lambda x: x.sum(1),
    "softmax over what is ragged": lambda x: x.softmax(1).values(),
    "padded": lambda x: x.to_padded_tensor(1.5) * 2,
    "offsets and values": lambda x: (x.offsets() + 1, x.values() * 2),
}


def parts(value: Any) -> list[Any]:
    """What a result is made of, with the classes of its tensors."""
    if isinstance(value, tuple | list):
        return [part for item in value for part in parts(item)]
    if isinstance(value, TwoTensor | One):
        return [type(value), *parts([getattr(value, name) for name in value.__tensor_flatten__()[0]])]
    if isinstance(value, torch.Tensor) and value.is_nested:
        return [type(value), value.values().detach(), value.offsets()]
    return [value]


def check(
    fn: Callable[..., Any], backend: str, make: Callable[[Any], tuple[Any, ...]], *, grad: bool
) -> None:
    """Results (and gradients) of several calls are those of eager."""
    run = torch.compile(fn, backend=backend, options={"codegen": "eager"})
    with torch.set_grad_enabled(grad):
        for seed, rows in enumerate(ROWS):
            found = []
            for call in (fn, run):
                torch.manual_seed(seed)
                args = [arg.requires_grad_(grad and arg.is_floating_point()) for arg in make(rows)]
                result = call(*args)
                if grad:
                    sum(map(loss, result if isinstance(result, tuple) else [result])).backward()
                found.append(parts(result) + parts([arg.grad for arg in args]))
            assert_same(found[1], found[0])


def assert_same(found: list[Any], wanted: list[Any]) -> None:
    """The same classes, and tensors of nearly the same values."""
    assert list(map(type, found)) == list(map(type, wanted))
    for one, other in zip(found, wanted, strict=True):
        if isinstance(one, torch.Tensor):
            torch.testing.assert_close(one, other)
        else:
            assert one == other


def loss(value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return 0
    return (value.values() if value.is_nested else value).square().sum()


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", NESTED)
@pytest.mark.parametrize("backend", MODES)
def test_nested_tensor_equals_eager(backend: str, name: str, grad: bool) -> None:
    check(NESTED[name], backend, lambda rows: (jagged(rows, 8),), grad=grad)


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("backend", MODES)
def test_plain_tensors_of_nested_ones(backend: str, name: str) -> None:
    check(PLAIN[name], backend, lambda rows: (jagged(rows, 8),), grad=False)


@pytest.mark.parametrize("backend", MODES)
def test_a_nested_tensor_that_the_graph_makes(backend: str) -> None:
    """The graph has as many inputs as the function, and yet its outputs are put together to another."""

    def make(rows: list[int]) -> tuple[torch.Tensor, ...]:
        x = jagged(rows, 8)
        return x.values().clone(), x.offsets().clone()

    check(lambda v, o: torch.nested.nested_tensor_from_jagged(v, o) * 2, backend, make, grad=False)


@pytest.mark.parametrize("backend", MODES)
def test_a_narrowed_tensor(backend: str) -> None:
    def fn(x: torch.Tensor, starts: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return (torch.nested.narrow(x, 1, starts, lengths, layout=torch.jagged) * 2).sum(-1).values()

    run = torch.compile(fn, backend=backend, options={"codegen": "eager"})
    for rows in ROWS:
        count = len(rows)
        args = torch.randn(count, 8, 4), torch.ones(count, dtype=torch.int64), torch.tensor(rows)
        torch.testing.assert_close(run(*args), fn(*args))


class One(torch.Tensor):
    """A tensor around one other."""

    @staticmethod
    def __new__(cls, a: torch.Tensor, *_: Any) -> One:
        return torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, a.shape, strides=a.stride(), dtype=a.dtype, device=a.device, requires_grad=a.requires_grad
        )

    def __init__(self, a: torch.Tensor, *_: Any) -> None:
        self.a = a

    def __repr__(self) -> str:  # type: ignore[override]
        return f"One({self.a})"

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["a"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, torch.Tensor], *_: Any) -> One:
        return One(inner["a"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        plain = tree_map(lambda x: x.a if isinstance(x, One) else x, (args, kwargs or {}))
        made = func(*plain[0], **plain[1])
        made = tree_map(lambda x: One(x) if isinstance(x, torch.Tensor) else x, made)
        return return_and_correct_aliasing(func, args, kwargs or {}, made)


def two(rows: list[int]) -> TwoTensor:
    return TwoTensor(torch.randn(sum(rows), 4), torch.randn(sum(rows), 4))


OTHERS: dict[str, tuple[Callable[..., Any], Callable[[Any], tuple[Any, ...]]]] = {
    "two": (lambda x: (x * x.shape[0]).view(-1), lambda rows: (two(rows),)),
    "two of two": (lambda x: x.sin() + 1, lambda rows: (TwoTensor(two(rows), two(rows)),)),
    "one": (lambda x: x * 2 + 1, lambda rows: (One(torch.randn(sum(rows), 4)),)),
    "one, and itself": (lambda x: (x, x * 2), lambda rows: (One(torch.randn(sum(rows), 4)),)),
    "one that the graph makes": (lambda x: One(x) * 2, lambda rows: (torch.randn(sum(rows), 4),)),
}


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("backend", MODES)
def test_tensor_subclass_equals_eager(backend: str, name: str) -> None:
    check(OTHERS[name][0], backend, OTHERS[name][1], grad=False)


@pytest.mark.parametrize("backend", MODES)
def test_a_better_program_of_nested_tensors_is_ordered(backend: str) -> None:
    """With the default code generator: a ragged size has no range, which would be a warning here."""
    run = torch.compile(lambda x: (x.sin(), x.size(0)), backend=backend)
    with torch.no_grad():
        for rows in ROWS[:2]:
            x = jagged(rows, 8)
            torch.testing.assert_close(run(x)[0].values(), x.values().sin())
