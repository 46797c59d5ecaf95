"""A cache entry: the variants of one method, each with the frame that Dynamo compiled and its program."""

from __future__ import annotations

import dis
import importlib
import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any

from torchair.backend.cache.key import CompileArgs
from torchair.backend.runtime.artifact import CompiledArtifact
from torchair.backend.runtime.runtime_wrapper import RuntimeWrapper
from torchair.capture import PendingProgram
from torchair.configs.resolve import tree_of
from torchair.core.errors import BadEntry, NotPossible, first_line
from torchair.core.storage.serialization import pack, unpack
from torchair.core.torch_private.dynamo.frames import Frame

VERSION = "1.0.5"
DEFINED = {
    rb"grouped_mm": "torchair.ops.numerics.grouped",
    rb"delta_rule": "torchair.ops.numerics.delta_rule",
    rb"(?<![a-z])npu(?![a-z_])": "torchair.ops.npu",
}
"""Patterns of built-in operator names in a serialized program, and the modules that define the operators.
These modules are imported only if a program needs them.
"""
META, FRAME, PROGRAM, TEXT, WHY = "meta", "frame", "program", "text", "why"
VARIANT = (FRAME, PROGRAM, TEXT, WHY)


@dataclass(frozen=True)
class CacheVariant:
    """One compilation of a method, for the calls that its guards accept."""

    frame: Frame
    compiled: Callable[..., Any]
    """The function that the frame calls."""

    kept: RuntimeWrapper | None
    """`compiled` as data; None if AOTAutograd's runtime wrappers are needed."""
    why: str = ""
    """The reason of the cache miss."""

    @staticmethod
    def made(frame: Frame, compiled: Callable[..., Any], why: str) -> CacheVariant:
        """Create the variant of a new compile. Its calls take the same path as after loading."""
        kept: RuntimeWrapper | None = getattr(compiled, "kept", None)
        return CacheVariant(frame, compiled if kept is None else kept.call(), kept, why)

    @property
    def awaited(self) -> PendingProgram | None:
        """The optimized program that replaces the current one when it is ready."""
        return None if self.kept is None else self.kept.runner.awaited

    @property
    def can_be_kept(self) -> bool:
        """False while an optimized program is being compiled that another process could not request."""
        return self._under_way is None or self._under_way.recipe() is not None

    @property
    def _under_way(self) -> PendingProgram | None:
        pending = self.awaited
        return None if pending is None or pending.is_done.is_set() else pending

    def files(self) -> dict[str, bytes]:
        """Serialize the variant; raise `NotPossible` if a part of it cannot be serialized."""
        if self.kept is None:
            raise NotPossible("AOTAutograd's runtime wrappers of the graph cannot be serialized")
        strategy = self.kept.runner.strategy
        if any(getattr(strategy, name, None) is not None for name in ("_specialist", "_programs")):
            raise NotPossible("its programs for single sizes (gears, static kernels) cannot be serialized")
        pending = self._under_way
        artifact = CompiledArtifact.of(self.kept.runner, None if pending is None else pending.recipe())
        program = (artifact, replace(self.kept, runner=None))  # type: ignore[arg-type]
        texts = {TEXT: self.frame.text.encode(), WHY: self.why.encode()}
        return {FRAME: self.frame.pack(), PROGRAM: pack(program), **texts}

    @staticmethod
    def of(frame: Frame, files: Mapping[str, bytes]) -> CacheVariant:
        """Load a serialized variant; its frame has been unpacked already."""
        for mark, module in DEFINED.items():
            if re.search(mark, files[PROGRAM]):
                importlib.import_module(module)
        match unpack(files[PROGRAM]):
            case (CompiledArtifact() as artifact, RuntimeWrapper() as wrapper):
                kept = replace(wrapper, runner=artifact.runner())
                return CacheVariant(frame, kept.call(), kept, files[WHY].decode())
            case _:
                raise BadEntry("invalid cache entry: its program cannot be read")


def files_of(function: Any, how: CompileArgs, variants: Iterable[Mapping[str, bytes]]) -> dict[str, bytes]:
    """Return the files of an entry."""
    rows = list(variants)
    meta = {
        "module": function.__module__,
        "function": function.__qualname__,
        "name": f"{function.__qualname__}{inspect.signature(function)}",
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "version": VERSION,
        "dynamic": how.dynamic,
        "config": json.loads(tree_of(how.config).to_json()),
        "variants": len(rows),
    }
    found = {META: json.dumps(meta).encode()}
    for number, files in enumerate(rows):
        found |= {f"{number}/{name}": data for name, data in files.items()}
    return found


def meta_of(files: Mapping[str, bytes]) -> dict[str, Any]:
    """Return the metadata of an entry; raise `BadEntry` if it is incomplete or has another version."""
    try:
        meta = json.loads(files[META])
        version, numbers = meta["version"], range(meta["variants"])
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        problem = f"{type(error).__name__}: {first_line(error)}"
        raise BadEntry(f"invalid cache entry: its file {META!r} cannot be read: {problem}") from error
    if version != VERSION:
        raise BadEntry(
            f"the cache entry has version {version}",
            near=f"this torchair reads version {VERSION}",
            next="compile the model again",
        )
    needed = (f"{number}/{name}" for number in numbers for name in VARIANT)
    if missing := next((name for name in needed if name not in files), ""):
        raise BadEntry(f"incomplete cache entry: its file {missing!r} is missing")
    return meta


def variants_of(files: Mapping[str, bytes]) -> list[dict[str, bytes]]:
    """Return the files of each variant."""
    return [
        {name: files[f"{number}/{name}"] for name in VARIANT} for number in range(meta_of(files)["variants"])
    ]


def readable(files: Mapping[str, bytes], facts: Mapping[str, str]) -> tuple[str, str]:
    """Return the content of an entry as text, and the generated source of its programs."""
    options = facts.get("options", "").replace(",", "\n")
    lines = ["=" * WIDTH, *(f"{name}: {value}" for name, value in meta_of(files).items())]
    sources = list[str]()
    for row in variants_of(files):
        artifact = unpack(row[PROGRAM])[0]
        frame = Frame.unpack(row[FRAME])
        lines += [row[TEXT].decode(), _title("compile options"), options, _title("caller frame")]
        lines += [dis.Bytecode(frame.code_object()).dis()]
        sources.append(str(artifact.code.source))
    return "\n".join(lines), "\n\n".join(sources)


WIDTH = 100


def _title(text: str) -> str:
    return f" {text} ".center(WIDTH, "-")
