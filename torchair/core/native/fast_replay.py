"""Checks of hundreds of tensors before each replay, and complete fast replays: in C++ once the extension is
built.

The extension is built in the background when a runner first needs it (a quarter of a minute) and cached on
disk. Later processes load it immediately. Without a compiler, or with `TORCHAIR_EXTENSION=0`, Python code
does the same, but slower.
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
"""Environment variable. If it is off, the extension is not built and replays check their inputs in Python."""

_lock = threading.Lock()
_asked = False
_extension: ModuleType | None = None


class Addresses:
    """The addresses of some arguments of a call."""

    def __init__(self, indices: Sequence[int], args: Sequence[Any]) -> None:
        self._indices = list(indices)
        self._known: list[int | None] = [None] * len(args)
        pairs = array("Q")
        for index in indices:
            address = self._known[index] = args[index].data_ptr()
            pairs.extend((index, address))
        self.pairs = pairs.tobytes()

    def read(self, args: Sequence[Any]) -> list[int]:
        """Return their addresses in this call."""
        return [args[index].data_ptr() for index in self._indices]

    def match(self, args: list[Any]) -> bool:
        """Return whether all addresses are unchanged."""
        if _extension is not None:
            return _extension.same_addresses(args, self.pairs)
        return same_addresses(args, self._known, self._indices)

    def moved(self, args: Sequence[Any]) -> list[int]:
        """Return the indices of arguments whose address has changed."""
        return [index for index in self._indices if args[index].data_ptr() != self._known[index]]


class Written:
    """Arguments that a call writes: autograd compares their versions."""

    def __init__(self, indices: Sequence[int]) -> None:
        self._indices = list(indices)
        self.packed = array("Q", indices).tobytes()

    def raise_versions(self, args: Sequence[Any]) -> None:
        """Bump the versions of the arguments."""
        if _extension is not None:
            _extension.raise_versions(args, self.packed)
        else:
            raise_versions(args, self._indices)


def _counted(kept: list[Any]) -> list[int]:
    """Return the reference count of each object, including the references of the counting itself."""
    return [sys.getrefcount(kept[at]) for at in range(len(kept))]


OWN_REFERENCES = _counted([object()])[0] - 1
"""References that the counting itself adds."""


class OutputLease:
    """Detects whether the caller holds memory of outputs. At construction nothing may be held. Every tensor,
    view or array on a storage is a use of the storage. A caller that holds the storage itself adds a
    reference to its Python object, which is unique. No other code holds that object, so a list of storages is
    passed on.
    """

    def __init__(self, storages: list[torch.UntypedStorage]) -> None:
        self.storages = storages
        self._ids = [storage._cdata for storage in storages]
        self._at_rest = self._now()
        numbers = array("Q")
        for uses, references, address in self._at_rest:
            numbers.extend((uses, references - OWN_REFERENCES, address))
        self.numbers = numbers.tobytes()

    def is_free(self) -> bool:
        """Return whether no output is held. A resized storage counts as free: its memory is elsewhere."""
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


def make_outputs(outputs: Sequence[tuple[int, torch.Tensor]], rest: OutputLease) -> list[torch.Tensor]:
    """Return new tensors like these, at the same offsets, on the corresponding storages."""
    if _extension is not None:
        return _extension.hand_out(outputs, rest.storages)
    return [view_on(like, rest.storages[at], int(like.storage_offset())) for at, like in outputs]


def clones(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return copies. The extension holds the GIL, which is short for one copy. Threads that copy on a device
    make others wait for the launch lock, and must not wait for the GIL themselves.
    """
    return [tensor.clone() for tensor in tensors] if _extension is None else _extension.clones(tensors)


def view_on(like: torch.Tensor, storage: torch.UntypedStorage, offset: int) -> torch.Tensor:
    """Return a tensor like another one at an offset of a storage, with the same conjugate and negative
    bits.
    """
    view = torch.empty(0, dtype=like.dtype, device=storage.device)
    view = view.set_(storage, offset, like.size(), like.stride())
    view = view.conj() if like.is_conj() else view
    return neg_view(view) if like.is_neg() else view


class Repeat(Protocol):
    """Serves a call that repeats the previous one, given the arguments and the packed indices of those it
    writes. Returns None without side effects for other calls.
    """

    def __call__(self, args: tuple[Any, ...], written: bytes) -> list[Any] | None: ...

    def end(self) -> None:
        """Stop serving: the recording is dropped."""
        ...


class Head(Protocol):
    """Copies inside the graph. `set(graph, node, target, source, bytes, kind)` changes the source of one."""

    setter: int  # address of the function `set`
    graph: int
    nodes: list[int]
    kind: int
    sources: array[int]  # current source address of each copy
    forget_error: int  # address of the function that clears an error, or 0

    def may_point(self, sources: Sequence[torch.Tensor]) -> bool:
        """Set the sources of the copies if only addresses change; return whether that was possible."""
        ...


class Turns(Protocol):
    """The launch order: the holder of the lock launches, on the stream of the previous launch."""

    lock: threading.RLock
    handle_of: Callable[[int], int]  # of the current stream of a device
    index: int  # of the device
    last_handle: int | None


class DirectLaunch(NamedTuple):
    """The launch function of the runtime, `status = launch(graph, stream)`. It is called with the GIL
    held.
    """

    address: int
    graph: int
    device: torch.device
    """Must be the current device."""
    forget_error: int
    """See `Head`."""


@dataclass(frozen=True)
class FastReplaySpec:
    """Everything that a recording needs to serve the next call with its key, and the conditions for it."""

    addresses: Addresses
    inputs: list[tuple[int, torch.Tensor]]  # index and buffer of each copied input
    borrowed: list[tuple[int, torch.Tensor]]  # index and template of each input that is read in place
    rest: OutputLease  # no call is served while an output is held
    outputs: list[tuple[int, torch.Tensor]]  # see `hand_out`; empty if `give` creates them
    give: Callable[[tuple[Any, ...]], list[Any]] | None
    refusals: tuple[Callable[[], bool], ...]  # all must return False
    turns: Turns
    launch: Callable[[], Any]
    direct: DirectLaunch | None  # faster launch for graphs without random numbers
    head: Head | None  # copies the first `inputs`, one for each node
    count: array[int]  # one element: the number of launches


def repeat(spec: FastReplaySpec) -> Repeat:
    """Return the fast path of a recording, in C++ if the extension is loaded."""
    return PythonRepeat(spec) if _extension is None else _extension.repeat(spec)


class PythonRepeat:
    """The fast path in Python. `Spec::serve` of the extension does the same."""

    def __init__(self, spec: FastReplaySpec) -> None:
        self._spec = spec
        self._inference = torch.is_inference_mode_enabled()
        self._is_over = False

    def end(self) -> None:
        """Stop serving: the recording is dropped."""
        self._is_over = True

    def __call__(self, args: tuple[Any, ...], written: bytes) -> list[Any] | None:
        turns = self._spec.turns
        if _extension is not None or torch.is_inference_mode_enabled() != self._inference:
            return None  # the runner replaces it once the extension is loaded
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
            return make_outputs(spec.outputs, spec.rest) if spec.give is None else spec.give(args)


def _has_shape(args: tuple[Any, ...], index: int, like: torch.Tensor) -> bool:
    found = args[index] if index < len(args) else None
    return isinstance(found, torch.Tensor) and found.shape == like.shape


def raise_versions(args: Sequence[Any], indices: Sequence[int]) -> None:
    """Bump the versions of these arguments for autograd. Inference tensors have no version."""
    tensors = [args[index] for index in indices]
    torch.autograd.graph.increment_version([tensor for tensor in tensors if not tensor.is_inference()])


def is_loaded() -> bool:
    """Return whether the extension is in use."""
    return _extension is not None


def load_async() -> None:
    """Load the extension if it was built before, else build it in the background."""
    global _asked
    with _lock:
        if _asked:
            return
        _asked = True
    if not is_on(SWITCH):
        logger.info("%s=0 disables the C++ extension: replays check their inputs in Python", SWITCH)
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
        logger.warning("the C++ extension %s is damaged and is built again", path)
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
    what = f"cannot build the C++ extension: replays check their inputs in Python, which is slower: {error}"
    Diagnostics().add(what, next=f"install a C++ compiler, or set {SWITCH}=0 to silence this warning")


def load(path: Path) -> None:
    """Load this library and use it from now on."""
    global _extension
    _extension = EXTENSION.load(path)


def library() -> Path:
    """Return the path of the cached library for this source, torch and Python."""
    return EXTENSION.library()


def built() -> Path:
    """Return the library; build it if necessary."""
    path = library()
    if not path.exists():
        build(path)
    return path


def build(path: Path) -> None:
    """Compile the library, which is written atomically."""
    EXTENSION.build(path)
