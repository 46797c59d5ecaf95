"""Every operator of torch's table in a graph: captured, replayed on other values, as without a graph; or
refused while it is captured, because it asks for values.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch.testing._internal.common_device_type import ops
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_utils import TestCase

from tests.convert.opinfo import name_of
from tests.sim.inside.machinery import on_device
from tests.sim.inside.misses import REFUSED, UNCAPTURED, UNDEFINED
from tests.sim.inside.op_captured import Captured

SHARE = 8


class TestCaptured(TestCase):
    @ops([op for op in op_db if op.name not in UNDEFINED], allowed_dtypes=(torch.float32,))
    def test_captured(self, device: str, dtype: torch.dtype, op: Any) -> None:
        name = name_of(op)
        if name in UNCAPTURED:
            self.skipTest(UNCAPTURED[name])
        captured = Captured(op, torch.device(device))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            samples = captured.samples(dtype)
            if samples is None:
                self.skipTest("no tensor goes in, so no value of one can be another")
            assert captured.refused(*samples) == (name in REFUSED)


MADE = on_device(TestCaptured, globals(), ("_float32",), SHARE)


def test_most_operators_are_tried() -> None:
    assert MADE > 600
