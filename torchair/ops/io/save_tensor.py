"""Implement `npu::save_npugraph_tensor`: write tensors to files on every call, or at every replay of a graph.

The op selects the file name when it is called, so it is fixed in a recorded graph; `torchair::save` then
writes the file, immediately or at every replay.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
from torch.fx.node import has_side_effect

from torchair.core.fingerprint.atomic_files import atomic_write, make_parents
from torchair.core.registries.vendor_plugin import real_plugin
from torchair.core.torch_private.operators.schemas import has_operator, register_fake
from torchair.ops.io.print_tensor import on_host

NAME = "save_npugraph_tensor"
_OPTIONS = "*, str? save_path=None, bool overwrite=False"
SCHEMAS = {
    NAME: f"(Tensor input, {_OPTIONS}) -> ()",
    f"{NAME}.tensor_list": f"(Tensor[] input, {_OPTIONS}) -> ()",
}
SUFFIX = ".pt"
_taken: Counter[str] = Counter()
_counting = threading.Lock()


def file_for(device: torch.device, save_path: str | None, overwrite: bool) -> Path:
    """Return the file name: `h.pt` -> `h_device_0_2.pt` for the third call with that path. CPU tensors have
    no device in the name, and overwritten files no number.
    """
    check_path(save_path)
    given = Path(f"tensor_{datetime.now():%Y%m%d_%H%M%S_%f}" if save_path is None else save_path)
    stem = given.stem if device.type == "cpu" else f"{given.stem}_device_{device.index or 0}"
    made = given.with_name(stem + (given.suffix or SUFFIX))
    if overwrite:
        return made
    with _counting:
        key = os.path.abspath(made)
        number = _taken[key]
        _taken[key] += 1
    return made.with_name(f"{made.stem}_{number}{made.suffix}")


def check_path(save_path: Any) -> None:
    """Raise if the path does not name a file."""
    if save_path is None:
        return
    if not isinstance(save_path, str):
        raise TypeError(f"save_path must be a str, got {save_path!r}")
    if not Path(save_path).name or save_path.endswith(("/", "\\")) or Path(save_path).name == "..":
        raise ValueError(f"save_path must name a file, got {save_path!r}")


def check_tensors(tensors: Sequence[torch.Tensor]) -> torch.device:
    """Return the common device of the tensors; raise if there is none, or more than one."""
    devices = list(dict.fromkeys(x.device for x in tensors))
    if not devices:
        raise ValueError(f"{NAME} expects at least one tensor, got an empty list")
    if len(devices) > 1:
        raise ValueError(f"{NAME} expects tensors of one device, got {', '.join(map(str, devices))}")
    return devices[0]


def save_tensor(
    input: torch.Tensor | Sequence[torch.Tensor], *, save_path: str | None = None, overwrite: bool = False
) -> None:
    """Write a tensor, or a list of tensors, with `torch.save` on every call, or at every replay of a graph.

    This is `torch_npu.save_npugraph_tensor`.

    Args:
        input: A tensor, or a list of tensors on one device.
        save_path: Path of the file; the device and a number are added to its name.
        overwrite: Whether to overwrite the file instead of adding a number.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: The path does not name a file, or the tensors are on several devices.
    """
    check_path(save_path)
    if isinstance(input, torch.Tensor):
        torch.ops.npu.save_npugraph_tensor(input, save_path=save_path, overwrite=overwrite)
        return
    if not isinstance(input, (list, tuple)) or not all(isinstance(x, torch.Tensor) for x in input):
        raise TypeError(f"{NAME} expects a tensor or a list of tensors, got {type(input).__name__}")
    check_tensors(input)
    torch.ops.npu.save_npugraph_tensor.tensor_list(list(input), save_path=save_path, overwrite=overwrite)


# Implementation of the ops


def _save(input: Any, *, save_path: str | None = None, overwrite: bool = False) -> None:
    tensors = [input] if isinstance(input, torch.Tensor) else list(input)
    path = file_for(check_tensors(tensors), save_path, overwrite)
    torch.ops.torchair.save(tensors, not isinstance(input, torch.Tensor), str(path))


def _fake(input: Any, *, save_path: str | None = None, overwrite: bool = False) -> None:
    check_path(save_path)
    check_tensors([input] if isinstance(input, torch.Tensor) else input)


def _write(tensors: list[torch.Tensor], is_list: bool, path: str) -> None:
    def act(values: list[torch.Tensor]) -> None:
        make_parents(Path(path).parent)
        copies = [x.clone() for x in values]  # only the viewed part of the memory
        with atomic_write(Path(path)) as file:
            torch.save(copies if is_list else copies[0], file)

    on_host(tensors, act)


def _nothing(*args: Any) -> None:
    return None


def _define() -> list[torch.library.Library]:
    ours = torch.library.Library("torchair", "FRAGMENT")
    ours.define("save(Tensor[] tensors, bool is_list, str path) -> ()", tags=(torch.Tag.pt2_compliant_tag,))
    for key in ("CPU", "CUDA"):
        ours.impl("save", _write, key)
    register_fake(ours, "save", _nothing)
    if real_plugin() is not None or has_operator(f"npu::{NAME}"):
        return [ours]
    npu = torch.library.Library("npu", "FRAGMENT")
    for name, arguments in SCHEMAS.items():
        npu.define(name + arguments, tags=(torch.Tag.pt2_compliant_tag,))
        # One kernel per device type: the kernel for device tensors reads the device from them.
        for key in ("CPU", "CUDA", "PrivateUse1"):
            npu.impl(name, _save, key)
        register_fake(npu, name, _fake)
    return [ours, npu]


LIBRARIES = _define()
_PACKETS = (
    torch.ops.torchair.save,
    *((torch.ops.npu.save_npugraph_tensor,) if has_operator(f"npu::{NAME}") else ()),
)
OPS = frozenset(getattr(packet, name) for packet in _PACKETS for name in packet.overloads())
"""All ops that save."""
for op in (*_PACKETS, *OPS):
    has_side_effect(op)
