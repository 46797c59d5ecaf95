"""Check that files executed as code can only have been written by the current user. Such files are opened
through directories that belong to the user and that no other user can write.

Each directory is opened and checked by its handle, and the next name is looked up in that handle. So the
checked file is the one that is read, even if a directory is renamed meanwhile.
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
_CURE = "use another directory, or remove the permissions of others: chmod go-w"


def check_folder(status: os.stat_result, path: Path, *, is_root: bool) -> None:
    """Raise `NotTrusted` unless the directory belongs to the user. Others may read a root, but nothing below
    it.
    """
    if status.st_uid != os.getuid():
        raise NotTrusted(
            f"{path} belongs to another user, and its files are executed as code",
            got=f"owner {status.st_uid}, your user id is {os.getuid()}",
            next="use a directory of your own",
        )
    mode = stat.S_IMODE(status.st_mode)
    if mode & OTHERS_WRITE:
        what = f"other users can write to {path}, and its files are executed as code"
        raise NotTrusted(what, got=f"mode {mode:04o}", next=_CURE)
    if not is_root and mode != OWN_FOLDER:
        raise NotTrusted(
            f"{path} must be accessible to you only",
            got=f"mode {mode:04o}",
            next=f"chmod 700 {path}, or remove the directory",
        )


def check_file(status: os.stat_result, path: Path) -> None:
    """Raise `NotTrusted` unless it is a regular file of the user that others cannot read or write."""
    mode = stat.S_IMODE(status.st_mode)
    if not stat.S_ISREG(status.st_mode):
        raise NotTrusted(f"{path} is not a regular file", next="remove it")
    if status.st_uid != os.getuid():
        raise NotTrusted(
            f"{path} belongs to another user, and files here are executed as code", next="remove it"
        )
    if mode != OWN_FILE:
        raise NotTrusted(
            f"{path} must be readable and writable by you only",
            got=f"mode {mode:04o}",
            next=f"chmod 600 {path} if you trust its content, else remove it",
        )


@contextmanager
def own_folder(root: Path, parts: Sequence[str] = (), *, make: bool = False) -> Iterator[int]:
    """Yield the handle of the directory `root/parts[0]/…`. All of them must belong to the user.

    Raises:
        FileNotFoundError: if one is missing and `make` is False.
        NotTrusted: if another user owns or can write one of them.
    """
    if make:
        root.mkdir(mode=OWN_FOLDER, parents=True, exist_ok=True)
    try:
        handle = os.open(root, _FOLDER)
    except NotADirectoryError as error:
        raise NotTrusted(f"{root} is not a directory") from error
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
        raise NotTrusted(f"{path} is not a directory", next="remove it") from error
    try:
        check_folder(os.fstat(below), path, is_root=False)
    except BaseException:
        os.close(below)
        raise
    # The caller closes the returned handle, so the one above is closed here.
    os.dup2(below, handle, inheritable=False)
    os.close(below)
    return handle


def read_own(handle: int, name: str, path: Path) -> bytes:
    """Return the content of a file in a checked directory."""
    try:
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=handle)
    except OSError as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise NotTrusted(f"{path} is not a regular file, or cannot be read: {error.strerror}") from error
    try:
        check_file(os.fstat(file), path)  # first: `fdopen` raises for a directory
        with os.fdopen(file, "rb", closefd=False) as opened:
            return opened.read()
    finally:
        os.close(file)
