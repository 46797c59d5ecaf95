"""Programs in processes of their own, which do not each pay for the import of torch: they are forked from one
process that has imported it, and nothing of torchair.

What torch itself reads from the environment when it is imported (TORCH_LOGS, TORCH_COMPILE_DEBUG) does not
reach them: such programs are started with `subprocess`.
"""

from __future__ import annotations

import functools
import gc
import importlib
import json
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
# What the programs import, with torchair and their first compile.
SHARED = (
    "google.protobuf.descriptor_pb2",
    "google.protobuf.text_format",
    "rich.live",
    "rich.progress",
    "torch._dynamo.backends.inductor",
    "torch._inductor.compile_fx",
    "torch._inductor.lowering",
    "torch.distributed.tensor",
    "torch.utils.cpp_extension",
)


def python(
    arguments: Sequence[str], folder: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run([sys.executable, *arguments], cwd=folder, env=os.environ | environment)`. Modules of
    this project are found.
    """
    with tempfile.TemporaryDirectory() as place:
        out, err = (Path(place, name) for name in ("out", "err"))
        env = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
        cwd = str(folder or Path.cwd())
        asked = {"argv": list(arguments), "cwd": cwd, "env": env, "out": str(out), "err": str(err)}
        code = _server().ask(asked)
        return subprocess.CompletedProcess(list(arguments), code, out.read_text(), err.read_text())


def fresh(
    arguments: Sequence[str], folder: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """The same in a process that has nothing loaded."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)


class _Server:
    """The process that forks."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from tests.support import process; process.serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )

    def ask(self, asked: dict[str, Any]) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


@functools.cache
def _server() -> _Server:
    """One per test process; it ends with it, when its input ends."""
    return _Server()


def serve() -> None:
    """Fork for each line of the input, and write the exit status of each."""
    for name in SHARED:
        importlib.import_module(name)
    # Else each program would go through all these modules' objects once more when it ends.
    gc.collect()
    gc.freeze()
    assert not any(name.partition(".")[0] == "torchair" for name in sys.modules), "that is the programs' part"
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _become(**json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def _become(argv: list[str], cwd: str, env: dict[str, str], out: str, err: str) -> None:
    """Run a program as the interpreter would, and leave as it does."""
    for path, stream in ((out, 1), (err, 2)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    if threads := env.get("OMP_NUM_THREADS"):  # was read when torch was imported
        sys.modules["torch"].set_num_threads(int(threads))
    while argv[0] == "-W":
        warnings._processoptions([argv[1]])  # type: ignore[attr-defined]
        argv = argv[2:]
    paths = [path for path in env["PYTHONPATH"].split(os.pathsep) if path]
    sys.path[:] = [*paths, *(path for path in sys.path if path and path != str(ROOT))]
    try:
        _run(*argv)
    except Exception:
        traceback.print_exc()
        raise SystemExit(1) from None
    raise SystemExit(0)


def _run(first: str, *rest: str) -> None:
    if first == "-c":
        code, *rest = rest
        sys.argv[:] = ["-c", *rest]
        sys.path.insert(0, "")
        exec(compile(code, "<string>", "exec"), vars(sys.modules["__main__"]))
    elif first == "-m":
        name, *rest = rest
        sys.argv[:] = [name, *rest]
        sys.path.insert(0, os.getcwd())
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    else:
        sys.argv[:] = [first, *rest]
        sys.path.insert(0, str(Path(first).resolve().parent))
        runpy.run_path(first, run_name="__main__")
