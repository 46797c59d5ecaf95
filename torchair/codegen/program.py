"""Programs that code generators share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchair.core.degraded import Degradations
from torchair.core.errors import first_line
from torchair.core.program import Call, Program, Wrapper

CHECKED = "expected size"
"""How the error of a check in Inductor's code begins."""


class Boxed:
    """A Program around one function of a list, run without gradients: these are AOTAutograd's business."""

    __slots__ = ("kind", "run", "source", "standalone")
    # What AOTAutograd asks for: the arguments come as one list.
    _boxed_call = True

    def __init__(
        self,
        kind: str,
        source: str,
        run: Callable[[list[Any]], Sequence[Any]],
        standalone: Callable[..., str | None] | None = None,
    ) -> None:
        self.kind = kind
        self.source = source
        self.run = run
        # The program as a module of its own, where it can be written as one.
        self.standalone = standalone

    def __call__(self, args: list[Any]) -> list[Any]:
        # Entering `no_grad` costs more than asking, and AOTAutograd has mostly entered it already.
        if torch.is_grad_enabled():
            with torch.no_grad():
                return list(self.run(args))
        return list(self.run(args))


class Anchored(Wrapper):
    """A program that is right while some inputs begin at one place of their storage; another, made when it is
    needed, serves where they do not.
    """

    def __init__(
        self,
        program: Program,
        offsets: dict[int, int],
        other: Callable[[], Call],
        degradations: Degradations,
    ) -> None:
        self.program = program
        self._offsets = tuple(offsets.items())
        self._make = other
        self._other: Call | None = None
        self._degradations = degradations

    @property
    def standalone(self) -> None:
        """A module of its own would not look at offsets."""

    def __call__(self, args: list[Any]) -> list[Any]:
        for index, offset in self._offsets:
            if args[index].storage_offset() != offset:
                if self._other is None:
                    now = args[index].storage_offset()
                    self._degradations.add(
                        f"input {index} begins at {now} of its storage, and at {offset} when it was traced; "
                        "as_strided counts from the start of the storage, so the ops run one by one",
                        here=True,
                    )
                    self._other = self._make()
                return self._other(args)
        return self.program(args)


class Doubted(Wrapper):
    """A program with ops in it that may not have the layouts they told: its code checks. From the first call
    in which one has another, another program serves, which is made then. Only for graphs that write nothing:
    that call is run once more.
    """

    def __init__(
        self, program: Program, other: Callable[[], Program], degradations: Degradations, at: str
    ) -> None:
        self.program = program
        self._make = other
        self._other: Program | None = None
        self._degradations = degradations
        self._at = at

    def __call__(self, args: list[Any]) -> list[Any]:
        if self._other is not None:
            return self._other(args)
        kept = list(args)
        try:
            return self.program(args)
        except AssertionError as error:
            if not str(error).startswith(CHECKED):
                raise
            self._degradations.add(
                f"ops run one by one: one has another layout than its fake says ({first_line(error)})",
                at=self._at,
                next="let register_fake tell the strides that the op returns",
            )
            self._other = self._make()
            return self._other(kept)
