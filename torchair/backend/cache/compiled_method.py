"""A bound method that is compiled once for all processes.

The first call looks for an entry. Its variants are loaded: nothing is traced, converted or built. A call that
the guards of none of them let in is compiled and joins the entry. Calls run without gradients. What cannot be
kept is compiled as usual, and told.
"""

from __future__ import annotations

import inspect
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import update_wrapper
from typing import Any

import torch
from torch import distributed

from torchair.backend.cache.entry import FRAME, CacheVariant, files_of, variants_of
from torchair.backend.cache.key import CacheLocation, CompileArgs
from torchair.core.diagnostics import Diagnostics
from torchair.core.errors import BadCall, BadEntry, NotPossible, NotTrusted, first_line, is_of_user
from torchair.core.log import logger
from torchair.core.registries.lazy_registry import lazy_getattr
from torchair.core.torch_private.device.memory import is_profiling
from torchair.core.torch_private.dynamo.frames import (
    Frame,
    NotSerializable,
    Ready,
    capture_frame,
    usual_compile,
)
from torchair.core.torch_private.dynamo.guards import OtherCall

MOST = 8
"""Variants of one method; calls beyond are compiled as usual, and not kept."""
_LATE = {
    "make_backend": "torchair.backend.dynamo.entry_points",
    "trace_collectives": "torchair.ops.distributed.distributed_calls",
}
Find = Callable[[Any], CacheLocation]


@dataclass(frozen=True)
class PendingEntry:
    """A variant that no call has asked for yet."""

    frame: Frame
    files: Mapping[str, bytes]


class CachedMethod:
    """Called like the method. `find` says where it is kept; nowhere if that is None."""

    def __init__(self, method: Any, how: CompileArgs, find: Find | None) -> None:
        self.method = method
        self.how = how
        self._find = find
        self._function: Any = getattr(method, "__func__", method)
        self._head: tuple[Any, ...] = (method.__self__,) if hasattr(method, "__self__") else ()
        update_wrapper(self, self._function)
        self._bind = binder(self._function)
        self._variants = list[tuple[Ready, CacheVariant]]()
        self._waiting = list[PendingEntry]()
        self._lock = threading.RLock()
        self._is_loaded = False
        self._missed = ""
        self._usual: Callable[..., Any] | None = None
        self.compiles = True
        """Are calls compiled that nothing was kept for? Else they are refused."""
        self.misses = list[str]()
        """Why calls were compiled."""

    def __reduce__(self) -> Any:
        """A copy, for a copied module: it finds what this one has kept."""
        return CachedMethod, (self.method, self.how, self._find)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():
            return self.method(*args, **kwargs)
        with torch.no_grad(), _profiled():
            ready = self._ready(self._scope(args, kwargs))
            if ready is not None:
                return ready.function(*self._head, *args, **kwargs)
            return self._unknown(args, kwargs)

    @property
    def variants(self) -> list[CacheVariant]:
        """What serves calls, so far."""
        return [variant for _, variant in self._variants]

    def _ready(self, scope: dict[str, Any]) -> Ready | None:
        return next((ready for ready, _ in self._variants if ready.matches(scope)), None)

    def _scope(self, args: Any, kwargs: Any) -> dict[str, Any]:
        """The local variables that a call begins with."""
        scope = self._bind(*self._head, *args, **kwargs)
        function = self._function
        if function.__closure__:
            names = function.__code__.co_freevars
            scope |= {
                name: cell.cell_contents for name, cell in zip(names, function.__closure__, strict=True)
            }
        return scope

    def _unknown(self, args: Any, kwargs: Any) -> Any:
        """The result of a call that no variant was for when it came."""
        scope = self._scope(args, kwargs)
        is_new = False
        with self._lock:
            self.load()
            ready, why = self._ready(scope), ""
            if ready is None:
                ready, why = self._woken(scope)
            if ready is None and self._usual is None:
                ready, is_new = self._made(args, kwargs, scope, why), True
        if ready is None:
            assert self._usual is not None, "what is not kept is compiled as usual"
            return self._usual(*args, **kwargs)
        result = ready.function(*self._head, *args, **kwargs)
        if is_new:
            self.write()
        return result

    def _woken(self, scope: dict[str, Any]) -> tuple[Ready | None, str]:
        """Of what was kept, the variant for this call is loaded; or why there is none."""
        if self._waiting and distributed.is_available() and distributed.is_initialized():
            # What was traced in place of collectives is among what guards look at.
            lazy_getattr("torchair.ops", _LATE, "trace_collectives")()
        whys = [ready.why_not(dict(scope)) for ready, _ in self._variants]
        for row in list(self._waiting):
            made = list[CacheVariant]()

            def load(row: PendingEntry = row, made: list[CacheVariant] = made) -> Any:
                made.append(CacheVariant.of(row.frame, row.files))
                return made[0].compiled

            try:
                ready = Ready(row.frame, self._function, scope, load)
            except OtherCall as error:
                whys.append(error.what)
                continue
            except Exception as error:
                if is_of_user(error):
                    raise
                self._waiting.remove(row)
                self._unreadable(first_line(error))
                continue
            self._waiting.remove(row)
            self._add(ready, made[0])
            return ready, ""
        return None, "; ".join(whys)

    def _made(self, args: Any, kwargs: Any, scope: dict[str, Any], why: str) -> Ready | None:
        """A new variant; None where the call must be compiled as usual."""
        why = why or self._missed or "nothing was kept"
        if not self.compiles:
            raise BadCall("this was not compiled for such a call", got=why)
        self.misses.append(why)
        logger.info("%s is compiled: %s", self._function.__qualname__, why)
        if len(self._variants) >= MOST:
            self._give_up(f"it was compiled {MOST} times for other calls")
            return None
        try:
            frame, compiled = capture_frame(self.method, args, kwargs, self._backend(), self.how.dynamic)
            variant = CacheVariant.made(frame, compiled, why)
            ready = self._checked(variant, scope)
        except NotSerializable as error:
            self._give_up("; ".join(filter(None, (error.what, error.details["next"]))))
            return None
        self._add(ready, variant)
        return ready

    def _checked(self, variant: CacheVariant, scope: dict[str, Any]) -> Ready:
        """`NotSerializable` where guards are lost on the way through a file."""
        try:
            frame = Frame.unpack(variant.frame.pack())
            return Ready(frame, self._function, scope, lambda: variant.compiled)
        except OtherCall as error:
            raise NotSerializable(f"its guards do not hold once they are written: {error.what}") from error
        except NotSerializable:
            raise
        except Exception as error:
            raise NotSerializable(f"its guards cannot be made again: {first_line(error)}") from error

    def _backend(self) -> Callable[..., Any]:
        make = lazy_getattr("torchair.backend", _LATE, "make_backend")
        return make(self.how.config, self.how.decompositions)

    def _add(self, ready: Ready, variant: CacheVariant) -> None:
        self._variants.append((ready, variant))
        if variant.awaited is not None:
            owner = weakref.ref(self)
            variant.awaited.then(lambda: _write(owner))

    def _give_up(self, why: str) -> None:
        self._usual = usual_compile(self.method, self._backend(), self.how.dynamic)
        self._tell(why)

    def _tell(self, why: str) -> None:
        name = self._function.__qualname__
        Diagnostics().add(f"{name} is compiled in each process, and not kept: {why}")

    def place(self) -> CacheLocation | None:
        """Where it is kept."""
        return None if self._find is None else self._find(self.method)

    def load(self) -> None:
        """The variants that an earlier process kept. What somebody else may have written is not looked at."""
        if self._is_loaded:
            return
        self._is_loaded = True
        try:
            place = self.place()
            files = None if place is None else place.store.get(place.key)
            rows = [] if files is None else variants_of(files)
            if place is not None and files is None:
                near = place.key.partition("_")[0]
                miss = place.store.why_miss(place.facts, near=f"{near}_")
                is_alike = miss.nearest and not {"class", "method"} & miss.differs.keys()
                self._missed = str(miss) if is_alike else ""
                logger.info("%s: %s", place.key, miss)
        except (NotTrusted, NotPossible, BadEntry) as error:
            self.misses.append(error.what)
            Diagnostics().add(f"{self._function.__qualname__}: what was kept is not used: {error.what}")
            return
        self.take(rows)

    def take(self, rows: Sequence[Mapping[str, bytes]]) -> None:
        """Variants as files wait for calls that they are for; those are left out that are of other sources,
        or cannot be read.
        """
        for files in rows:
            try:
                frame = Frame.unpack(files[FRAME])
                why = frame.why_other()
            except Exception as error:
                self._unreadable(first_line(error))
                continue
            if why is None:
                self._waiting.append(PendingEntry(frame, files))
            else:
                self._missed = why
                logger.info("%s: what was kept is not used: %s", self._function.__qualname__, why)

    def _unreadable(self, why: str) -> None:
        self.misses.append(why)
        Diagnostics().add(f"{self._function.__qualname__}: what was kept cannot be loaded: {why}")

    def write(self) -> bool:
        """Keep the variants, and again once their better programs are there. Are they kept?"""
        with self._lock:
            if not all(variant.can_be_kept for variant in self.variants):
                return False
            try:
                place = self.place()
                if place is None:
                    return False
                rows = [
                    *(variant.files() for variant in self.variants),
                    *(row.files for row in self._waiting),
                ]
                place.store.put(place.key, files_of(self._function, self.how, rows[:MOST]), place.facts)
            except (NotPossible, OSError) as error:
                self._tell(first_line(error))
                return False
            return True


def _write(owner: weakref.ref[Any]) -> None:
    """The better program of a variant is there."""
    if (cached := owner()) is not None:
        cached.write()


def _profiled() -> Any:
    return torch.profiler.record_function("cache_compiler inference") if is_profiling() else nullcontext()


def binder(function: Any) -> Callable[..., dict[str, Any]]:
    """`function`'s arguments -> its local variables by name, as Python binds them; without the cost of
    `Signature.bind`.
    """
    rows = list(inspect.signature(function, follow_wrapped=False).parameters.values())
    scope = {f"_default_{place}": row.default for place, row in enumerate(rows)}
    parts = [_parameter(place, row) for place, row in enumerate(rows)]
    positional = [place for place, row in enumerate(rows) if row.kind is row.POSITIONAL_ONLY]
    by_name = [place for place, row in enumerate(rows) if row.kind is row.KEYWORD_ONLY]
    if by_name and not any(row.kind is row.VAR_POSITIONAL for row in rows):
        parts.insert(by_name[0], "*")
    if positional:
        parts.insert(positional[-1] + 1, "/")
    items = ", ".join(f"{row.name!r}: {row.name}" for row in rows)
    exec(f"def bind({', '.join(parts)}): return {{{items}}}", scope)
    return scope["bind"]


def _parameter(place: int, row: inspect.Parameter) -> str:
    star = {row.VAR_POSITIONAL: "*", row.VAR_KEYWORD: "**"}.get(row.kind, "")
    default = "" if row.default is row.empty else f"=_default_{place}"
    return f"{star}{row.name}{default}"
