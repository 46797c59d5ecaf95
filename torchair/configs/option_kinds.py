"""Rows that are alike in several facts: short names for the tables in `groups/`."""

from __future__ import annotations

from functools import partial

from torchair.configs.option import CAPTURE_MODES, GRAPH_MODES, REDUCE, Engine, Option

graph = partial(Option, modes=GRAPH_MODES)
# For the Ascend engine, idle when recording.
hint = partial(Option, modes=GRAPH_MODES, idle=REDUCE, hint=True)
capture = partial(Option, modes=CAPTURE_MODES)
ex_only = partial(Option, modes=CAPTURE_MODES, ex_only=True, own=True)
local = partial(Engine, scope="local")
session = partial(Engine, scope="global")
