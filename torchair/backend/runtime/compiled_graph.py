"""What `get_compiler` and `compile_fx` return: a runner that can be called, printed, saved as source and
loaded again.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

from torchair.backend.runtime.artifact import CompiledArtifact
from torchair.backend.runtime.input_check import InputChecker
from torchair.capture import Runner
from torchair.core.errors import BadGraph, NotPossible, first_line
from torchair.core.storage.serialization import pack, unpack

ARTIFACTS_VERSION = "0.1"
PACKED = """from torchair.backend.runtime.compiled_graph import restore

kernel = restore({data!r})
"""


@dataclass(frozen=True)
class SerializedGraph:
    """A compiled graph as text."""

    version: str
    py_code: str


class CompiledGraph:
    """Call it with the flat inputs; it returns the list of outputs."""

    def __init__(self, runner: Runner, arguments: InputChecker) -> None:
        self.runner = runner
        self._arguments = arguments

    def __call__(self, *args: Any) -> list[Any]:
        self._arguments.check(args)
        return self.runner(list(args))

    def get_code(self, extend_config: Any = None) -> Any:
        """Python source of a standalone `kernel(*args)`, or the runner itself when there is no such
        source.
        """
        source = _standalone(self.runner)
        return self.runner if source is None else source

    def dump_artifacts(self) -> SerializedGraph:
        """The source with a version, for `load_artifacts`; what cannot be read as source (large constants,
        views that are made around the program) is packed into it.
        """
        source = _standalone(self.runner)
        if source is None:
            data = base64.b85encode(pack((CompiledArtifact.of(self.runner), self._arguments))).decode()
            source = PACKED.format(data=data)
        return SerializedGraph(ARTIFACTS_VERSION, source)

    @classmethod
    def load_artifacts(cls, artifacts: SerializedGraph) -> Any:
        """The `kernel` function of saved artifacts."""
        if artifacts.version != ARTIFACTS_VERSION:
            raise NotPossible(
                f"artifacts of version {artifacts.version!r}", near=f"this version reads {ARTIFACTS_VERSION}"
            )
        namespace: dict[str, Any] = {}
        try:
            exec(compile(artifacts.py_code, "<torchair artifacts>", "exec"), namespace)
        except ImportError as error:
            raise NotPossible(
                f"these artifacts were written by another version of torchair: {first_line(error)}",
                next="compile the graph again, and save its artifacts with this version",
            ) from error
        return namespace["kernel"]

    def report(self) -> Any:
        """What the runner did so far."""
        return self.runner.report()


def restore(data: str) -> CompiledGraph:
    """The graph that artifacts have packed."""
    match unpack(base64.b85decode(data)):
        case (CompiledArtifact() as artefact, InputChecker() as arguments):
            return CompiledGraph(artefact.runner(), arguments)
        case _:
            raise BadGraph("these are no artifacts of a compiled graph")


def _standalone(runner: Runner) -> str | None:
    write = getattr(runner.program, "standalone", None)
    is_whole = not any(observer.takes_outputs for observer in runner.strategy.compiled.observers)
    return write() if is_whole and write is not None else None
