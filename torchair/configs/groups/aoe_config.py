"""Options under `aoe_config`."""

from __future__ import annotations

from torchair.configs.kinds import Choice, ExistingDir, ExistingFile
from torchair.configs.option import Group
from torchair.configs.option_kinds import graph, local


class AoeConfig(Group):
    """Autotuning."""

    aoe_mode = graph(
        None,
        "`2` compiles a graph of fixed sizes in several ways on its first call and caches the fastest for "
        "later processes. Graphs with symbolic sizes are not tuned.",
        Choice("2"),
        engine=local("aoe_mode"),
        effect="tests/backend/pipeline/test_autotune.py::test_the_fastest_way_serves_and_is_found_again",
    )
    work_path = graph(
        "./",
        "Directory where results (`aoe_result_….json`) and the code of tuned graphs (`aoe_code`) are cached.",
        ExistingDir(),
        engine=local("work_path", gate="aoe_mode"),
        effect="tests/backend/pipeline/test_autotune.py::test_another_process_finds_what_was_tuned",
    )
    aoe_config_file = graph(
        None,
        "JSON file with the candidates and the number of trials: `candidates`, `repeats`, `again`.",
        ExistingFile(),
        engine=local("aoe_config_file", gate="aoe_mode"),
        effect="tests/backend/pipeline/test_autotune.py::test_autotune_tries_candidates_of_config_file",
    )
