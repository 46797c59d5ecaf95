"""Limit the cores and the determinism of a block of ops, and restore the limits afterwards."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any

import torch

from torchair.devices import green_context

CORES = ("_op_aicore_num", "_op_vectorcore_num")
LEVEL = "_deterministic_level"
LEVELS = range(4)


def cores_of(attributes: Mapping[str, str]) -> tuple[int, int] | None:
    """Return the cube and vector cores of a scope; None if it has no limit."""
    found = [attributes.get(key) for key in CORES]
    return (int(found[0]), int(found[1])) if found[0] is not None and found[1] is not None else None


def is_limit(attributes: Mapping[str, str]) -> bool:
    """Return whether a scope has a limit."""
    return LEVEL in attributes or cores_of(attributes) is not None


@contextmanager
def limited(attributes: Mapping[str, str], module: Any, stream: Any = None) -> Iterator[None]:
    """Apply core limits and determinism of a scope to a device module, for a stream or the current."""
    cores, level = cores_of(attributes), attributes.get(LEVEL)
    with ExitStack() as stack:
        if cores is not None:
            stack.enter_context(cores_limited(*cores, module, stream))
        if level is not None:
            stack.enter_context(as_deterministic(int(level), module))
        yield


@contextmanager
def cores_limited(cube: int, vector: int, module: Any, stream: Any = None) -> Iterator[None]:
    """Limit the threads of a CPU, or the cores for kernels of a stream; limits never increase."""
    if module is torch.cpu:
        with _threads.set_to(lambda before: max(1, min(before, cube or vector))):
            yield
    elif hasattr(module, "set_stream_limit"):
        stream = module.current_stream() if stream is None else stream
        limits = module.get_stream_limit(stream)
        module.set_stream_limit(stream, cube, vector)
        try:
            yield
        finally:
            module.set_stream_limit(stream, limits["cube_core_num"], limits["vector_core_num"])
    elif module is torch.cuda and green_context.is_possible():
        with _replaced(module.current_stream() if stream is None else stream, cube or vector):
            yield
    else:
        yield


@contextmanager
def _replaced(stream: Any, sms: int) -> Iterator[None]:
    """Redirect the work of a stream to one with this number of SMs. The new stream waits for the old one at
    the begin, and the old one for the new one at the end, so that the order of work and the ownership of
    memory are the same.
    """
    narrow = green_context.stream_beside(stream, sms)
    if narrow == stream:
        yield
        return
    narrow.wait_stream(stream)
    before = _replacements.get()
    token = _replacements.set({**before, stream.cuda_stream: narrow})
    try:
        with torch.cuda.stream(narrow if stream == torch.cuda.current_stream(stream.device) else None):
            yield
    finally:
        _replacements.reset(token)
        stream.wait_stream(narrow)


def acting(stream: Any) -> Any:
    """Return the stream that replaces this one inside of a core limit."""
    replacements = _replacements.get()
    while replacements and (found := replacements.get(getattr(stream, "cuda_stream", None))) is not None:
        stream = found
    return stream


@contextmanager
def as_deterministic(level: int, module: Any) -> Iterator[None]:
    """Set the determinism: with level 0, kernels may add in any order, with other levels not."""
    if level not in LEVELS:
        raise ValueError(f"the level of determinism must be 0 to 3, got {level!r}")
    levels = module if hasattr(module, "set_deterministic_level") else None
    before = levels.get_deterministic_level() if levels is not None else 0
    try:
        with _algorithms.set_to(lambda _: (level > 0, False)):
            if levels is not None:
                levels.set_deterministic_level(level)
            yield
    finally:
        if levels is not None:
            levels.set_deterministic_level(before)


class _Shared:
    """A process-wide setting that blocks of several threads change. Inside of a thread's block it has the
    value of the block; when the last block ends, the original value is restored.
    """

    def __init__(self, get: Callable[[], Any], put: Callable[[Any], None]) -> None:
        self._get, self._put = get, put
        self._lock = threading.Lock()
        self._inside = 0
        self._original: Any = None
        self._mine = threading.local()

    @contextmanager
    def set_to(self, change: Callable[[Any], Any]) -> Iterator[None]:
        """Set the value inside of the block; `change` computes it from the outer value."""
        with self._lock:
            if not self._inside:
                self._original = self._get()
            self._inside += 1
            around = getattr(self._mine, "value", self._original)
            self._mine.value = change(around)
            self._put(self._mine.value)
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
                self._mine.value = around
                self._put(around if self._inside else self._original)
                if not self._inside or around is self._original:
                    del self._mine.value


def _asked() -> tuple[bool, bool]:
    only_warns = torch.is_deterministic_algorithms_warn_only_enabled()
    return torch.are_deterministic_algorithms_enabled(), only_warns


_replacements: ContextVar[Mapping[int | None, Any]] = ContextVar("replacements", default={})  # noqa: B039
"""Replacements of CUDA streams in this thread, by handle."""
_threads = _Shared(torch.get_num_threads, torch.set_num_threads)
_algorithms = _Shared(
    _asked, lambda wanted: torch.use_deterministic_algorithms(wanted[0], warn_only=wanted[1])
)
