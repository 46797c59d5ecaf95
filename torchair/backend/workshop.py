"""The process in which orders are compiled. It starts once, loads what compilers need and has a child for
each order: none waits for imports, and none sees what another has left behind.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.spawn import get_executable
from pathlib import Path
from typing import IO

from torchair.backend.order import MADE, ORDER, Made, Order, last_line
from torchair.core.pack import unpack
from torchair.core.torch_private.inductor import code_folder

WORKER_MODULE = "torchair.backend.build_worker"
# Modules are looked for where this process looks for them, but only once Python has started: a `types.py`
# beside the user's script is nothing that Python itself may find.
WORKER = (
    "import os, sys; del sys.argv[0]; sys.path[:] = sys.argv.pop().split(os.pathsep); import runpy; "
    "runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
)
NVML_CHECK = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
"""Whether there is a GPU is asked without starting the driver, which children could not use any more."""


TEST_NAME = "PYTEST_CURRENT_TEST"
"""Is another with each test of a suite, which shall not start a process for each."""


@dataclass(frozen=True)
class Place:
    """What a process was started with. With another one it would be another process."""

    variables: tuple[tuple[str, str], ...]
    path: str
    working_directory: str

    @classmethod
    def of(cls, order: Order) -> Place:
        """Where an order is compiled that is given now."""
        variables = os.environ | (code_folder(order.folder) if order.folder else {}) | NVML_CHECK
        variables.pop(TEST_NAME, None)
        path = os.pathsep.join(entry for entry in sys.path if isinstance(entry, str))
        return cls(tuple(sorted(variables.items())), path, os.getcwd())


class Workshop:
    """One such process. It ends with this one, and when it has had nothing to do for a while."""

    def __init__(self, place: Place, log: IO[bytes]) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            who = [str(theirs.fileno()), str(os.getpid())]
            self._process = subprocess.Popen(
                [get_executable(), "-c", WORKER, WORKER_MODULE, *who, place.path],
                env=dict(place.variables),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # what interrupts the user's work does not end it
            )

    def is_there(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        """End it, with what it runs; its children see that."""
        self._socket.close()
        if self.is_there():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def disown(self) -> None:
        """In a child of this process, whose own it is not."""
        self._socket.close()
        self._process.returncode = 0

    def take(self, folder: Path, log: IO[bytes]) -> int:
        """Have the order in a folder compiled: what can be read there is the child, then how it ended."""
        answers, theirs = os.pipe()
        try:
            socket.send_fds(self._socket, [os.fsencode(folder)], [log.fileno(), theirs])
        except OSError as error:
            os.close(answers)
            raise _Gone(self) from error
        finally:
            os.close(theirs)
        return answers


class _Gone(Exception):
    """A process ended before it took the order."""

    def __init__(self, shop: Workshop) -> None:
        super().__init__()
        self.shop = shop


class Workshops:
    """Those of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_place: dict[Place, Workshop] = {}
        self._is_closed = False

    def forked(self) -> None:
        """In a child of this process."""
        for shop in self._by_place.values():
            shop.disown()
        self._lock, self._by_place = threading.Lock(), {}

    def close(self) -> None:
        """End them all."""
        with self._lock:
            self._is_closed = True
            for shop in self._by_place.values():
                shop.close()
            self._by_place.clear()

    def drop(self, gone: Workshop) -> None:
        """That one does not take orders any more."""
        with self._lock:
            gone.close()
            self._by_place = {place: shop for place, shop in self._by_place.items() if shop is not gone}

    @contextlib.contextmanager
    def taken(self, place: Place, folder: Path, log: IO[bytes]) -> Iterator[tuple[Workshop, int]]:
        """Give an order to the process of that place."""
        with self._lock:
            for known, shop in list(self._by_place.items()):
                if not shop.is_there():
                    self._by_place.pop(known).close()
            if self._is_closed:
                raise TimeoutError  # Python ends
            if place not in self._by_place:
                self._by_place[place] = Workshop(place, log)
            shop = self._by_place[place]
            answers = shop.take(folder, log)
        try:
            yield shop, answers
        finally:
            os.close(answers)


WORKSHOPS = Workshops()
os.register_at_fork(after_in_child=lambda: WORKSHOPS.forked())
atexit.register(lambda: WORKSHOPS.close())


def compile_elsewhere(order: Order, folder: Path, seconds: float | None = None) -> tuple[Made | None, str]:
    """What another process made of the order; None, and what it said last, where it did not end well."""
    if getattr(sys, "frozen", False):
        return None, "this program has no interpreter of its own that another process could run"
    (folder / ORDER).write_bytes(pickle.dumps(order))
    log, place = folder / "compiler.log", Place.of(order)
    try:
        with log.open("wb") as file:
            try:
                status = _status(place, folder.absolute(), file, seconds)
            except _Gone as gone:  # it had nothing to do for so long that it ended just now
                WORKSHOPS.drop(gone.shop)
                status = _status(place, folder.absolute(), file, seconds)
    except TimeoutError:
        return None, "Python ends" if seconds is None else f"it took more than {seconds:.0f} s"
    except _Gone:
        status = "unknown"
    if status != "0":
        said = log.read_text(errors="replace") if log.exists() else ""
        return None, last_line(said) or f"exit status {status}"
    made = unpack((folder / MADE).read_bytes())
    assert isinstance(made, Made), "that is what the process leaves"
    return made, ""


def is_ready(file: int, seconds: float | None) -> bool:
    """Can something be read there, before so much time is over? However many files are open."""
    poll = select.poll()
    poll.register(file, select.POLLIN)
    return bool(poll.poll(None if seconds is None else 1000 * seconds))


def _status(place: Place, folder: Path, said: IO[bytes], seconds: float | None) -> str:
    """How the child ended that compiled the order; it is given so much time."""
    end = None if seconds is None else time.monotonic() + seconds
    answer = b""
    with WORKSHOPS.taken(place, folder, said) as (shop, answers):
        while answer.count(b"\n") < 2:
            left = None if end is None else max(0.0, end - time.monotonic())
            if not is_ready(answers, left):
                if answer:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(int(answer), signal.SIGKILL)  # with the compilers that it runs
                raise TimeoutError
            more = os.read(answers, 64)
            if not more:
                break
            answer += more
    child, _, status = answer.decode().strip().partition("\n")
    if not child:
        raise _Gone(shop)
    return status or "unknown"
