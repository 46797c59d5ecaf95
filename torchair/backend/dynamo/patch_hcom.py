"""Make collectives traceable, for scripts that call `patch_for_hcom`."""

from __future__ import annotations

import torch

from torchair.core.log import logger
from torchair.ops.distributed.distributed_calls import trace_collectives


def patch_for_hcom() -> None:
    """Make the collectives of `torch.distributed` traceable.

    Creating a backend of torchair does that already, so this call is not needed, and the log says so.
    """
    trace_collectives()
    logger.warning_once(
        "patch_for_hcom() is not needed: torchair traces the collectives of torch %s without it",
        torch.__version__,
    )
