"""Calls of one runner, one after the other, as a user makes them: what a recording keeps from an earlier call
shows here.
"""

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
"""Inputs that a recording uses where they are: they stay where they are, and get other values."""

Call = Callable[[list[Any]], Sequence[Any]]


CALLS, HOLDING = 4, 2
"""Calls beyond those that a runner waits before it records; in the last ones the caller holds the outputs."""


def calls_of(runner: Runner) -> int:
    """How often a runner is called to see it replay."""
    return runner.strategy.policy.patience + CALLS + HOLDING


def play(
    runner: Runner, right: Call, scenes: Sequence[RecordedCall], judge: Judge
) -> tuple[Errors, Culprit | None]:
    """Call the runner until it replays, with the arguments of these scenes in turn, in other memory each
    time. `right` is what a call should give.
    """
    player = ReplayChecker(runner, right, scenes[0], judge)
    found: list[Errors] = []
    count = calls_of(runner)
    for number in range(count):
        values = scenes[number % len(scenes)].args
        errors, culprit = player.call(values, holds=number >= count - HOLDING)
        if culprit is not None:
            return errors, culprit
        found.append(errors)
    return worst(found), None


def other_inputs(runner: Runner, eager: Call, scene: RecordedCall) -> list[Any]:
    """Other arguments of the same kind: the elements of each input in reverse. Integers are indices and
    lengths, so they are turned only where eager, which checks them on the CPU, accepts it.
    """
    plain = runner.strategy.inputs.having(Role.PLAIN, Role.ALIAS, Role.MUTATED)
    everything = _turned(scene, plain, lambda arg: arg.device.type == "cpu" or arg.is_floating_point())
    if not scene.run(eager, everything).error:
        return everything
    floats = _turned(scene, plain, torch.Tensor.is_floating_point)
    return scene.args if scene.run(eager, floats).error else floats


def _turned(scene: RecordedCall, places: Sequence[int], takes: Callable[[torch.Tensor], bool]) -> list[Any]:
    """Copies of the arguments, with the memory of some in reverse, whoever looks at it; memory that another
    argument looks at, too, stays as it is.
    """
    args = copies(scene.args)
    tensors = {n: arg for n, arg in enumerate(args) if _memory(arg) is not None}
    chosen = {n: arg for n, arg in tensors.items() if n in places and takes(arg)}
    others = {_memory(arg) for n, arg in tensors.items() if n not in chosen}
    for arg in {_memory(arg): arg for arg in chosen.values() if _memory(arg) not in others}.values():
        whole = torch.empty(0, dtype=arg.dtype, device=arg.device).set_(arg.untyped_storage())
        whole.copy_(whole.flip(0))
    return args


@dataclass
class ReplayChecker:
    """Calls one after the other: for each the arguments, what is held of it, and what that should be."""

    runner: Runner
    eager: Call
    scene: RecordedCall
    judge: Judge
    args: list[list[Any]] = field(default_factory=list[list[Any]])
    wanted: list[list[Any]] = field(default_factory=list[list[Any]])
    held: dict[int, list[Any]] = field(default_factory=dict[int, list[Any]])  # outputs, by the call

    @property
    def inputs(self) -> InputInfo:
        """What the runner knows of its inputs."""
        return self.runner.strategy.inputs

    @cached_property
    def kept(self) -> dict[int, Any]:
        """The arguments that stay where they are; all, where arguments share memory."""
        mine = copies(self.scene.args)
        tensors = [arg for arg in mine if isinstance(arg, torch.Tensor) and arg.numel()]
        is_shared = len({arg.untyped_storage().data_ptr() for arg in tensors}) < len(tensors)
        places = range(len(mine)) if is_shared else self.inputs.having(*KEPT)
        return {place: mine[place] for place in places if place < len(mine)}

    def call(self, values: Sequence[Any], *, holds: bool) -> tuple[Errors, Culprit | None]:
        """One more call; who is to blame if it is wrong, or spoils outputs that are held from before."""
        wanted, args = self.scene.run(self.eager, values), self._arguments(values)
        set_random_state(self.scene.random)
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
        spoilt, culprit = self._overwritten()
        if holds:
            owned = {_memory(arg) for arg in args}
            self.held[number] = [None if _memory(output) in owned else output for output in outputs]
        return (errors, None) if culprit is None else (spoilt, culprit)

    def _arguments(self, values: Sequence[Any]) -> list[Any]:
        """New memory for all but what stays where it is, which gets new values."""
        args = copies(values)
        for place, tensor in self.kept.items():
            if _memory(tensor) is not None:
                tensor.untyped_storage().copy_(args[place].untyped_storage())
            args[place] = tensor
        return args

    def _overwritten(self) -> tuple[Errors, Culprit | None]:
        """Outputs of earlier calls that the caller still holds are as they were, if they are no arguments."""
        now = len(self.args)
        for number, outputs in self.held.items():
            for place, output in enumerate(outputs):
                errors = EXACT if output is None else self.judge(output, self.wanted[number][place])
                if not errors.ok:
                    why = f"the caller still holds it from call {number + 1}, and it changed in call {now}"
                    return errors, Culprit(RECORDING, f"output {place}", why)
        return EXACT, None

    def _hypothesis(self, got: Sequence[Any]) -> Culprit:
        """What would explain the outputs of the last call: an input that is still an earlier call's, or its
        random numbers.
        """
        number = len(self.args)
        if number == 1:
            return Culprit(RECORDING, "call 1", "the program is right by itself, and wrong behind the runner")
        for place, earlier, args in self._stale():
            outcome = self.scene.run(self.eager, args)
            if not outcome.error and self.judge(got, outcome.outputs).ok:
                why = f"the outputs of call {number} are right for the value that it had in call {earlier}"
                role = self.inputs.roles[place].value
                return Culprit(RECORDING, f"input {self.inputs.title(place)}", f"{why} (role: {role})")
        if self.inputs.random and self._continues(got):
            return Culprit(
                RECORDING, "random state", f"call {number} does not begin with the generator's state"
            )
        return Culprit(RECORDING, f"call {number}", "the program is right, and wrong when it is called again")

    def _stale(self) -> Iterator[tuple[int, int, list[Any]]]:
        """Arguments of the last call, each with one input that is an earlier call's."""
        last = self.args[-1]
        for earlier, args in enumerate(self.args[:-1]):
            for place, (new, old) in enumerate(zip(last, args, strict=True)):
                if isinstance(new, torch.Tensor) and not torch.equal(new, old):
                    yield place, earlier + 1, [*last[:place], old, *last[place + 1 :]]

    def _continues(self, got: Sequence[Any]) -> bool:
        """Are the outputs right for random numbers that were drawn, or come, in another call?"""
        set_random_state(self.scene.random)
        for _ in range(len(self.args) + 1):
            with torch.no_grad():
                outputs = frozen(list(self.eager(copies(self.args[-1]))))
            if self.judge(got, outputs).ok:
                return True
        return False


def _memory(value: Any) -> int | None:
    """Where the storage of a tensor is; None for what has no elements in memory."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided or not value.numel():
        return None
    return value.untyped_storage().data_ptr()
