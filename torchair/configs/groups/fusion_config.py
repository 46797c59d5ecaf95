"""Options under `fusion_config`."""

from __future__ import annotations

from torchair.configs.kinds import ExistingFile
from torchair.configs.option import Group
from torchair.configs.rows import hint, session


class FusionConfig(Group):
    """Fusions of the engine."""

    fusion_switch_file = hint(
        None,
        "File of rules that switch engine fusions on and off.",
        ExistingFile(),
        engine=session("ge.fusionSwitchFile"),
    )
