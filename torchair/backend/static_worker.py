"""Compiles one order of `static_kernels`: `python -m torchair.backend.static_worker FILE`."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import torch

import torchair.ops.npu  # noqa: F401 - graphs may call the library's ops


def main() -> None:
    """Fill the cache on disk."""
    order = pickle.loads(Path(sys.argv[1]).read_bytes())
    torch.set_num_threads(order.threads)
    order.fill()


if __name__ == "__main__":
    main()
