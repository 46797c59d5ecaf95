"""Compiles one order of `static_kernels`: `python -m torchair.backend.static_worker FILE`."""

from __future__ import annotations

import contextlib
import pickle
import sys
from pathlib import Path

import torch

import torchair.ops.npu  # noqa: F401 - graphs may call the library's ops
from torchair.backend.static_kernels import Order


def main() -> None:
    """Fill the cache on disk."""
    order: Order = pickle.loads(Path(sys.argv[1]).read_bytes())
    torch.set_num_threads(order.threads)
    program = order.fill()
    # Kernels are tried out when they first run; here nobody waits for it. What did not work out is tried
    # again by the process that takes the program.
    with contextlib.suppress(Exception), torch.no_grad():
        program(order.stand_ins())


if __name__ == "__main__":
    main()
