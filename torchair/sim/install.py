"""Register the simulated device with torch."""

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
from torchair.sim.module_aliases import install_aliases
from torchair.sim.native import shim
from torchair.sim.npu.batch_norm import define_batch_norm
from torchair.sim.npu.hints import define_scopes
from torchair.sim.npu.streams import Event, Stream
from torchair.sim.python_device import COMPILER, PythonShim

BACKINGS = ("cpu", "cuda")
MAX_DEVICES = 64
MEMORY = 64 << 30


def is_installed() -> bool:
    """Return whether `npu` is the simulated device."""
    return getattr(torch, "npu", None) is npu


def check_installed() -> None:
    """Raise if no simulated device is installed."""
    if not is_installed():
        raise BadCall("no simulated npu device is installed", next="call torchair.sim.install() first")


def install(devices: int = 8, backing: str = "cpu", *, memory: int = MEMORY) -> None:
    """Register a simulated `npu` device in this process; `import torch_npu` works afterwards.

    The device stays installed. A second call with the same arguments has no effect.

    Args:
        devices: Number of simulated devices.
        backing: The device that runs the kernels: `"cpu"` or `"cuda"`.
        memory: Memory of each device in bytes.

    Raises:
        BadOption: An argument is not valid.
        DeviceTaken: The process already has another custom device, or a simulated one with other settings.
        PluginTaken: The vendor's `torch_npu` is installed.
        CannotBuild: `backing="cuda"` needs the C++ part, and it cannot be built.

    Example:
        >>> torchair.sim.install()
        >>> x = torch.ones(3, device="npu")
    """
    _check(devices, backing, memory)
    if is_installed():
        if not isinstance(shim(), PythonShim) and shim().setup() != (devices, backing, memory):
            raise DeviceTaken(
                "the simulated npu device is already installed with other settings",
                next="call torchair.sim.install() only once, with the final settings",
            )
        return
    refuse_plugin()
    name = backend_name()
    if name != "privateuseone":
        raise DeviceTaken(
            f"cannot install the simulated npu device: this process already has the custom device {name!r}",
            next="run without the plug-in that registers it; torch supports one custom device",
        )
    if isinstance(shim(), PythonShim):
        _check_python_shim(devices, backing)
    if backing == "cuda":
        torch.cuda.init()  # the code below calls its allocator directly, which does not initialize CUDA
    shim().install(devices, backing, memory)
    rename_backend("npu", npu)
    exchange_by_dlpack("npu")
    register_interface("npu", npu, Stream, Event)
    compile_by_default("npu", compile_default)
    sys.modules["torch.npu"] = npu
    install_aliases()
    define_scopes()
    define_batch_norm()
    devices_known.install(SimulatedNpu(backing))


def _check(devices: int, backing: str, memory: int) -> None:
    if isinstance(devices, bool) or not isinstance(devices, int) or not 1 <= devices <= MAX_DEVICES:
        raise BadOption(f"devices must be a number from 1 to {MAX_DEVICES}", got=repr(devices))
    if backing not in BACKINGS:
        raise BadOption(f"backing must be one of {', '.join(BACKINGS)}", got=repr(backing))
    if backing == "cuda" and not torch.cuda.is_available():
        raise BadOption("backing='cuda' needs a CUDA device, but torch.cuda finds none")
    if isinstance(memory, bool) or not isinstance(memory, int) or memory <= 0:
        raise BadOption("memory must be a number of bytes", got=repr(memory))


def _check_python_shim(devices: int, backing: str) -> None:
    """Warn about the features that are missing without the C++ part."""
    plain = shim()
    what = f"cannot build the C++ part of the simulated npu device: {plain.why}"
    if backing != "cpu":
        raise CannotBuild(what, next=COMPILER) from plain.error
    if devices > 1:
        what += f"; there is one device instead of {devices}"
    what += (
        ". The device has one stream, and no graphs, generators, pinned memory, autocast, memory statistics"
    )
    Diagnostics().add(what, next=COMPILER)


def refuse_plugin() -> None:
    """Raise if the vendor's plug-in is installed: both cannot be used in one process."""
    where = real_plugin()
    if where is not None:
        raise PluginTaken(
            f"cannot simulate an npu device: the vendor's {PLUGIN} is installed: {where}",
            next="use it, or uninstall it on machines without the hardware",
        )
