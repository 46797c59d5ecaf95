"""The worker process: `python -m torchair.backend.service.worker_main SOCKET`. It forks a child per request.

It runs at the lowest priority. Its parent is a supervisor (`core/processes/supervisor.py`), and it exits when
the supervisor does.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import signal
import socket
import sys
from pathlib import Path

import torch

import torchair.ops.npu  # noqa: F401 - graphs may call the library's ops
from torchair.backend.service.request import ORDER, CompileRequest, leave
from torchair.codegen import load
from torchair.core.processes.fork_server import Server
from torchair.core.processes.supervisor import adopt_orphans, end_below
from torchair.core.program import Code
from torchair.core.torch_private.compilers.inductor import load_compilers

TRIAL_SECONDS = 900
IDLE_SECONDS = 60.0
NICE_LEVEL = 19  # the lowest priority


def main() -> None:
    """Serve requests; in a child, write the code of the program next to the request."""
    parent = os.getppid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # the server waits for its children itself
    with contextlib.suppress(OSError):
        os.nice(NICE_LEVEL)
    adopt_orphans()
    load_compilers()
    gc.freeze()  # the collectors of children skip the loaded modules, so their pages stay shared
    requests = socket.socket(fileno=int(sys.argv[1]))
    folder = Server(requests, parent, IDLE_SECONDS).serve()
    if folder is not None:
        compile_request(folder)
        # A normal exit would wait for Inductor's compile workers that are still starting.
        sys.stderr.flush()
        os._exit(0)
    end_below(os.getpid())


def compile_request(folder: Path) -> None:
    """Compile the request in a build directory, and write the result there."""
    request: CompileRequest = pickle.loads((folder / ORDER).read_bytes())
    request.surroundings.enter()
    result = request.fill()
    leave(result, folder)
    if request.is_tuned():
        try_out(result.code, request)
        leave(result, folder)  # with the results of autotuning


def try_out(code: Code, request: CompileRequest) -> None:
    """Run the program once, which autotunes its kernels while no call waits for them.

    If that fails, or takes too long (zeros may keep a loop going), the process that loads the program
    autotunes them.
    """
    signal.signal(signal.SIGALRM, lambda *_: os._exit(0))
    signal.alarm(TRIAL_SECONDS)
    with contextlib.suppress(Exception), torch.no_grad():
        load(code)(request.stand_ins())
    signal.alarm(0)


if __name__ == "__main__":
    main()
