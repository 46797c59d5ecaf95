"""The worker processes that compile requests.

A worker starts once, imports the compilers, and forks a child for each request. So no request waits for
imports, and none sees the state that another one left.
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
# The worker uses the `sys.path` of this process, but only after Python has started: a `types.py` next to the
# user's script must not shadow Python's own. It starts in our scratch directory, because the working
# directory of this process may have been removed. If that exists, it changes to it, for relative paths.
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
"""Detect GPUs without initializing the CUDA driver, which forked children could not use."""


CACHE = "TORCHINDUCTOR_CACHE_DIR"
ALIVE_SECONDS = 1.0
"""Seconds between checks that the supervisor is alive while a compile runs."""
TEST_NAME = "PYTEST_CURRENT_TEST"
"""pytest sets this variable per test; it is ignored so that all tests share one worker."""


@dataclass(frozen=True)
class ProcessEnv:
    """The environment that a worker was started with. Another environment needs another worker."""

    variables: tuple[tuple[str, str], ...]
    path: str
    working_directory: str

    @classmethod
    def of(cls, request: CompileRequest) -> ProcessEnv:
        """Return the environment for a request that is submitted now."""
        # Inductor's cache is named: its default depends on the temporary directory, which differs there.
        code = code_folder(request.folder) if request.folder else {CACHE: inductor_cache_dir()}
        variables = os.environ | code | NVML_CHECK
        variables.pop(TEST_NAME, None)
        path = os.pathsep.join(entry for entry in sys.path if isinstance(entry, str))
        return cls(tuple(sorted(variables.items())), path, _working_directory())

    def native_folder(self) -> str:
        """Return the directory in which the worker builds native libraries."""
        return os.path.join(self.working_directory, dict(self.variables)[CACHE], NATIVE)


def _working_directory() -> str:
    """Return the working directory, or an empty text if it has been removed."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""


class WorkerProcess:
    """A worker process. It exits with this process, and after some idle time."""

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
        """Terminate the worker and all processes that it started, and wait for them."""
        self._socket.close()
        self._supervised.end()

    def disown(self) -> None:
        """Close this end of the socket in a forked child, which does not own the worker."""
        self._socket.close()

    def take(self, folder: Path, log: IO[bytes]) -> socket.socket:
        """Submit the request in a build directory.

        The socket that is returned receives the PID of the child, then its exit status. Shutting down this
        end terminates the child and all processes that it started.
        """
        answers, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self._socket, [os.fsencode(folder)], [log.fileno(), theirs.fileno()])
            except OSError as error:
                answers.close()
                raise _WorkerExited from error
        return answers


class _WorkerExited(Exception):
    """The worker exited before it accepted the request."""


class WorkerPool:
    """The workers of this process, by their environments."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_place: dict[ProcessEnv, WorkerProcess] = {}
        self._is_closed = False

    def forked(self) -> None:
        """Forget the workers in a forked child."""
        for worker in self._by_place.values():
            worker.disown()
        self._lock, self._by_place = threading.Lock(), {}

    def refuse(self) -> None:
        """Stop accepting requests."""
        with self._lock:
            self._is_closed = True

    def close(self) -> None:
        """Stop accepting requests and terminate all workers."""
        self.refuse()
        with self._lock:
            self._by_place, workers = {}, list(self._by_place.values())
        for worker in workers:
            worker.close()

    def drop(self, exited: WorkerProcess) -> None:
        """Remove a worker that does not accept requests any more."""
        with self._lock:
            self._by_place = {env: worker for env, worker in self._by_place.items() if worker is not exited}
        exited.close()

    @contextlib.contextmanager
    def submitted(
        self, env: ProcessEnv, folder: Path, log: IO[bytes]
    ) -> Iterator[tuple[WorkerProcess, socket.socket]]:
        """Submit a request to the worker with this environment, which is started if there is none."""
        with self._lock:
            for known, worker in list(self._by_place.items()):
                if not worker.is_there():
                    self._by_place.pop(known).close()
            if self._is_closed:
                raise TimeoutError  # Python is shutting down
            if env not in self._by_place:
                self._by_place[env] = WorkerProcess(env, log)
            worker = self._by_place[env]
            try:
                answers = worker.take(folder, log)
            except _WorkerExited:
                self._by_place.pop(env).close()
                raise
        with answers:
            yield worker, answers


WORKSHOPS = WorkerPool()
os.register_at_fork(after_in_child=lambda: WORKSHOPS.forked())
atexit.register(lambda: WORKSHOPS.refuse())  # then `core/processes/scratch_dir.py` ends the processes


def compile_in_worker(
    request: CompileRequest, folder: Path, seconds: float | None = None
) -> tuple[CompileResult | None, str]:
    """Compile a request in a worker; return the result, or None with the last line of output on failure."""
    if getattr(sys, "frozen", False):
        return None, "a frozen application has no Python interpreter for a worker process"
    (folder / ORDER).write_bytes(pickle.dumps(request))
    log, env = folder / "compiler.log", ProcessEnv.of(request)
    try:
        with log.open("wb") as file:
            try:
                status = _status(env, folder.absolute(), file, seconds)
            except _WorkerExited:  # it was idle for so long that it exited just now
                status = _status(env, folder.absolute(), file, seconds)
    except TimeoutError:
        return None, "Python is shutting down" if seconds is None else f"it took more than {seconds:.0f} s"
    except _WorkerExited:
        status = "unknown"
    if status != "0":
        output = log.read_text(errors="replace") if log.exists() else ""
        return None, last_line(output) or f"exit status {status}"
    result = unpack((folder / MADE).read_bytes())
    assert isinstance(result, CompileResult), "a worker writes a CompileResult"
    return result, ""


def is_ready(file: int, seconds: float) -> bool:
    """Whether `file` becomes readable within this time. Unlike `select`, `poll` works for any descriptor."""
    poll = select.poll()
    poll.register(file, select.POLLIN)
    return bool(poll.poll(1000 * seconds))


def _status(env: ProcessEnv, folder: Path, log: IO[bytes], seconds: float | None) -> str:
    """Run a request within the given seconds, and return the exit status of the child. Afterwards no process
    that the child started is running.
    """
    end = None if seconds is None else time.monotonic() + seconds
    with WORKSHOPS.submitted(env, folder, log) as (worker, answers):
        try:
            child, _, status = _read(worker, answers, end).strip().partition("\n")
        except TimeoutError:
            _stop(worker, answers)
            raise
        if not status:
            WORKSHOPS.drop(worker)
        if not child:
            raise _WorkerExited
    return status or "unknown"


def _read(worker: WorkerProcess, answers: socket.socket, end: float | None) -> str:
    """Read both lines of an answer; fewer if the worker exits or its supervisor is killed."""
    answer = b""
    while answer.count(b"\n") < 2:
        is_alive, left = worker.is_there(), math.inf if end is None else end - time.monotonic()
        if not is_ready(answers.fileno(), min(max(0.0, left), ALIVE_SECONDS)):
            if not is_alive:
                break
            if left <= 0:
                raise TimeoutError
            continue
        more = answers.recv(64)
        if not more:
            break
        answer += more
    return answer.decode()


def _stop(worker: WorkerProcess, answers: socket.socket) -> None:
    """Terminate the child of a request and wait for it; if that fails, terminate the whole worker."""
    answers.shutdown(socket.SHUT_WR)
    try:
        _read(worker, answers, time.monotonic() + END_SECONDS)
    except TimeoutError:
        WORKSHOPS.drop(worker)
