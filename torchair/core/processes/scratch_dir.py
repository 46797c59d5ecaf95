"""Scratch folders, and processes that work in them. Both end with this process, however it ends: supervisors
(`supervisor.py`) notice its end and clean up. If they were killed, too, the next scratch folder that is
created in the same directory triggers the cleanup.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from multiprocessing.spawn import get_executable
from pathlib import Path
from typing import IO

from torchair.core.environment import is_set
from torchair.core.processes import supervisor
from torchair.core.processes.supervisor import KILL_SECONDS, LOCK, PREFIX, collect, end_below, locked, remove

SUPERVISOR = os.path.abspath(supervisor.__file__)
END_SECONDS = 2 * KILL_SECONDS
"""Seconds that a supervisor gets to clean up before it is killed."""
NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP}
"""Errors of file systems without locks. Only this process removes a folder there."""


class Scratch:
    """A temporary folder of this process, locked as long as this process or one started in it is alive."""

    def __init__(self, parent: Path) -> None:
        check_running()
        collect(parent)
        self.path, self._lock, self._is_locked = _make(parent)
        ALL.scratches.add(self)

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(
        self,
        command: Sequence[str],
        variables: Mapping[str, str],
        log: IO[bytes],
        files: Sequence[int] = (),
        parents: Sequence[str] = (),
    ) -> Supervised:
        """Start a command in this folder, which is also its `TMPDIR`. It inherits the files. After its end,
        orphaned scratch folders in the parents are removed.
        """
        with ALL.lock:
            check_running()
            arguments = [str(self._lock), ",".join(map(str, files)), str(self.path), os.pathsep.join(parents)]
            leash, theirs = socket.socketpair()
            with theirs:
                process = subprocess.Popen(
                    [
                        get_executable() or sys.executable,
                        *_isolated(),
                        SUPERVISOR,
                        *arguments,
                        *command,
                    ],
                    env={**variables, "TMPDIR": str(self.path)},
                    cwd=self.path,
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=log,
                    pass_fds=[self._lock, *files],
                    start_new_session=True,  # Ctrl-C in a terminal reaches only this process
                )
            return Supervised(process, leash)

    def release(self) -> None:
        """Release the folder. It is removed when no supervisor of this process needs it any more."""
        ALL.scratches.discard(self)
        os.close(self._lock)

    def close(self) -> None:
        """Remove the folder."""
        if self in ALL.scratches:  # not in a forked child, nor while Python exits
            self.release()
            self.remove()

    def remove(self) -> None:
        """Remove the folder. While a process still works in it, its supervisor removes it later."""
        if not self._is_locked:
            shutil.rmtree(self.path, ignore_errors=True)
        remove(self.path)


def _make(parent: Path) -> tuple[Path, int, bool]:
    """Create a folder and lock it if the file system has locks. Another process that cleans up may remove it
    before it is locked.
    """
    while True:
        path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        try:
            return path, locked(path, os.O_CREAT | os.O_EXCL), True
        except (FileNotFoundError, BlockingIOError):
            continue
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            return path, os.open(path / LOCK, os.O_RDWR | os.O_CLOEXEC), False


def _isolated() -> list[str]:
    """Return the options of an interpreter that finds its own modules only."""
    return ["-s", "-S"] if is_set("PYTHONHOME") else ["-I", "-S"]


class Supervised:
    """A command in a scratch folder, and its supervisor."""

    def __init__(self, process: subprocess.Popen[bytes], leash: socket.socket) -> None:
        self.process = process
        """The supervisor. It ends after all processes that the command has started."""
        self._leash = leash
        ALL.running.add(self)

    def release(self) -> None:
        """Make the supervisor end everything."""
        ALL.running.discard(self)
        with contextlib.suppress(OSError):  # forked children may have the socket too: closing is not enough
            self._leash.shutdown(socket.SHUT_RDWR)
        self._leash.close()

    def end(self) -> None:
        """End the command and everything that it started, and wait for the end."""
        self.release()
        try:
            self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
        if self.process.wait() < 0:  # the supervisor was killed, and could not clean up
            end_below(self.process.pid)

    def disown(self) -> None:
        """Forget the process, in a forked child, which did not start it."""
        self._leash.close()
        self.process.returncode = 0


class _All:
    """The scratch folders and commands of this process."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.scratches = set[Scratch]()
        self.running = set[Supervised]()
        self.is_closed = False
        self.builds: Scratch | None = None
        """The folder for background builds."""

    def forked(self) -> None:
        """Forget everything, in a forked child, which owns none of it."""
        for scratch in list(self.scratches):
            scratch.release()
        for command in self.running:
            command.disown()
        self.running, self.builds, self.lock = set(), None, threading.RLock()

    def close(self) -> None:
        """End and remove everything. If this process dies meanwhile, the supervisors finish the work."""
        with self.lock:
            self.is_closed = True
            running, scratches = list(self.running), list(self.scratches)
            for each in (*scratches, *running):
                each.release()
        with contextlib.suppress(KeyboardInterrupt):
            for each in running:
                each.end()
            for each in scratches:
                each.remove()


ALL = _All()
# Locked during a fork: a child must not inherit an object that is just being created.
os.register_at_fork(
    before=lambda: ALL.lock.acquire(), after_in_parent=lambda: ALL.lock.release(), after_in_child=ALL.forked
)
atexit.register(ALL.close)


def check_running() -> None:
    """Raise if Python is exiting. In a thread this is SystemExit, which ends the thread and prints
    nothing.
    """
    if ALL.is_closed:
        is_main = threading.current_thread() is threading.main_thread()
        raise RuntimeError("cannot start a build while Python is exiting") if is_main else SystemExit


def builds() -> Scratch:
    """Return the folder of this process for background builds. It is created again if a cleaner of temporary
    folders has removed it.
    """
    with ALL.lock:
        if ALL.builds is not None and not ALL.builds.path.exists():
            ALL.builds.close()
            ALL.builds = None
        if ALL.builds is None:
            ALL.builds = Scratch(Path(tempfile.gettempdir()))
        return ALL.builds
