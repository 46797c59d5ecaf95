"""Compiles one order of `static_kernels`: `python -m torchair.backend.static_worker FILE`."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sys
from pathlib import Path

import torch

import torchair.ops.npu  # noqa: F401 - graphs may call the library's ops
from torchair.backend.static_kernels import CODE, Order
from torchair.core.pack import pack
from torchair.core.program import Program, code_of

TRIAL_SECONDS = 900


def main() -> None:
    """Leave the code of the program beside the order."""
    path = Path(sys.argv[1])
    order: Order = pickle.loads(path.read_bytes())
    torch.set_num_threads(order.threads)
    program = order.fill()
    path.with_name(CODE).write_bytes(pack(code_of(program)))
    if order.is_tuned():
        try_out(program, order)


def try_out(program: Program, order: Order) -> None:
    """Kernels are tried out when they first run; here nobody waits for it. What does not work out, or takes
    too long (zeros may keep a loop going), is left to the process that takes the program.
    """
    signal.signal(signal.SIGALRM, lambda *_: os._exit(0))
    signal.alarm(TRIAL_SECONDS)
    with contextlib.suppress(Exception), torch.no_grad():
        program(order.stand_ins())


if __name__ == "__main__":
    main()
