"""Collectives in graphs."""

from __future__ import annotations

import torch

from torchair.core.log import logger
from torchair.ops.distributed.distributed_calls import trace_collectives


def patch_for_hcom() -> None:
    """Make the collectives of `torch.distributed` traceable. Whoever makes a backend of ours does that,
    so nothing is left to do here; the log says so.
    """
    trace_collectives()
    logger.warning_once(
        "patch_for_hcom: graphs have the collectives of torch %s without it", torch.__version__
    )
