"""Random programs give what eager gives, and the oracle sees when something does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.oracle import Count, check, compare, observe
from tests.fuzz.programs import Buffer, Feed, Line, Program, View, any_program, is_legal, shrink

ENGINES = ("reference", "eager")
MODES = ("max-autotune", "npugraph_ex")
RANDOM = st.randoms(use_true_random=False)
SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]


def equals_eager(random: Random, engine: str, mode: str, count: Count) -> None:
    program = any_program(random)
    program = replace(program, mode=mode, simulated=mode == "npugraph_ex" and program.keep)
    failure = check(program, engine, count)
    assert failure is None, f"{failure}\n{program.script(engine)}"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("engine", ENGINES)
def test_programs_equal_eager(engine: str, mode: str) -> None:
    count = Count()

    @settings(max_examples=15, suppress_health_check=SLOW)
    @given(random=RANDOM)
    def run(random: Random) -> None:
        equals_eager(random, engine, mode, count)

    run()
    assert count.replayed == count.recorded
    print(count)
