"""The quick way for a call that is like the one before: taken then, and only then."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from tests.support.simulated_device import Body, SimulatedDevice, make
from torchair.capture import Runner
from torchair.capture.base.addresses import RecaptureReason
from torchair.capture.base.pending_program import PendingProgram
from torchair.capture.strategies.replay import Replay
from torchair.core.native import fast_replay
from torchair.devices import GraphUpdateRejected, cpu, npu
from torchair.devices.input_copy_nodes import FORGET


@pytest.fixture(autouse=True, params=["extension", "python"])
def how(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Both ways keep the same promises."""
    if request.param == "python":
        # A runner asks for the extension, which was built before: now it is not there.
        monkeypatch.setattr(fast_replay, "_extension", None)
        monkeypatch.setattr(fast_replay, "_asked", True)
    elif not fast_replay.is_loaded():
        fast_replay.load(fast_replay.built())
    with torch.no_grad():
        yield request.param


def affine(weight: torch.Tensor, x: torch.Tensor) -> list[torch.Tensor]:
    return [x * weight + 1]


def warm(function: Callable[..., Any] = affine, roles: str = "wp", **policy: Any) -> tuple[Runner, Any, Any]:
    """A runner after its first replay, its device, and a weight."""
    runner, row = make(function, roles, **policy)
    weight = torch.full((4,), 2.0)
    for _ in range(2):
        runner(([weight] if "w" in roles else []) + [torch.ones(4)])
    return runner, row, weight


def ask(runner: Runner, *args: Any) -> Any:
    assert runner.plain_fast_path is not None
    return runner.plain_fast_path(args)


def test_a_call_like_the_one_before_is_taken() -> None:
    runner, row, weight = warm()
    replays = row.replays
    for number in (3.0, 5.0):
        (y,) = ask(runner, weight, torch.full((4,), number))
        assert y.tolist() == [2 * number + 1] * 4
        del y
    assert row.replays == replays + 2
    assert sum(recording.replays for recording in runner.report().recordings) == 3


def test_not_before_something_was_replayed() -> None:
    runner, _ = make(affine, "wp")
    weight = torch.ones(4)
    assert ask(runner, weight, torch.ones(4)) is None
    runner([weight, torch.ones(4)])
    assert ask(runner, weight, torch.ones(4)) is None, "the first call ran directly"


def test_a_held_output_is_not_overwritten() -> None:
    runner, _, weight = warm()
    held = ask(runner, weight, torch.ones(4))[0][:2]
    assert ask(runner, weight, torch.zeros(4)) is None
    assert runner.run(weight, torch.zeros(4))[0].tolist() == [1.0] * 4
    assert held.tolist() == [3.0, 3.0]


def test_a_moved_weight_is_seen() -> None:
    runner, _, weight = warm()
    weight.data = torch.full((4,), 10.0)
    assert ask(runner, weight, torch.ones(4)) is None
    assert runner.run(weight, torch.ones(4))[0].tolist() == [11.0] * 4


def test_another_shape_is_left_to_the_careful_way() -> None:
    runner, _, weight = warm()
    assert ask(runner, weight, torch.ones(1)) is None
    assert ask(runner, weight, 3) is None
    assert ask(runner, weight) is None, "too few arguments"


def test_another_key_and_back() -> None:
    def scaled(n: int, x: torch.Tensor) -> list[torch.Tensor]:
        return [x * n]

    runner, _ = make(scaled, "sp", (0,))
    for n in (2, 3, 2, 3):
        runner([n, torch.ones(4)])
    for n in (3, 2, 3):
        (y,) = ask(runner, n, torch.ones(4))
        assert y.tolist() == [float(n)] * 4
        del y
    assert ask(runner, 4, torch.ones(4)) is None


def test_gradients_are_not_recorded() -> None:
    runner, _, weight = warm()
    with torch.enable_grad():
        (y,) = ask(runner, weight, torch.ones(4, requires_grad=True))
        assert torch.is_grad_enabled()
    assert y.tolist() == [3.0] * 4
    assert not y.requires_grad


def test_inference_mode_has_its_own_recording() -> None:
    runner, _, weight = warm()
    with torch.inference_mode():
        assert ask(runner, weight, torch.ones(4)) is None
        for _ in range(2):
            runner([weight, torch.ones(4)])
        assert ask(runner, weight, torch.ones(4))[0].is_inference()
    assert not ask(runner, weight, torch.ones(4))[0].is_inference()
    assert len(runner.report().recordings) == 2


def test_another_stream_takes_its_turn_first() -> None:
    runner, row, weight = warm()
    assert isinstance(row, SimulatedDevice)
    row.local.name = "side"
    assert ask(runner, weight, torch.ones(4)) is None
    runner.run(weight, torch.ones(4))
    assert ask(runner, weight, torch.ones(4)) is not None


def test_inside_a_capture_and_under_a_profiler() -> None:
    runner, row, weight = warm()
    row.capturing = True
    assert ask(runner, weight, torch.ones(4)) is None
    row.capturing = False
    with torch.profiler.profile():
        assert ask(runner, weight, torch.ones(4)) is None
    assert ask(runner, weight, torch.ones(4)) is not None


def test_a_lent_input_is_taken_where_it_was_and_looked_at_elsewhere() -> None:
    runner, row = make(affine, "wp", clone_input=False)
    weight, x = torch.full((4,), 2.0), torch.ones(4)
    for _ in range(2):
        runner([weight, x])
    replays = row.replays
    for number in (3.0, 5.0):
        (y,) = ask(runner, weight, x.fill_(number))
        assert y.tolist() == [2 * number + 1] * 4
        del y
    assert row.replays == replays + 2
    assert ask(runner, weight, x[:1]) is None, "another shape"
    assert ask(runner, weight, torch.zeros(4)) is None, "another place"
    assert runner.run(weight, torch.zeros(4))[0].tolist() == [1.0] * 4
    assert x.tolist() == [5.0] * 4, "somebody holds it: it is no buffer"
    assert runner.run(weight, x)[0].tolist() == [11.0] * 4


def test_outputs_that_are_copied() -> None:
    runner, _, weight = warm(clone_output=True)
    held = [ask(runner, weight, torch.full((4,), number))[0] for number in (1.0, 2.0, 3.0)]
    assert [y.tolist() for y in held] == [[2 * number + 1] * 4 for number in (1.0, 2.0, 3.0)]


def test_held_outputs_take_turns_and_then_are_copied() -> None:
    runner, _, weight = warm()
    held = [runner.run(weight, torch.full((4,), number))[0] for number in range(4)]
    recordings = runner.report().recordings
    assert [recording.private for recording in recordings] == [False, False, True]
    held += [ask(runner, weight, torch.full((4,), number))[0] for number in range(4, 8)]
    assert [y.tolist() for y in held] == [[2.0 * number + 1] * 4 for number in range(8)]
    copied = runner.report().recordings[-1].replays
    held.clear()
    for _ in range(3):
        assert ask(runner, weight, torch.ones(4))[0].tolist() == [3.0] * 4
    assert runner.report().recordings[-1].replays == copied, "nothing is held: nothing is copied"


class Launches:
    """The runtime's own launch, of a simulated device."""

    def __init__(self, row: SimulatedDevice, monkeypatch: pytest.MonkeyPatch) -> None:
        self.graphs: dict[int, Any] = {}
        self.streams: list[int | None] = []
        self.status = 0
        self.forgotten = 0
        self._calls = LAUNCH(self._launch), FORGET(self._forget)
        monkeypatch.setattr(row, "direct_launch", self._of)

    def _of(self, graph: Any, device: torch.device) -> fast_replay.DirectLaunch:
        self.graphs[len(self.graphs) + 1] = graph
        launch, forget = (ctypes.cast(call, ctypes.c_void_p).value or 0 for call in self._calls)
        return fast_replay.DirectLaunch(launch, len(self.graphs), torch.device("cpu"), forget)

    def _launch(self, graph: int, stream: int | None) -> int:
        self.streams.append(stream)
        if not self.status:
            self.graphs[graph].replay()
        return self.status

    def _forget(self) -> int:
        self.forgotten += 1
        return self.status


LAUNCH = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


def test_the_runtime_launches(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    row = SimulatedDevice()
    monkeypatch.setattr(row, "stream_handle", lambda: lambda index: 77)
    launches = Launches(row, monkeypatch)
    runner, _ = make(lambda x: [x + 1], row=row)
    for _ in range(2):
        runner([torch.zeros(4)])
    assert ask(runner, torch.ones(4))[0].tolist() == [2.0] * 4
    if how == "python":
        assert not launches.streams
        return
    assert launches.streams == [77]
    launches.status = 700
    with pytest.raises(RuntimeError, match="could not be launched: status 700"):
        ask(runner, torch.ones(4))
    assert launches.forgotten == 1
    launches.status = 0
    assert ask(runner, torch.ones(4))[0].tolist() == [2.0] * 4, "the turn was given back"


def test_who_draws_random_numbers_is_launched_by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where nobody knows that the program does: torch advances the generator."""
    row = SimulatedDevice()
    launches = Launches(row, monkeypatch)
    runner, _ = make(lambda x: [x + torch.rand(4)], row=row, random=False)
    seen = {tuple(runner.run(torch.zeros(4))[0].tolist()) for _ in range(6)}
    assert len(seen) == 6
    assert not launches.streams


def test_forced_recaptures_have_no_quick_way() -> None:
    runner, _ = make(affine, "wp", force_recapture=True)
    assert runner.plain_fast_path is None


def test_mutated_inputs_are_compared_even_when_parameters_are_frozen() -> None:
    def count(cache: torch.Tensor, x: torch.Tensor) -> list[torch.Tensor]:
        cache.add_(x)
        return [cache + 0]

    runner, _ = make(count, "mp", frozen_parameter=True)
    cache = torch.zeros(4)
    for _ in range(2):
        runner([cache, torch.ones(4)])
    assert ask(runner, cache, torch.ones(4))[0].tolist() == [3.0] * 4
    assert cache.tolist() == [3.0] * 4
    assert ask(runner, cache.clone(), torch.ones(4)) is None


def repeat_of(replay: Replay) -> Any:
    """Of the only key."""
    (entry,) = replay._entries
    return entry.repeats[0]


def test_keys_in_turn_are_served_quickly() -> None:
    """No call has the key of the one before."""
    runner, row = make(lambda x: [x + 1], "p", key=((0, 0),))
    xs = [torch.randn(size, 4) for size in (2, 3, 5)]
    for _ in range(2):
        for x in xs:
            runner([x])
    replays = row.replays
    for _ in range(4):
        for x in xs:
            torch.testing.assert_close(ask(runner, x)[0], x + 1, rtol=0, atol=0)
    assert row.replays == replays + 12


def test_a_better_program_is_not_passed_by() -> None:
    """Another thread was served by the old recording while it was loaded."""
    runner, _, weight = warm()
    replay = runner.strategy
    assert isinstance(replay, Replay)
    (entry,) = replay._entries

    class There(PendingProgram):
        def take(self) -> Any:
            return Body(lambda weight, x: [x * weight + 2])

    replay._load_optimized(entry, There())
    assert ask(runner, weight, torch.ones(4)) is None
    assert runner.run(weight, torch.ones(4))[0].tolist() == [4.0] * 4


def test_a_dropped_key_waits_twice_as_long_each_time() -> None:
    runner, row = make(lambda n, x: [x * n], "sp", (0,), capture_limit=1)
    for times in range(4):
        for number in (2, 3):
            captures, calls = row.captures, 0
            while row.captures == captures:
                runner([number, torch.ones(4)])
                calls += 1
            assert calls == 2**times


def test_threads_wait_for_each_other() -> None:
    runner, _, weight = warm()
    replay = runner.strategy
    assert isinstance(replay, Replay)
    results: list[Any] = []
    asked: list[Any] = []
    with replay._turns.lock:
        other = threading.Thread(target=lambda: asked.append(ask(runner, weight, torch.ones(4))))
        other.start()
        other.join(0.2)
        assert not asked
        thread = threading.Thread(target=lambda: results.append(runner.run(weight, torch.ones(4))))
        thread.start()
        thread.join(0.2)
        assert not results
    thread.join()
    other.join()
    assert results[0][0].tolist() == [3.0] * 4
    assert asked == [None] or asked[0][0].tolist() == [3.0] * 4, "outputs of the other may be held"


def test_a_dropped_recording_serves_no_more() -> None:
    runner, _, weight = warm()
    replay = runner.strategy
    assert isinstance(replay, Replay)
    stale = repeat_of(replay)
    assert stale is not None
    replay._entries.clear()
    assert stale((weight, torch.ones(4)), b"") is None


def test_a_failing_launch_frees_the_lock() -> None:
    runner, row, weight = warm()
    replay = runner.strategy
    assert isinstance(replay, Replay)
    row.launching = True  # as if another thread were launching
    with pytest.raises(AssertionError):
        ask(runner, weight, torch.ones(4))
    row.launching = False
    other = threading.Thread(target=lambda: ask(runner, weight, torch.ones(4)))
    other.start()
    other.join(5)
    assert not other.is_alive(), "it need not wait"
    assert ask(runner, weight, torch.ones(4))[0].tolist() == [3.0] * 4


def test_versions_of_written_inputs_are_raised_once() -> None:
    def count(cache: torch.Tensor, x: torch.Tensor) -> list[torch.Tensor]:
        cache.add_(x)
        return [cache + 0]

    runner, _ = make(count, "mp")
    cache = torch.zeros(4)
    again = runner.fast_path(fast_replay.Written([0]).packed)
    assert again is not None
    for _ in range(2):
        runner([cache, torch.ones(4)])
    x = torch.ones(4)

    def raised(args: tuple[Any, ...], call: Callable[[tuple[Any, ...]], Any]) -> tuple[bool, int]:
        before = cache._version
        return call(args) is not None, cache._version - before

    # The simulated graph raises them itself, as no real one does.
    _, by_simulation = raised((cache, x), lambda args: ask(runner, *args))
    assert raised((cache, x), again) == (True, by_simulation + 1)
    assert raised((cache, x[:2]), again) == (False, 0), "a call that is not served writes nothing"
    assert x._version == 0


def test_outputs_that_are_views_of_inputs_and_constants() -> None:
    def mixed(weight: torch.Tensor, x: torch.Tensor) -> list[Any]:
        return [weight[:2], x + weight, None, 7]

    runner, _, weight = warm(mixed)
    view, y, nothing, seven = ask(runner, weight, torch.ones(4))
    assert (y.tolist(), nothing, seven) == ([3.0] * 4, None, 7)
    assert view.data_ptr() == weight.data_ptr()


BYTES = torch.randn(3, 4)
SOURCES = {
    "where it was": (BYTES, True, 0),
    "somewhere else": (torch.randn(3, 4), True, 1),
    "strided": (torch.randn(4, 3).t(), False, 1),
    "another dtype": (torch.randn(3, 4, dtype=torch.float64), False, 1),
    "lazily negated": (torch.randn(3, 4, dtype=torch.complex64).conj().imag, False, 1),
}


@pytest.mark.parametrize("name", SOURCES)
def test_the_graph_copies_its_inputs_and_is_told_where_they_are(name: str) -> None:
    source, is_quick, moves = SOURCES[name]
    runner, row = make(lambda x: [x + 1], "p")
    for _ in range(2):
        runner([BYTES])
    assert row.moves == []
    got = ask(runner, source)
    assert (got is not None) == is_quick
    (y,) = got or runner([source])
    torch.testing.assert_close(y, source.float() + 1, rtol=0, atol=0)
    assert row.moves == [(48, 3)] * moves


def test_a_layout_of_its_own_is_kept() -> None:
    runner, row = make(lambda x: [x + 1], "p")
    for _ in range(3):
        source = torch.randn(4, 3).t()
        (y,) = runner.run(source)
        torch.testing.assert_close(y, source + 1, rtol=0, atol=0)
    del y  # a held output would be a reason of its own
    assert ask(runner, torch.randn(4, 3).t()) is not None
    assert ask(runner, torch.randn(3, 4)) is None
    assert set(row.moves) == {(48, 3)}


def test_conjugation_is_not_lost() -> None:
    runner, _ = make(lambda x: [x + 1], "p")
    for _ in range(2):
        runner([torch.zeros(3, dtype=torch.complex64)])
    x = torch.randn(3, dtype=torch.complex64)
    assert ask(runner, x.conj()) is None
    torch.testing.assert_close(runner([x.conj()])[0], x.conj() + 1, rtol=0, atol=0)


@pytest.mark.parametrize(("count", "copies"), [(4, 4), (5, 0)])
def test_only_a_few_inputs_are_copied_inside(count: int, copies: int) -> None:
    runner, row = make(lambda *xs: [torch.stack(xs)], "p" * count)
    kept = [[torch.zeros(2) for _ in range(count)] for _ in range(2)]  # nobody else lives there
    for args in kept:
        runner(list(args))
    row.moves.clear()
    xs = [torch.full((2,), float(number)) for number in range(count)]
    torch.testing.assert_close(ask(runner, *xs)[0], torch.stack(xs), rtol=0, atol=0)
    assert len(row.moves) == copies


def test_some_inside_and_some_before() -> None:
    runner, row = make(lambda wide, flat, x, none: [wide + flat + x, none + 1], "pppp")

    def draw() -> list[torch.Tensor]:
        return [torch.randn(3, 8)[:, ::2], torch.randn(3, 1), torch.randn(3, 4), torch.empty(0)]

    for _ in range(4):
        wide, flat, x, _ = args = draw()
        got, _ = runner.run(*args)
        torch.testing.assert_close(got, wide + flat + x, rtol=0, atol=0)
    assert {size for size, _ in row.moves} == {12, 48}, "the wide one has gaps"


def test_a_refusal_of_the_runtime_is_no_wrong_result() -> None:
    runner, row = make(lambda x: [x + 1], "p")
    for _ in range(2):
        runner([BYTES])
    row.status = 700
    x = torch.randn(3, 4)
    assert ask(runner, x) is None
    for _ in range(3):
        torch.testing.assert_close(runner.run(x)[0], x + 1, rtol=0, atol=0)
        x = torch.randn(3, 4)
    assert row.captures == 2, "once more, without copies inside"
    assert [cause for cause, _ in runner.report().recaptures] == [RecaptureReason.COPIES]
    assert row.forgotten == 3, "the quick way tried twice, Python once"
    assert row.live == 2, "the pool's own graph and the new one"


def test_a_head_that_cannot_be_made() -> None:
    runner, row = make(lambda x: [x + 1], "p")
    row.head_error = GraphUpdateRejected("no such node")
    for _ in range(3):
        x = torch.randn(3, 4)
        torch.testing.assert_close(runner.run(x)[0], x + 1, rtol=0, atol=0)
    assert runner.report().why_not is None
    assert row.live == 2, "the pool's own graph and the one without copies inside"
    assert row.moves == []


def test_without_copies_inside() -> None:
    runner, row = make(lambda x: [x + 1], "p", row=SimulatedDevice(copies=False))
    for _ in range(3):
        x = torch.randn(3, 4)
        torch.testing.assert_close(runner.run(x)[0], x + 1, rtol=0, atol=0)
    assert row.moves == []


def test_inputs_without_elements() -> None:
    runner, _ = make(lambda x, y: [x + 1, y], "pp")
    for _ in range(2):
        runner([torch.ones(3), torch.empty(0, 2)])
    one, nothing = ask(runner, torch.ones(3), torch.empty(0, 2))
    assert (one.tolist(), nothing.shape) == ([2.0] * 3, (0, 2))


def test_only_cuda_copies_inside_a_graph() -> None:
    assert not any(module.DEVICE.copies_inside for module in (cpu, npu))


def test_an_extension_that_comes_later_takes_over(how: str) -> None:
    runner, row, weight = warm()
    replay = runner.strategy
    assert isinstance(replay, Replay)
    assert isinstance(repeat_of(replay), fast_replay.PythonRepeat) is (how == "python")
    if how == "python":
        fast_replay.load(fast_replay.built())
        assert ask(runner, weight, torch.ones(4)) is None, "once more in the careful way"
        assert runner.run(weight, torch.ones(4))[0].tolist() == [3.0] * 4
    assert not isinstance(repeat_of(replay), fast_replay.PythonRepeat)
    replays = row.replays
    assert ask(runner, weight, torch.ones(4))[0].tolist() == [3.0] * 4
    assert row.replays == replays + 1


def test_a_spec_that_is_none_is_refused() -> None:
    if not fast_replay.is_loaded():
        fast_replay.load(fast_replay.built())
    assert fast_replay._extension is not None
    with pytest.raises(AttributeError, match="turns"):
        fast_replay._extension.repeat(object())
