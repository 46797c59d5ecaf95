"""What every replay asks of hundreds of tensors, and whole replays: in C++ once that is built.

The extension is built in the background when a runner first wants it (a quarter of a minute), kept on disk,
and loaded at once from then on. Without a compiler, or with `TORCHAIR_EXTENSION=0`, Python does the same, but
not as quickly.
"""

from __future__ import annotations

import sys
import threading
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, Protocol

import torch

from torchair.core.diagnostics import Diagnostics
from torchair.core.environment import is_on
from torchair.core.log import logger
from torchair.core.native.cpp_extension import Extension
from torchair.core.torch_private.device.memory import neg_view, same_addresses, storage_use_count

EXTENSION = Extension("torchair_quick", Path(__file__).with_suffix(".cpp"))
SWITCH = "TORCHAIR_EXTENSION"
"""Environment variable: off, replays ask about their inputs in Python, and nothing is built."""

_lock = threading.Lock()
_asked = False
_extension: ModuleType | None = None


class Addresses:
    """Where some arguments of a call lie."""

    def __init__(self, indices: Sequence[int], args: Sequence[Any]) -> None:
        self._indices = list(indices)
        self._known: list[int | None] = [None] * len(args)
        pairs = array("Q")
        for index in indices:
            address = self._known[index] = args[index].data_ptr()
            pairs.extend((index, address))
        self.pairs = pairs.tobytes()

    def read(self, args: Sequence[Any]) -> list[int]:
        """Where they are in this call."""
        return [args[index].data_ptr() for index in self._indices]

    def match(self, args: list[Any]) -> bool:
        """Is each where it was?"""
        if _extension is not None:
            return _extension.same_addresses(args, self.pairs)
        return same_addresses(args, self._known, self._indices)

    def moved(self, args: Sequence[Any]) -> list[int]:
        """Indices of those that are somewhere else now."""
        return [index for index in self._indices if args[index].data_ptr() != self._known[index]]


class Written:
    """Arguments that a call writes: autograd compares their versions."""

    def __init__(self, indices: Sequence[int]) -> None:
        self._indices = list(indices)
        self.packed = array("Q", indices).tobytes()

    def raise_versions(self, args: Sequence[Any]) -> None:
        """They were written once more."""
        if _extension is not None:
            _extension.raise_versions(args, self.packed)
        else:
            raise_versions(args, self._indices)


def _counted(kept: list[Any]) -> list[int]:
    """References to each of these objects, while they are counted."""
    return [sys.getrefcount(kept[at]) for at in range(len(kept))]


LOOKING = _counted([object()])[0] - 1
"""Those that counting makes."""


class AtRest:
    """The memory of outputs when nobody outside holds any of them: when this is made. Whoever holds a tensor,
    a view, an array on a storage is a use of it; whoever holds the storage itself, a reference to its Python
    object, which is one for everybody. Nobody else keeps that object: so it is a list that is passed on.
    """

    def __init__(self, storages: list[torch.UntypedStorage]) -> None:
        self.storages = storages
        self._ids = [storage._cdata for storage in storages]
        self._at_rest = self._now()
        numbers = array("Q")
        for uses, references, address in self._at_rest:
            numbers.extend((uses, references - LOOKING, address))
        self.numbers = numbers.tobytes()

    def is_free(self) -> bool:
        """Does nobody hold any of it? Nor has one been resized, which is elsewhere since."""
        now = self._now()
        return now == self._at_rest or all(
            uses <= then[0] and references <= then[1] and address == then[2]
            for (uses, references, address), then in zip(now, self._at_rest, strict=True)
        )

    def _now(self) -> list[tuple[int, int, int]]:
        uses = [storage_use_count(identity) for identity in self._ids]
        references = _counted(self.storages)
        addresses = [storage.data_ptr() for storage in self.storages]
        return list(zip(uses, references, addresses, strict=True))


def hand_out(outputs: Sequence[tuple[int, torch.Tensor]], rest: AtRest) -> list[torch.Tensor]:
    """Fresh tensors like these, each in the place that it has in its own storage, on one of those at rest."""
    if _extension is not None:
        return _extension.hand_out(outputs, rest.storages)
    return [view_on(like, rest.storages[at], int(like.storage_offset())) for at, like in outputs]


def clones(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """A copy of each. The extension keeps the interpreter's lock, which is short for a copy: whoever copies
    on a device has others wait for their turn, and must not wait for theirs with the interpreter.
    """
    return [tensor.clone() for tensor in tensors] if _extension is None else _extension.clones(tensors)


def view_on(like: torch.Tensor, storage: torch.UntypedStorage, offset: int) -> torch.Tensor:
    """A tensor like another at a place in a storage, conjugated or negated on reading if that one is."""
    view = torch.empty(0, dtype=like.dtype, device=storage.device)
    view = view.set_(storage, offset, like.size(), like.stride())
    view = view.conj() if like.is_conj() else view
    return neg_view(view) if like.is_neg() else view


class Repeat(Protocol):
    """Serves a call that is like the one before with the same key, arguments and packed indices of those it
    writes; None, and nothing done, where it is not.
    """

    def __call__(self, args: tuple[Any, ...], written: bytes) -> list[Any] | None: ...

    def end(self) -> None:
        """The recording is gone: serve no more."""
        ...


class Head(Protocol):
    """Copies that the graph itself makes: `set(graph, node, target, source, bytes, kind)` gives one of them
    another source.
    """

    setter: int  # its address
    graph: int
    nodes: list[int]
    kind: int
    sources: array[int]  # where each copies from now
    forget_error: int  # address of a call to make after one that failed, or 0

    def may_point(self, sources: Sequence[torch.Tensor]) -> bool:
        """Copy from these from now on, if that takes no more than saying so."""
        ...


class Turns(Protocol):
    """Who may launch: the holder of the lock, on the stream of the launch before."""

    lock: threading.RLock
    handle_of: Callable[[int], int]  # of the current stream of a device
    index: int  # of the device
    last_handle: int | None


class DirectLaunch(NamedTuple):
    """The runtime's own call, `status = launch(graph, stream)`, which keeps the interpreter's lock."""

    address: int
    graph: int
    device: torch.device
    """Must be the current one."""
    forget_error: int
    """See `Head`."""


@dataclass(frozen=True)
class FastReplaySpec:
    """A recording that may serve the next call with its key: what must not have changed since the last, and
    all it takes to serve.
    """

    addresses: Addresses
    inputs: list[tuple[int, torch.Tensor]]  # index of each that is copied, and where to
    borrowed: list[tuple[int, torch.Tensor]]  # of each that is read where it was, and what it was like
    rest: AtRest  # a call that finds an output held is not served
    outputs: list[tuple[int, torch.Tensor]]  # see `hand_out`; none where `give` makes them
    give: Callable[[tuple[Any, ...]], list[Any]] | None
    refusals: tuple[Callable[[], bool], ...]  # all must say no
    turns: Turns
    launch: Callable[[], Any]
    direct: DirectLaunch | None  # the same more quickly, for graphs that draw no random numbers
    head: Head | None  # copies the first of `inputs`, one for each of its nodes
    count: array[int]  # one number: of the launches


def repeat(spec: FastReplaySpec) -> Repeat:
    """The quick way: in C++ where the extension is there."""
    return PythonRepeat(spec) if _extension is None else _extension.repeat(spec)


class PythonRepeat:
    """What a call must be like to be served, and serving it: `Spec::serve` of the extension is the same."""

    def __init__(self, spec: FastReplaySpec) -> None:
        self._spec = spec
        self._inference = torch.is_inference_mode_enabled()
        self._is_over = False

    def end(self) -> None:
        """The recording is gone: serve no more."""
        self._is_over = True

    def __call__(self, args: tuple[Any, ...], written: bytes) -> list[Any] | None:
        turns = self._spec.turns
        if _extension is not None or torch.is_inference_mode_enabled() != self._inference:
            return None  # where the extension has come, who has the recording makes a better one
        if any(refuses() for refuses in self._spec.refusals):
            return None
        with turns.lock:
            return self._serve(args, written) if self._is_like_the_last(args) else None

    def _is_like_the_last(self, args: tuple[Any, ...]) -> bool:
        spec, turns = self._spec, self._spec.turns
        if self._is_over or turns.handle_of(turns.index) != turns.last_handle:
            return False
        known = (*spec.inputs, *spec.borrowed)
        if not spec.rest.is_free() or not all(_has_shape(args, index, like) for index, like in known):
            return False
        return spec.addresses.match(list(args))

    def _serve(self, args: tuple[Any, ...], written: bytes) -> list[Any] | None:
        spec = self._spec
        inside = 0 if spec.head is None else len(spec.head.nodes)
        sources = [args[index] for index, _ in spec.inputs]
        if spec.head is not None and not spec.head.may_point(sources[:inside]):
            return None
        raise_versions(args, array("Q", written))
        with torch.no_grad():
            copied = [(target, source) for (_, target), source in zip(spec.inputs, sources, strict=True)]
            if some := [pair for pair in copied[inside:] if pair[1].numel()]:
                torch._foreach_copy_([t for t, _ in some], [s for _, s in some], non_blocking=True)
            spec.launch()
            spec.count[0] += 1
            return hand_out(spec.outputs, spec.rest) if spec.give is None else spec.give(args)


def _has_shape(args: tuple[Any, ...], index: int, like: torch.Tensor) -> bool:
    found = args[index] if index < len(args) else None
    return isinstance(found, torch.Tensor) and found.shape == like.shape


def raise_versions(args: Sequence[Any], indices: Sequence[int]) -> None:
    """Autograd is to know that these were written; tensors of inference mode have no version."""
    tensors = [args[index] for index in indices]
    torch.autograd.graph.increment_version([tensor for tensor in tensors if not tensor.is_inference()])


def is_loaded() -> bool:
    """Is the extension in use?"""
    return _extension is not None


def load_async() -> None:
    """Use the extension as soon as it is there: now if it was built before, else built in the background."""
    global _asked
    with _lock:
        if _asked:
            return
        _asked = True
    if not is_on(SWITCH):
        logger.info("%s switches the extension off: replays ask about their inputs in Python", SWITCH)
        return
    try:
        path = library()
    except Exception as error:
        _stay_with_python(error)
        return
    try:
        if path.exists():
            load(path)
            return
    except ImportError:
        logger.warning("%s is damaged and is made again", path)
    threading.Thread(target=_build_and_load, args=(path,), name="torchair quick", daemon=True).start()


def _build_and_load(path: Path) -> None:
    try:
        if path.exists():
            EXTENSION.remove_damaged(path)
        build(path)
        load(path)
    except Exception as error:
        _stay_with_python(error)


def _stay_with_python(error: Exception) -> None:
    what = f"replays ask about their inputs in Python, which takes the host longer: {error}"
    Diagnostics().add(what, next=f"install a C++ compiler, or set {SWITCH}=0 if this is wanted")


def load(path: Path) -> None:
    """Take this library into use."""
    global _extension
    _extension = EXTENSION.load(path)


def library() -> Path:
    """Where the library for this source, torch and Python is kept."""
    return EXTENSION.library()


def built() -> Path:
    """The library, made now if it is not there yet."""
    path = library()
    if not path.exists():
        build(path)
    return path


def build(path: Path) -> None:
    """Compile; the library appears whole or not at all."""
    EXTENSION.build(path)
