"""torch's own machinery for tests on every device, for this device."""

from __future__ import annotations

from typing import Any

from torch.testing._internal.common_device_type import instantiate_device_type_tests

from tests.support.slow import leave_most_methods


def on_device(case: type, scope: dict[str, Any], ends: tuple[str, ...], share: int) -> int:
    """Make the test case for the device, of whose methods the quick run takes some; say how many there are.

    torch calls the kind of device `privateuse1` until it has made the first of them, and `npu` from then on.
    """
    before = set(scope)
    instantiate_device_type_tests(case, scope, only_for=("privateuse1", "npu"))
    (made,) = [scope[name] for name in set(scope) - before]
    leave_most_methods(made, ends, share)
    return sum(name.startswith("test") for name in vars(made))
