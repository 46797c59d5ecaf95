"""Processes that end in one of many ways in the middle of a background build.

`python -m tests.integration.background_ends` forks one for each line of its input. A fake build writes files
and runs compilers that write more, one of them in a session of its own. It takes milliseconds to begin, where
a real one takes seconds.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch

from torchair.backend.service import worker_pool
from torchair.backend.service.request import CompileRequest, tensor_metadata_of, workplace
from torchair.backend.service.worker_pool import compile_in_worker
from torchair.codegen import CodegenOptions
from torchair.core.processes import scratch_dir
from torchair.core.torch_private.fake.fake_tensors import dump_graph, make_fx

ROOT = Path(__file__).resolve().parents[2]
COMPILER = """
i=0
while :; do i=$((i+1)); echo $i > $1/$$-$i.o; mkdir -p $TMPDIR/cc$$-$i; sleep 0.02; done
"""
FAKE = f"""
import os, signal, socket, subprocess, sys, types
del sys.argv[0]
package = types.ModuleType("torchair")
package.__path__ = [{str(ROOT / "torchair")!r}]
sys.modules["torchair"] = package
from torchair.core.processes.fork_server import Server
from torchair.core.processes.supervisor import adopt_orphans
adopt_orphans()
parent = os.getppid()
folder = Server(socket.socket(fileno=int(sys.argv[1])), parent, 60.0).serve()
if folder is not None:
    command = ["sh", "-c", {COMPILER!r}, "compiler", folder]
    subprocess.Popen(command, start_new_session=True)
    subprocess.Popen(["sh", "-c", '"$@" &', "driver", *command])  # this one is an orphan at once
    subprocess.run(command)
"""


def order(kind: str) -> CompileRequest:
    """One that takes seconds with Inductor."""
    gm = make_fx(lambda x: [x.sin() * random.random()])(torch.ones(3))
    for node in gm.graph.nodes:
        node.meta = {}
    return CompileRequest(dump_graph(gm), tensor_metadata_of([torch.ones(3)]), CodegenOptions(), (kind,))


class Builds:
    """A thread that builds, as `backend/service/scheduler.py` does."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self.order = order("inductor")
        self.why = ""
        self.thread = threading.Thread(target=self._build, daemon=True)
        self.thread.start()

    def _build(self) -> None:
        try:
            with workplace("") as folder:
                self.why = compile_in_worker(self.order, folder, self.seconds)[1]
        except Exception as error:  # as in `Job.run`
            self.why = repr(error)

    def supervisors(self) -> list[int]:
        return [command.process.pid for command in list(scratch_dir.ALL.running)]


def _exit(builds: Builds) -> None:
    sys.exit(0)


def _hard_exit(builds: Builds) -> None:
    os._exit(0)


def _fork_ends_in_child(builds: Builds) -> None:
    """A child ends as Python does, and this process builds on."""
    before = set(Path(tempfile.gettempdir()).glob("*/order-*"))
    child = os.fork()
    if child == 0:
        sys.exit(0)
    os.waitpid(child, 0)
    time.sleep(0.1)
    assert before <= set(Path(tempfile.gettempdir()).glob("*/order-*")) or not builds.thread.is_alive()
    assert all(os.path.exists(f"/proc/{pid}") for pid in builds.supervisors())


def _fork_ends_in_parent(builds: Builds) -> None:
    """The child lives a little longer than this process."""
    if os.fork() == 0:
        time.sleep(0.3)
    sys.exit(0)


def _kill(number: int) -> Callable[[Builds], None]:
    return lambda builds: os.kill(os.getpid(), number)


def _interrupt(builds: Builds) -> None:
    """Ctrl-C in a terminal reaches the whole process group."""
    try:
        os.killpg(0, signal.SIGINT)
        time.sleep(5)
    except KeyboardInterrupt:
        sys.exit(0)
    raise AssertionError("no KeyboardInterrupt")


def _exec(builds: Builds) -> None:
    os.execv("/bin/sleep", ["sleep", "0.3"])


def _supervisor_dies(builds: Builds) -> None:
    """Everything that it would have ended is ended by others."""
    for pid in builds.supervisors():
        os.kill(pid, signal.SIGKILL)
    builds.thread.join(30)
    assert not builds.thread.is_alive()


def _everything_dies(builds: Builds) -> None:
    """All at the same time, as where a machine runs out of memory. The next start cleans up."""
    for pid in builds.supervisors():
        os.kill(pid, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def _times_out(builds: Builds) -> None:
    """The folder of the order is gone when the build has returned."""
    builds.thread.join(30)
    assert builds.why.startswith("it took more than"), builds.why
    assert not list(Path(tempfile.gettempdir()).glob("*/order-*"))


def _loses_its_folder(builds: Builds) -> None:
    folder = tempfile.mkdtemp()
    os.chdir(folder)
    os.rmdir(folder)
    Builds(None)
    time.sleep(0.1)
    sys.exit(0)


ENDS: dict[str, Callable[[Builds], None]] = {
    "exit": _exit,
    "os._exit": _hard_exit,
    "fork, the child ends": _fork_ends_in_child,
    "fork, the parent ends": _fork_ends_in_parent,
    "SIGTERM": _kill(signal.SIGTERM),
    "SIGKILL": _kill(signal.SIGKILL),
    "SIGHUP": _kill(signal.SIGHUP),
    "SIGINT": _interrupt,
    "exec": _exec,
    "chdir and rmdir": _loses_its_folder,
    "time-out": _times_out,
    "the supervisor is killed": _supervisor_dies,
    "everything is killed": _everything_dies,
}


def become(end: str, seconds: float, folder: str, *, is_fake: bool) -> NoReturn:
    """Be such a process."""
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # nohup and shells have these ignored
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    for stream in (1, 2):
        os.dup2(os.open(f"{folder}/said", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), stream)
    os.environ["TMPDIR"], tempfile.tempdir = f"{folder}/tmp", None
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{folder}/cache"
    os.environ["CXX"] = "g++"
    if is_fake:
        worker_pool.WORKER = FAKE
    builds = Builds(seconds if end == "time-out" else None)
    time.sleep(seconds)
    ENDS[end](builds)
    sys.exit(0)


class Zygote:
    """Has the processes forked."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.background_ends"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        )

    def ask(self, **asked: Any) -> int:
        """Have such a process, and return how it ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()


def main() -> None:
    """Fork for each line of the input, and write the exit status of each."""
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            become(**json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
