"""Provide random numbers: one generator per device, with a seed and an offset."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from torchair.sim.native import shim
from torchair.sim.npu.device import current_device, device_count, index_of


class Generators:
    """Sequence of generators: `default_generators[index]`."""

    def __getitem__(self, index: int) -> torch.Generator:
        if not -device_count() <= index < device_count():
            raise IndexError(f"there is no device npu:{index}")
        return shim().default_generator(index % device_count())

    def __len__(self) -> int:
        return device_count()


default_generators = Generators()


def get_rng_state(device: Any = "npu") -> torch.Tensor:
    """Return the state of the generator of a device: 16 bytes, seed and offset."""
    return default_generators[index_of(device)].get_state()


def get_rng_state_all() -> list[torch.Tensor]:
    """Return the states of all devices."""
    return [get_rng_state(index) for index in range(device_count())]


def set_rng_state(new_state: torch.Tensor, device: Any = "npu") -> None:
    """Set the state of the generator of a device."""
    default_generators[index_of(device)].set_state(new_state)


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Set the states of all devices."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


def manual_seed(seed: int) -> None:
    """Seed the current device."""
    default_generators[current_device()].manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seed all devices."""
    for index in range(device_count()):
        default_generators[index].manual_seed(int(seed))


def seed() -> None:
    """Seed the current device with a random number."""
    default_generators[current_device()].seed()


def seed_all() -> None:
    """Seed all devices with the same random number."""
    manual_seed_all(default_generators[0].seed())


def initial_seed() -> int:
    """Return the seed of the current device."""
    return default_generators[current_device()].initial_seed()
