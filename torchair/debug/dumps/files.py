"""Write debug files and directories; if a file cannot be written, torchair warns and continues."""

from __future__ import annotations

import os
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from torchair.core.diagnostics import Diagnostics
from torchair.core.errors import first_line, is_of_user
from torchair.core.fingerprint.atomic_files import FILE_MODE, FOLDER_MODE, atomic_write, checked, make_parents


def rank_and_size() -> tuple[int, int]:
    """Return the rank of this process and the number of processes; 0 and 1 without a process group."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return 0, 1
    return torch.distributed.get_rank(), torch.distributed.get_world_size()


def rank_folder(root: str) -> Path:
    """Return `<root>/worldsize<W>_global_rank<R>` of this process."""
    rank, size = rank_and_size()
    return Path(root) / f"worldsize{size}_global_rank{rank}"


def stamped(stem: str, ending: str) -> str:
    """Return `<stem>_rank_<rank>_pid_<pid>_ts_<UTC time with microseconds>.<ending>`."""
    return f"{stem}_rank_{rank_and_size()[0]}_pid_{os.getpid()}_ts_{now()}.{ending}"


def now() -> str:
    """Return the time in UTC, `YYYYmmddHHMMSS` and six digits of microseconds."""
    return datetime.now(timezone.utc).strftime("%Y%m%d%H%M%S%f")


def make_folder(root: Path, *below: str) -> Path:
    """Create and return `root/below…`. `root` and the directories below it must not be symbolic links."""
    folder = checked(root)
    make_parents(folder)
    for name in below:
        folder = checked(folder / name)
        folder.mkdir(mode=FOLDER_MODE, exist_ok=True)
    return folder


def next_folder(parent: Path, stem: str) -> Path:
    """Create `<stem>__<n>` with the first free number. Other processes may create theirs at the same time."""
    number = 0
    while True:
        folder = checked(parent / f"{stem}__{number}")
        try:
            folder.mkdir(mode=FOLDER_MODE)
        except FileExistsError:
            number += 1
        else:
            return folder


def open_log(path: Path) -> int:
    """Return a descriptor for appending lines."""
    return os.open(checked(path), os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_APPEND, FILE_MODE)


def write_text(path: Path, text: str, mode: int = FILE_MODE) -> None:
    """Write the text to a file."""
    with atomic_write(path, mode) as file:
        file.write(text.encode("utf-8", errors="backslashreplace"))


class WarnOnWriteError:
    """Turn errors of writing files into warnings. User errors stay errors."""

    def __init__(self, degradations: Diagnostics, what: str = "a debug file") -> None:
        self._degradations = degradations
        self._what = what

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        if not isinstance(error, Exception) or is_of_user(error):
            return False
        why = f"{type(error).__name__}: {first_line(error)}"
        self._degradations.add(f"cannot write {self._what}: {why}")
        return True
