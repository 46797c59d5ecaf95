"""The process in which orders are compiled. It starts once, loads what compilers need and has a child for
each order: none waits for imports, and none sees what another has left behind.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import pickle
import select
import socket
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.spawn import get_executable
from pathlib import Path
from typing import IO

from torchair.backend.service.request import MADE, ORDER, CompileRequest, CompileResult, last_line
from torchair.core.processes.scratch_dir import END_SECONDS, builds
from torchair.core.storage.cache_dir import NATIVE
from torchair.core.storage.serialization import unpack
from torchair.core.torch_private.compilers.inductor import code_folder, inductor_cache_dir

WORKER_MODULE = "torchair.backend.service.worker_main"
# Modules are looked for where this process looks for them, but only once Python has started: a `types.py`
# beside the user's script is nothing that Python itself may find. The process starts in a folder of ours: the
# working directory of this one may be gone. Relative paths are relative to that one as long as it is there.
WORKER = """
import os, sys
del sys.argv[0]
path, folder = sys.argv.pop(), sys.argv.pop()
try:
    os.chdir(folder)
except OSError:
    pass
sys.path[:] = path.split(os.pathsep)
import runpy; runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
NVML_CHECK = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
"""Whether there is a GPU is asked without starting the driver, which children could not use any more."""


CACHE = "TORCHINDUCTOR_CACHE_DIR"
ALIVE_SECONDS = 1.0
"""How often a supervisor is looked after while a build runs."""
TEST_NAME = "PYTEST_CURRENT_TEST"
"""Is another with each test of a suite, which shall not start a process for each."""


@dataclass(frozen=True)
class ProcessEnv:
    """What a process was started with. With another one it would be another process."""

    variables: tuple[tuple[str, str], ...]
    path: str
    working_directory: str

    @classmethod
    def of(cls, order: CompileRequest) -> ProcessEnv:
        """Where an order is compiled that is given now."""
        # Inductor's cache is named: its default depends on where temporary files are, which differs there.
        code = code_folder(order.folder) if order.folder else {CACHE: inductor_cache_dir()}
        variables = os.environ | code | NVML_CHECK
        variables.pop(TEST_NAME, None)
        path = os.pathsep.join(entry for entry in sys.path if isinstance(entry, str))
        return cls(tuple(sorted(variables.items())), path, _working_directory())

    def native_folder(self) -> str:
        """Return the folder in which native libraries are made there."""
        return os.path.join(self.working_directory, dict(self.variables)[CACHE], NATIVE)


def _working_directory() -> str:
    """Return the working directory, and nothing where it has been removed."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""


class WorkerProcess:
    """One such process. It ends with this one, and when it has had nothing to do for a while."""

    def __init__(self, place: ProcessEnv, log: IO[bytes]) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._supervised = builds().start(
                [
                    get_executable(),
                    "-c",
                    WORKER,
                    WORKER_MODULE,
                    str(theirs.fileno()),
                    place.working_directory,
                    place.path,
                ],
                dict(place.variables),
                log,
                files=[theirs.fileno()],
                parents=[place.native_folder()],
            )
        self._process = self._supervised.process

    def is_there(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        """End it, with everything that it has started, and wait for that."""
        self._socket.close()
        self._supervised.end()

    def disown(self) -> None:
        """In a child of this process, whose own it is not."""
        self._socket.close()

    def take(self, folder: Path, log: IO[bytes]) -> socket.socket:
        """Have the order in a folder compiled: what can be read there is the child, then how it ended. Once
        this side is shut down, the child is ended, with everything that it has started.
        """
        answers, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self._socket, [os.fsencode(folder)], [log.fileno(), theirs.fileno()])
            except OSError as error:
                answers.close()
                raise _Gone from error
        return answers


class _Gone(Exception):
    """A process ended before it took the order."""


class WorkerPool:
    """Those of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_place: dict[ProcessEnv, WorkerProcess] = {}
        self._is_closed = False

    def forked(self) -> None:
        """In a child of this process."""
        for shop in self._by_place.values():
            shop.disown()
        self._lock, self._by_place = threading.Lock(), {}

    def refuse(self) -> None:
        """Take no more orders."""
        with self._lock:
            self._is_closed = True

    def close(self) -> None:
        """End them all."""
        self.refuse()
        with self._lock:
            self._by_place, shops = {}, list(self._by_place.values())
        for shop in shops:
            shop.close()

    def drop(self, gone: WorkerProcess) -> None:
        """That one does not take orders any more."""
        with self._lock:
            self._by_place = {place: shop for place, shop in self._by_place.items() if shop is not gone}
        gone.close()

    @contextlib.contextmanager
    def taken(
        self, place: ProcessEnv, folder: Path, log: IO[bytes]
    ) -> Iterator[tuple[WorkerProcess, socket.socket]]:
        """Give an order to the process of that place."""
        with self._lock:
            for known, shop in list(self._by_place.items()):
                if not shop.is_there():
                    self._by_place.pop(known).close()
            if self._is_closed:
                raise TimeoutError  # Python ends
            if place not in self._by_place:
                self._by_place[place] = WorkerProcess(place, log)
            shop = self._by_place[place]
            try:
                answers = shop.take(folder, log)
            except _Gone:
                self._by_place.pop(place).close()
                raise
        with answers:
            yield shop, answers


WORKSHOPS = WorkerPool()
os.register_at_fork(after_in_child=lambda: WORKSHOPS.forked())
atexit.register(lambda: WORKSHOPS.refuse())  # then `core/processes/scratch_dir.py` ends the processes


def compile_in_worker(
    order: CompileRequest, folder: Path, seconds: float | None = None
) -> tuple[CompileResult | None, str]:
    """What another process made of the order; None, and what it said last, where it did not end well."""
    if getattr(sys, "frozen", False):
        return None, "this program has no interpreter of its own that another process could run"
    (folder / ORDER).write_bytes(pickle.dumps(order))
    log, place = folder / "compiler.log", ProcessEnv.of(order)
    try:
        with log.open("wb") as file:
            try:
                status = _status(place, folder.absolute(), file, seconds)
            except _Gone:  # it had nothing to do for so long that it ended just now
                status = _status(place, folder.absolute(), file, seconds)
    except TimeoutError:
        return None, "Python ends" if seconds is None else f"it took more than {seconds:.0f} s"
    except _Gone:
        status = "unknown"
    if status != "0":
        said = log.read_text(errors="replace") if log.exists() else ""
        return None, last_line(said) or f"exit status {status}"
    made = unpack((folder / MADE).read_bytes())
    assert isinstance(made, CompileResult), "that is what the process leaves"
    return made, ""


def is_ready(file: int, seconds: float) -> bool:
    """Can something be read there, before so much time is over? However many files are open."""
    poll = select.poll()
    poll.register(file, select.POLLIN)
    return bool(poll.poll(1000 * seconds))


def _status(place: ProcessEnv, folder: Path, said: IO[bytes], seconds: float | None) -> str:
    """How the child ended that compiled the order; it is given so much time. Nothing that it has started runs
    any more.
    """
    end = None if seconds is None else time.monotonic() + seconds
    with WORKSHOPS.taken(place, folder, said) as (shop, answers):
        try:
            child, _, status = _read(shop, answers, end).strip().partition("\n")
        except TimeoutError:
            _stop(shop, answers)
            raise
        if not status:
            WORKSHOPS.drop(shop)
        if not child:
            raise _Gone
    return status or "unknown"


def _read(shop: WorkerProcess, answers: socket.socket, end: float | None) -> str:
    """Both lines of an answer; fewer where the process that gives it ends, or its supervisor was killed."""
    answer = b""
    while answer.count(b"\n") < 2:
        is_there, left = shop.is_there(), math.inf if end is None else end - time.monotonic()
        if not is_ready(answers.fileno(), min(max(0.0, left), ALIVE_SECONDS)):
            if not is_there:
                break
            if left <= 0:
                raise TimeoutError
            continue
        more = answers.recv(64)
        if not more:
            break
        answer += more
    return answer.decode()


def _stop(shop: WorkerProcess, answers: socket.socket) -> None:
    """End the child of an order, and wait for that. Where it cannot be ended, all of the shop is."""
    answers.shutdown(socket.SHUT_WR)
    try:
        _read(shop, answers, time.monotonic() + END_SECONDS)
    except TimeoutError:
        WORKSHOPS.drop(shop)
