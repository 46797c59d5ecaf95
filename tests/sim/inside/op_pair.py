"""One sample of torch's table of operators, run on the device and on the host, and how the two differ.

What is compared: errors, values, dtypes, devices, strides, who shares memory with whom, the arguments
afterwards. Where an operator draws numbers, values are compared between two runs from one seed instead.
"""

from __future__ import annotations

import io
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map

from tests.support.memory import Seen, is_strided, other_memory

HOST = torch.device("cpu")
SEED = 20240607


class Differs(AssertionError):
    """The device does not do what the host does."""


@dataclass(frozen=True)
class Call:
    """The arguments of an operator, as trees; the first is the input."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    device: torch.device

    @property
    def trees(self) -> list[Any]:
        return [list(self.args), self.kwargs]


def seed_all(seed: int) -> None:
    """As `torch.manual_seed` does, without what that notes down for devices that are not there."""
    torch.default_generator.manual_seed(seed)
    torch.npu.manual_seed_all(seed)


def sampled(
    op: Any, device: str, dtype: torch.dtype, count: int, *, requires_grad: bool = False, seed: int = SEED
) -> list[Any]:
    """So many samples of an operator, made on the device: not the first ones, which are alike. The function
    below `op.sample_inputs` is asked, which does not look through the stack for the test that asks.
    """
    seed_all(seed)
    random.seed(seed)
    np.random.seed(seed)
    first = list(itertools.islice(op.sample_inputs_func(op, device, dtype, requires_grad), 4 * count))
    return first[:: -(-len(first) // count) or 1]


def copied(sample: Any, device: torch.device) -> Call:
    """The arguments of a sample on a device: new memory that lies as the old did, tensors of one storage on
    one storage. Tensors that the sample has on the host stay there, devices that it names are this one.
    """
    storages: dict[int, torch.UntypedStorage] = {}

    def one(value: Any) -> Any:
        if isinstance(value, torch.device) or (isinstance(value, str) and value.startswith(("npu", "cpu"))):
            return device
        if not isinstance(value, torch.Tensor):
            return value
        target = HOST if value.device == HOST else device
        if not is_strided(value) or value.is_quantized:
            return value.detach().to(target).requires_grad_(value.requires_grad)
        return _laid_out(value, target, storages).requires_grad_(value.requires_grad)

    args, kwargs = tree_map(one, ((sample.input, *sample.args), sample.kwargs))
    return Call(args, kwargs, device)


def _laid_out(
    tensor: torch.Tensor, device: torch.device, storages: dict[int, torch.UntypedStorage]
) -> torch.Tensor:
    plain = tensor.detach()
    is_conj, is_neg = plain.is_conj(), plain.is_neg()
    plain = plain.conj() if is_conj else plain
    plain = torch._neg_view(plain) if is_neg else plain
    storage = plain.untyped_storage()
    if storage._cdata not in storages:
        everything = torch.empty(0, dtype=torch.uint8, device=plain.device).set_(storage)
        fresh = torch.empty(storage.nbytes(), dtype=torch.uint8, device=device).copy_(everything)
        storages[storage._cdata] = fresh.untyped_storage()
    made = torch.empty(0, dtype=plain.dtype, device=device)
    made.set_(storages[storage._cdata], plain.storage_offset(), plain.shape, plain.stride())
    made = torch._neg_view(made) if is_neg else made
    return made.conj() if is_conj else made


def result_or_error(call: Callable[[], Any], seed: int = SEED) -> tuple[Any, Exception | None]:
    """What a call gives, or how it fails."""
    seed_all(seed)
    try:
        return call(), None
    except Exception as error:
        return None, error


def check_errors(got: Exception | None, want: Exception | None) -> bool:
    """Both fail, or neither does. Say whether they did."""
    if (got is None) != (want is None):
        raise Differs(f"the device says {got!r}, the host {want!r}") from got
    if got is not None and want is not None and type(got) is not type(want):
        raise Differs(f"the device says {got!r}, the host {want!r}") from got
    return got is not None


def check_value(got: Any, want: Any, where: str, *, values: bool, exact: bool) -> None:
    """One leaf of a result."""
    if not isinstance(want, torch.Tensor):
        if values and got != want and not (got != got and want != want):
            raise Differs(f"{where}: {got!r} for {want!r}")
        return
    for name in ("dtype", "shape", "layout", "requires_grad"):
        if getattr(got, name) != getattr(want, name):
            raise Differs(f"{where}: {name} {getattr(got, name)} for {getattr(want, name)}")
    if (got.is_conj(), got.is_neg()) != (want.is_conj(), want.is_neg()):
        raise Differs(
            f"{where}: conj and neg {(got.is_conj(), got.is_neg())} for {(want.is_conj(), want.is_neg())}"
        )
    if not values:
        return
    limits = {"rtol": 0, "atol": 0} if exact else {}
    try:
        torch.testing.assert_close(got.detach().cpu(), want.detach().cpu(), equal_nan=True, **limits)
    except AssertionError as error:
        raise Differs(f"{where}: {error}") from error


def check(got: Seen, want: Seen, *, values: bool = True, on_device: bool = False) -> None:
    """All that a caller sees of two calls: the second on the host, or on the device too, where they are equal
    to the bit.
    """
    (ours, shape), (theirs, wanted) = tree_flatten(got.results), tree_flatten(want.results)
    if shape != wanted:
        raise Differs(f"results {shape} for {wanted}")
    for at, (have, expected) in enumerate(zip(ours, theirs, strict=True)):
        check_value(have, expected, f"result {at}", values=values, exact=on_device)
        if isinstance(have, torch.Tensor) and have.device == HOST and not on_device:
            raise Differs(f"result {at} is on the host")
    for at, (have, expected) in enumerate(zip(tree_leaves(got.args), tree_leaves(want.args), strict=True)):
        if isinstance(expected, torch.Tensor):
            check_value(have, expected, f"argument {at} afterwards", values=values, exact=on_device)
    if why := other_memory(got, want):
        raise Differs(why)


@dataclass(frozen=True)
class Pair:
    """An operator and a dtype on a device, to be compared with the host."""

    op: Any
    device: torch.device
    is_random: bool = False  # values depend on a generator
    is_undefined: bool = False  # values are whatever the memory held

    def both(self, sample: Any, act: Callable[[Call], Any]) -> tuple[Any, Any] | None:
        """Act on copies of a sample on both devices; nothing where both fail in the same way."""
        ours, theirs = copied(sample, self.device), copied(sample, HOST)
        got, error = result_or_error(lambda: act(ours))
        want, wanted = result_or_error(lambda: act(theirs))
        if check_errors(error, wanted):
            return None
        have, expected = Seen(got, ours.trees), Seen(want, theirs.trees)
        try:
            check(have, expected, values=not self.is_undefined)
        except Differs:
            if not (self.is_random and self._draws(sample, act)):
                raise
            check(have, expected, values=False)
            again = copied(sample, self.device)
            check_same(result_or_error(lambda: act(again))[0], got, "two runs from one seed")
        return got, want

    def _draws(self, sample: Any, act: Callable[[Call], Any]) -> bool:
        """Do the results on the host depend on the seed? Many a row of the table sets one itself."""
        results, seeded = [], torch.manual_seed
        for more in range(64):
            with mock.patch.object(torch, "manual_seed", lambda seed, more=more: seeded(seed + more)):
                results.append(result_or_error(lambda: act(copied(sample, HOST)), SEED + more)[0])
            try:
                check_same(results[0], results[-1], "two seeds")
            except Differs:
                return True
        return False

    def forward(self, sample: Any) -> None:
        """Results, views, arguments; and results that were saved and loaded."""
        found = self.both(sample, lambda call: self.op(*call.args, **call.kwargs))
        if found is not None:
            check_saved(found[0])

    def in_place(self, sample: Any) -> None:
        if sample.broadcasts_input:
            return
        method = self.op.get_inplace()
        self.both(sample, lambda call: method(*call.args, **call.kwargs))

    def out(self, sample: Any) -> None:
        """With `out=`, tensors of the right size."""
        self._into(sample, of_size=True)

    def resized_out(self, sample: Any) -> None:
        """With `out=`, tensors of another size."""
        self._into(sample, of_size=False)

    def _into(self, sample: Any, *, of_size: bool) -> None:
        plain, error = result_or_error(lambda: self.op(*(call := copied(sample, HOST)).args, **call.kwargs))
        if error is not None or not all(is_strided(each) for each in tree_leaves(plain)):
            return

        def act(call: Call) -> Any:
            given = tree_map(lambda each: _place(each, call.device, of_size), plain)
            return self.op(*call.args, **call.kwargs, out=given)

        self.both(sample, act)

    def backward(self, sample: Any) -> None:
        """Gradients of every input that wants one."""

        def act(call: Call) -> Any:
            results = sample.output_process_fn_grad(self.op(*call.args, **call.kwargs))
            ends = [
                each for each in tree_leaves(results) if isinstance(each, torch.Tensor) and each.requires_grad
            ]
            starts = [
                each
                for each in tree_leaves(call.trees)
                if isinstance(each, torch.Tensor) and each.requires_grad
            ]
            if not ends or not starts:
                return None
            source = torch.Generator().manual_seed(SEED)
            weights = [
                torch.rand(each.shape, dtype=torch.float64, generator=source).to(each.dtype).to(each.device)
                for each in ends
            ]
            return torch.autograd.grad(ends, starts, weights, allow_unused=True)

        self.both(sample, act)


def _place(like: torch.Tensor, device: torch.device, of_size: bool) -> torch.Tensor:
    if not of_size:
        return torch.empty(0, dtype=like.dtype, device=device)
    return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=device).zero_()


def check_same(got: Any, want: Any, where: str) -> None:
    """Equal to the bit."""
    for at, (one, other) in enumerate(zip(tree_leaves(got), tree_leaves(want), strict=True)):
        if isinstance(other, torch.Tensor):
            try:
                torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
            except AssertionError as error:
                raise Differs(f"{where}: result {at}: {error}") from error
        elif one != other:
            raise Differs(f"{where}: result {at}: {one!r} for {other!r}")


def check_saved(results: Any) -> None:
    """Tensors come back as they were: on their device, or on the host where that is wanted."""
    tensors = [each for each in tree_leaves(results) if isinstance(each, torch.Tensor)]
    if not tensors:
        return
    file = io.BytesIO()
    torch.save(tensors, file)
    for where in (None, "cpu"):
        file.seek(0)
        loaded = torch.load(file, map_location=where)
        for at, (got, want) in enumerate(zip(loaded, tensors, strict=True)):
            if got.device != (want.device if where is None else HOST):
                raise Differs(f"result {at} saved and loaded is on {got.device}")
            if got.stride() != want.stride():
                raise Differs(f"result {at} saved and loaded has strides {got.stride()} for {want.stride()}")
            check_same(got.detach().cpu(), want.detach().cpu(), "saved and loaded")
