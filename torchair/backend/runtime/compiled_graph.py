"""The result of `get_compiler` and `compile_fx`: a runner that can be called, printed, saved as source and
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
    """A compiled graph as Python source, with the version of the format."""

    version: str
    py_code: str


class CompiledGraph:
    """A compiled graph. Call it with the flat inputs; it returns the list of outputs."""

    def __init__(self, runner: Runner, arguments: InputChecker) -> None:
        self.runner = runner
        self._arguments = arguments

    def __call__(self, *args: Any) -> list[Any]:
        self._arguments.check(args)
        return self.runner(list(args))

    def get_code(self, extend_config: Any = None) -> Any:
        """Return the source of a standalone `kernel(*args)`, or the runner if no such source exists."""
        source = _standalone(self.runner)
        return self.runner if source is None else source

    def dump_artifacts(self) -> SerializedGraph:
        """Serialize the graph for `load_artifacts`.

        Data that source code cannot express (large constants, views around the program) is packed into it.

        Returns:
            The source with the version of the format.

        Raises:
            NotPossible: The graph cannot be serialized, for example because it dumps tensors as it runs.
        """
        source = _standalone(self.runner)
        if source is None:
            data = base64.b85encode(pack((CompiledArtifact.of(self.runner), self._arguments))).decode()
            source = PACKED.format(data=data)
        return SerializedGraph(ARTIFACTS_VERSION, source)

    @classmethod
    def load_artifacts(cls, artifacts: SerializedGraph) -> Any:
        """Load artifacts of `dump_artifacts`.

        Args:
            artifacts: The saved source and its version. The source is executed.

        Returns:
            The `kernel` function, which takes the flat inputs.

        Raises:
            NotPossible: Another version of torchair wrote the artifacts.
        """
        if artifacts.version != ARTIFACTS_VERSION:
            raise NotPossible(
                f"cannot load artifacts of version {artifacts.version!r}",
                near=f"this torchair reads version {ARTIFACTS_VERSION}",
                next="compile the graph again, and save its artifacts with this version",
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
        """Return the runner's report on its calls and recordings."""
        return self.runner.report()


def restore(data: str) -> CompiledGraph:
    """Return the compiled graph that is packed into artifacts."""
    match unpack(base64.b85decode(data)):
        case (CompiledArtifact() as artifact, InputChecker() as arguments):
            return CompiledGraph(artifact.runner(), arguments)
        case _:
            raise BadGraph(
                "the artifacts do not contain a compiled graph",
                next="compile the graph again, and save its artifacts with dump_artifacts()",
            )


def _standalone(runner: Runner) -> str | None:
    write = getattr(runner.program, "standalone", None)
    is_whole = not any(observer.takes_outputs for observer in runner.strategy.compiled.observers)
    return write() if is_whole and write is not None else None
