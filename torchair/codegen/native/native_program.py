"""Compile FX graphs with AOTInductor: a shared library whose parameters are bound once. A call passes only
values that can change.

Addresses may change (`p.data = other`). The bindings of a container never do: each set of addresses has its
own container, so calls in several threads need no lock. Bindings borrow memory and do not own it: replaced
tensors can be freed. (torch never frees the handle of a user-managed constant, so an owning binding would
keep replaced weights forever.)
"""

from __future__ import annotations

import base64
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from operator import is_, itemgetter
from typing import Any, NamedTuple

import torch
from torch import fx

from torchair.codegen import eager
from torchair.codegen.base import graph_prep
from torchair.codegen.base.options import CodegenOptions
from torchair.codegen.eager import KERNEL
from torchair.codegen.inductor.fx_fixups import apply_fixups
from torchair.codegen.native import native_library as library
from torchair.codegen.native.native_split import HostDeviceSplit, split
from torchair.core.errors import NotPossible
from torchair.core.program import Call, Code
from torchair.core.torch_private.compilers.inductor import fake_tracing, native_runner
from torchair.core.torch_private.device.memory import borrow_tensor
from torchair.core.torch_private.fake.fake_tensors import disable_modes
from torchair.fxgraph.fake_values import device_of

# Maximum number of containers of one program: modules that share a graph alternate without new bindings.
KEPT_BINDINGS = 4
# Number of concurrent calls in one container.
INSTANCES = min(os.cpu_count() or 1, 8)

Run = Callable[[list[torch.Tensor]], list[torch.Tensor]]


def build(gm: fx.GraphModule, inputs: Sequence[Any], how: CodegenOptions) -> Native:
    """Compile a library, or load the cached one.

    Raises:
        NotPossible: if AOTInductor does not support the graph, or only cached ones are requested and there is
            none.
    """
    if how.kept_only and not library.any_exists():
        raise NotPossible("the cache has no native library", next='set codegen="native" to compile one')
    gm = graph_prep.prepare(gm, inputs, decomposed=how.decomposed)
    mode = graph_prep.fake_mode_of(gm, inputs)
    with fake_tracing(mode):
        gm = apply_fixups(gm, mode)
    parts = split(gm, how.static)
    made = library.get_or_compile(parts, mode, how)
    host = eager.generate(parts.host) if parts.host is not None else None
    return NativeCode(ArgumentBinding.of(parts), made, host, how.frozen).load()


@dataclass(frozen=True)
class ArgumentBinding:
    """How the inputs and outputs of a graph are distributed, as in `HostDeviceSplit`, but without the
    graphs.
    """

    device: torch.device
    bound: list[int]
    bound_names: list[str]
    constants: dict[str, torch.Tensor]
    passed: list[int]
    carriers: list[int]
    places: list[tuple[bool, int]]

    @staticmethod
    def of(parts: HostDeviceSplit) -> ArgumentBinding:
        """Return the bindings of a split graph."""
        device = device_of(parts.library)
        names = [field.name for field in fields(ArgumentBinding) if field.name != "device"]
        return ArgumentBinding(device, **{name: getattr(parts, name) for name in names})

    def text(self) -> str | None:
        """Return a Python expression for it, or None if a constant cannot be written as text."""
        constants = {name: eager.literal(value) for name, value in self.constants.items()}
        if None in constants.values():
            return None
        table = ", ".join(f"{name!r}: {text}" for name, text in constants.items())
        given = [self.bound, self.bound_names, f"{{{table}}}", self.passed, self.carriers, self.places]
        return f"ArgumentBinding({eager.literal(self.device)}, {', '.join(map(str, given))})"


@dataclass(frozen=True)
class NativeCode:
    """A library, its argument bindings, and the part that runs in Python."""

    wiring: ArgumentBinding
    library: library.Library
    host: eager.EagerCode | None
    frozen: bool
    kind = "native"

    @property
    def source(self) -> str:
        """The C++ source."""
        return self.library.source

    def __getstate__(self) -> dict[str, Any]:
        if self.wiring.device.type != "cpu":
            raise NotPossible(
                f"a native library for {self.wiring.device.type} cannot be serialized: it has more files"
            )
        return dict(self.__dict__)

    def load(self) -> Native:
        """Load the program."""
        return Native(self, None if self.host is None else self.host.load())

    def standalone(self) -> str | None:
        """Return the program as a standalone module that contains the library, for machines like this one.
        Return None if it has parts in other files, or if a constant or the Python part cannot be written as
        text.
        """
        wiring = self.wiring.text()
        host = "program = None" if self.host is None else self.host.standalone()
        has_parts = self.wiring.device.type != "cpu" or self.library.calls is not None
        if has_parts or wiring is None or host is None:
            return None
        content = base64.b64encode(self.library.path.read_bytes()).decode()
        lines = [
            "from torchair.codegen.native.native_program import ArgumentBinding, restore",
            "",
            f"LIBRARY = {content!r}",
        ]
        lines += [f"native = restore(LIBRARY, {wiring}, program)", KERNEL.format("native")]
        return "\n".join(["import torch", host, "", *lines])


def restore(content: str, wiring: ArgumentBinding, host: Call | None) -> Native:
    """Return a program from the text of its library (`NativeCode.standalone`)."""
    return Native(NativeCode(wiring, library.keep(base64.b64decode(content)), None, frozen=False), host)


class BoundContainer(NamedTuple):
    """The current container and the arguments it is bound to."""

    addresses: tuple[int, ...]
    run: Run
    tensors: Sequence[torch.Tensor]
    """Frozen: the inputs it was bound to."""
    kept: list[torch.Tensor]
    """Frozen: tensors that keep their memory alive."""


class Native:
    """A program over one library."""

    kind = "native"

    def __init__(self, code: NativeCode, host: Call | None) -> None:
        parts, device = code.wiring, code.wiring.device
        self.code: Code = code
        self.source = code.source
        self.standalone = code.standalone
        self._path = code.library.path
        self._device = device
        self._names = parts.bound_names
        self._constants = parts.constants
        self._pick_bound = _picker(parts.bound)
        self._pick_passed = _picker(parts.passed)
        self._carriers = parts.carriers
        self._carrier = torch.empty(1, dtype=torch.uint8, device=device) if parts.carriers else None
        self._host = host
        self._places = parts.places
        self._plain = host is None and list(parts.places) == [(True, i) for i in range(len(parts.places))]
        self._frozen = code.frozen
        self._lock = threading.Lock()
        self._bindings: dict[tuple[int, ...], Run] = {}
        self._current: BoundContainer | None = None
        self._check(native_runner(self._path, 1, device))

    def __call__(self, args: list[Any]) -> list[Any]:
        now = self._current
        bound = self._pick_bound(args)
        # Frozen inputs: the same tensor objects have the same addresses. Another module passes other objects.
        if now is None or not (self._frozen and all(map(is_, bound, now.tensors))):
            addresses = tuple(map(torch.Tensor.data_ptr, bound))
            if now is None or self._frozen or addresses != now.addresses:
                now = self._bind(addresses, bound)
        passed = self._pick_passed(args)
        if self._carrier is not None:
            passed += [self._carrier.expand(args[index]) for index in self._carriers]
        if self._plain:
            args.clear()
            return now.run(passed)
        return self._merge(now.run(passed), args)

    def _merge(self, results: list[torch.Tensor], args: list[Any]) -> list[Any]:
        """Return the results of the library and of Python in the order of the graph's outputs."""
        ours = self._run_host(self._host, args) if self._host is not None else ()
        args.clear()
        return [results[index] if native else ours[index] for native, index in self._places]

    @staticmethod
    def _run_host(host: Call, args: list[Any]) -> Sequence[Any]:
        with torch.no_grad():
            return host(list(args))

    def _bind(self, addresses: tuple[int, ...], tensors: Sequence[torch.Tensor]) -> BoundContainer:
        """Make the container for these addresses the current one; load it if there is none."""
        with self._lock:
            run = self._bindings.pop(addresses, None) or self._load(tensors)
            self._bindings[addresses] = run
            while len(self._bindings) > KEPT_BINDINGS:
                del self._bindings[next(iter(self._bindings))]
            # If addresses are not compared, freed memory would not be noticed, so keep it alive.
            kept = [tensor.detach() for tensor in tensors] if self._frozen else []
            self._current = now = BoundContainer(addresses, run, tensors if self._frozen else (), kept)
            return now

    def _load(self, tensors: Sequence[torch.Tensor]) -> Run:
        with disable_modes(), torch.no_grad():
            runner = native_runner(self._path, INSTANCES, self._device)
            table = {name: borrow_tensor(t) for name, t in zip(self._names, tensors, strict=True)}
            table.update(self._constants)
            if table:
                runner.update_constant_buffer(table, False, True, True)
        return runner.run

    def _check(self, runner: Any) -> None:
        """Raise unless all constants of the library are known here and can be bound."""
        known = {*self._names, *self._constants}
        unknown = sorted(set(runner.get_constant_names_to_original_fqns().values()) - known)
        if unknown:
            raise NotPossible(
                "AOTInductor added constants to the library that cannot be bound",
                got=", ".join(unknown),
                next="use codegen inductor for this graph",
            )


def _picker(indices: Sequence[int]) -> Callable[[Sequence[Any]], list[Any]]:
    """Return `args -> [args[i] for i in indices]`, in C."""
    if len(indices) < 2:
        return lambda args: [args[index] for index in indices]
    pick = itemgetter(*indices)
    return lambda args: list(pick(args))
