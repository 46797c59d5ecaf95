"""Run `python -m torchair cache`: list, check, explain and move the entries of `cache_compile`."""

from __future__ import annotations

import argparse
import io
import tarfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from torchair.backend.cache.entry import WHY, variants_of
from torchair.backend.cache.key import FILE, facts_of_process, root_of
from torchair.core.errors import BadCall, BadEntry, BadPath
from torchair.core.fingerprint.atomic_files import atomic_write
from torchair.core.fingerprint.file_permissions import OWN_FILE
from torchair.core.storage.artifact_store import (
    ArtifactStore,
    EntryInfo,
    StoredEntry,
    is_key,
    nearest,
    packed,
    unpacked,
)
from torchair.core.text_table import text_lines

NAMES = ("class", "method")
"""Key parts that are equal for entries of the same method."""
ACTS = {
    "ls": "list the entries",
    "verify": "check every byte of the entries; the exit status is 1 if one is damaged",
    "why-miss": "show how the key of an entry differs from this machine and from the nearest entry, and "
    "why each variant was compiled",
    "rm": "remove the named entries, or with --older-than or --most-bytes the least recently used ones",
    "export": "write entries into one file, for another machine of the same kind",
    "import": "add the entries of an exported file; it contains code, so import only files that you trust",
}


def declare(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to the parser."""
    parser.description = "Manages the entries of cache_compile. " + "; ".join(
        f"{name}: {text}" for name, text in ACTS.items()
    )
    parser.add_argument("act", choices=ACTS, metavar="|".join(ACTS))
    parser.add_argument("names", nargs="*", metavar="NAME", help="entries, named by prefixes of their keys")
    parser.add_argument("--dir", help="the cache directory, the cache_dir of cache_compile")
    parser.add_argument("--file", help="the file for export and import")
    parser.add_argument("--older-than", type=float, metavar="DAYS", help="rm: entries unused for this long")
    parser.add_argument("--most-bytes", type=int, metavar="BYTES", help="rm: keep at most this many bytes")


def run(given: argparse.Namespace) -> int:
    """Run the command and return the exit status."""
    store = ArtifactStore(root_of(given.dir), FILE)
    if given.act != "import" and not store.root.is_dir():
        raise BadPath(f"there is no cache directory {store.root}", next="pass another one with --dir")
    acts = {"ls": _list, "verify": _verify, "why-miss": _why_miss, "rm": _remove}
    if given.act in acts:
        return acts[given.act](store, given)
    if given.file is None:
        raise BadCall(f"cache {given.act} needs a file", next=f"run: cache {given.act} --file FILE")
    return (_export if given.act == "export" else _import)(store, given)


def _chosen(store: ArtifactStore, given: argparse.Namespace) -> list[str]:
    keys = sorted(store.keys())
    chosen = [key for key in keys if not given.names or key.startswith(tuple(given.names))]
    if given.names and not chosen:
        raise BadCall(f"there is no cache entry {', '.join(given.names)}", near=", ".join(keys[:5]))
    return chosen


def _list(store: ArtifactStore, given: argparse.Namespace) -> int:
    chosen = set(_chosen(store, given))
    rows = [
        (row.key, str(row.size), time.strftime("%Y-%m-%d %H:%M", time.localtime(row.used)), row.problem)
        for row in store.rows()
        if row.key in chosen
    ]
    print("\n".join(text_lines(("entry", "bytes", "last used", "problem"), rows)))
    return 0


def _verify(store: ArtifactStore, given: argparse.Namespace) -> int:
    chosen = set(_chosen(store, given))
    rows = [row for row in store.rows() if row.key in chosen]
    bad = [row for row in rows if row.problem]
    for row in bad:
        print(f"{row.key}: {row.problem}")
    print(f"{len(rows) - len(bad)} of {len(rows)} entries are intact")
    return int(bool(bad))


def _why_miss(store: ArtifactStore, given: argparse.Namespace) -> int:
    """Print how entries differ from this machine and from the nearest entry, and why each was compiled."""
    chosen, now = set(_chosen(store, given)), facts_of_process()
    is_same, rows = True, store.rows()
    for row in rows:
        if row.key not in chosen:
            continue
        differs = [
            f"{name} was {row.facts.get(name)} and is {text}"
            for name, text in now.items()
            if row.facts.get(name) != text
        ]
        is_same &= not differs and not row.problem
        print(f"{row.key}: {row.problem or '; '.join(differs) or 'matches this machine'}")
        if not row.problem:
            print("\n".join(f"  {line}" for line in _history(store, row, rows)))
    return int(not is_same)


def _history(store: ArtifactStore, row: EntryInfo, rows: Sequence[EntryInfo]) -> Iterator[str]:
    alike = [each for each in rows if each is not row and not each.problem]
    alike = [each for each in alike if all(each.facts.get(name) == row.facts.get(name) for name in NAMES)]
    miss = nearest(alike, row.facts)
    if miss.nearest:
        yield str(miss)
    entry = store.read(row.key)
    for number, files in enumerate([] if entry is None else variants_of(entry.files)):
        yield f"variant {number} was compiled because: {files[WHY].decode()}"


def _remove(store: ArtifactStore, given: argparse.Namespace) -> int:
    limits = [limit for limit in (given.older_than, given.most_bytes) if limit is not None]
    if limits and given.names:
        raise BadCall(
            "cache rm got both names and limits", next="pass names, or --older-than and --most-bytes"
        )
    if not all(limit >= 0 for limit in limits):
        raise BadCall("a limit of cache rm must not be negative", got=", ".join(map(str, limits)))
    if limits:
        seconds = None if given.older_than is None else given.older_than * 24 * 3600
        removed = store.prune(given.most_bytes, seconds)
    elif given.names:
        removed = [key for key in _chosen(store, given) if store.remove(key)]
    else:
        raise BadCall(
            "cache rm got nothing to remove", next="pass names of entries, --older-than or --most-bytes"
        )
    print("\n".join(f"removed {key}" for key in removed) or "no entries removed")
    return 0


def _export(store: ArtifactStore, given: argparse.Namespace) -> int:
    entries = [entry for key in _chosen(store, given) if (entry := store.read(key)) is not None]
    try:
        with atomic_write(Path(given.file), OWN_FILE) as out, tarfile.open(fileobj=out, mode="w") as tar:
            for entry in entries:
                data = packed(entry.files, entry.facts)
                info = tarfile.TarInfo(entry.key)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    except OSError as error:
        raise BadPath(
            f"cannot write {given.file}: {error.strerror}", next="name another file with --file"
        ) from error
    print(f"exported {len(entries)} entries to {given.file}")
    return 0


def _import(store: ArtifactStore, given: argparse.Namespace) -> int:
    if not Path(given.file).is_file():
        raise BadPath(f"there is no file {given.file}", next="pass the file of cache export with --file")
    try:
        with tarfile.open(given.file, mode="r:") as tar:
            entries = [_entry(tar, info) for info in tar]
    except (tarfile.TarError, OSError) as error:
        raise BadEntry(
            f"{given.file} is not a file of cache entries: {error}", next="write one with cache export"
        ) from error
    keys = [entry.key for entry in entries]
    if len(set(keys)) < len(keys):
        twice = next(key for key in keys if keys.count(key) > 1)
        raise BadEntry(f"{given.file} has the entry {twice} twice", next="export the entries again")
    # Check all entries before adding the first one.
    for entry in entries:
        store.put(entry.key, entry.files, entry.facts)
    print(f"imported {len(entries)} entries into {store.root}")
    return 0


def _entry(tar: tarfile.TarFile, info: tarfile.TarInfo) -> StoredEntry:
    # Reject links, which may point anywhere, and sparse files, which can fill the memory.
    file = tar.extractfile(info) if info.isreg() and not info.issparse() else None
    if file is None or not is_key(info.name):
        raise BadEntry(f"{info.name!r} is not a cache entry", next="export the entries again")
    return unpacked(file.read(), info.name, info.name)
