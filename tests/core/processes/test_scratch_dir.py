"""Scratch folders: whose processes live, stay; whose processes are dead, go."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from torchair.core.processes import supervisor
from torchair.core.processes.scratch_dir import Scratch
from torchair.core.processes.supervisor import LOCK, PREFIX, below, collect, end, end_below, processes


def abandoned(parent: Path, *, with_lock: bool = True) -> Path:
    """A folder whose owner did not get to remove it."""
    folder = parent / f"{PREFIX}left"
    folder.mkdir()
    if with_lock:
        (folder / LOCK).touch()
        (folder / "order").mkdir()
        (folder / "order/file").touch()
    return folder


def test_the_folder_of_a_live_process_stays(tmp_path: Path) -> None:
    with Scratch(tmp_path) as folder:
        collect(tmp_path)
        assert folder.is_dir()
    assert not folder.exists()


@pytest.mark.parametrize("with_lock", [True, False])
def test_the_folder_of_a_dead_process_goes(with_lock: bool, tmp_path: Path) -> None:
    folder = abandoned(tmp_path, with_lock=with_lock)
    with Scratch(tmp_path):
        assert not folder.exists()


def test_what_is_no_folder_of_ours_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of another user, a link, and a folder without a lock file that is not empty."""
    target = abandoned(tmp_path)
    place = tmp_path / "place"
    place.mkdir()
    (place / f"{PREFIX}link").symlink_to(target)
    (place / f"{PREFIX}full").mkdir()
    (place / f"{PREFIX}full/file").touch()
    collect(place)
    assert target.is_dir()
    assert len(list(place.iterdir())) == 2
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    collect(tmp_path)
    assert target.is_dir()


def test_a_removal_that_was_interrupted_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = abandoned(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "rmdir", lambda path, **given: (_ for _ in ()).throw(OSError("killed here")))
        collect(tmp_path)
    assert folder.is_dir()
    collect(tmp_path)
    assert not folder.exists()


def test_processes_that_carry_a_folder_end_before_it_goes(tmp_path: Path) -> None:
    """Their ancestors are dead, and they have sessions of their own."""
    folder = abandoned(tmp_path)
    loop = "while :; do echo x > $TMPDIR/$$; sleep 0.01; done"
    with subprocess.Popen(
        ["sh", "-c", loop], env={**os.environ, "TMPDIR": str(folder)}, start_new_session=True
    ) as process:
        while not (folder / str(process.pid)).exists():
            time.sleep(0.01)
        collect(tmp_path)
        assert process.wait(10) == -signal.SIGKILL or process.returncode == 0  # reaped by `end`
    assert not folder.exists()


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder goes with its owner, and nobody else removes it."""

    def refuse(file: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with Scratch(tmp_path) as folder:
        collect(tmp_path)
        assert folder.is_dir()
    assert not folder.exists()


def test_a_forked_child_removes_nothing(tmp_path: Path) -> None:
    scratch = Scratch(tmp_path)
    child = os.fork()
    if child == 0:
        scratch.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert scratch.path.is_dir()
    collect(tmp_path)
    assert scratch.path.is_dir(), "it is locked as before"
    scratch.close()
    assert not scratch.path.exists()


@pytest.mark.skipif(sys.platform == "win32", reason="there is no ps")
@pytest.mark.parametrize("has_proc", [True, False])
def test_the_process_table(has_proc: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With /proc and, as on macOS, without."""
    monkeypatch.setattr(supervisor, "_has_proc", lambda: has_proc)
    command = ["sh", "-c", "sleep 1000 & sleep 1000 & wait"]
    with subprocess.Popen(command, start_new_session=True) as process:
        limit = time.monotonic() + 10
        while len(below(process.pid)) < 2 and time.monotonic() < limit:
            time.sleep(0.01)
        rows = {row.pid: row for row in processes()}
        assert rows[process.pid].parent == os.getpid()
        assert rows[process.pid].session == process.pid
        assert [row.parent for row in below(process.pid)] == [process.pid] * 2
        spared = below(process.pid)[0].pid
        assert end_below(process.pid, {spared})
        assert [row.pid for row in below(process.pid)] == [spared]
        assert end_below(process.pid)
        assert not below(process.pid)
        process.wait(10)


def test_what_does_not_end_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "KILL_SECONDS", 0.05)
    monkeypatch.setattr(os, "kill", lambda pid, number: None)
    assert not end(lambda: [row for row in processes() if row.pid == os.getpid()])
