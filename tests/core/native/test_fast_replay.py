"""The questions of a replay give the same answers in Python and in C++."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest
import torch

from tests.support.process import python
from torchair.core.native import fast_replay
from torchair.core.native.cpp_extension import Extension


@pytest.fixture(scope="module")
def built() -> Path:
    return fast_replay.built()


@pytest.fixture(params=["python", "extension"])
def how(request: pytest.FixtureRequest, built: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(fast_replay, "_extension", None)
    if request.param == "extension":
        fast_replay.load(built)
        assert fast_replay._extension is not None
    return request.param


def test_addresses_of_tensors_that_stay(how: str) -> None:
    args = [torch.randn(3), 7, torch.randn(4, 4)[1:, 2], torch.empty(0), torch.nn.Parameter(torch.randn(2))]
    known = fast_replay.Addresses([0, 2, 3, 4], args)
    assert known.match(args)
    assert known.match(list(args))
    assert known.moved(args) == []
    assert known.read(args) == [args[i].data_ptr() for i in (0, 2, 3, 4)]


def test_every_way_to_move_is_seen(how: str) -> None:
    storage = torch.randn(64)
    args = [torch.nn.Parameter(torch.randn(3)), storage[:4], torch.randn(8)]
    known = fast_replay.Addresses([0, 1, 2], args)
    args[0].data = torch.randn(3)
    assert not known.match(args)
    assert known.moved(args) == [0]
    known = fast_replay.Addresses([0, 1, 2], args)
    assert not known.match([args[0], storage[1:5], args[2]])
    assert not known.match([args[0], args[1], args[2].clone()])
    args[2].untyped_storage().resize_(1 << 20)
    assert known.match(args) == (known.moved(args) == [])


def test_nothing_to_compare(how: str) -> None:
    assert fast_replay.Addresses([], [torch.randn(2)]).match([torch.randn(2)])


def test_versions_of_written_tensors(how: str) -> None:
    plain, untouched = torch.randn(3), torch.randn(3)
    with torch.inference_mode():
        inference = torch.randn(3)
    before = (plain._version, untouched._version)
    fast_replay.Written([0, 2]).raise_versions((plain, untouched, inference))
    assert (plain._version, untouched._version) == (before[0] + 1, before[1])


def test_what_is_no_tensor_is_refused(built: Path) -> None:
    fast_replay.load(built)
    extension = fast_replay._extension
    assert extension is not None
    pairs = fast_replay.Addresses([0], [torch.randn(2)]).pairs
    for args in ([], [3], (None,)):
        with pytest.raises(TypeError, match="argument 0 is not a tensor"):
            extension.same_addresses(args, pairs)
    for wrong in ((torch.randn(2), pairs), ([], "text"), ([],)):
        with pytest.raises(TypeError, match="expected"):
            extension.same_addresses(*wrong)


def test_without_a_compiler_everything_works(tmp_path: Path) -> None:
    """In a process of its own: what is asked for once is not asked for again."""
    code = (
        "import logging, threading, torch, warnings\n"
        "from torchair.core.native import fast_replay\n"
        "with warnings.catch_warnings(record=True) as told:\n"
        "    fast_replay.load_async()\n"
        "    [t.join() for t in threading.enumerate() if t.name == 'torchair quick']\n"
        "assert 'install a C++ compiler' in str(told[0].message)\n"
        "x = torch.randn(2)\n"
        "assert fast_replay._extension is None\n"
        "assert fast_replay.Addresses([0], [x]).match([x])\n"
    )
    environment = {
        "PATH": "",
        "CXX": str(tmp_path / "no-compiler"),
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path),
    }
    done = python(["-c", code], **environment)
    assert done.returncode == 0, done.stderr


def test_a_damaged_library_is_made_again(
    built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(fast_replay, "_asked", False)
    monkeypatch.setattr(fast_replay, "_extension", None)
    monkeypatch.setattr(Extension, "_compile", lambda extension, path: shutil.copy(built, path))
    fast_replay.library().write_bytes(b"not a library")
    fast_replay.load_async()
    for thread in threading.enumerate():
        if thread.name == "torchair quick":
            thread.join()
    assert fast_replay._extension is not None
    assert fast_replay.library().read_bytes() == built.read_bytes()


def test_the_extension_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_replay, "_extension", None)
    monkeypatch.setattr(fast_replay, "_asked", False)
    monkeypatch.setenv(fast_replay.SWITCH, "off")
    monkeypatch.setattr(fast_replay, "library", lambda: pytest.fail("nothing is looked for"))
    fast_replay.load_async()
    assert not fast_replay.is_loaded()
