"""A kept compilation: variants of one method, each the frame that Dynamo made and the program it calls."""

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
"""Operators of ours that a program may call, as their names stand in it, and who defines them: that is not
loaded where it is not needed.
"""
META, FRAME, PROGRAM, TEXT, WHY = "meta", "frame", "program", "text", "why"
VARIANT = (FRAME, PROGRAM, TEXT, WHY)


@dataclass(frozen=True)
class CacheVariant:
    """What serves calls of one kind."""

    frame: Frame
    compiled: Callable[..., Any]
    """What the frame calls."""

    kept: RuntimeWrapper | None
    """The same as data; None where AOTAutograd has more to do around it."""
    why: str = ""
    """Why it was compiled."""

    @staticmethod
    def made(frame: Frame, compiled: Callable[..., Any], why: str) -> CacheVariant:
        """Of a fresh compile; calls go the way they will go when it is loaded."""
        kept: RuntimeWrapper | None = getattr(compiled, "kept", None)
        return CacheVariant(frame, compiled if kept is None else kept.call(), kept, why)

    @property
    def awaited(self) -> PendingProgram | None:
        """A better program that is on its way."""
        return None if self.kept is None else self.kept.runner.awaited

    @property
    def can_be_kept(self) -> bool:
        """Not before the better program is there, where another process could not order it."""
        return self._under_way is None or self._under_way.recipe() is not None

    @property
    def _under_way(self) -> PendingProgram | None:
        pending = self.awaited
        return None if pending is None or pending.is_done.is_set() else pending

    def files(self) -> dict[str, bytes]:
        """As data; `NotPossible` says what is none."""
        if self.kept is None:
            raise NotPossible("AOTAutograd has work to do around the compiled graph that is not kept")
        strategy = self.kept.runner.strategy
        if any(getattr(strategy, name, None) is not None for name in ("_specialist", "_programs")):
            raise NotPossible("it has programs for single sizes (gears, static kernels), which are not kept")
        pending = self._under_way
        artefact = CompiledArtifact.of(self.kept.runner, None if pending is None else pending.recipe())
        program = (artefact, replace(self.kept, runner=None))  # type: ignore[arg-type]
        texts = {TEXT: self.frame.text.encode(), WHY: self.why.encode()}
        return {FRAME: self.frame.pack(), PROGRAM: pack(program), **texts}

    @staticmethod
    def of(frame: Frame, files: Mapping[str, bytes]) -> CacheVariant:
        """What was written, with its frame, which was looked at before."""
        for mark, module in DEFINED.items():
            if re.search(mark, files[PROGRAM]):
                importlib.import_module(module)
        match unpack(files[PROGRAM]):
            case (CompiledArtifact() as artefact, RuntimeWrapper() as layers):
                kept = replace(layers, runner=artefact.runner())
                return CacheVariant(frame, kept.call(), kept, files[WHY].decode())
            case _:
                raise BadEntry("this is no program")


def files_of(function: Any, how: CompileArgs, variants: Iterable[Mapping[str, bytes]]) -> dict[str, bytes]:
    """The files of an entry."""
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
    """What an entry says of itself; `BadEntry` where it is of another version, or not complete."""
    try:
        meta = json.loads(files[META])
        version, numbers = meta["version"], range(meta["variants"])
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        problem = f"{type(error).__name__}: {first_line(error)}"
        raise BadEntry(f"its file {META!r} does not describe a compilation: {problem}") from error
    if version != VERSION:
        raise BadEntry(f"a compilation of version {version}", near=f"this is {VERSION}")
    needed = (f"{number}/{name}" for number in numbers for name in VARIANT)
    if missing := next((name for name in needed if name not in files), ""):
        raise BadEntry(f"it has no file {missing!r}")
    return meta


def variants_of(files: Mapping[str, bytes]) -> list[dict[str, bytes]]:
    """The files of each variant."""
    return [
        {name: files[f"{number}/{name}"] for name in VARIANT} for number in range(meta_of(files)["variants"])
    ]


def readable(files: Mapping[str, bytes], facts: Mapping[str, str]) -> tuple[str, str]:
    """What an entry contains, as text, and the generated source of its programs."""
    options = facts.get("options", "").replace(",", "\n")
    lines = ["=" * WIDTH, *(f"{name}: {value}" for name, value in meta_of(files).items())]
    sources = list[str]()
    for row in variants_of(files):
        artefact = unpack(row[PROGRAM])[0]
        frame = Frame.unpack(row[FRAME])
        lines += [row[TEXT].decode(), _title("compile options"), options, _title("caller frame")]
        lines += [dis.Bytecode(frame.code_object()).dis()]
        sources.append(str(artefact.code.source))
    return "\n".join(lines), "\n\n".join(sources)


WIDTH = 100


def _title(text: str) -> str:
    return f" {text} ".center(WIDTH, "-")
