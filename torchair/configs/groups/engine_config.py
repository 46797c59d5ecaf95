"""Define the options of the embedded engine, which other TorchAir implementations do not have."""

from __future__ import annotations

from torchair.configs.kinds import INT64_MAX, Choice, IntRange, Regex
from torchair.configs.option import Group, Option


class EngineConfig(Group):
    """The embedded engine: code generators and resource limits."""

    codegen = Option(
        "auto",
        "Code generator: `reference` interprets the graph op by op, `eager` writes readable Python, "
        "`inductor` and `native` compile, `auto` chooses.",
        Choice("auto", "reference", "eager", "inductor", "native"),
        flat="codegen",
        own=True,
        effect="tests/integration/test_option_effects.py::test_codegen_option_selects_code_generator",
    )
    soc = Option(
        "",
        "The chip that graphs are built for, such as `Ascend910B`. Chips of the newest family "
        "(`Ascend910_95`, `Ascend950`) get ops that only this family has; unset uses ops that all "
        "chips have.",
        Regex(r"(?i:ascend\w+)?", "the name of a chip: `Ascend` and its number"),
        own=True,
        effect="tests/integration/test_chip_checks.py::test_newest_chip_gets_newer_op",
    )
    compile_budget_s = Option(
        None,
        "With `codegen='auto'`: maximum seconds that this process spends on compiling optimized programs "
        "in the background; 0 compiles none, so the eager program stays; unset means no limit.",
        IntRange(0, INT64_MAX, none=True),
        flat="compile_budget_s",
        own=True,
        cached=False,
        effect="tests/backend/pipeline/test_tiered.py::test_tiered_without_budget_submits_no_job",
    )
    compile_workers = Option(
        1,
        "With `codegen='auto'`: number of worker processes that compile optimized programs at the same "
        "time. They run at the lowest priority.",
        IntRange(1, 64),
        flat="compile_workers",
        own=True,
        cached=False,
        effect="tests/backend/pipeline/test_tiered.py::test_scheduler_runs_compile_workers_in_parallel",
    )
    program_cache_mb = Option(
        2048,
        "Maximum megabytes of the program cache on disk (`~/.cache/torchair/programs`, or the directory in "
        "`XDG_CACHE_HOME` or `TORCHAIR_PROGRAMS`). It holds optimized programs and the results of compiling "
        "after Dynamo. The least recently used entries are removed first; 0 disables the cache.",
        IntRange(0, 1 << 24),
        flat="program_cache_mb",
        own=True,
        cached=False,
        effect="tests/backend/service/test_program_cache.py::test_program_cache_of_zero_mb_writes_nothing",
    )
    memory_budget = Option(
        None,
        "Maximum bytes of memory that recordings may hold; unset means no limit.",
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
        "Raise an error instead of a `DegradedWarning`. TORCHAIR_STRICT=1 in the environment does this for "
        "all graphs.",
        flat="strict",
        own=True,
        cached=False,
        effect="tests/integration/test_degradations.py::test_an_error_in_strict_mode",
    )
