"""What is kept comes back byte by byte or not at all, and never from somebody else."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.process import python
from torchair.core.errors import BadEntry, Degraded, DegradedWarning, NotTrusted
from torchair.core.storage import artifact_store as stores
from torchair.core.storage.artifact_store import MAGIC, ArtifactStore

FILES = {"program": b"\0code\n" * 50, "empty": b"", "guards": b"x > 1"}
FACTS = {"torch": "2.13", "device": "cpu", "options": "a=1"}
KEY = "Model_static_0f/forward"


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path / "kept", "compiled_module")


def test_what_is_kept_comes_back(store: ArtifactStore) -> None:
    assert store.get(KEY) is None
    path = store.put(KEY, FILES, FACTS)
    assert store.get(KEY) == FILES
    entry = store.read(KEY)
    assert entry is not None
    assert entry.facts == FACTS
    assert path == store.root / KEY / "compiled_module"
    assert path.stat().st_mode & 0o7777 == 0o600
    assert {each.stat().st_mode & 0o7777 for each in (path.parent, path.parent.parent, store.root)} == {0o700}
    store.put(KEY, {"program": b"new"}, {})
    assert store.get(KEY) == {"program": b"new"}
    assert os.listdir(path.parent) == ["compiled_module"]


def test_every_flipped_byte_is_noticed(store: ArtifactStore) -> None:
    path = store.put(KEY, FILES, FACTS)
    data = path.read_bytes()
    for place in range(len(data)):
        path.write_bytes(data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :])
        with pytest.raises(BadEntry):
            store.read(KEY)
    for damaged in (b"", MAGIC, data[:-1], data + b"\0", data[: len(data) // 2]):
        path.write_bytes(damaged)
        with pytest.raises(BadEntry):
            store.read(KEY)
    path.write_bytes(data)
    assert store.get(KEY) == FILES


def test_damaged_entry_warns_and_next_write_fixes_it(
    store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = store.put(KEY, FILES, FACTS)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.warns(DegradedWarning, match="damaged.*made again"):
        assert store.get(KEY) is None
    monkeypatch.setenv("TORCHAIR_STRICT", "1")
    with pytest.raises(Degraded, match="damaged"):
        store.get(KEY)
    store.put(KEY, FILES, FACTS)
    assert store.get(KEY) == FILES


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777, 0o1777])
def test_a_root_that_others_can_write_is_refused(store: ArtifactStore, mode: int) -> None:
    store.put(KEY, FILES, FACTS)
    store.root.chmod(mode)
    with pytest.raises(NotTrusted, match="others can write"):
        store.get(KEY)
    with pytest.raises(NotTrusted, match="others can write"):
        store.put(KEY, FILES, FACTS)


def test_a_root_that_others_can_read_is_fine(store: ArtifactStore) -> None:
    store.root.mkdir()
    store.root.chmod(0o755)
    store.put(KEY, FILES, FACTS)
    assert store.get(KEY) == FILES


@pytest.mark.parametrize("depth", [1, 2])
def test_folders_below_are_closed(store: ArtifactStore, depth: int) -> None:
    path = store.put(KEY, FILES, FACTS)
    path.parents[2 - depth].chmod(0o755)
    with pytest.raises(NotTrusted, match="open to others"):
        store.get(KEY)


@pytest.mark.parametrize("mode", [0o644, 0o660, 0o400, 0o700])
def test_files_have_the_one_mode(store: ArtifactStore, mode: int) -> None:
    store.put(KEY, FILES, FACTS).chmod(mode)
    with pytest.raises(NotTrusted, match="by you alone"):
        store.get(KEY)


def test_what_another_user_has_written_is_refused(
    store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put(KEY, FILES, FACTS)
    own = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: own + 1)
    for error in (PermissionError, ValueError):
        with pytest.raises(error, match="belongs to another user"):
            store.get(KEY)


def test_links_are_not_followed(store: ArtifactStore, tmp_path: Path) -> None:
    path = store.put(KEY, FILES, FACTS)
    elsewhere = tmp_path / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    with pytest.raises(NotTrusted, match="no plain file"):
        store.get(KEY)
    path.unlink()
    os.mkfifo(path, 0o600)
    with pytest.raises(NotTrusted, match="no plain file"):
        store.get(KEY)
    path.unlink()
    path.parent.rmdir()
    (tmp_path / "folder").mkdir(mode=0o700)
    path.parent.symlink_to(tmp_path / "folder")
    with pytest.raises(NotTrusted, match="link"):
        store.get(KEY)
    with pytest.raises(NotTrusted, match="link"):
        store.put(KEY, FILES, FACTS)


@pytest.mark.parametrize("key", ["", "..", "a/../b", "/a", "a//b", ".hidden", "a/b\n", "a b", "x" * 300])
def test_keys_stay_below_the_root(store: ArtifactStore, key: str) -> None:
    for act in (store.get, store.remove, store.path):
        with pytest.raises(AssertionError, match="plain names"):
            act(key)


WHOLE = {"made": 1.0, "facts": {}, "files": []}
EMPTY = hashlib.sha256(b"").hexdigest()
OTHER_MANIFESTS = {
    "no JSON": b"{",
    "no text": b"\xff\xfe",
    "nested": b"[" * 100_000,
    "a list": [],
    "nothing": {},
    "no files": {"made": 1.0, "facts": {}},
    "no facts": {"made": 1.0, "files": []},
    "no time": {"facts": {}, "files": []},
    "facts in a list": WHOLE | {"facts": [["torch", "2.13"]]},
    "a fact that is a number": WHOLE | {"facts": {"torch": 2.13}},
    "files by name": WHOLE | {"files": {"program": 0}},
    "no digest": WHOLE | {"files": [["program", 0]]},
    "more than a digest": WHOLE | {"files": [["program", 0, EMPTY, "zip"]]},
    "a size as text": WHOLE | {"files": [["program", "0", EMPTY]]},
    "a size below 0": WHOLE | {"files": [["program", -1, EMPTY]]},
    "a name that is a number": WHOLE | {"files": [[1, 0, EMPTY]]},
    "a digest of another kind": WHOLE | {"files": [["program", 0, "md5:0"]]},
    "two files of one name": WHOLE | {"files": [["program", 0, EMPTY], ["program", 0, EMPTY]]},
}  # fmt: skip


def entry_of(manifest: Any) -> bytes:
    """Return an entry with this manifest and the right digest of it."""
    text = manifest if isinstance(manifest, bytes) else json.dumps(manifest).encode()
    return MAGIC + hashlib.sha256(text).digest() + len(text).to_bytes(8, "big") + text


@pytest.mark.parametrize("name", OTHER_MANIFESTS)
def test_manifests_of_other_forms_are_refused(name: str, store: ArtifactStore) -> None:
    path = store.put(KEY, {}, {})
    path.write_bytes(entry_of(OTHER_MANIFESTS[name]))
    with pytest.raises(BadEntry):
        store.read(KEY)
    with pytest.warns(DegradedWarning, match="made again"):
        assert store.get(KEY) is None
    assert [row.key for row in store.rows() if row.problem] == [KEY]


def test_a_manifest_of_this_form_is_read(store: ArtifactStore) -> None:
    store.put(KEY, {}, {}).write_bytes(entry_of(WHOLE | {"files": [["program", 0, EMPTY]]}))
    assert store.get(KEY) == {"program": b""}


def test_a_miss_names_what_differs(store: ArtifactStore) -> None:
    assert str(store.why_miss(FACTS)) == "nothing like it is kept"
    store.put("A/f", FILES, {"torch": "2.12", "device": "cuda", "options": "a=2"})
    store.put("B/f", FILES, FACTS | {"torch": "2.12"})
    miss = store.why_miss(FACTS)
    assert (miss.nearest, miss.differs) == ("B/f", {"torch": ("2.12", "2.13")})
    assert str(miss) == "unlike B/f: torch was '2.12' and is '2.13'"
    assert set(store.why_miss(FACTS, near="A").differs) == set(FACTS)
    assert store.why_miss({**FACTS, "new": "1"}).differs["new"] == ("", "1")


def test_listing_checks_and_changes_nothing(store: ArtifactStore) -> None:
    good, bad = store.put("A/f", FILES, FACTS), store.put("B/rank/f", FILES, FACTS)
    os.utime(good, (1, 1))
    bad.write_bytes(b"x")
    os.utime(bad, (2, 2))
    (store.root / "stray").mkdir()
    rows = store.rows()
    assert [(row.key, row.used, bool(row.problem)) for row in rows] == [
        ("B/rank/f", 2, True),
        ("A/f", 1, False),
    ]
    assert rows[1].facts == FACTS
    assert good.stat().st_mtime == 1


def test_use_is_remembered_and_the_unused_go_first(store: ArtifactStore) -> None:
    for number, name in enumerate("ABCD"):
        os.utime(store.put(f"{name}/f", {"x": bytes(1000)}, {}), (number, number))
    store.get("B/f")
    size = max(store.path(f"{name}/f").stat().st_size for name in "ABCD")
    assert store.prune(most_bytes=4 * size) == []
    assert store.prune(most_bytes=3 * size) == ["A/f"]
    assert store.prune(older_than=3600) == ["C/f", "D/f"]
    assert [row.key for row in store.rows()] == ["B/f"]
    assert os.listdir(store.root) == ["B"]
    assert store.remove("B/f")
    assert not store.remove("B/f")


def test_unfinished_files_of_the_dead_are_dropped(store: ArtifactStore) -> None:
    folder = store.put(KEY, FILES, FACTS).parent
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    machine = stores._machine()
    names = {
        "dead": f".{machine}.{ended.pid}.00.part",
        "alive": f".{machine}.{os.getpid()}.00.part",
        "elsewhere": ".another.1.00.part",
        "long ago": ".another.2.00.part",
    }
    for name in names.values():
        (folder / name).touch()
    os.utime(folder / names["long ago"], (1, 1))
    store.put(KEY, FILES, FACTS)
    assert set(os.listdir(folder)) == {names["alive"], names["elsewhere"], "compiled_module"}


def test_a_write_that_fails_leaves_what_was_there(
    store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = store.put(KEY, FILES, FACTS).parent

    def fail(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="No space"):
        store.put(KEY, {"x": b""}, {})
    assert store.get(KEY) == FILES
    assert os.listdir(folder) == ["compiled_module"]


KILLED = """
import os, random, signal, sys, time
from pathlib import Path
from torchair.core.storage.artifact_store import ArtifactStore

store, rounds = ArtifactStore(Path(sys.argv[1]), "compiled_module"), int(sys.argv[2])
chance = random.Random(7)

def write(mark):
    while True:
        for key in ("A/f", "B/f"):
            files = store.get(key)
            assert files is None or files["one"] == files["two"], "halves of two entries"
            data = mark.encode() * 200_000
            store.put(key, {"one": data, "two": data}, {"by": mark})
        store.remove("B/f")

def child(mark):
    process = os.fork()
    if process == 0:
        try:
            write(mark)
        finally:
            os._exit(1)
    return process

for number in range(rounds):
    writers = [child(mark) for mark in "abcd"]
    for writer in writers:
        time.sleep(chance.random() * 0.05)
        os.kill(writer, signal.SIGKILL)
    assert all(os.WIFSIGNALED(os.waitpid(writer, 0)[1]) for writer in writers), "a writer failed by itself"
    for row in store.rows():
        assert not row.problem, (number, row)
        files = store.get(row.key)
        assert files["one"] == files["two"] == row.facts["by"].encode() * 200_000
print("rounds:", number + 1)
"""


@pytest.mark.parametrize("rounds", [10, pytest.param(200, marks=pytest.mark.full)])
def test_processes_that_are_killed_leave_whole_entries(store: ArtifactStore, rounds: int) -> None:
    done = python(["-W", "error", "-c", KILLED, str(store.root), str(rounds)])
    assert done.stdout == f"rounds: {rounds}\n", done.stderr
    store.put("A/f", FILES, FACTS)
    store.put("B/f", FILES, FACTS)
    assert sorted(path.name for path in store.root.rglob("*") if path.is_file()) == ["compiled_module"] * 2
