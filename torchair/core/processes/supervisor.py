"""Ends processes and then removes their scratch folders. Only this module does that. As a program, `python
supervisor.py LOCK FILES FOLDER PARENTS COMMAND…` runs a command until it ends, or until the process that
started it dies, closes standard input or calls exec. Then it kills everything that the command has started.

Only the standard library is imported: the program starts in milliseconds, needs little memory, and so
survives whatever happens to its caller or to the command.

A scratch folder contains a lock file. Every process that may write into the folder holds the lock (flock) or
is a descendant of one that does. A held lock proves that such a process is alive. It works across containers
and hosts, where process ids have no meaning. Descendants are found by parent and session. Those whose
ancestors all died carry the folder in their environment (`TMPDIR`).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import select
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

PREFIX = "torchair-making-"
"""The start of the name of each scratch folder."""
LOCK = "lock"
KILL_SECONDS = 10.0
"""Seconds that killed processes get to die. A process that waits for a device may need more."""
GLANCE_SECONDS = 0.1
ATTEMPTS = 5
PROC = Path("/proc")
PR_SET_CHILD_SUBREAPER = 36


class Process(NamedTuple):
    """A row of the process table."""

    pid: int
    parent: int
    session: int
    is_dead: bool
    """A zombie: it writes nothing more."""


def processes() -> list[Process]:
    """Read the process table."""
    if not _has_proc():
        return list(_listed())
    rows = (_of_proc(entry) for entry in os.listdir(PROC) if entry.isdecimal())
    return [row for row in rows if row is not None]


def _has_proc() -> bool:
    """Return whether /proc uses the same process ids as this process."""
    try:
        return os.readlink(PROC / "self") == str(os.getpid())
    except OSError:
        return False


def _of_proc(pid: str) -> Process | None:
    try:
        text = (PROC / pid / "stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    # A zombie with more than one thread is a process whose first thread has ended.
    is_dead = fields[0] in "ZX" and int(fields[17]) <= 1
    return Process(int(pid), int(fields[1]), int(fields[3]), is_dead)


def _listed() -> Iterator[Process]:
    """List processes with `ps`, for systems without /proc (macOS)."""
    own, lines = _ps("-A", "-o", "pid=,ppid=,stat=")
    for line in lines:
        pid, parent, state = line.split()[:3]
        with contextlib.suppress(OSError):
            if int(pid) != own:
                yield Process(int(pid), int(parent), os.getsid(int(pid)), state.startswith("Z"))


def _ps(*options: str) -> tuple[int, list[str]]:
    with subprocess.Popen(["ps", *options], stdout=subprocess.PIPE, text=True, errors="replace") as ps:
        assert ps.stdout is not None, "stdout=PIPE was passed"
        return ps.pid, ps.stdout.read().splitlines()


def below(root: int, spare: Collection[int] = ()) -> list[Process]:
    """Return the descendants of a process and the members of its session, but not itself, spared processes or
    descendants of these.
    """
    rows = processes()
    found = {row.pid for row in rows if row.session == root}
    kept = _descendants(set(spare), rows)
    found = _descendants(found | {root}, rows) - kept - {root, os.getpid()}
    return [row for row in rows if row.pid in found]


def _descendants(pids: set[int], rows: Sequence[Process]) -> set[int]:
    """Return these processes and their descendants."""
    while more := {row.pid for row in rows if row.parent in pids} - pids:
        pids = pids | more
    return pids


def end(find: Callable[[], list[Process]]) -> bool:
    """Kill the processes that `find` returns, and reap those that are children, until it returns none. Return
    whether all of them ended.
    """
    limit = time.monotonic() + KILL_SECONDS
    while True:
        found = [row for row in find() if not row.is_dead or row.parent == os.getpid()]
        for row in found:
            with contextlib.suppress(ProcessLookupError, PermissionError, ChildProcessError):
                if row.is_dead:
                    os.waitpid(row.pid, os.WNOHANG)
                else:
                    os.kill(row.pid, signal.SIGKILL)
        if not found or time.monotonic() > limit:
            return not found
        time.sleep(0.005)


def end_below(root: int, spare: Collection[int] = ()) -> bool:
    """Kill and reap the processes that `below` finds."""
    return end(lambda: below(root, spare))


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parents die, on Linux. Elsewhere sessions find them."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def collect(parent: Path) -> None:
    """Remove the scratch folders in `parent` whose processes are dead."""
    with contextlib.suppress(OSError):
        for entry in os.listdir(parent):
            if entry.startswith(PREFIX):
                remove(parent / entry)


def remove(folder: Path) -> None:
    """End the processes that carry this scratch folder, and remove it. Do nothing while its lock is held, or
    if locks do not work.
    """
    with contextlib.suppress(OSError):
        status = os.lstat(folder)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            return
        with contextlib.suppress(FileNotFoundError):
            lock = locked(folder)
            try:
                if end(lambda: _carriers(folder)):
                    empty(folder)
            finally:
                os.close(lock)
        # Fails unless the folder is empty. Without a lock file, it is just being created, or its creator
        # died.
        os.rmdir(folder)


def locked(folder: Path, flags: int = 0) -> int:
    """Open and lock the lock file of a folder.

    Raises:
        BlockingIOError: while another process holds the lock.
        OSError: if locks do not work.
    """
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | flags, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(lock), os.stat(folder / LOCK)):
            raise BlockingIOError(errno.EWOULDBLOCK, "another process has removed the folder", str(folder))
    except OSError:
        os.close(lock)
        raise
    return lock


def empty(folder: Path) -> None:
    """Remove the content of a folder, the lock file last, so that an interrupted removal can be resumed. A
    thread of the owner may still write a file meanwhile.
    """
    for _ in range(ATTEMPTS):
        with contextlib.suppress(OSError):
            return _empty(folder)


def _empty(folder: Path) -> None:
    for entry in list(os.scandir(folder)):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        elif entry.name != LOCK:
            os.unlink(entry.path)
    os.unlink(folder / LOCK)


def _carriers(folder: Path) -> list[Process]:
    """Return the processes that have this folder, or one in it, as `TMPDIR`."""
    mark = f"/{folder.name}"
    if not _has_proc():  # macOS lists the environment after the command
        pids = {
            int(line.split()[0]) for line in _ps("-A", "-E", "-ww", "-o", "pid=,command=")[1] if mark in line
        }
    else:
        pids = {int(pid) for pid in os.listdir(PROC) if pid.isdecimal() and mark in _temporary(pid)}
    return [row for row in processes() if row.pid in pids - {os.getpid()}]


def _temporary(pid: str) -> str:
    """Return the `TMPDIR` that a process started with."""
    try:
        variables = (PROC / pid / "environ").read_bytes().split(b"\0")
    except OSError:  # another user's, or gone
        return ""
    return next((os.fsdecode(row) for row in variables if row.startswith(b"TMPDIR=")), "")


def main(lock: str, files: str, folder: str, parents: str, *command: str) -> int:
    """Run the command, clean up after the end of the command or the caller, and return the exit status of the
    command.
    """
    caller, is_asked_to_end = os.getppid(), list[int]()
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, lambda number, _: is_asked_to_end.append(number))
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # the caller may ignore it, and so would this process
    adopt_orphans()
    handed = [int(file) for file in files.split(",") if file]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[int(lock), *handed]) as process:
        for file in handed:
            os.close(file)
        leash = select.poll()
        leash.register(sys.stdin.fileno(), select.POLLIN)
        while process.poll() is None and not leash.poll(1000 * GLANCE_SECONDS):
            if os.getppid() != caller or signal.SIGTERM in is_asked_to_end:
                break
        status = process.poll()
        end_below(os.getpid())
    os.close(int(lock))
    remove(Path(folder))
    for parent in filter(None, parents.split(os.pathsep)):
        collect(Path(parent))
    return 128 + signal.SIGKILL if status is None else status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
