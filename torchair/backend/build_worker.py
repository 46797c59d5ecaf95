"""Compiles orders: `python -m torchair.backend.build_worker SOCKET PARENT`, each in a child. It gives way to
whoever serves, and ends with who ordered.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import shutil
import signal
import socket
import sys
import threading
import time
from pathlib import Path

import torch

import torchair.ops.npu  # noqa: F401 - graphs may call the library's ops
from torchair.backend.order import ORDER, TEMPORARY, Order, leave
from torchair.backend.workshop import is_ready
from torchair.codegen import load
from torchair.core.program import Code
from torchair.core.torch_private.inductor import load_compilers

TRIAL_SECONDS = 900
IDLE_SECONDS = 60.0
LOWEST = 19
GLANCE_SECONDS = 0.1
"""How often children are looked after."""


def main() -> None:
    """Take orders; in a child, leave the code of the program beside the order."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # how children end is asked, unlike the user's
    with contextlib.suppress(OSError):
        os.nice(LOWEST)
    load_compilers()
    gc.freeze()  # children do not look through what is loaded, and so do not copy it
    folder = serve(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))
    if folder is not None:
        fill(folder)
        # Python's own end would wait for compilers of Inductor's that are still starting, for nothing.
        sys.stderr.flush()
        os._exit(0)


def serve(orders: socket.socket, parent: int) -> Path | None:
    """In a child: where its order lies. Else nothing, when there is nothing more to do."""
    server, children, idle_since = os.getpid(), dict[int, int](), time.monotonic()
    while True:
        if is_ready(orders.fileno(), GLANCE_SECONDS):
            said, files, *_ = socket.recv_fds(orders, 4096, 2)
            if not said:
                return None
            log, told = files
            folder = Path(os.fsdecode(said))
            child = _fork(log)
            if child == 0:
                os.setpgid(0, 0)
                os.dup2(log, sys.stderr.fileno())
                orders.close()
                for file in (log, told, *children.values()):  # who waits there sees when the others end
                    os.close(file)
                _end_with(server, folder)
                return folder
            os.close(log)
            if child < 0:
                _tell(told, os.getpid())
                _tell(told, 1)
                os.close(told)
                continue
            if not _announce(child, told):
                _remove(folder)
            children[child] = told
        elif os.getppid() != parent or (not children and time.monotonic() > idle_since + IDLE_SECONDS):
            return None
        for child in list(children):
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                _tell(children[child], os.waitstatus_to_exitcode(status))
                os.close(children.pop(child))
                idle_since = time.monotonic()


def _fork(log: int) -> int:
    """A child; negative where there can be none, which the log says."""
    try:
        return os.fork()
    except OSError as error:
        os.write(log, f"no process for it: {error}\n".encode())
        return -1


def _announce(child: int, told: int) -> bool:
    """Say who compiles it. Where nobody waits for it any more, nobody does."""
    with contextlib.suppress(OSError):
        os.setpgid(child, child)
    is_heard = _tell(told, child)
    if not is_heard:
        os.kill(child, signal.SIGKILL)
    return is_heard


def _tell(told: int, number: int) -> bool:
    """Does anybody hear it?"""
    try:
        os.write(told, f"{number}\n".encode())
    except BrokenPipeError:
        return False
    return True


def fill(folder: Path) -> None:
    """Compile one order."""
    order: Order = pickle.loads((folder / ORDER).read_bytes())
    order.surroundings.enter()
    made = order.fill()
    leave(made, folder)
    if order.is_tuned():
        try_out(made.code, order)
        leave(made, folder)  # with what that has found out


def _end_with(server: int, folder: Path) -> None:
    """Also where it was killed: then nobody else removes what it has left for this process."""

    def watch() -> None:
        while os.getppid() == server:
            time.sleep(0.5)
        _remove(folder)
        os.killpg(0, signal.SIGKILL)  # with the compilers that run here

    threading.Thread(target=watch, daemon=True).start()


def _remove(folder: Path) -> None:
    """Who ordered cannot any more. What shall stay, stays."""
    if folder.name.startswith(TEMPORARY):
        shutil.rmtree(folder, ignore_errors=True)


def try_out(code: Code, order: Order) -> None:
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
