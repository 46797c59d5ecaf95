"""A call of a loaded graph like the one before is not checked again; one that differs in anything is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.backend.export.test_assumptions import Of
from tests.backend.export.test_round_trip import check, exported
from torchair.backend.export.loader import LoadedModel
from torchair.core.errors import BadCall

X, Y = torch.randn(4, 3), torch.randn(4, 3)


def scaled(x: Any, y: Any, how: Any) -> Any:
    return x * how + y, {"sum": x.sum()}


def checks(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A list that grows by one for each call that is checked in full."""
    seen: list[Any] = []
    checked = LoadedModel._call_checked
    monkeypatch.setattr(
        LoadedModel, "_call_checked", lambda self, *call: seen.append(call) or checked(self, *call)
    )
    return seen


@pytest.mark.parametrize(
    "calls",
    [
        pytest.param([((X, Y, 2), {}), ((Y, X, 2), {}), ((Y, Y, 2), {})], id="positional"),
        pytest.param([((X,), {"y": Y, "how": 2}), ((Y,), {"y": X, "how": 2})], id="named"),
    ],
)
def test_like_the_one_before(calls: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = exported(Of(scaled), tmp_path, X, Y, 2)
    seen = checks(monkeypatch)
    for args, kwargs in calls:
        check(loaded, Of(scaled), *args, **kwargs)
    assert len(seen) == 1


DIFFERENT = {
    "order of names": (((X,), {"how": 2, "y": Y}), ""),
    "not dense": (((X.T.contiguous().T, Y, 2), {}), ""),
    "negative": (((torch.complex(X, X).conj().imag, Y, 2), {}), ""),
    "a subclass": (((X.as_subclass(type("Sub", (torch.Tensor,), {})), Y, 2), {}), ""),
    "another size": (((X[1:], Y[1:], 2), {}), "other sizes"),
    "another type": (((X.double(), Y, 2), {}), "must be"),
    "another value": (((X, Y, 3), {}), "how must be 2"),
    "an equal value": (((X, Y, 2.0), {}), "how must be 2"),
    "a flag": (((X, Y, True), {}), "how must be 2"),
    "one too few": (((X, Y), {}), "how must be 2"),
    "one too many": (((X, Y, 2, None), {}), "do not match the signature"),
}


@pytest.mark.parametrize("case", DIFFERENT)
def test_unlike_the_one_before(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (args, kwargs), refusal = DIFFERENT[case]
    loaded = exported(Of(scaled), tmp_path, X, Y, 2)
    check(loaded, Of(scaled), X, Y, 2)
    seen = checks(monkeypatch)
    if refusal:
        with pytest.raises(BadCall, match=refusal):
            loaded(*args, **kwargs)
    else:
        check(loaded, Of(scaled), *args, **kwargs)
    assert len(seen) == 1


def test_sizes_that_change(tmp_path: Path) -> None:
    loaded = exported(Of(scaled), tmp_path, X, Y, 2, dynamic=True)
    for rows in (4, 4, 7, 7, 4, 2):
        check(loaded, Of(scaled), torch.randn(rows, 3), torch.randn(rows, 3), 2)


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        cache[1] += x
        return x * self.calls


def test_what_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state of the model, and an argument."""
    loaded = exported(Counts(), tmp_path, X[0], torch.zeros(4, 3))
    seen = checks(monkeypatch)
    cache = torch.zeros(4, 3)
    for count in (1, 2, 3):
        torch.testing.assert_close(loaded(X[0], cache), X[0] * count)
        torch.testing.assert_close(cache[1], X[0] * count)
    assert len(seen) == 1
    turned = torch.zeros(3, 4).T
    torch.testing.assert_close(loaded(X[0], turned), X[0] * 4)
    torch.testing.assert_close(turned[1], X[0])


def test_a_result_that_is_an_argument(tmp_path: Path) -> None:
    model = Of(lambda x, y, how: (y, x * 2))
    loaded = exported(model, tmp_path, X, Y)
    for x, y in ((X, Y), (Y, X)):
        assert loaded(x, y)[0] is y
