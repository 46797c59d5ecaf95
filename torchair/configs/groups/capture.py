"""Options under `capture`."""

from __future__ import annotations

from torchair.configs.kinds import Choice
from torchair.configs.option import Group
from torchair.configs.option_kinds import ex_only


class CaptureConfig(Group):
    """Recording and replaying: what npugraph_ex offers beyond the older groups."""

    force_recapture = ex_only(
        False,
        "Record again on every call.",
        flat="force_recapture",
        effect="tests/integration/test_capture_acceptance.py::test_07_force_recapture_counts_every_call",
    )
    capture_error_mode = ex_only(
        "global",
        "Whose unsafe actions end a recording with an error: any thread's, this thread's, nobody's.",
        Choice("global", "thread_local", "relaxed"),
        flat="capture_error_mode",
        effect="tests/integration/test_option_effects.py::test_capture_error_mode_reaches_the_device",
    )
    deadlock_check = ex_only(
        False,
        "Search recordings (of the npu) for kernels that may starve each other.",
        flat="deadlock_check",
        effect="tests/debug/traces/test_device_graph.py::test_every_recording_is_written_and_checked",
    )
    unsafe_skip_npugraph_capture_validation = ex_only(
        False,
        "Skip every test whether a recording is still valid; the caller guarantees that nothing changed.",
        flat="unsafe_skip_npugraph_capture_validation",
        effect="tests/integration/test_option_effects.py::test_nothing_is_compared",
    )
    record_statistics_debug_info = ex_only(
        False,
        "Add min, max, norm and mean of tensors to what a graph compiled at DEBUG logs about its calls.",
        flat="record_statistics_debug_info",
        cached=False,
        effect="tests/integration/test_option_effects.py::test_statistics_in_the_log",
    )
    disable_static_kernel_compile_cache = ex_only(
        False,
        "Neither read nor write the cache of kernels made for one shape.",
        flat="disable_static_kernel_compile_cache",
        cached=False,
        effect="tests/integration/test_option_effects.py::test_static_kernel_options_select_sizes",
    )
