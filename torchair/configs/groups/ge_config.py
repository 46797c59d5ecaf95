"""Options under `ge_config`."""

from __future__ import annotations

from torchair.configs.kinds import BOOL, Choice, Kind
from torchair.configs.option import REDUCE, Group
from torchair.configs.option_kinds import graph, session
from torchair.configs.pass_switches import SwitchText

TRUE_FALSE = {True: "true", False: "false"}.__getitem__
TESTS = "tests/integration/test_engine_side_options.py"


class GeConfig(Group):
    """Session options of the engine: one set per process if an Ascend engine runs the graphs."""

    enable_single_stream = graph(
        False,
        "Run the graph on one stream: removes events and scopes that move ops to another stream, with a "
        "`DegradedWarning`.",
        idle=REDUCE,
        engine=session("ge.enableSingleStream", TRUE_FALSE),
        effect=f"{TESTS}::test_enable_single_stream_removes_labels",
    )
    oo_level = graph(
        "O3",
        "Optimization level of the graph. O1 skips the fusions ([passes](passes.md)) and sorts by "
        "StableRDFS.",
        Choice("O1", "O3"),
        idle=REDUCE,
        engine=session("ge.oo.level"),
        effect=f"{TESTS}::test_level_o1_leaves_fusions_out",
    )
    oo_constant_folding = graph(
        None,
        "Compute constant subexpressions when the graph is compiled; unset follows the level (on in both).",
        BOOL,
        idle=REDUCE,
        engine=session("ge.oo.constantFolding", TRUE_FALSE),
        effect=f"{TESTS}::test_constant_folding_option_removes_ops",
    )
    oo_dead_code_elimination = graph(
        None,
        "Remove IR ops with unused results; unset follows the level (on in both).",
        BOOL,
        idle=REDUCE,
        engine=session("ge.oo.deadCodeElimination", TRUE_FALSE),
        effect=f"{TESTS}::test_dead_code_elimination",
    )
    export_compile_stat = graph(
        "2",
        "When to write `./fusion_result.json`, which counts the matches and changes of passes and fusions: "
        "never, at exit, or after each compile. Nothing is written unless this is assigned.",
        Choice("0", "1", "2"),
        idle=REDUCE,
        engine=session("ge.exportCompileStat"),
        cached=False,
        effect="tests/debug/dumps/test_fusion_stats.py::test_when_it_is_written",
    )
    aicore_num = graph(
        None,
        "Core limit of the session, cube and vector cores joined by a bar: `24|48`. On a CPU these are "
        "threads; a block of `torchair.scope.limit_core_num` overrides it.",
        Kind(),
        idle=REDUCE,
        engine=session("ge.aicoreNum"),
        effect=f"{TESTS}::test_cores_of_the_session",
    )
    optimization_switch = graph(
        None,
        "Enable or disable single [passes](passes.md) by name. This overrides "
        "`fusion_config.fusion_switch_file`; names of the Ascend engine's passes are passed on to it.",
        SwitchText(),
        idle=REDUCE,
        engine=session("ge.optimizationSwitch"),
        effect=f"{TESTS}::test_passes_are_switched_by_name",
    )
