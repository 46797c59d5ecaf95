"""Hunt for programs that our backend gets wrong: `python -m tests.fuzz --count 5000 --jobs 16 --out DIR`.

Each failure is printed with its seed and written to the folder as a script; `--only SEED` with the same
`--batch` runs it again. The last line of the output is a summary in JSON. Failures give exit status 1.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from tests.fuzz.batch import any_batch, join, suspects
from tests.fuzz.oracle import Count, Failure, check, excused, observe
from tests.fuzz.programs import MODES, SWAPPED, Program
from tests.fuzz.shrink import shrink

SHOWN = 2  # failures of one kind that are shrunk and printed
PER_SEED = 1_000_000  # programs of one seed
STUCK = 900  # seconds after which one batch is a failure


def options(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="programs over all shards")
    parser.add_argument(
        "--engine", default="eager", choices=["reference", "eager", "inductor", "native", *SWAPPED]
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shard", default="1/1", help="I/N: every Nth batch, from the Ith on")
    parser.add_argument("--jobs", type=int, default=0, metavar="N", help="run N shards, restart crashed ones")
    parser.add_argument("--batch", type=int, default=1, metavar="N", help="programs compiled as one")
    parser.add_argument("--begin", type=int, default=0, metavar="N", help="batches of the shard to skip")
    parser.add_argument("--seconds", type=float, help="begin no batch after so much time")
    parser.add_argument("--mode", choices=MODES, help="default: either")
    parser.add_argument("--dynamic", choices=["yes", "no"], help="default: either")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--stop-after", type=int, metavar="N", help="failures")
    parser.add_argument("--only", type=int, metavar="SEED", help="the batch with this program")
    parser.add_argument("--shown", type=int, default=SHOWN, help="failures of a kind that are shrunk")
    parser.add_argument("--programs", type=Path, metavar="FOLDER", help="keep compiled programs there")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="folder for scripts of failing programs")
    return parser.parse_args(arguments)


def batches(given: argparse.Namespace) -> Iterator[tuple[int, range]]:
    """Yield the batches of a shard: number and seeds."""
    first, last = given.seed * PER_SEED, given.seed * PER_SEED + given.count
    if given.only is not None:
        place = given.only // PER_SEED * PER_SEED
        place += (given.only - place) // given.batch * given.batch
        yield 0, range(place, place + given.batch)
        return
    shard, shards = map(int, given.shard.split("/"))
    starts = range(first + (shard - 1) * given.batch, last, shards * given.batch)
    for number, start in enumerate(starts):
        if number >= given.begin:
            yield number, range(start, min(start + given.batch, last))


def grouped(programs: Sequence[Program], device: str = "cpu") -> list[list[int]]:
    """Put programs apart that look into the storages of inputs: they may have no optimized program. Leave out
    those that eager cannot run on the device: some make tensors on the CPU.
    """
    fit = [n for n, program in enumerate(programs) if device == "cpu" or runs_on(program, device)]
    reaches = {n: any(line.reaches for line in programs[n].lines) for n in fit}
    groups = [[n for n in fit if reaches[n] == is_one] for is_one in (False, True)]
    return [group for group in groups if group]


def runs_on(program: Program, device: str) -> bool:
    """Can eager run this program on the device?"""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            observe(program.function(), program, device)
    except RuntimeError:
        return False
    return True


class Hunt:
    """One run over many programs."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.count = Count()
        self.kinds: Counter[str] = Counter()
        self.by_mode: Counter[str] = Counter()
        self.seeds: list[int] = []

    def check(self, program: Program, count: Count) -> Failure | None:
        """Compare a program with eager. A fault of the comparison itself is a failure, too."""
        try:
            return check(program, self.given.engine, count, self.given.device)
        except Exception as error:
            count.failures += program.parts == 1
            return Failure(f"raised {type(error).__name__} in the comparison", str(error)[:300])

    def look(self, seeds: Sequence[int], programs: Sequence[Program], count: Count) -> bool:
        """Compare programs that are compiled as one, and find those that fail. Is there one?"""
        program = join(programs)
        failure = self.check(program, count)
        if failure is None:
            return count.own.total() > 0
        if len(programs) == 1:
            self.tell(failure, program, seeds)
            return True
        half, scratch = len(programs) // 2, Count()
        parts = [slice(part, part + 1) for part in suspects(programs, failure.places)]
        parts = parts or [slice(0, half), slice(half, None)]
        found = [self.look(seeds[part], programs[part], scratch) for part in parts]
        count.own += scratch.own
        count.failures += scratch.failures
        if not any(found) and excused(program, failure, self.given.engine, self.given.device):
            count.own[f"only together: {failure.kind}"] += 1
        elif not any(found):
            count.failures += 1
            self.tell(Failure(f"only together: {failure.kind}", failure.detail), program, seeds)
        return True

    def tell(self, failure: Failure, program: Program, seeds: Sequence[int]) -> None:
        """Print a failure, and write the program as a script."""
        given, self.seeds = self.given, [*self.seeds, seeds[0]]
        self.kinds[failure.kind] += 1
        way = f"{program.mode}, {'dynamic' if program.dynamic else 'static'}"
        print(f"FAIL seed {seeds[0]} ({given.engine}, {way}): {failure}", flush=True)
        small, is_new = program, self.kinds[failure.kind] <= given.shown
        if is_new and len(seeds) == 1:

            def fails(candidate: Program) -> bool:
                found = self.check(candidate, Count())
                return found is not None and found.kind == failure.kind

            small = shrink(
                program, fails, 120 if given.engine in ("eager", "reference", "auto-eager") else 20
            )
        script = small.script(given.engine, given.device)
        if is_new:
            print(script, flush=True)
        write(given, f"seed-{seeds[0]}-{given.engine}.py", f"# {failure.kind}\n{script}")

    def run(self) -> dict[str, Any]:
        """Compare all programs with eager, and return the summary."""
        given, began = self.given, time.perf_counter()
        for number, seeds in batches(given):
            if given.seconds and time.perf_counter() - began > given.seconds:
                break
            if given.stop_after and self.count.failures >= given.stop_after:
                break
            programs = any_batch(seeds, given.mode, given.dynamic and given.dynamic == "yes")
            note(given, number, seeds, self.summary(began))
            for group in grouped(programs, given.device):
                count = Count()
                self.look([seeds[n] for n in group], [programs[n] for n in group], count)
                self.count += count
            self.by_mode[programs[0].mode] += len(programs)
        print(f"{self.count} {dict(self.kinds)}, {time.perf_counter() - began:.0f} s", flush=True)
        return self.summary(began)

    def summary(self, began: float) -> dict[str, Any]:
        given = self.given
        facts = {"engine": given.engine, "seed": given.seed, "shard": given.shard, "torch": torch.__version__}
        counts = {n: dict(v) if isinstance(v, Counter) else v for n, v in vars(self.count).items()}
        seconds = round(time.perf_counter() - began)
        return {
            **facts, **counts, "modes": self.by_mode, "kinds": self.kinds, "failed": self.seeds,
            "seconds": seconds,
        }  # fmt: skip


def hunt(given: argparse.Namespace) -> Count:
    """Compare programs with eager, and print those that differ."""
    print(f"fuzz: seed {given.seed}, engine {given.engine}, {given.count} programs", flush=True)
    made = Hunt(given)
    summary = made.run()
    write(
        given,
        f"summary-{given.engine}-{given.shard.replace('/', 'of')}-{given.begin}.json",
        json.dumps(summary),
    )
    print("SUMMARY", json.dumps(summary), flush=True)
    return made.count


def write(given: argparse.Namespace, name: str, text: str) -> None:
    if given.out is not None:
        given.out.mkdir(parents=True, exist_ok=True)
        (given.out / name).write_text(text)


def progress_name(shard: str) -> str:
    return f"progress-{shard.replace('/', 'of')}.json"


def note(given: argparse.Namespace, number: int, seeds: range, summary: dict[str, Any]) -> None:
    """Write which batch runs, for the process that restarts crashed shards."""
    if "FUZZ_PROGRESS" in os.environ:
        path = Path(os.environ["FUZZ_PROGRESS"], progress_name(given.shard))
        path.with_suffix(".new").write_text(
            json.dumps({"number": number, "seeds": list(seeds), "at": time.time(), "summary": summary})
        )
        path.with_suffix(".new").replace(path)


class Shard:
    """A process that runs one shard; it is started again behind a batch that ended it."""

    def __init__(self, number: int, given: argparse.Namespace, folder: Path, deadline: float | None) -> None:
        self.name = f"{number}/{given.jobs}"
        self.given = given
        self.folder = folder
        self.deadline = deadline
        self.lost: list[dict[str, Any]] = []
        self.ended: list[dict[str, Any]] = []
        self.start(0)

    def start(self, begin: int) -> None:
        """Run the batches from this one on."""
        own = [sys.executable, "-m", "tests.fuzz", *sys.argv[1:], "--jobs", "0"]
        own += ["--shard", self.name, "--begin", str(begin)]
        if self.deadline is not None:
            own += ["--seconds", str(max(1.0, self.deadline - time.monotonic()))]
        self.log = self.folder / f"log-{self.name.replace('/', 'of')}-{begin}.txt"
        with self.log.open("w") as log:
            environment = {**os.environ, "FUZZ_PROGRESS": str(self.folder)}
            self.process = subprocess.Popen(
                own, stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True
            )

    def progress(self) -> dict[str, Any]:
        path = self.folder / progress_name(self.name)
        return json.loads(path.read_text()) if path.exists() else {}

    def is_over(self) -> bool:
        """Look after the process. Is there nothing more to run?"""
        status, progress = self.process.poll(), self.progress()
        is_stuck = status is None and progress and time.time() - progress["at"] > STUCK
        if is_stuck:
            os.killpg(self.process.pid, signal.SIGKILL)
            status = self.process.wait()
        if status is None:
            return False
        text = self.log.read_text()
        print("\n".join(line for line in text.splitlines() if not line.startswith("SUMMARY")), flush=True)
        last = [line for line in text.splitlines() if line.startswith("SUMMARY ")]
        if last:
            self.ended.append(json.loads(last[-1].removeprefix("SUMMARY ")))
            return True
        if not progress:
            self.lost.append({"seeds": [], "status": status})
            return True
        what = "is stuck" if is_stuck else f"ended the process with status {status}"
        print(f"FAIL seeds {progress['seeds']} ({self.given.engine}): {what}", flush=True)
        self.lost.append({"seeds": progress["seeds"], "status": status})
        self.ended.append(progress["summary"])
        (self.folder / progress_name(self.name)).unlink()
        if self.deadline is not None and time.monotonic() > self.deadline:
            return True
        self.start(progress["number"] + 1)
        return False


def shards(given: argparse.Namespace) -> int:
    """Run all shards as processes, and return how many failures there were."""
    deadline = None if given.seconds is None else time.monotonic() + given.seconds
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        running = [Shard(number + 1, given, Path(folder), deadline) for number in range(given.jobs)]
        waiting = list(running)
        try:
            while waiting:
                time.sleep(0.5)
                waiting = [shard for shard in waiting if not shard.is_over()]
        finally:
            for shard in waiting:
                os.killpg(shard.process.pid, signal.SIGKILL)
    total: dict[str, Any] = {"engine": given.engine, "seed": given.seed, "jobs": given.jobs}
    for summary in (each for shard in running for each in shard.ended):
        add(total, {name: value for name, value in summary.items() if name not in ("seed", "shard")})
    total["crashed"] = [lost for shard in running for lost in shard.lost]
    total["seconds"] = max((s["seconds"] for shard in running for s in shard.ended), default=0)
    write(given, f"summary-{given.engine}.json", json.dumps(total))
    print("SUMMARY", json.dumps(total), flush=True)
    return total.get("failures", 0) + len(total["crashed"])


def add(total: dict[str, Any], more: dict[str, Any]) -> None:
    """Add numbers and lists of one summary to those of another, by name."""
    for name, value in more.items():
        if isinstance(value, dict):
            add(total.setdefault(name, {}), value)
        else:
            total[name] = total[name] + value if name in total and not isinstance(value, str) else value


def main() -> int:
    given = options()
    if given.jobs:
        return 1 if shards(given) else 0
    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="fuzz-programs-") as folder:
        # Programs of earlier runs would leave nothing to build.
        os.environ["TORCHAIR_PROGRAMS"] = str(given.programs or folder)
        return 1 if hunt(given).failures else 0


if __name__ == "__main__":
    sys.exit(main())
