"""Write files atomically: without following links, with restricted permissions, and within the limits of file
systems. Several files can appear together.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from torchair.core.errors import NotPossible

FOLDER_MODE = 0o750
FILE_MODE = 0o640
PRIVATE_MODE = 0o600  # for files that are executed as code
LONGEST_PATH = 4096
LONGEST_NAME = 255
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW


@dataclass
class FileTransaction:
    """Files with temporary names in their own directory. They are renamed together at the end."""

    parts: dict[Path, Path] = field(default_factory=dict)

    @contextmanager
    def file(self, path: Path, mode: int = FILE_MODE) -> Iterator[IO[bytes]]:
        """Open one more file to write bytes into."""
        part = checked(path).parent / f".{uuid.uuid4().hex}.part"
        self.parts[path] = part
        with os.fdopen(os.open(part, _NEW, mode), "wb") as file:
            yield file


@contextmanager
def file_transaction() -> Iterator[FileTransaction]:
    """Rename all files written in this context at its end, or none: an error leaves the old files as they
    were.
    """
    made = FileTransaction()
    try:
        yield made
        for path, part in made.parts.items():
            os.replace(part, path)
    except BaseException:
        for part in made.parts.values():
            part.unlink(missing_ok=True)
        raise


@contextmanager
def atomic_write(path: Path, mode: int = FILE_MODE) -> Iterator[IO[bytes]]:
    """Open a file to write bytes into. It gets its name only when all bytes are written."""
    with file_transaction() as files, files.file(path, mode) as file:
        yield file


def make_parents(folder: Path) -> None:
    """Create the missing parent directories of a folder and the folder, with restricted permissions."""
    missing = [each for each in (folder, *folder.absolute().parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(mode=FOLDER_MODE, exist_ok=True)


def below(root: str, name: str) -> Path:
    """Return the path of a file below a folder. Raise if the name leads elsewhere."""
    parts = name.replace("\\", "/").split("/")
    if not name or "\0" in name or Path(name).is_absolute() or {"", ".", ".."} & set(parts):
        raise NotPossible(
            f"the file name {name!r} leads outside its folder",
            next="create the file that contains this name again",
        )
    return Path(root, name)


def checked(path: Path) -> Path:
    """Return the path. Raise if it is a symbolic link or too long."""
    whole = path.absolute()
    if len(os.fsencode(whole)) > LONGEST_PATH or len(os.fsencode(whole.name)) > LONGEST_NAME:
        raise NotPossible(f"the path is too long: {whole}", next="write to a folder with a shorter path")
    if whole.is_symlink():
        raise NotPossible(
            f"{whole} is a symbolic link, and files are not written through links", next="remove the link"
        )
    return path
