"""The options of the embedded engine, which other TorchAir implementations have not."""

from __future__ import annotations

from torchair.configs.kinds import INT64_MAX, Choice, IntRange, Regex
from torchair.configs.option import Group, Option


class EngineConfig(Group):
    """The embedded engine: who generates code, and within which bounds."""

    codegen = Option(
        "auto",
        "What runs the graph: `reference` interprets it op by op, `eager` is readable Python, `inductor` and "
        "`native` are compiled, `auto` chooses.",
        Choice("auto", "reference", "eager", "inductor", "native"),
        flat="codegen",
        own=True,
        effect="tests/integration/test_option_effects.py::test_codegen_option_selects_code_generator",
    )
    soc = Option(
        "",
        "The chip that graphs are written for, such as `Ascend910B`. Those of the newest family "
        "(`Ascend910_95`, `Ascend950`) get ops that only it has; unset means ops that all have.",
        Regex(r"(?i:ascend\w+)?", "the name of a chip: `Ascend` and its number"),
        own=True,
        effect="tests/integration/test_chip_checks.py::test_newest_chip_gets_newer_op",
    )
    compile_budget_s = Option(
        None,
        "With `codegen='auto'`: most seconds that this process spends on building better programs in the "
        "background; 0 builds none, so the eager program stays; unset means no bound.",
        IntRange(0, INT64_MAX, none=True),
        flat="compile_budget_s",
        own=True,
        cached=False,
        effect="tests/backend/pipeline/test_tiered.py::test_tiered_without_budget_submits_no_job",
    )
    compile_workers = Option(
        1,
        "With `codegen='auto'`: how many processes build better programs at the same time. They have the "
        "lowest priority.",
        IntRange(1, 64),
        flat="compile_workers",
        own=True,
        cached=False,
        effect="tests/backend/pipeline/test_tiered.py::test_scheduler_runs_compile_workers_in_parallel",
    )
    program_cache_mb = Option(
        2048,
        "Most megabytes of what is kept on disk for later processes (in `~/.cache/torchair/programs`, or "
        "where `XDG_CACHE_HOME` or `TORCHAIR_PROGRAMS` say): better programs, and what was compiled "
        "after Dynamo. What is unused longest is dropped; 0 keeps and takes nothing.",
        IntRange(0, 1 << 24),
        flat="program_cache_mb",
        own=True,
        cached=False,
        effect="tests/backend/service/test_program_cache.py::test_program_cache_of_zero_mb_writes_nothing",
    )
    memory_budget = Option(
        None,
        "Most bytes that recordings may hold; unset means no bound.",
        IntRange(0, INT64_MAX, none=True),
        flat="memory_budget",
        own=True,
        effect="tests/integration/test_option_effects.py::test_memory_budget_evicts_recordings",
    )
    verify = Option(
        False,
        "Check the whole graph between passes.",
        flat="verify",
        own=True,
        cached=False,
        effect="tests/integration/test_option_effects.py::test_graphs_are_checked_between_passes",
    )
    strict = Option(
        False,
        "What makes a run less than promised is an error instead of a warning. TORCHAIR_STRICT=1 in the "
        "environment does it for all graphs.",
        flat="strict",
        own=True,
        cached=False,
        effect="tests/integration/test_degradations.py::test_an_error_in_strict_mode",
    )
