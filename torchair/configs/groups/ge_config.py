"""Options under `ge_config`."""

from __future__ import annotations

from torchair.configs.kinds import BOOL, Choice, Kind
from torchair.configs.option import Group
from torchair.configs.rows import hint, session

TRUE_FALSE = {True: "true", False: "false"}.__getitem__


class GeConfig(Group):
    """Session options of the engine: one set per process where an Ascend engine runs the graphs."""

    enable_single_stream = hint(
        False, "Run a static graph on one stream.", engine=session("ge.enableSingleStream", TRUE_FALSE)
    )
    oo_level = hint(
        "O3",
        "How hard the graph optimiser works. O1 keeps only mandatory fusions and sorts by StableRDFS.",
        Choice("O1", "O3"),
        engine=session("ge.oo.level"),
    )
    oo_constant_folding = hint(
        None,
        "Constant folding; unset follows the level (on in both).",
        BOOL,
        engine=session("ge.oo.constantFolding", TRUE_FALSE),
    )
    oo_dead_code_elimination = hint(
        None,
        "Removal of dead ops; unset follows the level (on in both).",
        BOOL,
        engine=session("ge.oo.deadCodeElimination", TRUE_FALSE),
    )
    export_compile_stat = hint(
        "2",
        "When the fusion statistics are written: never, at exit, after compiling.",
        Choice("0", "1", "2"),
        engine=session("ge.exportCompileStat"),
    )
    aicore_num = hint(
        None,
        "Core limit of the session, cube and vector cores joined by a bar: `24|48`.",
        Kind(),
        engine=session("ge.aicoreNum"),
    )
    optimization_switch = hint(
        None,
        "Single passes of the engine: `PassA:on;PassB:off`.",
        Kind(),
        engine=session("ge.optimizationSwitch"),
    )
