"""Files that are whole or not there at all: never through a link, closed to strangers, within the limits of
file systems. Several of them appear together.
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
PRIVATE_MODE = 0o600  # for code that somebody may run
LONGEST_PATH = 4096
LONGEST_NAME = 255
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW


@dataclass
class FileTransaction:
    """Files under other names beside their own, which they get at the end."""

    parts: dict[Path, Path] = field(default_factory=dict)

    @contextmanager
    def file(self, path: Path, mode: int = FILE_MODE) -> Iterator[IO[bytes]]:
        """One more file, to write bytes into."""
        part = checked(path).parent / f".{uuid.uuid4().hex}.part"
        self.parts[path] = part
        with os.fdopen(os.open(part, _NEW, mode), "wb") as file:
            yield file


@contextmanager
def file_transaction() -> Iterator[FileTransaction]:
    """All of the files that are written here get their names, or none: an interrupt leaves what was there."""
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
    """A file to write bytes into, which has its name only once all of them are written."""
    with file_transaction() as files, files.file(path, mode) as file:
        yield file


def make_parents(folder: Path) -> None:
    """The folder and those above it, where they are missing; each of them closed."""
    missing = [each for each in (folder, *folder.absolute().parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(mode=FOLDER_MODE, exist_ok=True)


def below(root: str, name: str) -> Path:
    """Return the path of a file below a folder. A name from a file that leads elsewhere is refused."""
    parts = name.replace("\\", "/").split("/")
    if not name or "\0" in name or Path(name).is_absolute() or {"", ".", ".."} & set(parts):
        raise NotPossible(
            f"a file with code names a place outside its folder: {name!r}", next="make it again"
        )
    return Path(root, name)


def checked(path: Path) -> Path:
    """The path, which is no link and not too long."""
    whole = path.absolute()
    if len(os.fsencode(whole)) > LONGEST_PATH or len(os.fsencode(whole.name)) > LONGEST_NAME:
        raise NotPossible(f"the path of a file is too long: {whole}", next="write below a shorter one")
    if whole.is_symlink():
        raise NotPossible(
            f"{whole} is a symbolic link: nothing is written through it", next="remove the link"
        )
    return path
