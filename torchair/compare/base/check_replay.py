"""Call a runner repeatedly, as user code does, to find values that a recording keeps from earlier calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from torchair.capture import InputInfo, Role, Runner
from torchair.compare.base.culprit import Culprit, Judge
from torchair.compare.base.replay_call import RecordedCall, copies, frozen, set_random_state
from torchair.compare.base.tolerances import EXACT, Errors, worst
from torchair.core.errors import first_line

RECORDING = "recording"
KEPT = (Role.PARAMETER, Role.MUTATED, Role.PASSED)
"""Inputs that a recording uses at their address: they stay there and get new values."""

Call = Callable[[list[Any]], Sequence[Any]]


CALLS, HOLDING = 4, 2
"""Calls in addition to those before recording; the caller holds the outputs of the last ones."""


def calls_of(runner: Runner) -> int:
    """Return the number of calls after which a runner replays."""
    return runner.strategy.policy.patience + CALLS + HOLDING


def run_calls(
    runner: Runner, right: Call, recorded_calls: Sequence[RecordedCall], judge: Judge
) -> tuple[Errors, Culprit | None]:
    """Call the runner until it replays, alternating between the arguments of these calls, each time in new
    memory.

    `right` computes the expected outputs of a call.
    """
    player = ReplayChecker(runner, right, recorded_calls[0], judge)
    found: list[Errors] = []
    count = calls_of(runner)
    for number in range(count):
        values = recorded_calls[number % len(recorded_calls)].args
        errors, culprit = player.call(values, holds=number >= count - HOLDING)
        if culprit is not None:
            return errors, culprit
        found.append(errors)
    return worst(found), None


def other_inputs(runner: Runner, eager: Call, recorded: RecordedCall) -> list[Any]:
    """Return other arguments of the same kind, with the elements of each input reversed.

    Integers are indices and lengths, so they are reversed only if eager, which checks them on the CPU,
    accepts it.
    """
    plain = runner.strategy.inputs.having(Role.PLAIN, Role.ALIAS, Role.MUTATED)
    everything = _reversed(recorded, plain, lambda arg: arg.device.type == "cpu" or arg.is_floating_point())
    if not recorded.run(eager, everything).error:
        return everything
    floats = _reversed(recorded, plain, torch.Tensor.is_floating_point)
    return recorded.args if recorded.run(eager, floats).error else floats


def _reversed(
    recorded: RecordedCall, places: Sequence[int], takes: Callable[[torch.Tensor], bool]
) -> list[Any]:
    """Return copies of the arguments, some with reversed memory unless another argument shares it."""
    args = copies(recorded.args)
    tensors = {n: arg for n, arg in enumerate(args) if _memory(arg) is not None}
    chosen = {n: arg for n, arg in tensors.items() if n in places and takes(arg)}
    others = {_memory(arg) for n, arg in tensors.items() if n not in chosen}
    for arg in {_memory(arg): arg for arg in chosen.values() if _memory(arg) not in others}.values():
        whole = torch.empty(0, dtype=arg.dtype, device=arg.device).set_(arg.untyped_storage())
        whole.copy_(whole.flip(0))
    return args


@dataclass
class ReplayChecker:
    """Consecutive calls: for each the arguments, the held outputs, and their expected values."""

    runner: Runner
    eager: Call
    recorded: RecordedCall
    judge: Judge
    args: list[list[Any]] = field(default_factory=list[list[Any]])
    wanted: list[list[Any]] = field(default_factory=list[list[Any]])
    held: dict[int, list[Any]] = field(default_factory=dict[int, list[Any]])  # outputs by call

    @property
    def inputs(self) -> InputInfo:
        """Input information of the runner."""
        return self.runner.strategy.inputs

    @cached_property
    def fixed(self) -> dict[int, Any]:
        """Arguments that stay at their address; all arguments, if some share memory."""
        mine = copies(self.recorded.args)
        tensors = [arg for arg in mine if isinstance(arg, torch.Tensor) and arg.numel()]
        is_shared = len({arg.untyped_storage().data_ptr() for arg in tensors}) < len(tensors)
        places = range(len(mine)) if is_shared else self.inputs.having(*KEPT)
        return {place: mine[place] for place in places if place < len(mine)}

    def call(self, values: Sequence[Any], *, holds: bool) -> tuple[Errors, Culprit | None]:
        """Call the runner again; returns the culprit if it is wrong or overwrites earlier outputs."""
        wanted, args = self.recorded.run(self.eager, values), self._arguments(values)
        set_random_state(self.recorded.random)
        number = len(self.args)
        try:
            with torch.no_grad():
                outputs = list(self.runner(list(args)))
        except Exception as error:
            what = f"{type(error).__name__}: {first_line(error)}"
            return Errors(text=what), Culprit(RECORDING, f"call {number + 1}", what)
        written = [place for place in range(len(args)) if self.inputs.roles[place] is not Role.PARAMETER]
        self.args.append(copies(values))
        self.wanted.append([*wanted.outputs, *(wanted.args[place] for place in written)])
        errors = self.judge([*outputs, *(args[place] for place in written)], self.wanted[-1])
        if not errors.ok:
            return errors, self._hypothesis(frozen(outputs))
        corrupted, culprit = self._overwritten()
        if holds:
            owned = {_memory(arg) for arg in args}
            self.held[number] = [None if _memory(output) in owned else output for output in outputs]
        return (errors, None) if culprit is None else (corrupted, culprit)

    def _arguments(self, values: Sequence[Any]) -> list[Any]:
        """Copy the arguments to new memory, except those that stay at their address and get new values."""
        args = copies(values)
        for place, tensor in self.fixed.items():
            if _memory(tensor) is not None:
                tensor.untyped_storage().copy_(args[place].untyped_storage())
            args[place] = tensor
        return args

    def _overwritten(self) -> tuple[Errors, Culprit | None]:
        """Check that outputs of earlier calls are unchanged, unless they are arguments."""
        now = len(self.args)
        for number, outputs in self.held.items():
            for place, output in enumerate(outputs):
                errors = EXACT if output is None else self.judge(output, self.wanted[number][place])
                if not errors.ok:
                    why = f"the caller still holds it from call {number + 1}, but call {now} overwrote it"
                    return errors, Culprit(RECORDING, f"output {place}", why)
        return EXACT, None

    def _hypothesis(self, got: Sequence[Any]) -> Culprit:
        """Explain the outputs of the last call: a stale input, or stale random numbers."""
        number = len(self.args)
        if number == 1:
            return Culprit(RECORDING, "call 1", "the program itself is right, but its runner is wrong")
        for place, earlier, args in self._stale():
            outcome = self.recorded.run(self.eager, args)
            if not outcome.error and self.judge(got, outcome.outputs).ok:
                why = f"call {number} used the value of this input from call {earlier}"
                role = self.inputs.roles[place].value
                return Culprit(RECORDING, f"input {self.inputs.title(place)}", f"{why} (role: {role})")
        if self.inputs.random and self._continues(got):
            return Culprit(
                RECORDING,
                "random state",
                f"call {number} does not start with the state of the random generator",
            )
        return Culprit(
            RECORDING, f"call {number}", "the program itself is right, but wrong in repeated calls"
        )

    def _stale(self) -> Iterator[tuple[int, int, list[Any]]]:
        """Yield the arguments of the last call, each time with one input from an earlier call."""
        last = self.args[-1]
        for earlier, args in enumerate(self.args[:-1]):
            for place, (new, old) in enumerate(zip(last, args, strict=True)):
                if isinstance(new, torch.Tensor) and not torch.equal(new, old):
                    yield place, earlier + 1, [*last[:place], old, *last[place + 1 :]]

    def _continues(self, got: Sequence[Any]) -> bool:
        """Return whether the outputs are right for random numbers of another call."""
        set_random_state(self.recorded.random)
        for _ in range(len(self.args) + 1):
            with torch.no_grad():
                outputs = frozen(list(self.eager(copies(self.args[-1]))))
            if self.judge(got, outputs).ok:
                return True
        return False


def _memory(value: Any) -> int | None:
    """Return the address of the storage of a tensor; None if it has no elements in memory."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided or not value.numel():
        return None
    return value.untyped_storage().data_ptr()
