"""Provide `torch_npu.dynamo`, where the vendor's plug-in has its copy of torchair."""

from __future__ import annotations

import sys

torchair = sys.modules[__name__.partition(".")[0]]

__all__ = ["torchair"]
