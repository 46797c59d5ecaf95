"""A directory of artifacts that outlive the process: entries by key, one file per entry.

An entry is complete or absent: it is written under a temporary name and renamed. It begins with a digest and
a manifest with the digests of everything that follows, so every changed byte is noticed. Readers get checked
bytes from a file that belongs to the user, in directories that no other user can write
(`core/fingerprint/file_permissions.py`). There are no locks: of two processes that write one entry at the
same time, the last one wins.

Besides its files an entry contains the parts of its key as text. `why_miss` compares them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import socket
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchair.core.diagnostics import Diagnostics
from torchair.core.errors import AirError, BadEntry, first_line
from torchair.core.fingerprint.file_permissions import OWN_FILE, own_folder, read_own

MAGIC = b"torchair entry 1\n"
_DIGEST = hashlib.sha256().digest_size
_LENGTH = 8
_PART = re.compile(r"\w[\w.+-]{0,200}")
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_TRIES = 20
LONG = 60
"""Number of characters of a fact that messages show."""
STALE_SECONDS = 24 * 3600.0
"""Age in seconds after which unfinished files of other machines are removed."""


@dataclass(frozen=True)
class StoredEntry:
    """The content of one entry."""

    key: str
    files: Mapping[str, bytes]
    facts: Mapping[str, str]
    made: float
    """Seconds since 1970."""


@dataclass(frozen=True)
class EntryInfo:
    """One row of a listing."""

    key: str
    size: int
    used: float
    """Time of the last write or read, in seconds since 1970."""
    facts: Mapping[str, str] = field(default_factory=dict[str, str])
    problem: str = ""
    """Why the entry cannot be used; empty if it can."""


@dataclass(frozen=True)
class Miss:
    """A cache miss: the most similar entry, and the differing facts (stored, current)."""

    nearest: str = ""
    differs: Mapping[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])

    def __str__(self) -> str:
        if not self.nearest:
            return "there is no similar cache entry"
        if not self.differs:
            return f"{self.nearest} has the same key facts"
        changes = [
            f"{name} was {_short(old, new)} and is {_short(new, old)}"
            for name, (old, new) in self.differs.items()
        ]
        return f"differs from {self.nearest}: {'; '.join(changes)}"


@dataclass(frozen=True)
class ArtifactStore:
    """The entries below one directory. A key is a path of plain names: `Model_static_1f…/forward`."""

    root: Path
    file: str = "entry"
    """Name of the file of each entry."""

    def path(self, key: str) -> Path:
        """Return the path of an entry's file, whether it exists or not."""
        return self.root.joinpath(*_parts(key), self.file)

    def get(self, key: str) -> dict[str, bytes] | None:
        """Return the files of an entry, or None if it does not exist or is damaged. Warn in the latter case.

        Raises:
            NotTrusted: if another user may have written it.
        """
        try:
            entry = self.read(key)
        except BadEntry as error:
            Diagnostics().add(f"{error.what}; it is compiled again")
            return None
        return None if entry is None else dict(entry.files)

    def read(self, key: str) -> StoredEntry | None:
        """Return an entry with its facts, or None if it does not exist.

        Raises:
            BadEntry: if it is damaged.
            NotTrusted: if another user may have written it.
        """
        try:
            with own_folder(self.root, _parts(key)) as folder:
                data = read_own(folder, self.file, self.path(key))
                with contextlib.suppress(OSError):
                    os.utime(self.file, dir_fd=folder)  # mark as used, for `prune`
        except FileNotFoundError:
            return None
        return unpacked(data, key, str(self.path(key)))

    def put(self, key: str, files: Mapping[str, bytes], facts: Mapping[str, str]) -> Path:
        """Write these files as an entry. An existing entry is replaced."""
        data = packed(files, facts)
        for left in reversed(range(_TRIES)):
            try:
                with own_folder(self.root, _parts(key), make=True) as folder:
                    self._drop_unfinished(folder)
                    self._write(folder, data)
                return self.path(key)
            except FileNotFoundError:
                # Another process has removed the directory meanwhile.
                if not left:
                    raise
        raise AssertionError("the last try returns or raises")

    def _write(self, folder: int, data: bytes) -> None:
        part = f".{_machine()}.{os.getpid()}.{uuid.uuid4().hex}.part"
        try:
            with os.fdopen(os.open(part, _NEW, OWN_FILE, dir_fd=folder), "wb") as out:
                os.fchmod(out.fileno(), OWN_FILE)
                out.write(data)
            os.replace(part, self.file, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(part, dir_fd=folder)
            raise

    @staticmethod
    def _drop_unfinished(folder: int) -> None:
        """Remove unfinished files of processes that ended while they wrote."""
        for name in os.listdir(folder):
            with contextlib.suppress(OSError):
                if name.endswith(".part") and _is_left_behind(name, os.stat(name, dir_fd=folder).st_mtime):
                    os.unlink(name, dir_fd=folder)

    def remove(self, key: str) -> bool:
        """Remove an entry and the directories that are empty afterwards. Return whether it existed."""
        path = self.path(key)
        try:
            with own_folder(self.root, _parts(key)) as folder:
                self._drop_unfinished(folder)
                os.unlink(self.file, dir_fd=folder)
        except FileNotFoundError:
            return False
        for each in path.parents:
            if each == self.root:
                break
            with contextlib.suppress(OSError):
                each.rmdir()
        return True

    def keys(self) -> Iterator[str]:
        """Yield the keys of all entries."""
        for folder, _, names in os.walk(self.root):
            if self.file in names:
                key = Path(folder).relative_to(self.root).as_posix()
                if key != "." and is_key(key):
                    yield key

    def rows(self) -> list[EntryInfo]:
        """Return all entries, completely verified, the most recently used first."""
        found = [row for key in self.keys() if (row := self._row(key)) is not None]
        return sorted(found, key=lambda row: -row.used)

    def _row(self, key: str) -> EntryInfo | None:
        path = self.path(key)
        try:
            status = path.lstat()
        except OSError:
            return None
        try:
            with own_folder(self.root, _parts(key)) as folder:
                entry = unpacked(read_own(folder, self.file, path), key, str(path))
            return EntryInfo(key, status.st_size, status.st_mtime, entry.facts)
        except AirError as error:
            return EntryInfo(key, status.st_size, status.st_mtime, problem=error.what)
        except FileNotFoundError:
            return None

    def why_miss(self, facts: Mapping[str, str], near: str = "") -> Miss:
        """Return the most similar entry and the facts that differ. Entries whose keys start with `near` are
        preferred.
        """
        rows = [row for row in self.rows() if not row.problem]
        rows = [row for row in rows if row.key.startswith(near)] or rows
        return nearest(rows, facts)

    def prune(self, most_bytes: int | None = None, older_than: float | None = None) -> list[str]:
        """Remove entries not used for `older_than` seconds, then the least recently used ones until at most
        `most_bytes` remain. Return their keys.
        """
        rows, now, dropped = self.rows(), time.time(), list[str]()
        total = sum(row.size for row in rows)
        for row in reversed(rows):
            is_old = older_than is not None and now - row.used > older_than
            if is_old or (most_bytes is not None and total > most_bytes):
                total -= row.size
                self.remove(row.key)
                dropped.append(row.key)
        return dropped


def nearest(rows: Sequence[EntryInfo], facts: Mapping[str, str]) -> Miss:
    """Return the entry that shares most of these facts, and the facts that differ."""
    if not rows:
        return Miss()
    best = max(rows, key=lambda row: sum(row.facts.get(name) == text for name, text in facts.items()))
    names = sorted({*facts, *best.facts})
    pairs = {name: (best.facts.get(name, ""), facts.get(name, "")) for name in names}
    return Miss(best.key, {name: pair for name, pair in pairs.items() if pair[0] != pair[1]})


def packed(files: Mapping[str, bytes], facts: Mapping[str, str]) -> bytes:
    """Return an entry as bytes."""
    table = [[name, len(data), hashlib.sha256(data).hexdigest()] for name, data in files.items()]
    manifest = json.dumps({"made": time.time(), "facts": dict(facts), "files": table}).encode()
    head = MAGIC + hashlib.sha256(manifest).digest() + len(manifest).to_bytes(_LENGTH, "big")
    return b"".join([head, manifest, *files.values()])


def unpacked(data: bytes, key: str, where: str) -> StoredEntry:
    """Return the entry that `packed` wrote.

    Raises:
        BadEntry: if any byte differs.
    """
    manifest, rest = _manifest(data, where)
    files: dict[str, bytes] = {}
    for name, size, digest in manifest["files"]:
        content, rest = bytes(rest[:size]), rest[size:]
        if hashlib.sha256(content).hexdigest() != digest:
            raise BadEntry(f"{where} is damaged: the content of {name} does not match its manifest")
        files[name] = content
    if rest:
        raise BadEntry(f"{where} is damaged: it contains more data than its manifest lists")
    return StoredEntry(key, files, manifest["facts"], manifest["made"])


def _manifest(data: bytes, where: str) -> tuple[dict[str, Any], memoryview]:
    if not data.startswith(MAGIC):
        raise BadEntry(f"{where} is not a cache entry of this version", near=MAGIC.decode().strip())
    view = memoryview(data)[len(MAGIC) :]
    digest, size, rest = view[:_DIGEST], view[_DIGEST : _DIGEST + _LENGTH], view[_DIGEST + _LENGTH :]
    end = int.from_bytes(size, "big")
    if hashlib.sha256(rest[:end]).digest() != digest or len(size) != _LENGTH:
        raise BadEntry(f"{where} is damaged: checksum mismatch of its manifest")
    return _read_manifest(bytes(rest[:end]), where), rest[end:]


def _read_manifest(text: bytes, where: str) -> dict[str, Any]:
    """Return the manifest if it has the fields of this version: another program may have written it."""
    try:
        manifest = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadEntry(f"{where} is damaged: its manifest is not valid JSON: {first_line(error)}") from error
    match manifest:
        case {"made": int() | float(), "facts": dict() as facts, "files": list() as files}:
            names = [row[0] for row in files if _is_file_row(row)]
            has_files = len(files) == len(names) == len(set(names))
            if has_files and all(isinstance(text, str) for text in facts.values()):
                return manifest
        case _:
            pass
    raise BadEntry(
        f"{where} is not an entry of this version: its manifest needs the time, facts by name, "
        "and a row of name, size and digest for each file"
    )


def _is_file_row(row: Any) -> bool:
    match row:
        case [str(), int(size), str()]:
            return size >= 0
        case _:
            return False


def is_key(text: str) -> bool:
    """Return whether the text is a path of plain names."""
    return all(map(_PART.fullmatch, text.split("/")))


def _parts(key: str) -> list[str]:
    assert is_key(key), f"a key must be a path of plain names, got {key!r}"
    return key.split("/")


def _machine() -> str:
    return re.sub(r"[^\w-]", "_", socket.gethostname())[:60] or "machine"


def _is_left_behind(name: str, written: float) -> bool:
    """Return whether the process that wrote this file has ended."""
    match name.split("."):
        case ["", machine, process, _, "part"] if machine == _machine() and process.isdigit():
            return not _is_alive(int(process))
        case _:
            return time.time() - written > STALE_SECONDS


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True


def _short(text: str, other: str) -> str:
    """Return the items of a long list that the other list does not have."""
    if len(text) > LONG and "," in text:
        others = set(other.split(","))
        text = ",".join(part for part in text.split(",") if part not in others)
    return repr(text) if len(text) <= LONG else f"{text[:LONG]!r}…"
