"""Define shortcuts for the tables in `groups/`: options that share several facts."""

from __future__ import annotations

from functools import partial

from torchair.configs.option import CAPTURE_MODES, GRAPH_MODES, REDUCE, Engine, Option

graph = partial(Option, modes=GRAPH_MODES)
# For the Ascend engine, without effect in capture mode.
hint = partial(Option, modes=GRAPH_MODES, idle=REDUCE, hint=True)
capture = partial(Option, modes=CAPTURE_MODES)
ex_only = partial(Option, modes=CAPTURE_MODES, ex_only=True, own=True)
local = partial(Engine, scope="local")
session = partial(Engine, scope="global")
