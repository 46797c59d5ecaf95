"""The scripts that build, configure and install: thin, honest, and without a network."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.structure.tree import ROOT, files
from tests.support.process import python

SILENCING = ("TARGET_PYTHON_PATH", "ASCEND_SDK_PATH", "NO_ASCEND_SDK")


def run_command(*command: str, folder: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**{k: v for k, v in os.environ.items() if k not in SILENCING}, "PYTHON": sys.executable}
    return subprocess.run(
        command, cwd=folder, env={**env, **environment}, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project: building leaves files behind."""
    folder = tmp_path_factory.mktemp("checkout")
    for path in files():
        target = folder / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    return folder


def test_the_wheel_is_built_and_holds_everything(checkout: Path) -> None:
    done = run_command("bash", "build.sh", "-c", "-j2", "-g", "/usr/bin/gcc", folder=checkout)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "nothing is compiled" in done.stdout
    (wheel,) = (checkout / "output").glob("torchair-*-py3-none-any.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    wanted = {
        path.relative_to(ROOT).as_posix()
        for path in files()
        if path.parts[len(ROOT.parts)] in ("torchair", "npugraph_ex")
    }
    assert wanted <= names, sorted(wanted - names)[:5]


def test_the_wheel_is_enough(checkout: Path, tmp_path: Path) -> None:
    """Unpacked elsewhere, it is the package that is imported."""
    (wheel,) = (checkout / "output").glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    script = (
        "import torch, torchair, npugraph_ex.scope\n"
        "assert 'site' in torchair.__file__\n"
        "f = torch.compile(lambda x: x.sin() + 1, backend='npu', options={'codegen': 'eager'})\n"
        "assert torch.equal(f(torch.zeros(2)), torch.ones(2))\n"
    )
    done = python(["-c", script], tmp_path, PYTHONPATH=str(tmp_path / "site"))
    assert done.returncode == 0, done.stderr[-2000:]


def test_make_builds_the_same(checkout: Path) -> None:
    shutil.rmtree(checkout / "output", ignore_errors=True)
    done = run_command("make", "torchair", "SETUP=0", f"PYTHON={sys.executable}", folder=checkout)
    assert done.returncode == 0, done.stderr[-2000:]
    assert list((checkout / "output").glob("torchair-*-py3-none-any.whl"))


@pytest.mark.skipif(shutil.which("cmake") is None, reason="needs cmake")
def test_cmake_knows_the_targets(checkout: Path) -> None:
    (checkout / "build").mkdir(exist_ok=True)
    assert run_command("cmake", "..", folder=checkout / "build").returncode == 0
    shown = run_command("make", "-n", "install_torchair", folder=checkout / "build")
    assert shown.returncode == 0, shown.stderr
    assert "make install_torchair" in shown.stdout


@pytest.mark.parametrize(("arguments", "wanted"), [
    (("-u",), "test SETUP=0"), (("-s", "-j4"), "test-full ARGS=-m full  SETUP=0"), (("-uj", "3"), "JOBS=3"),
    (("-j", "-u"), "JOBS="),
])  # fmt: skip
def test_tests_are_those_of_make(arguments: tuple[str, ...], wanted: str, tmp_path: Path) -> None:
    fake = tmp_path / "make"
    fake.write_text('#!/bin/sh\necho "make $@"\n')
    fake.chmod(0o755)
    done = run_command("bash", "build.sh", *arguments, PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert done.returncode == 0, done.stderr
    assert wanted in done.stdout


@pytest.mark.parametrize(("arguments", "status"), [(("-h",), 0), (("-x",), 2), (("-g",), 2), (("all",), 2)])
def test_help_and_typos(arguments: tuple[str, ...], status: int) -> None:
    done = run_command("bash", "build.sh", *arguments)
    assert done.returncode == status
    assert "usage: bash build.sh" in done.stdout + done.stderr


@pytest.mark.parametrize("command", [("bash", "./configure"), ("bash", "-c", "source tools/env.sh")])
def test_nothing_needs_configuring(command: tuple[str, ...]) -> None:
    done = run_command(*command)
    assert done.returncode == 0
    assert "nothing needs" in done.stdout
    for name in SILENCING:
        silent = run_command(*command, **{name: "x"})
        assert (silent.returncode, silent.stdout, silent.stderr) == (0, "", "")


def test_coverage_has_a_target() -> None:
    shown = run_command("make", "-n", "coverage", "SETUP=0")
    assert shown.returncode == 0
    assert "-m coverage html" in shown.stdout
