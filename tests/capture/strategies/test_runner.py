"""Recording and replaying on a simulated graph device: keys, limits, moves, held outputs, aliases."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.support.simulated_device import CPU, NAME, Body, SimulatedDevice, make
from torchair.capture import (
    CompiledProgram,
    InputInfo,
    PendingProgram,
    Policy,
    RecaptureReason,
    Role,
    RunnerOptions,
    capture,
)
from torchair.capture.strategies import recorder
from torchair.core.errors import BadCall, DegradedWarning
from torchair.core.torch_private.compilers.aot_autograd import dynamo_counters
from torchair.devices import installed
from torchair.devices.graph_device import without_collection


@pytest.fixture(autouse=True)
def _fresh_counters() -> Iterator[None]:
    dynamo_counters.pop("npugraph_ex", None)
    yield
    dynamo_counters.pop("npugraph_ex", None)


def counter(name: str) -> int | None:
    return dynamo_counters["npugraph_ex"].get(f"{name}_{NAME}")


def test_one_capture_then_replays() -> None:
    runner, row = make(lambda x: [x * 2])
    for value in (1.0, 2.0, 3.0):
        assert runner.run(torch.full((4,), value))[0].tolist() == [2 * value] * 4
    assert (row.captures, row.replays) == (1, 2)
    assert counter("captured") == 1


@pytest.mark.parametrize(("switch", "collected"), [("", 0), ("1", 2)])
def test_garbage_is_collected_before_a_recording_if_asked(
    switch: str, collected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    monkeypatch.setenv("TORCH_NPUGRAPH_GC", switch)
    monkeypatch.setattr(recorder.gc, "collect", lambda: calls.append(1))
    runner, row = make(lambda n, x: [x + n], "sp", (0,))
    for size in (3, 5, 3, 5):
        runner.run(size, torch.ones(size))
    assert (row.captures, len(calls)) == (2, collected)


def test_boxed_call_clears_its_list() -> None:
    runner, _ = make(lambda x: [x + 1])
    for _ in range(2):
        args = [torch.zeros(2)]
        runner(args)
        assert args == []
    assert runner.boxed._boxed_call


def test_shapes_have_keys_of_their_own() -> None:
    runner, row = make(lambda n, x: [x.sum() + n], "sp", (0,))
    for size in (3, 5, 3, 5, 3):
        assert runner.run(size, torch.ones(size))[0].item() == 2 * size
    assert row.captures == 2
    assert counter("captured") == 2


def test_key_from_a_tensor_size() -> None:
    runner, row = make(lambda x: [x + 1], "p", ((0, 1),))
    for size in (3, 5, 3):
        assert runner.run(torch.ones(2, size))[0].shape == (2, size)
    assert row.captures == 2


def test_least_recently_used_key_is_dropped_and_comes_back() -> None:
    runner, row = make(lambda n, x: [x + n], "sp", (0,), capture_limit=2)
    for size in (1, 2, 1, 3):  # 2 is dropped for 3
        runner.run(size, torch.ones(size))
    assert counter("captured") == 2
    assert row.live == 3  # two recordings and the pool's anchor
    before = row.captures
    runner.run(1, torch.ones(1))
    runner.run(3, torch.ones(3))
    assert row.captures == before
    runner.run(2, torch.ones(2))  # once directly for the one time it was dropped
    assert row.captures == before
    runner.run(2, torch.ones(2))
    assert row.captures == before + 1
    assert runner.run(2, torch.ones(2))[0].tolist() == [3.0, 3.0]
    assert runner.report().dropped == 2


def test_a_cycle_over_the_limit_soon_stops_capturing() -> None:
    runner, row = make(lambda n, x: [x + n], "sp", (0,), capture_limit=2)
    for step in range(60):
        size = 1 + step % 3
        assert runner.run(size, torch.ones(size))[0].tolist() == [1.0 + size] * size
    assert row.captures < 20


def test_memory_budget_drops_recordings() -> None:
    runner, _ = make(lambda n, x: [x + n], "sp", (0,), memory_budget=100)
    for size in (10, 12, 14):
        runner.run(size, torch.ones(size))
    assert counter("captured") == 1
    assert runner.report().dropped == 2


# Mutated inputs and parameters are used in place.


def test_mutation_happens_exactly_once_per_call() -> None:
    def step(cache: torch.Tensor, x: torch.Tensor) -> list[Any]:
        cache.add_(x)
        return [cache.sum()]

    runner, row = make(step, "mp")
    cache = torch.zeros(3)
    for call in range(1, 5):
        assert runner.run(cache, torch.ones(3))[0].item() == 3 * call
        assert cache.tolist() == [call] * 3
    assert row.captures == 1


def test_moved_mutated_input_is_recorded_again_under_its_key() -> None:
    runner, _ = make(lambda cache, x: [cache.add_(x).sum()], "mp")
    first, second = torch.zeros(3), torch.full((3,), 10.0)
    runner.run(first, torch.ones(3))
    runner.run(first, torch.ones(3))
    assert runner.run(second, torch.ones(3))[0].item() == 33
    assert (first.tolist(), second.tolist()) == ([2.0] * 3, [11.0] * 3)
    assert counter("recapture_due_to_mutated_input_change") == 1
    assert counter("captured") == 1
    assert "mutated input arg0 moved" in str(runner.report())


def test_double_buffers_keep_a_recording_each() -> None:
    runner, row = make(lambda cache, x: [cache.add_(x).sum()], "mp")
    buffers = [torch.zeros(3), torch.zeros(3)]
    for step in range(12):
        runner.run(buffers[step % 2], torch.ones(3))
    assert [b.tolist() for b in buffers] == [[6.0] * 3] * 2
    assert row.captures <= 4


def test_input_that_always_moves_runs_directly_until_it_settles() -> None:
    runner, row = make(lambda cache, x: [cache.add_(x).sum()], "mp")
    kept = [torch.zeros(3) for _ in range(12)]
    with pytest.warns(DegradedWarning, match="moved on every call.*keep the tensor") as said:
        sums = [runner.run(cache, torch.ones(3))[0].item() for cache in kept]
    assert sums == [3] * 12
    assert len(said) == 1
    assert row.captures <= 5
    assert sum(runner.report().direct.values()) >= 6
    captures, replays = row.captures, row.replays
    for _ in range(3):
        runner.run(kept[-1], torch.ones(3))
    assert (row.captures, row.replays) == (captures + 1, replays + 3)
    assert kept[-1].tolist() == [4.0] * 3


def test_moved_parameter_is_recorded_again() -> None:
    runner, _ = make(lambda w, x: [w * x], "wp")
    weight, other = torch.full((2,), 2.0), torch.full((2,), 5.0)
    for _ in range(2):
        runner.run(weight, torch.ones(2))
    assert runner.run(other, torch.ones(2))[0].tolist() == [5.0, 5.0]
    assert {cause for cause, _ in runner.report().recaptures} == {RecaptureReason.PARAMETER}
    assert counter("captured") == 1
    other.fill_(7.0)
    assert runner.run(other, torch.ones(2))[0].tolist() == [7.0, 7.0]


def test_a_parameter_at_the_address_of_another() -> None:
    """A graph reads addresses: whoever lives there now is read."""
    runner, _ = make(lambda weight, x: [x * weight], "wp")
    x, old, new = torch.ones(2), torch.full((2,), 3.0), torch.full((2,), 5.0)
    first, second = torch.nn.Parameter(old), torch.nn.Parameter(new)
    assert runner.run(first, x)[0].tolist() == [3.0, 3.0]
    assert runner.run(first, x)[0].tolist() == [3.0, 3.0]
    first.data, second.data = new, old
    old.fill_(7.0)
    assert runner.run(second, x)[0].tolist() == [7.0, 7.0]


@pytest.mark.parametrize("option", ["frozen_parameter", "skip_validation"])
def test_unchecked_parameters_are_not_compared(option: str) -> None:
    runner, row = make(lambda w, x: [w * x], "wp", **{option: True})
    weight, other = torch.full((2,), 2.0), torch.full((2,), 5.0)
    results = [runner.run(used, torch.ones(2))[0].tolist() for used in (weight, weight, other)]
    assert results[-1] == [2.0, 2.0]  # the promise was broken: the recording still reads the old memory
    assert row.captures == 1


def test_force_recapture_counts_from_the_second_call() -> None:
    runner, row = make(lambda x: [x + 1], force_recapture=True)
    kept = [runner.run(torch.full((2,), float(i)))[0] for i in range(4)]
    assert [y[0].item() for y in kept] == [1, 2, 3, 4]
    assert counter("recapture_due_to_force_recapture") == 3
    assert row.live == 2


# Outputs that the caller holds are never overwritten.


def test_function_of_its_own_output() -> None:
    runner, row = make(lambda x: [x * 2 + 1])
    x = torch.zeros(3)
    for step in range(1, 8):
        (x,) = runner.run(x)
        assert x.tolist() == [2.0**step - 1] * 3
    assert row.captures == 2  # two recordings take turns; the second moves its outputs
    assert runner.report().bytes_copied_out == 3 * 12


def test_all_outputs_kept() -> None:
    runner, row = make(lambda x: [x * 2])
    kept = [runner.run(torch.full((4,), float(i)))[0] for i in range(10)]
    assert [y[0].item() for y in kept] == [2.0 * i for i in range(10)]
    assert row.captures == 3
    assert (
        runner.report().bytes_copied_out == 8 * 16
    )  # one by the second recording, the rest by a private one
    del kept
    replays = {r.private: r.replays for r in runner.report().recordings}
    runner.run(torch.ones(4))
    assert {r.private: r.replays for r in runner.report().recordings}[True] == replays[True]


HOLDERS = {
    "view": (lambda y: y[1:], lambda view: view[0].item()),
    "array": (lambda y: y.numpy(), lambda array: array[0].item()),
    "storage": (lambda y: y.untyped_storage(), lambda storage: torch.empty(0).set_(storage)[0].item()),
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_a_view_or_array_also_holds(holder: str) -> None:
    hold, read = HOLDERS[holder]
    runner, _ = make(lambda x: [x * 2])
    runner.run(torch.zeros(3))
    held = hold(runner.run(torch.ones(3))[0])
    for value in (9.0, 8.0, 7.0):
        runner.run(torch.full((3,), value))
    assert read(held) == 2.0


def test_accumulating_in_an_output() -> None:
    runner, _ = make(lambda x: [x * 2])
    total = runner.run(torch.ones(2))[0]
    for _ in range(5):
        total += runner.run(torch.ones(2))[0]
    assert total.tolist() == [12.0, 12.0]


def test_output_changed_by_the_caller_does_not_return() -> None:
    runner, _ = make(lambda x: [x * 2])
    for _ in range(4):
        (y,) = runner.run(torch.ones(2))
        assert y.tolist() == [2.0, 2.0]
        y.zero_()


def test_clone_output_gives_separate_memory() -> None:
    runner, row = make(lambda x: [x * 2], clone_output=True)
    kept = [runner.run(torch.full((2,), float(i)))[0] for i in range(6)]
    assert [y[0].item() for y in kept] == [0, 2, 4, 6, 8, 10]
    assert len({y.data_ptr() for y in kept}) == 6
    assert row.captures == 1


def test_outputs_that_share_memory_share_it_again() -> None:
    def views(x: torch.Tensor) -> list[torch.Tensor]:
        y = x * 2
        return [y, y.view(-1), y[0], y.t()]

    for options in ({}, {"clone_output": True}):
        runner, _ = make(views, **options)
        for value in (1.0, 2.0, 3.0):
            y, flat, row0, turned = runner.run(torch.full((2, 3), value))
            assert turned.shape == (3, 2)
            y.fill_(-1)
            assert flat.tolist() == [-1] * 6
            assert row0.tolist() == [-1] * 3
            assert turned.unique().tolist() == [-1]


def test_dropped_recordings_leave_held_outputs_alone() -> None:
    runner, _ = make(lambda n, x: [x + n], "sp", (0,), capture_limit=1)
    runner.run(1, torch.ones(1))
    (kept,) = runner.run(1, torch.ones(1))
    for size in (2, 3, 4):
        runner.run(size, torch.ones(size))
    assert kept.tolist() == [2.0]


def test_numbers_and_none_pass_through() -> None:
    runner, _ = make(lambda n, x: [n * 2, None, x], "sp", (0,))
    for n in (3, 4, 3, 4):
        doubled, nothing, y = runner.run(n, torch.ones(n))
        assert (doubled, nothing, y.shape) == (2 * n, None, (n,))


# Aliases.


def test_view_of_an_input_is_tied_to_the_tensor_of_the_call() -> None:
    runner, _ = make(lambda x: [x[1:], x, x.view(torch.int32), x + 1], "a", aliases={0: [0, 1, 2]})
    for value in (1.0, 2.0, 3.0):
        x = torch.full((4,), value)
        tail, same, bits, fresh = runner.run(x)
        x.fill_(-5.0)
        assert tail.tolist() == [-5.0] * 3
        assert same.tolist() == [-5.0] * 4
        assert bits.view(torch.float32).tolist() == [-5.0] * 4
        assert fresh.tolist() == [value + 1] * 4
        same.fill_(4.0)
        assert x.tolist() == [4.0] * 4


def test_view_of_an_input_that_is_itself_a_view() -> None:
    runner, _ = make(lambda x: [x[1:]], "a", aliases={0: [0]})
    base = torch.arange(24.0).view(4, 6)
    for row in (0, 1, 3):
        (tail,) = runner.run(base[row])
        assert tail.tolist() == base[row, 1:].tolist()
        assert tail.untyped_storage().data_ptr() == base.untyped_storage().data_ptr()


def test_returned_mutated_input_is_the_input() -> None:
    runner, _ = make(lambda cache: [cache.add_(1), cache[:1]], "m", clone_output=True)
    cache = torch.zeros(2)
    for step in range(1, 4):
        whole, head = runner.run(cache)
        assert whole.data_ptr() == head.data_ptr() == cache.data_ptr()
        assert cache.tolist() == [step] * 2


def test_tied_output_refuses_other_strides() -> None:
    runner, _ = make(lambda x: [x[1:]], "a", aliases={0: [0]})
    runner.run(torch.ones(3, 3))
    with pytest.raises(BadCall, match="other strides"):
        runner.run(torch.ones(3, 3).t())


def test_tied_output_refuses_what_is_conjugated_on_reading() -> None:
    runner, _ = make(lambda x: [x[1:]], "a", aliases={0: [0]})
    x = torch.ones(3, dtype=torch.complex64)
    runner.run(x)
    with pytest.raises(BadCall, match="conjugated or negated otherwise"):
        runner.run(x.conj())


# Static inputs.


def test_expanded_and_strided_inputs_keep_their_layout() -> None:
    seen: list[tuple[int, ...]] = []

    def program(a: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
        seen.extend((a.stride(), b.stride()))
        return [a + b]

    runner, _ = make(program, "pp", repeats={0: (1,)})
    for value in (1.0, 2.0, 3.0):
        a = torch.arange(3.0).mul(value)[:, None].expand(3, 4)
        b = torch.arange(12.0).view(4, 3).t()
        assert torch.equal(runner.run(a, b)[0], a + b)
    assert set(seen) == {(1, 0), (1, 3)}


def test_empty_and_single_element_inputs() -> None:
    runner, _ = make(lambda a, b: [a.sum() + b], "pp")
    for value in (1.0, 2.0, 3.0):
        assert runner.run(torch.empty(0, 4), torch.tensor(value))[0].item() == value


def test_other_shape_under_one_key_is_refused() -> None:
    runner, _ = make(lambda x: [x + 1])
    runner.run(torch.ones(2, 3))
    with pytest.raises(BadCall, match=r"\(1, 3\) instead of \(2, 3\)"):
        runner.run(torch.ones(1, 3))


def test_borrowed_input_is_copied_only_when_it_moved_and_never_overwritten() -> None:
    runner, row = make(lambda x: [x * 2], clone_input=False)
    held = torch.ones(3)
    for _ in range(3):
        assert runner.run(held)[0].tolist() == [2.0] * 3
    assert runner.run(torch.full((3,), 5.0))[0].tolist() == [10.0] * 3
    assert held.tolist() == [1.0] * 3  # the caller's first tensor is untouched
    assert counter("recapture_due_to_mutated_input_change") is None
    assert counter("captured") == 1
    assert row.captures == 2


def test_borrowed_input_that_was_let_go_serves_as_the_buffer() -> None:
    runner, row = make(lambda x: [x * 2], clone_input=False)
    for value in (1.0, 2.0, 3.0):
        assert runner.run(torch.full((3,), value))[0].tolist() == [2 * value] * 3
    assert row.captures == 1


def test_arena_is_shared_by_all_shapes() -> None:
    runner, _ = make(lambda n, x: [x + n], "sp", (0,))
    for size in (64, 8, 32, 64, 8, 32):
        assert runner.run(size, torch.ones(size))[0].sum().item() == size * (size + 1)
    assert runner.report().static_bytes == 64 * 4


# Pools.


def test_runners_share_a_custom_pool() -> None:
    row = SimulatedDevice()
    shared = [make(lambda x: [x + 1], row=row, pool=(77, 0))[0] for _ in range(2)]
    own = [make(lambda x: [x + 1], row=row)[0] for _ in range(2)]
    for runner in (*shared, *own):
        runner.run(torch.ones(1))
    tokens = [runner.report().pool for runner in (*shared, *own)]
    assert tokens[0] == tokens[1] == (77, 0)
    assert len(set(tokens)) == 3


def test_recordings_without_a_shared_pool() -> None:
    runner, row = make(lambda n, x: [x + n], "sp", (0,), reuse_pool=False)
    for size in (1, 2, 3, 1, 2, 3):
        assert runner.run(size, torch.ones(size))[0].tolist() == [1.0 + size] * size
    assert len(set(row.tokens)) == 4


# Failure, randomness, modes.


def test_failed_capture_runs_directly_and_leaves_no_trace() -> None:
    row = SimulatedDevice()

    def program(cache: torch.Tensor) -> list[torch.Tensor]:
        cache.add_(1)
        if row.capturing and cache.shape == (2,):
            raise RuntimeError("operation not permitted when stream is capturing")
        return [cache.sum()]

    runner, _ = make(program, "m", row=row)
    cache = torch.zeros(2)
    with pytest.warns(DegradedWarning, match=r"not recorded.*not permitted") as said:
        sums = [runner.run(cache)[0].item() for _ in range(4)]
    assert sums == [2, 4, 6, 8]
    assert runner.report().why_not is not None
    assert "not permitted" in str(runner.report())
    assert counter("captured") is None
    assert len(said) == 1
    assert [str(said[0].message)] == list(runner.report().degradations)


def test_out_of_memory_is_tried_once_more() -> None:
    row = SimulatedDevice()
    failures = iter([False, True, False])  # the pool's anchor, the first attempt, the second

    def maybe_fail() -> None:
        if next(failures, False):
            raise torch.OutOfMemoryError("no room")

    row.on_record = maybe_fail
    runner, _ = make(lambda x: [x + 1], row=row)
    for _ in range(3):
        assert runner.run(torch.ones(1))[0].item() == 2
    assert (row.captures, runner.why_not) == (1, None)


def test_no_room_for_a_second_recording_runs_this_call_directly() -> None:
    row = SimulatedDevice()
    runner, _ = make(lambda x: [x + 1], row=row)
    runner.run(torch.ones(1))
    (kept,) = runner.run(torch.ones(1))

    def fail() -> None:
        raise torch.OutOfMemoryError("no room")

    row.on_record = fail
    assert runner.run(torch.full((1,), 5.0))[0].item() == 6
    assert kept.item() == 2
    assert runner.why_not is None
    del kept
    replays = row.replays
    runner.run(torch.ones(1))
    assert row.replays == replays + 1


def test_random_numbers_are_those_of_a_direct_run() -> None:
    runner, row = make(lambda x: [x + torch.rand(3)], random=True)
    torch.manual_seed(5)
    got = [runner.run(torch.zeros(3))[0] for _ in range(4)]
    torch.manual_seed(5)
    want = [torch.rand(3) for _ in range(4)]
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    assert row.replays == 3


def test_random_numbers_that_repeat_end_recording() -> None:
    row = SimulatedDevice()
    runner, _ = make(lambda x: [x + torch.rand(3)], random=True, row=row)
    runner.run(torch.zeros(3))
    row.advances = False
    with pytest.warns(DegradedWarning, match="random numbers repeat"):
        runner.run(torch.zeros(3))
    for _ in range(2):
        runner.run(torch.zeros(3))
    assert runner.why_not is not None
    assert "random" in runner.why_not
    assert row.replays == 1


def test_a_random_op_that_draws_nothing_is_recorded() -> None:
    runner, row = make(lambda x: [torch.dropout(x, 0.0, train=False)], random=True)
    for _ in range(4):
        assert runner.run(torch.ones(3))[0].tolist() == [1.0] * 3
    assert (runner.why_not, row.replays) == (None, 3)


@pytest.mark.parametrize(("asked", "others", "used"), [
    ("global", False, "global"), ("global", True, "thread_local"), ("relaxed", True, "relaxed"),
])  # fmt: skip
def test_a_recording_raises_in_no_other_thread(
    asked: str, others: bool, used: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading, "active_count", lambda: 2 if others else 1)
    runner, row = make(lambda x: [x + 1], error_mode=asked)
    runner.run(torch.ones(2))
    assert row.error_modes[-1] == used


def test_a_launch_outside_the_capture_is_reported() -> None:
    row = SimulatedDevice()

    def program(x: torch.Tensor) -> list[torch.Tensor]:
        inside, row.capturing = row.capturing, False  # on a stream that nobody forked
        y = x * 2
        row.capturing = inside
        return [y + 1]

    runner, _ = make(program, row=row)
    with pytest.warns(DegradedWarning, match="not captured"):
        made = [runner.run(torch.full((2,), float(value)))[0].tolist() for value in range(4)]
    assert made == [[2.0 * value + 1] * 2 for value in range(4)]
    assert runner.why_not is not None
    assert "aten.mul.Tensor was launched on a stream that is not captured" in runner.why_not
    assert row.replays == 0


def test_inside_a_users_capture_the_program_runs_directly() -> None:
    runner, row = make(lambda x: [x + 1])
    row.capturing = True
    runner.run(torch.ones(1))
    row.capturing = False
    assert row.records == 0


def test_inference_mode_has_its_own_recordings() -> None:
    runner, row = make(lambda x: [x + 1])
    for _ in range(2):
        with torch.inference_mode():
            assert runner.run(torch.ones(2))[0].is_inference()
        (y,) = runner.run(torch.ones(2))
        assert not y.is_inference()
    assert row.captures == 2


def test_inputs_with_grad_leave_no_autograd_graph() -> None:
    runner, _ = make(lambda x: [x * 2])
    x = torch.ones(2, requires_grad=True)
    for _ in range(3):
        assert runner.run(x)[0].grad_fn is None


# Threads and streams.


def test_threads_get_their_own_results() -> None:
    runner, row = make(lambda n, x: [x * 2 + n], "sp", (0,))
    wrong: list[Any] = []

    def work(number: int) -> None:
        row.local.name = f"stream {number}"
        for step in range(60):
            size = 1 + (number + step) % 3
            (y,) = runner.run(size, torch.full((size,), float(number * 1000 + step)))
            if y.tolist() != [2.0 * (number * 1000 + step) + size] * size:
                wrong.append((number, step, y))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_thread_runs_the_program_before_it_records() -> None:
    """Libraries make their handles in a thread's first call, and cannot while a graph is recorded."""
    handles, row = threading.local(), SimulatedDevice()

    def program(x: torch.Tensor) -> list[torch.Tensor]:
        if not hasattr(handles, "handle"):
            assert not row.capturing, "CUBLAS_STATUS_NOT_INITIALIZED"
            handles.handle = True
        return [x * 2]

    runner, _ = make(program, row=row)
    held = [runner.run(torch.full((2,), float(step)))[0] for step in range(2)]

    def work() -> None:
        # The outputs of the one recording are held: another one is made.
        held.extend(runner.run(torch.full((2,), float(step)))[0] for step in range(2, 5))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert [y.tolist() for y in held] == [[2.0 * step] * 2 for step in range(5)]
    report = runner.report()
    assert report.direct["first call of a thread"] == 1
    assert sum(row.replays for row in report.recordings) == 3, "all but the first calls of the two threads"


def test_a_launch_on_another_stream_waits_for_the_last_one() -> None:
    runner, row = make(lambda x: [x + 1])
    for name in ("a", "a", "b", "b", "a"):
        row.local.name = name
        runner.run(torch.ones(1))
    assert row.orders == [("a", "b"), ("b", "a")]


# Better programs on their way.


class Soon(PendingProgram):
    def __init__(self, program: Body | None) -> None:
        super().__init__()
        self.program = program

    def take(self) -> Body | None:
        return self.program


def special_runner(better: Body | None) -> tuple[Any, SimulatedDevice, Soon]:
    row, soon = SimulatedDevice(), Soon(better)
    inputs = InputInfo(names=("x",), roles=(Role.PLAIN,))
    compiled = CompiledProgram(Body(lambda x: [x + 1]), inputs, Policy(), CPU, NAME)
    with installed(row):
        return capture(compiled, RunnerOptions(specialist=lambda key, args: soon)), row, soon


def test_a_program_is_loaded_while_others_may_launch() -> None:
    runner, _, soon = special_runner(None)
    free: list[bool] = []

    def try_lock() -> None:
        lock = runner.strategy._turns.lock
        free.append(lock.acquire(False))
        lock.release()

    def take() -> None:
        other = threading.Thread(target=try_lock)
        other.start()
        other.join()

    soon.take = take  # type: ignore[method-assign]
    runner.run(torch.ones(2))
    soon.is_done.set()
    runner.run(torch.ones(2))
    assert free == [True]


def test_a_program_may_call_another_graph_of_its_pool() -> None:
    row = SimulatedDevice()
    inner, _ = make(lambda x: [x + 1], row=row, pool=(7, 0))
    outer, _ = make(lambda x: [inner.run(x)[0] * 2], row=row, pool=(7, 0))
    results: list[float] = []
    # In a thread: a deadlock would be the end of all tests.
    thread = threading.Thread(
        target=lambda: results.extend(outer.run(torch.ones(1))[0].item() for _ in range(2)), daemon=True
    )
    thread.start()
    thread.join(20)
    assert results == [4.0, 4.0]


def test_a_better_program_takes_over_between_two_calls() -> None:
    better = Body(lambda x: [x + 1.0])
    runner, row, soon = special_runner(better)
    held = [runner.run(torch.ones(2))[0] for _ in range(3)]
    assert better.calls == 0
    soon.is_done.set()
    held += [runner.run(torch.full((2,), 5.0))[0] for _ in range(3)]
    assert [y.tolist() for y in held] == [[2.0] * 2] * 3 + [[6.0] * 2] * 3
    assert better.calls > 0
    assert row.live == 1 + len(runner.report().recordings)  # the pool's own, and no old one


def test_a_better_program_that_could_not_be_made_changes_nothing() -> None:
    runner, row, soon = special_runner(None)
    soon.is_done.set()
    for _ in range(3):
        assert runner.run(torch.ones(2))[0].tolist() == [2.0] * 2
    assert row.replays == 2


def test_nothing_is_collected_while_graphs_are_recorded() -> None:
    """By no thread, until the last recording has ended."""
    both, first_is_done = threading.Barrier(2), threading.Event()
    seen: list[bool] = []

    def second() -> None:
        with without_collection():
            both.wait()
            first_is_done.wait()
            seen.append(gc.isenabled())

    other = threading.Thread(target=second)
    assert gc.isenabled()
    with without_collection():
        other.start()
        both.wait()
        seen.append(gc.isenabled())
    first_is_done.set()
    other.join()
    assert seen == [False, False]
    assert gc.isenabled()
