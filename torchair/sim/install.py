"""Making torch know the simulated device."""

from __future__ import annotations

import sys

import torch

from torchair import devices as devices_known
from torchair.core.diagnostics import Diagnostics
from torchair.core.errors import BadCall, BadOption, CannotBuild, DeviceTaken, PluginTaken
from torchair.core.registries.vendor_plugin import PLUGIN, real_plugin
from torchair.core.torch_private.device.privateuse1 import (
    backend_name,
    compile_by_default,
    exchange_by_dlpack,
    register_interface,
    rename_backend,
)
from torchair.sim import npu
from torchair.sim.device import SimulatedNpu
from torchair.sim.inductor import compile_default
from torchair.sim.module_aliases import give_names
from torchair.sim.native import shim
from torchair.sim.npu.batch_norm import define_batch_norm
from torchair.sim.npu.hints import define_scopes
from torchair.sim.npu.streams import Event, Stream
from torchair.sim.python_device import COMPILER, Plain

BACKINGS = ("cpu", "cuda")
MAX_DEVICES = 64
MEMORY = 64 << 30


def is_installed() -> bool:
    """Is `npu` the simulated device?"""
    return getattr(torch, "npu", None) is npu


def check_installed() -> None:
    """For what only a simulated device can do."""
    if not is_installed():
        raise BadCall("there is no simulated device", next="torchair.sim.install()")


def install(devices: int = 8, backing: str = "cpu", *, memory: int = MEMORY) -> None:
    """From now on there is an `npu` device in this process, as `import torch_npu` makes one on the hardware;
    that import works, too.

    `devices` is how many there seem to be, `memory` how many bytes each has; `backing` does the work: `"cpu"`
    or `"cuda"`. Once installed it stays: a second call may say the same again.
    """
    _check(devices, backing, memory)
    if is_installed():
        if not isinstance(shim(), Plain) and shim().setup() != (devices, backing, memory):
            raise DeviceTaken(
                "the simulated npu device is installed already, otherwise",
                next="install it once, as it is wanted",
            )
        return
    refuse_plugin()
    name = backend_name()
    if name != "privateuseone":
        raise DeviceTaken(
            f"this process has a device {name!r} already, and torch takes one of its kind",
            next="run without the plug-in that brings it",
        )
    if isinstance(shim(), Plain):
        _check_plain(devices, backing)
    if backing == "cuda":
        torch.cuda.init()  # its allocator is asked without torch's own ways, which would see to that
    shim().install(devices, backing, memory)
    rename_backend("npu", npu)
    exchange_by_dlpack("npu")
    register_interface("npu", npu, Stream, Event)
    compile_by_default("npu", compile_default)
    sys.modules["torch.npu"] = npu
    give_names()
    define_scopes()
    define_batch_norm()
    devices_known.install(SimulatedNpu(backing))


def _check(devices: int, backing: str, memory: int) -> None:
    if isinstance(devices, bool) or not isinstance(devices, int) or not 1 <= devices <= MAX_DEVICES:
        raise BadOption(f"devices must be a number from 1 to {MAX_DEVICES}", got=repr(devices))
    if backing not in BACKINGS:
        raise BadOption(f"backing must be one of {', '.join(BACKINGS)}", got=repr(backing))
    if backing == "cuda" and not torch.cuda.is_available():
        raise BadOption("backing='cuda' needs a CUDA device, and torch sees none here")
    if isinstance(memory, bool) or not isinstance(memory, int) or memory <= 0:
        raise BadOption("memory must be a number of bytes", got=repr(memory))


def _check_plain(devices: int, backing: str) -> None:
    """Without the C++ part there is less, and that is said."""
    plain = shim()
    what = f"the C++ part of the simulated npu device cannot be built: {plain.why}"
    if backing != "cpu":
        raise CannotBuild(what, next=COMPILER) from plain.error
    if devices > 1:
        what += f"; there is one device, not {devices}"
    what += (
        ". It has one stream, and no graphs, generators, pinned memory, automatic precision, counted memory"
    )
    Diagnostics().add(what, next=COMPILER)


def refuse_plugin() -> None:
    """The simulated device never stands beside the vendor's plug-in."""
    where = real_plugin()
    if where is not None:
        raise PluginTaken(
            f"the vendor's {PLUGIN} is installed: {where}",
            next="use it, or uninstall it where there is no hardware",
        )
