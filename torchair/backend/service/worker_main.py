"""Compiles orders: `python -m torchair.backend.service.worker_main SOCKET`, each in a child. It gives way to
whoever serves. Its parent is a supervisor (`core/processes/supervisor.py`), and it ends with that.
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
LOWEST = 19


def main() -> None:
    """Take orders; in a child, leave the code of the program beside the order."""
    parent = os.getppid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # how children end is asked, unlike the user's
    with contextlib.suppress(OSError):
        os.nice(LOWEST)
    adopt_orphans()
    load_compilers()
    gc.freeze()  # children do not look through what is loaded, and so do not copy it
    orders = socket.socket(fileno=int(sys.argv[1]))
    folder = Server(orders, parent, IDLE_SECONDS).serve()
    if folder is not None:
        fill(folder)
        # Python's own end would wait for compilers of Inductor's that are still starting, for nothing.
        sys.stderr.flush()
        os._exit(0)
    end_below(os.getpid())


def fill(folder: Path) -> None:
    """Compile one order."""
    order: CompileRequest = pickle.loads((folder / ORDER).read_bytes())
    order.surroundings.enter()
    made = order.fill()
    leave(made, folder)
    if order.is_tuned():
        try_out(made.code, order)
        leave(made, folder)  # with what that has found out


def try_out(code: Code, order: CompileRequest) -> None:
    """Kernels are tried out when they first run; here nobody waits for it. What does not work out, or takes
    too long (zeros may keep a loop going), is left to the process that takes the program.
    """
    signal.signal(signal.SIGALRM, lambda *_: os._exit(0))
    signal.alarm(TRIAL_SECONDS)
    with contextlib.suppress(Exception), torch.no_grad():
        load(code)(order.stand_ins())
    signal.alarm(0)


if __name__ == "__main__":
    main()
