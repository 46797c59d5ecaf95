"""Old import path of the logger, for existing scripts."""

from torchair.core.log import EVENT_LEVEL, logger

__all__ = ["EVENT_LEVEL", "logger"]
