"""Compiles one order: `python -m torchair.backend.build_worker FOLDER PARENT`. It gives way to whoever
serves, and ends with who ordered.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

import torch

import torchair.ops.npu  # noqa: F401 - graphs may call the library's ops
from torchair.backend.order import ORDER, TEMPORARY, Order, leave
from torchair.codegen import load
from torchair.core.program import Code

TRIAL_SECONDS = 900
LOWEST = 19


def main() -> None:
    """Leave the code of the program beside the order."""
    folder = Path(sys.argv[1])
    _end_with(int(sys.argv[2]), folder)
    with contextlib.suppress(OSError):
        os.nice(LOWEST)
    order: Order = pickle.loads((folder / ORDER).read_bytes())
    order.surroundings.enter()
    made = order.fill()
    leave(made, folder)
    if order.is_tuned():
        try_out(made.code, order)


def _end_with(parent: int, folder: Path) -> None:
    """Also where it was killed: then nobody else removes what it has left for this process."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        if folder.name.startswith(TEMPORARY):
            shutil.rmtree(folder, ignore_errors=True)
        os.killpg(0, signal.SIGKILL)  # with the compilers that run here

    threading.Thread(target=watch, daemon=True).start()


def try_out(code: Code, order: Order) -> None:
    """Kernels are tried out when they first run; here nobody waits for it. What does not work out, or takes
    too long (zeros may keep a loop going), is left to the process that takes the program.
    """
    signal.signal(signal.SIGALRM, lambda *_: os._exit(0))
    signal.alarm(TRIAL_SECONDS)
    with contextlib.suppress(Exception), torch.no_grad():
        load(code)(order.stand_ins())


if __name__ == "__main__":
    main()
