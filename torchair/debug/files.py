"""Files and folders for debugging: never through a link, closed to strangers, within the limits of file
systems.
"""

from __future__ import annotations

import os
from pathlib import Path

from torchair.core.errors import NotPossible

FOLDER_MODE = 0o750
FILE_MODE = 0o640
PRIVATE_MODE = 0o600  # for code that somebody may run
LONGEST_PATH = 4096
LONGEST_NAME = 255


def make_folder(root: Path, *below: str) -> Path:
    """`root/below…`, made where it is missing. `root` and what is below it must not be links."""
    folder = _checked(root)
    folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    for name in below:
        folder = _checked(folder / name)
        folder.mkdir(mode=FOLDER_MODE, exist_ok=True)
    return folder


def next_folder(parent: Path, stem: str) -> Path:
    """`<stem>__<n>` with the first number that is free. Others may look for theirs at the same time."""
    number = 0
    while True:
        folder = _checked(parent / f"{stem}__{number}")
        try:
            folder.mkdir(mode=FOLDER_MODE)
        except FileExistsError:
            number += 1
        else:
            return folder


def open_file(path: Path, mode: int = FILE_MODE, *, append: bool = False) -> int:
    """A descriptor to write with; the file is new, emptied, or continued."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | (os.O_APPEND if append else os.O_TRUNC)
    return os.open(_checked(path), flags, mode)


def write_text(path: Path, text: str, mode: int = FILE_MODE) -> None:
    """The text as a file."""
    with os.fdopen(open_file(path, mode), "w", encoding="utf-8") as file:
        file.write(text)


def _checked(path: Path) -> Path:
    whole = path.absolute()
    if len(os.fsencode(whole)) > LONGEST_PATH or len(os.fsencode(whole.name)) > LONGEST_NAME:
        raise NotPossible(f"the path of a debug file is too long: {whole}", next="debug in another directory")
    if whole.is_symlink():
        raise NotPossible(
            f"{whole} is a symbolic link: nothing is written through it", next="remove the link"
        )
    return path
