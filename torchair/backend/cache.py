"""A bound method that is compiled once for all processes.

The first call looks for an entry. Its variants are loaded: nothing is traced, converted or built. A call that
the guards of none of them let in is compiled and joins the entry. Calls run without gradients. What cannot be
kept is compiled as usual, and told.
"""

from __future__ import annotations

import inspect
import threading
import weakref
from collections.abc import Callable, Mapping
from functools import update_wrapper
from typing import Any

import torch

from torchair.backend.cache_entry import Variant, files_of, variants_of
from torchair.backend.cache_key import How, Place
from torchair.capture import Runner
from torchair.core.degraded import Degradations
from torchair.core.errors import AirError, BadEntry, NotPossible, NotTrusted, first_line
from torchair.core.late import attribute
from torchair.core.log import logger
from torchair.core.torch_private.frames import NotKept, Ready, Unguarded, capture_frame, usual_compile

MOST = 8
"""Variants of one method; calls beyond are compiled as usual, and not kept."""
_BACKEND = {"backend_of": "torchair.backend.doors"}


class Cached(Unguarded):
    """Called like the method."""

    def __init__(self, method: Any, how: How, find: Callable[[], Place]) -> None:
        update_wrapper(self, method.__func__)
        self.method = method
        self.how = how
        self._find = find
        self._place: Place | None = None
        self._bind = binder(method.__func__)
        self._variants = list[tuple[Ready, Variant]]()
        self._lock = threading.RLock()
        self._is_loaded = False
        self._usual: Callable[..., Any] | None = None
        self.misses = list[str]()
        """Why calls were compiled."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():
            return self.method(*args, **kwargs)
        with torch.no_grad(), torch.profiler.record_function("cache_compiler inference"):
            ready = self._ready(args, kwargs)
            if ready is not None:
                return ready.function(self.method.__self__, *args, **kwargs)
            return self._compile(args, kwargs)

    def _ready(self, args: Any, kwargs: Any) -> Ready | None:
        scope = self._scope(args, kwargs)
        return next((ready for ready, _ in self._variants if ready.matches(scope)), None)

    def _scope(self, args: Any, kwargs: Any) -> dict[str, Any]:
        scope = self._bind(self.method.__self__, *args, **kwargs)
        function = self.method.__func__
        if function.__closure__:
            names = function.__code__.co_freevars
            scope |= {name: cell.cell_contents for name, cell in zip(names, function.__closure__, strict=True)}
        return scope

    def _compile(self, args: Any, kwargs: Any) -> Any:
        """The result of a call that no variant was for when it came."""
        with self._lock:
            if not self._is_loaded:
                self._load(self._scope(args, kwargs))
            ready = self._ready(args, kwargs)
            if ready is None and self._usual is None:
                ready = self._made(args, kwargs)
        if ready is None:
            assert self._usual is not None, "what is not kept is compiled as usual"
            return self._usual(*args, **kwargs)
        result = ready.function(self.method.__self__, *args, **kwargs)
        self.write()
        return result

    def _made(self, args: Any, kwargs: Any) -> Ready | None:
        """A new variant; None where the call must be compiled as usual."""
        if len(self._variants) >= MOST:
            self._give_up(f"it was compiled {MOST} times for other calls")
            return None
        scope = self._scope(args, kwargs)
        self._tell_miss(scope)
        try:
            frame, compiled = capture_frame(self.method, args, kwargs, self._backend(), self.how.dynamic)
            variant = Variant.made(frame, compiled)
            ready = Ready(frame, self.method.__func__, scope, variant.compiled)
            if not ready.matches(scope):
                raise NotKept(f"its guards do not hold once they are written and read: {ready.why_not(scope)}")
        except (NotKept, BadEntry) as error:
            self._give_up(error.what)
            return None
        self._variants.append((ready, variant))
        _follow(variant, self)
        return ready

    def _tell_miss(self, scope: Mapping[str, Any]) -> None:
        whys = [ready.why_not(dict(scope)) for ready, _ in self._variants]
        self.misses.append("; ".join(whys) or "nothing was kept")
        logger.info("%s is compiled: %s", self.method.__qualname__, self.misses[-1])

    def _backend(self) -> Callable[..., Any]:
        make = attribute("torchair.backend", _BACKEND, "backend_of")
        return make(self.how.config, self.how.decompositions)

    def _give_up(self, why: str) -> None:
        name = self.method.__func__.__qualname__
        Degradations().add(f"{name} is compiled in each process, and not kept: {why}")
        self._usual = usual_compile(self.method, self._backend(), self.how.dynamic)

    def place(self) -> Place:
        """Where it is kept."""
        if self._place is None:
            self._place = self._find()
        return self._place

    def _load(self, scope: dict[str, Any]) -> None:
        """The variants that an earlier process kept."""
        self._is_loaded = True
        try:
            place = self.place()
            files = place.store.get(place.key)
            for each in variants_of(files) if files is not None else ():
                variant = Variant.of(each)
                ready = Ready(variant.frame, self.method.__func__, scope, variant.compiled)
                self._variants.append((ready, variant))
        except NotTrusted:
            raise
        except AirError as error:
            self._variants.clear()
            self.misses.append(error.what)
            logger.info("%s: what was kept is compiled again: %s", self.method.__qualname__, error.what)

    def write(self) -> bool:
        """Keep the variants as they are now, with those that others have added meanwhile; called again when
        programs have become better. Has it been done?
        """
        with self._lock:
            try:
                rows = [variant.files() for _, variant in self._variants]
                place = self.place()
                place.store.put(place.key, files_of(self.method, rows), place.facts)
                return True
            except (NotPossible, OSError) as error:
                name = self.method.__func__.__qualname__
                Degradations().add(f"{name} is compiled in each process, and not kept: {first_line(error)}")
                return False


_runners: weakref.WeakKeyDictionary[Runner, weakref.ref[Cached]] = weakref.WeakKeyDictionary()


def _follow(variant: Variant, owner: Cached) -> None:
    if variant.kept is not None:
        _runners[variant.kept.runner] = weakref.ref(owner)


def write_again(runner: Runner) -> bool:
    """The program of this runner has become better: the entry that it is kept in is written again. False
    where there is none.
    """
    owner = _runners[runner]() if runner in _runners else None
    return owner is not None and owner.write()


def binder(function: Any) -> Callable[..., dict[str, Any]]:
    """`function`'s arguments -> its local variables by name, as Python binds them; without the cost of
    `Signature.bind`.
    """
    signature = inspect.signature(function, follow_wrapped=False)
    kinds, parts, defaults = inspect.Parameter, list[str](), dict[str, Any]()
    was_positional, has_star = False, False
    for number, (name, row) in enumerate(signature.parameters.items()):
        if was_positional and row.kind is not kinds.POSITIONAL_ONLY:
            parts.append("/")
        was_positional = row.kind is kinds.POSITIONAL_ONLY
        if row.kind is kinds.KEYWORD_ONLY and not has_star:
            parts.append("*")
            has_star = True
        star = {kinds.VAR_POSITIONAL: "*", kinds.VAR_KEYWORD: "**"}.get(row.kind, "")
        has_star |= star == "*"
        default = ""
        if row.default is not kinds.empty:
            default = f"=_default_{number}"
            defaults[default[1:]] = row.default
        parts.append(f"{star}{name}{default}")
    if was_positional:
        parts.append("/")
    items = ", ".join(f"{name!r}: {name}" for name in signature.parameters)
    exec(f"def bind({', '.join(parts)}): return {{{items}}}", defaults)
    return defaults["bind"]
