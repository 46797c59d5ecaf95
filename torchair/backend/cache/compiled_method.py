"""A bound method that is compiled once for all processes.

The first call looks for a cache entry and loads its variants without tracing, converting or compiling. If the
guards of all variants fail, the call is compiled and added to the entry. Calls run without gradients. A call
that cannot be cached is compiled by `torch.compile`, with a warning.
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
"""The maximum number of variants of one method. Further calls are compiled, but not cached."""
_LATE = {
    "make_backend": "torchair.backend.dynamo.entry_points",
    "trace_collectives": "torchair.ops.distributed.distributed_calls",
}
NO_ENTRY = "no cache entry was found"
Find = Callable[[Any], CacheLocation]


@dataclass(frozen=True)
class PendingEntry:
    """A cached variant that no call has needed yet."""

    frame: Frame
    files: Mapping[str, bytes]


class CachedMethod:
    """A method with cached compilations, called like the method itself.

    `find` returns the location of its cache entry; if it is None, nothing is read or written.
    """

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
        """Whether a call without a cached variant is compiled; otherwise it raises `BadCall`."""
        self.misses = list[str]()
        """The reasons of cache misses."""

    def __reduce__(self) -> Any:
        """Support copies of the module: the copy uses the same cache entry."""
        return CachedMethod, (self.method, self.how, self._find)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():
            return self.method(*args, **kwargs)
        with torch.no_grad(), _profiled():
            ready = self._ready(self._scope(args, kwargs))
            if ready is not None:
                return ready.function(*self._head, *args, **kwargs)
            return self._call_unmatched(args, kwargs)

    @property
    def variants(self) -> list[CacheVariant]:
        """The variants that were loaded or compiled so far."""
        return [variant for _, variant in self._variants]

    def _ready(self, scope: dict[str, Any]) -> Ready | None:
        return next((ready for ready, _ in self._variants if ready.matches(scope)), None)

    def _scope(self, args: Any, kwargs: Any) -> dict[str, Any]:
        """Return the local variables at the start of a call."""
        scope = self._bind(*self._head, *args, **kwargs)
        function = self._function
        if function.__closure__:
            names = function.__code__.co_freevars
            scope |= {
                name: cell.cell_contents for name, cell in zip(names, function.__closure__, strict=True)
            }
        return scope

    def _call_unmatched(self, args: Any, kwargs: Any) -> Any:
        """Serve a call that none of the loaded variants matched: load a variant, or compile one."""
        scope = self._scope(args, kwargs)
        is_new = False
        with self._lock:
            self.load()
            ready, why = self._ready(scope), ""
            if ready is None:
                ready, why = self._woken(scope)
            if ready is None and self._usual is None:
                ready, is_new = self._compile(args, kwargs, scope, why), True
        if ready is None:
            assert self._usual is not None, "a method that is not cached has a usual compilation"
            return self._usual(*args, **kwargs)
        result = ready.function(*self._head, *args, **kwargs)
        if is_new:
            self.write()
        return result

    def _woken(self, scope: dict[str, Any]) -> tuple[Ready | None, str]:
        """Load the cached variant that matches this call; otherwise return the reasons of all mismatches."""
        if self._waiting and distributed.is_available() and distributed.is_initialized():
            # Guards also check the functions that replace collectives in traced code.
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

    def _compile(self, args: Any, kwargs: Any, scope: dict[str, Any], why: str) -> Ready | None:
        """Compile a new variant; None if it cannot be cached, so that `_usual` serves the call."""
        why = why or self._missed or NO_ENTRY
        if not self.compiles:
            raise BadCall(
                f"no compiled variant of {self._function.__qualname__} matches this call",
                got=why,
                next="compile and save it for a call like this one",
            )
        self.misses.append(why)
        logger.info("%s is compiled: %s", self._function.__qualname__, why)
        if len(self._variants) >= MOST:
            self._give_up(f"it was compiled {MOST} times already, for calls that differ from this one")
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
        """Check that a variant survives serialization; raise `NotSerializable` if its guards do not."""
        try:
            frame = Frame.unpack(variant.frame.pack())
            return Ready(frame, self._function, scope, lambda: variant.compiled)
        except OtherCall as error:
            raise NotSerializable(f"its guards fail after serialization: {error.what}") from error
        except NotSerializable:
            raise
        except Exception as error:
            raise NotSerializable(f"its guards cannot be deserialized: {first_line(error)}") from error

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
        self._warn_not_cached(why)

    def _warn_not_cached(self, why: str) -> None:
        name = self._function.__qualname__
        Diagnostics().add(f"{name} is not cached, so each process compiles it again: {why}")

    def place(self) -> CacheLocation | None:
        """Return the location of the cache entry."""
        return None if self._find is None else self._find(self.method)

    def load(self) -> None:
        """Read the variants that earlier processes cached. Files that other users can write are not read."""
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
            name = self._function.__qualname__
            Diagnostics().add(
                f"the cache entry of {name} is ignored: {error.what}",
                next="delete the entry, or choose another cache_dir",
            )
            return
        self.take(rows)

    def take(self, rows: Sequence[Mapping[str, bytes]]) -> None:
        """Add serialized variants, which are loaded when a call needs them. Skip variants that cannot be read
        or whose source code has changed.
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
                logger.info("a cached variant of %s is ignored: %s", self._function.__qualname__, why)

    def _unreadable(self, why: str) -> None:
        self.misses.append(why)
        Diagnostics().add(f"a cached variant of {self._function.__qualname__} cannot be loaded: {why}")

    def write(self) -> bool:
        """Write the variants to the cache; return whether that succeeded.

        This happens once after a compile, and once more when the optimized programs are ready.
        """
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
                self._warn_not_cached(first_line(error))
                return False
            return True


def _write(owner: weakref.ref[Any]) -> None:
    """Write the variants again when an optimized program is ready."""
    if (cached := owner()) is not None:
        cached.write()


def _profiled() -> Any:
    return torch.profiler.record_function("cache_compiler inference") if is_profiling() else nullcontext()


def binder(function: Any) -> Callable[..., dict[str, Any]]:
    """Return a function that binds arguments to local variables by name, as a call of `function` does.

    It is faster than `Signature.bind`.
    """
    parameters = list(inspect.signature(function, follow_wrapped=False).parameters.values())
    scope = {f"_default_{index}": each.default for index, each in enumerate(parameters)}
    parts = [_parameter(index, each) for index, each in enumerate(parameters)]
    positional = [index for index, each in enumerate(parameters) if each.kind is each.POSITIONAL_ONLY]
    keyword_only = [index for index, each in enumerate(parameters) if each.kind is each.KEYWORD_ONLY]
    if keyword_only and not any(each.kind is each.VAR_POSITIONAL for each in parameters):
        parts.insert(keyword_only[0], "*")
    if positional:
        parts.insert(positional[-1] + 1, "/")
    items = ", ".join(f"{each.name!r}: {each.name}" for each in parameters)
    exec(f"def bind({', '.join(parts)}): return {{{items}}}", scope)
    return scope["bind"]


def _parameter(index: int, parameter: inspect.Parameter) -> str:
    star = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    default = "" if parameter.default is parameter.empty else f"=_default_{index}"
    return f"{star}{parameter.name}{default}"
