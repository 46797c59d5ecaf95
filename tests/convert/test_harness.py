"""The harness finds what it is there to find: wrong strides, wrong aliases, lost writes."""

from __future__ import annotations

import pytest
import torch

from tests.convert.harness import check
from tests.support.memory import Seen, copies, other_memory


def test_strides_are_compared_in_dims_of_many_elements_or_in_every_dim() -> None:
    dense, turned = Seen([torch.zeros(3, 1)], []), Seen([torch.zeros(1, 3).t()], [])
    assert other_memory(dense, dense, every_dim=True) == ""
    assert other_memory(turned, dense) == ""
    assert "strides (1, 3) for (1, 1)" in other_memory(turned, dense, every_dim=True)
    apart = Seen([torch.zeros(3, 2)[:, :1]], [])
    assert "strides (2, 1) for (1, 1)" in other_memory(apart, dense)


def test_shared_memory_is_compared_with_arguments_and_among_results() -> None:
    x = torch.zeros(4)
    view = Seen([x[1:]], [x])
    assert "None bytes apart for 4" in other_memory(Seen([x[1:].clone()], [x]), view)
    assert "8 bytes apart for 4" in other_memory(Seen([x[2:].expand(1, 2)[0]], [x]), Seen([x[1:3]], [x]))
    twice = Seen([x, x.view(2, 2)], [])
    assert "None bytes apart for 0" in other_memory(Seen([x, x.view(2, 2).clone()], []), twice)


def test_a_promise_that_eager_keeps_needs_no_excuse() -> None:
    with pytest.raises(AssertionError, match="`fakes_err` has to go"):
        check(torch.neg, torch.randn(3), fakes_err=True)


def test_views_and_writes_go_the_whole_way() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y.add_(1)
        made = x.exp()
        return x[1:, ::2], made.t(), made[:1], y.mul(2)

    check(fn, torch.randn(4, 6)[:, 1:], torch.randn(3))


def test_copies_lie_as_the_arguments_do() -> None:
    x = torch.randn(4, 6)
    first, second, number = copies([x[1:, ::2], x, 3])
    assert (first.stride(), first.storage_offset(), number) == ((6, 2), 6, 3)
    assert other_memory(Seen([first], [second]), Seen([x[1:, ::2]], [x])) == ""
    assert first.data_ptr() != x[1:, ::2].data_ptr()
