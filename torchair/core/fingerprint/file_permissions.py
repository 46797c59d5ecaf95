"""Who else could have written this? Files that are run as code are opened through directories that belong to
the user and that nobody else can write.

Each directory is opened and asked by its handle, and the next name is looked up in that handle: what was
checked is what is read, whatever is renamed meanwhile.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from torchair.core.errors import NotTrusted

OWN_FOLDER = 0o700
OWN_FILE = 0o600
OTHERS_WRITE = 0o022
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_CURE = "name a directory of your own, or close this one: chmod go-w"


def check_folder(status: os.stat_result, path: Path, *, is_root: bool) -> None:
    """`NotTrusted` unless the directory is the user's: a root may be read by others, what is below it not."""
    if status.st_uid != os.getuid():
        raise NotTrusted(
            f"{path} belongs to another user, and what lies there would run as code",
            got=f"user {status.st_uid}, and you are {os.getuid()}",
            next="name a directory of your own",
        )
    mode = stat.S_IMODE(status.st_mode)
    if mode & OTHERS_WRITE:
        what = f"others can write {path}, and what lies there would run as code"
        raise NotTrusted(what, got=f"mode {mode:04o}", next=_CURE)
    if not is_root and mode != OWN_FOLDER:
        raise NotTrusted(
            f"{path} is open to others", got=f"mode {mode:04o}", next=f"chmod 700 {path}, or remove it"
        )


def check_file(status: os.stat_result, path: Path) -> None:
    """`NotTrusted` unless it is a plain file of the user's that is closed to others."""
    mode = stat.S_IMODE(status.st_mode)
    if not stat.S_ISREG(status.st_mode):
        raise NotTrusted(f"{path} is no plain file")
    if status.st_uid != os.getuid():
        raise NotTrusted(f"{path} belongs to another user", next="remove it")
    if mode != OWN_FILE:
        raise NotTrusted(
            f"{path} must be readable and writable by you alone",
            got=f"mode {mode:04o}",
            next=f"chmod 600 {path}, if you know who wrote it",
        )


@contextmanager
def own_folder(root: Path, parts: Sequence[str] = (), *, make: bool = False) -> Iterator[int]:
    """The handle of the directory `root/parts[0]/…`, each of which is the user's own. `FileNotFoundError`
    where one is missing and is not to be made.
    """
    if make:
        root.mkdir(mode=OWN_FOLDER, parents=True, exist_ok=True)
    try:
        handle = os.open(root, _FOLDER)
    except NotADirectoryError as error:
        raise NotTrusted(f"{root} is no directory") from error
    try:
        check_folder(os.fstat(handle), root, is_root=True)
        path = root
        for part in parts:
            path = path / part
            handle = _step(handle, part, path, make)
        yield handle
    finally:
        os.close(handle)


def _step(handle: int, part: str, path: Path, make: bool) -> int:
    if make:
        with suppress(FileExistsError):
            os.mkdir(part, OWN_FOLDER, dir_fd=handle)
    try:
        below = os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=handle)
    except NotADirectoryError as error:
        raise NotTrusted(f"{path} is no directory, or a link to one", next="remove it") from error
    try:
        check_folder(os.fstat(below), path, is_root=False)
    except BaseException:
        os.close(below)
        raise
    # The caller closes what it gets, so the one above is let go of here.
    os.dup2(below, handle, inheritable=False)
    os.close(below)
    return handle


def read_own(handle: int, name: str, path: Path) -> bytes:
    """The content of a file in a directory that was checked."""
    try:
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=handle)
    except OSError as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise NotTrusted(f"{path} is no plain file that can be read: {error.strerror}") from error
    try:
        check_file(os.fstat(file), path)  # first: `fdopen` raises for a directory
        with os.fdopen(file, "rb", closefd=False) as opened:
            return opened.read()
    finally:
        os.close(file)
