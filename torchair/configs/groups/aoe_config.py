"""Options under `aoe_config`."""

from __future__ import annotations

from torchair.configs.kinds import Choice, ExistingDir, ExistingFile
from torchair.configs.option import Group
from torchair.configs.rows import graph, local


class AoeConfig(Group):
    """Offline tuning of operators by the engine."""

    aoe_mode = graph(
        None,
        "`2` tunes operators on the first call of a static graph.",
        Choice("2"),
        hint=True,
        engine=local("aoe_mode"),
    )
    work_path = graph(
        "./",
        "Working directory of the tuning.",
        ExistingDir(),
        hint=True,
        engine=local("work_path", gate="aoe_mode"),
    )
    aoe_config_file = graph(
        None,
        "Configuration file of the tuning.",
        ExistingFile(),
        hint=True,
        engine=local("aoe_config_file", gate="aoe_mode"),
    )
