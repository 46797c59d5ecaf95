"""Collectives in graphs."""

from __future__ import annotations

import torch

from torchair.core.log import logger


def patch_for_hcom() -> None:
    """Make the collectives of `torch.distributed` traceable. Dynamo of every torch from 2.3.1 on does that by
    itself, so nothing is patched here; the log says so.
    """
    logger.warning_once(
        "patch_for_hcom: torch %s traces collectives by itself, nothing is patched", torch.__version__
    )
