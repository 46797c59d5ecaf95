"""What a block of ops may use while it runs: so many cores, kernels that are deterministic enough. As it was
afterwards.
"""

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
    """Cube and vector cores that a scope grants; None where it has no limit."""
    found = [attributes.get(key) for key in CORES]
    return (int(found[0]), int(found[1])) if found[0] is not None and found[1] is not None else None


def is_limit(attributes: Mapping[str, str]) -> bool:
    """Does a scope limit anything?"""
    return LEVEL in attributes or cores_of(attributes) is not None


@contextmanager
def limited(attributes: Mapping[str, str], module: Any, stream: Any = None) -> Iterator[None]:
    """Within this block, what a scope says of cores and determinism holds on a device, by its module; cores
    of this stream, or the current one.
    """
    cores, level = cores_of(attributes), attributes.get(LEVEL)
    with ExitStack() as stack:
        if cores is not None:
            stack.enter_context(cores_limited(*cores, module, stream))
        if level is not None:
            stack.enter_context(as_deterministic(int(level), module))
        yield


@contextmanager
def cores_limited(cube: int, vector: int, module: Any, stream: Any = None) -> Iterator[None]:
    """Threads of a CPU, or the cores that kernels of a stream may use; never more than there were."""
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
    """What is meant for a stream goes to one of so many SMs, which begins when that one is there, and for
    which that one waits in the end: an order of the work, and of who has its memory, as if it were the same.
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
    """The stream that takes what is meant for this one, inside of a limit of its cores."""
    replacements = _replacements.get()
    while replacements and (found := replacements.get(getattr(stream, "cuda_stream", None))) is not None:
        stream = found
    return stream


@contextmanager
def as_deterministic(level: int, module: Any) -> Iterator[None]:
    """Level 0 may add in any order, the others must not."""
    if level not in LEVELS:
        raise ValueError(f"the level of determinism is 0 to 3, not {level!r}")
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
    """A setting of the process that blocks of several threads change: inside of a thread's block it is what
    the block says; when the last of them is left, all is as it was before the first.
    """

    def __init__(self, get: Callable[[], Any], put: Callable[[Any], None]) -> None:
        self._get, self._put = get, put
        self._lock = threading.Lock()
        self._inside = 0
        self._original: Any = None
        self._mine = threading.local()

    @contextmanager
    def set_to(self, change: Callable[[Any], Any]) -> Iterator[None]:
        """Within this block; `change` makes the new value from that around it."""
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
"""Of CUDA streams, by their handle: the one that stands in for it, in this thread."""
_threads = _Shared(torch.get_num_threads, torch.set_num_threads)
_algorithms = _Shared(
    _asked, lambda wanted: torch.use_deterministic_algorithms(wanted[0], warn_only=wanted[1])
)
