"""`python -m torchair cache`: where names may stand. `tests/inference/test_cache_compiler.py` has more."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import pytest

from torchair.__main__ import main
from torchair.backend.cache.key import FILE
from torchair.core.storage.artifact_store import ArtifactStore, packed


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    store = ArtifactStore(tmp_path / "kept", FILE)
    for key in ("First/step", "Second/step", "Third/step"):
        store.put(key, {}, {})
    return store


@pytest.mark.parametrize("words", [
    ["First", "Second", "--dir", "{}"], ["--dir", "{}", "First", "Second"],
    ["First", "--dir", "{}", "Second"], ["--dir={}", "First", "--file", "kept.tar", "Second"],
])  # fmt: skip
def test_names_stand_anywhere(
    words: list[str], store: ArtifactStore, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [word.format(store.root) for word in words]
    for act, text in (("ls", "First/step"), ("verify", "2 of 2"), ("why-miss", "Second/step: ")):
        main(["cache", act, *given])
        said = capsys.readouterr().out
        assert text in said
        assert "Third" not in said
    assert main(["cache", "rm", *given]) == 0
    assert set(store.keys()) == {"Third/step"}


def test_names_to_export(store: ArtifactStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "kept.tar")
    assert main(["cache", "export", "--dir", str(store.root), "--file", file, "First"]) == 0
    assert capsys.readouterr().out == f"exported 1 entries to {file}\n"


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", data: bytes | None = None) -> Any:
    """Return a member of an archive, and its content: an entry of the store unless given."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    content = packed({}, {}) if data is None else data
    info.size = len(content) if kind in (tarfile.REGTYPE, tarfile.GNUTYPE_SPARSE) else 0
    return info, content


OTHER_MEMBERS = {
    "above": [member("../above")],
    "far above": [member("a/../../above")],
    "absolute": [member("/tmp/absolute")],
    "backslashes": [member("a\\..\\b")],
    "a drive": [member("C:/a")],
    "hidden": [member("a/.b")],
    "a link": [member("First/step", tarfile.SYMTYPE, "/etc/passwd")],
    "a link to a missing member": [member("First/step", tarfile.SYMTYPE, "missing")],
    "a link to itself": [member("First/step", tarfile.SYMTYPE, "step")],
    "a hard link": [member("First/step", tarfile.LNKTYPE, "missing")],
    "a link to a member": [member("First/step"), member("Second/step", tarfile.LNKTYPE, "First/step")],
    "a folder": [member("First", tarfile.DIRTYPE)],
    "a pipe": [member("First/step", tarfile.FIFOTYPE)],
    "a device": [member("First/step", tarfile.CHRTYPE)],
    "the same name twice": [member("First/step"), member("First/step")],
    "no entry": [member("First/step", data=b"no entry")],
    "an empty file": [member("First/step", data=b"")],
    "another version": [member("First/step", data=packed({}, {}).replace(b"entry 1", b"entry 2", 1))],
}  # fmt: skip


@pytest.mark.parametrize("name", OTHER_MEMBERS)
def test_archives_with_other_members_are_refused(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The store, and the folders above it, stay as they were."""
    file, root = tmp_path / "kept.tar", tmp_path / "above" / "kept"
    with tarfile.open(file, "w") as tar:
        for info, content in [member("Sound/step"), *OTHER_MEMBERS[name]]:
            tar.addfile(info, io.BytesIO(content))
    assert main(["cache", "import", "--dir", str(root), "--file", str(file)]) == 2
    said = capsys.readouterr().err
    assert said
    assert "Traceback" not in said, said
    assert list(tmp_path.rglob("*")) == [file] or not list(root.rglob("*step*"))


@pytest.mark.parametrize("size", [0, 1, 100, 511, 512, 700, 5000])
def test_archives_that_end_early_are_refused(
    size: int, store: ArtifactStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, root = tmp_path / "kept.tar", tmp_path / "other"
    assert main(["cache", "export", "--dir", str(store.root), "--file", str(file)]) == 0
    whole = file.read_bytes()
    file.write_bytes(whole[:size] if size < 5000 else whole.replace(b"ustar", b"\xff\xff\xff\xff\xff"))
    status = main(["cache", "import", "--dir", str(root), "--file", str(file)])
    assert status == 2
    said = capsys.readouterr().err
    assert said
    assert "Traceback" not in said, said
    assert not list(root.rglob("*step*"))


@pytest.mark.parametrize(("words", "text"), [
    (["cache", "rm", "--dir", "kept", "First", "--colour"], "unrecognized arguments: First --colour"),
    (["cache", "rm", "--colour", "First"], "unrecognized arguments: --colour"),
    (["show", "a.air", "b.air"], "unrecognized arguments: b.air"),
])  # fmt: skip
def test_what_is_no_name_is_refused(words: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(words)
    assert text in capsys.readouterr().err
