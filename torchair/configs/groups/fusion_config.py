"""Options under `fusion_config`."""

from __future__ import annotations

from torchair.configs.kinds import ExistingFile
from torchair.configs.option import REDUCE, Group
from torchair.configs.option_kinds import graph, session


class FusionConfig(Group):
    """Fusions of the engine."""

    fusion_switch_file = graph(
        None,
        'JSON file that enables and disables [passes](passes.md): `{"Switch": {"GraphFusion": {"ALL": "off", '
        '"PassA": "on"}, "UBFusion": {}}}`. `ALL` stands for all fusions that are not named.',
        ExistingFile(),
        idle=REDUCE,
        engine=session("ge.fusionSwitchFile"),
        effect="tests/integration/test_engine_side_options.py::test_a_file_switches_passes",
    )
