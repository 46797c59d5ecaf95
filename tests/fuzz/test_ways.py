"""Random programs in scopes, with gears, with replacements, as joint graphs, and from a shared folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from tests.fuzz.oracle import Count, check
from tests.fuzz.ways import any_way, joint_failure, replaced
from tests.support.slow import slow

pytestmark = pytest.mark.usefixtures("builds")
SEED = 500


@pytest.mark.parametrize("count", [2, slow(120)])
@pytest.mark.parametrize("way", ["scopes", "gears"])
def test_programs_equal_eager(way: str, count: int) -> None:
    seen = Count()
    for seed in range(SEED, SEED + count):
        program = any_way(Random(seed), way)
        engine = "auto-eager" if seed % 2 else "eager"
        failure = None if program is None else check(program, engine, seen)
        assert failure is None, f"{way}, seed {seed}: {failure}\n{program and program.script(engine)}"
    assert seen.programs > count / 2
    assert seen.own.total() <= 0.2 * count + 1  # torch refuses gears of dims that a program makes constant


@pytest.mark.parametrize("count", [4, slow(150)])
def test_replacements_compute_the_same(count: int) -> None:
    seen = Count()
    with replaced() as found:
        for seed in range(SEED, SEED + count):
            program = any_way(Random(seed), "rules")
            assert program is not None
            failure = check(program, "eager", seen)
            assert failure is None, f"seed {seed}: {failure}\n{program.script()}"
    assert found or count < 100


@pytest.mark.parametrize("count", [12, slow(400)])
def test_joint_graphs_equal_eager(count: int) -> None:
    programs = [(seed, any_way(Random(seed), "joint")) for seed in range(SEED, SEED + count)]
    found = [(seed, program) for seed, program in programs if program is not None]
    assert found
    for seed, program in found:
        failure = joint_failure(program)
        assert failure is None, f"seed {seed}: {failure}\n{program.source()}"


@pytest.mark.full
@pytest.mark.parametrize("engine", ["eager", "auto-eager"])
def test_two_processes_share_a_folder(engine: str, tmp_path: Path) -> None:
    """The same programs at the same time, and once more from what is kept."""
    command = [sys.executable, "-m", "tests.fuzz", "--count", "25", "--seed", "77", "--engine", engine]
    command += ["--programs", str(tmp_path / "programs")]
    for _ in range(2):
        running = [
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            for _ in range(2)
        ]
        said = [process.communicate()[0] for process in running]
        assert [process.returncode for process in running] == [0, 0], "\n".join(said)
    assert list((tmp_path / "programs").rglob("*"))
