"""Files for debugging: whole or not there, never through a link, closed to strangers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchair.core.diagnostics import Diagnostics
from torchair.core.errors import BadOption, Degraded, DegradedWarning, NotPossible
from torchair.core.fingerprint.atomic_files import atomic_write
from torchair.debug.dumps.files import WarnOnWriteError, make_folder, rank_folder, stamped, write_text


@pytest.fixture(autouse=True)
def _umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def test_a_file_is_whole_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_text(path, "before")

    def write_half() -> None:
        with atomic_write(path) as file:
            file.write(b"half")
            assert path.read_text() == "before"
            raise ValueError("in the middle")

    with pytest.raises(ValueError, match="in the middle"):
        write_half()
    assert path.read_text() == "before"
    assert [item.name for item in tmp_path.iterdir()] == ["file"]
    write_text(path, "after", 0o600)
    assert path.read_text() == "after"
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_stricter_umask_is_kept(tmp_path: Path) -> None:
    os.umask(0o077)
    write_text(make_folder(tmp_path / "a") / "file", "text")
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "a/file").stat().st_mode & 0o777 == 0o600


def test_all_missing_folders_are_closed(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "a/b/c", "d", "e")
    assert folder == tmp_path / "a/b/c/d/e"
    for name in ("a", "a/b", "a/b/c", "a/b/c/d", "a/b/c/d/e"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o750
    assert make_folder(tmp_path / "a/b/c", "d", "e") == folder


@pytest.mark.parametrize("target", ["folder", "nowhere"])
def test_links_are_refused(tmp_path: Path, target: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / target)
    with pytest.raises(NotPossible, match="symbolic link"):
        make_folder(tmp_path / "link")
    with pytest.raises(NotPossible, match="symbolic link"):
        make_folder(tmp_path, "link", "below")
    with pytest.raises(NotPossible, match="symbolic link"):
        write_text(tmp_path / "link", "text")
    assert not list((tmp_path / "folder").iterdir())


def test_a_link_that_comes_late_is_replaced_not_followed(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("before")
    with atomic_write(tmp_path / "file") as file:
        (tmp_path / "file").symlink_to(tmp_path / "target")
        file.write(b"text")
    assert (tmp_path / "target").read_text() == "before"
    assert (tmp_path / "file").read_text() == "text"
    assert not (tmp_path / "file").is_symlink()


def test_failed_write_warns(tmp_path: Path) -> None:
    told = Diagnostics()
    with (
        pytest.warns(DegradedWarning, match="cannot write a page: FileNotFoundError"),
        WarnOnWriteError(told, "a page"),
    ):
        write_text(tmp_path / "no/such", "text")
    assert len(told.texts) == 1
    with pytest.raises(Degraded), WarnOnWriteError(Diagnostics(strict=True)):
        raise OSError("disk full")
    with pytest.raises(BadOption), WarnOnWriteError(told):
        raise BadOption("the user's").of_user()
    with pytest.raises(KeyboardInterrupt), WarnOnWriteError(told):
        raise KeyboardInterrupt


def test_names_have_the_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    assert stamped("dynamo", "py").startswith(f"dynamo_rank_0_pid_{os.getpid()}_ts_")
    assert rank_folder("root") == Path("root/worldsize1_global_rank0")
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 3)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 4)
    assert stamped("dynamo", "py").startswith("dynamo_rank_3_pid_")
    assert rank_folder("root") == Path("root/worldsize4_global_rank3")
