"""What holds for every test: fixed seeds, a clean Dynamo, a fair share of the cores, skips without a GPU."""

from __future__ import annotations

import gc
import os
import random
import re
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

# Before torch is imported: torch reads these once. One code cache for all tests and runs, and no compiler
# processes of Inductor's own, because test processes already fill the cores.
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(Path(__file__).resolve().parents[1] / ".inductor_cache"))
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
# Programs that tests have built are kept with that code.
os.environ["TORCHAIR_PROGRAMS"] = str(Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]) / "torchair_programs")
# An op that returns a view of its argument against its schema fails here, not first where CI=1 is set.
os.environ.setdefault("TORCHINDUCTOR_ERROR_ON_CUSTOM_OP_ALIASING", "1")

import hypothesis
import numpy as np
import pytest
import torch

from tests.support.simulated_device import SimulatedDevice
from tests.support.slow import leave_most_cases, leave_one_form, put_longest_first
from torchair.backend.dynamo import entry_points
from torchair.backend.dynamo.aot import compile_dynamo
from torchair.backend.service.scheduler import SCHEDULER
from torchair.capture.base import layout_enforcer
from torchair.core.log import capture_logger, logger
from torchair.devices import get_device, installed
from torchair.ge.files import verify

SEED = 20240607
# The same examples in every run, and no time limit on a machine that others use too.
hypothesis.settings.register_profile("same", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("same")


def pytest_configure(config: pytest.Config) -> None:
    """Share the cores among the test processes."""
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // workers))


@pytest.hookimpl(tryfirst=True)  # before `-m` is looked at
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Names of tests are the same in every process. Without a GPU, tests marked `cuda` are skipped and say
    why.
    """
    leave_one_form(items)
    leave_most_cases(items)
    put_longest_first(items)
    named_by_address = [item.nodeid for item in items if re.search(r"0x[0-9a-f]{6,}", item.nodeid)]
    if named_by_address:
        raise pytest.UsageError(
            f"test ids with an address in them, which xdist cannot match: {named_by_address}"
        )
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device, and torch sees none here")
    for item in items:
        if item.get_closest_marker("cuda"):
            item.add_marker(skip)


def pytest_collection_finish() -> None:
    """What was imported and collected stays: no collection of garbage goes through it again."""
    gc.collect()
    gc.freeze()


def _seed() -> None:
    random.seed(SEED)
    np.random.seed(SEED)
    torch.manual_seed(SEED)


def pytest_collectstart(collector: pytest.Collector) -> None:
    """The same random numbers for the tensors a test file makes while it is imported."""
    if isinstance(collector, pytest.Module):
        _seed()


@pytest.fixture(autouse=True, scope="session")
def _layouts_are_checked() -> None:
    """The results of every call are held to the promised layouts; a mismatch is a warning, so an error."""
    layout_enforcer.CHECK_EVERY_CALL = True


@pytest.fixture(autouse=True, scope="session")
def _emitted_ops_are_checked() -> None:
    """Every op of every graph is given types that its prototype declares, and images say their format."""
    verify.EVERY_GRAPH = True


@pytest.fixture(autouse=True)
def _same_start() -> Iterator[None]:
    """The same random numbers for every test in any order, and nothing compiled or said left from the one
    before. Flags of torch can be set, though importing OpInfo freezes them.
    """
    _seed()
    torch.backends.flags_frozen.__globals__["__allow_nonbracketed_mutation_flag"] = True
    for log in (logger, capture_logger):
        log.forget()
    own = get_device(torch.device("cpu"))
    yield
    assert get_device(torch.device("cpu")) is own, "a test left another device behind"
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()


@pytest.fixture(autouse=True)
def _nothing_is_built_meanwhile(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `codegen='auto'` the eager program stays, except in tests that ask for `builds`: processes in the
    background would take the cores from the tests, and end with no test of their own. Nor is anything taken
    from earlier processes, except in tests that ask for `warm_starts`.
    """
    if "builds" not in request.fixturenames:
        monkeypatch.setattr(SCHEDULER, "give", lambda job: job)
    if "warm_starts" not in request.fixturenames:
        monkeypatch.setattr(entry_points, "compile_or_get_cached", compile_dynamo)


@pytest.fixture
def builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Better programs are built in the background, as for users, and kept for this test alone. Builds that
    earlier tests did not ask for are forgotten: waiting for all builds would start them.
    """
    monkeypatch.setenv("TORCHAIR_PROGRAMS", str(tmp_path / "programs"))
    monkeypatch.setattr(SCHEDULER, "_expected", weakref.WeakSet())


@pytest.fixture
def warm_starts(builds: None) -> None:
    """Graphs that were compiled before are taken from disk, as for users; those of this test alone."""


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def device(request: pytest.FixtureRequest) -> torch.device:
    """Each device a test can run on; the test runs once per device."""
    return torch.device(request.param)


@pytest.fixture
def row() -> Iterator[SimulatedDevice]:
    """Graphs on the CPU."""
    with installed(SimulatedDevice()) as made:
        assert isinstance(made, SimulatedDevice)
        yield made
