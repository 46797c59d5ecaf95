"""Options under `debug`."""

from __future__ import annotations

from torchair.configs.kinds import Choice, IntRange, PathText, Raw
from torchair.configs.option import AUTO, REDUCE, Alias, CellOf, Group, Nested, Option
from torchair.configs.option_kinds import capture, graph, local

SWITCHES = "tests/passes/test_options.py::test_each_switch_in_the_tree"


class GraphDump(Group):
    """Graph dumps."""

    type = Option(
        None,
        "Write each graph before and after the passes: `txt` is the protobuf text, `pbtxt` opens in "
        "TensorBoard, `py` is a Python script that runs on its own. Capture modes have FX graphs only and "
        "support only `py`. `dtype` is another name of this option.",
        Choice("txt", "pbtxt", "py"),
        cached=False,
        effect="tests/debug/dumps/test_graph_file.py::test_two_files_per_graph",
    )
    dtype = Alias("debug.graph_dump.type")
    path = Option(
        None,
        "Directory of the dump; the working directory when unset.",
        PathText(),
        plain=True,
        cached=False,
        effect="tests/debug/dumps/test_graph_file.py::test_two_files_per_graph",
    )
    _path = CellOf("path")


class DataDump(Group):
    """Dumps of every value of an eager run."""

    type = Option(
        None,
        "Run the FX graph eagerly and dump the inputs and outputs of its nodes; nothing is compiled.",
        Choice("npy"),
        effect="tests/debug/dumps/test_tensor_dump.py::test_inputs_and_outputs_of_every_op",
    )
    path = Option(
        None,
        "Root of the dump; the working directory when unset.",
        PathText(),
        plain=True,
        cached=False,
        effect="tests/debug/dumps/test_tensor_dump.py::test_inputs_and_outputs_of_every_op",
    )
    _path = CellOf("path")
    filter = Option(
        None,
        "Function called with each node; the node is dumped if the result is not None.",
        Raw(),
        plain=True,
        cached=False,
        effect="tests/debug/dumps/test_tensor_dump.py::test_the_filter_chooses",
    )


class FxSummary(Group):
    """The report of the operators in a model and of their converters."""

    type = graph(
        None,
        "Write a report of the operators of each graph, in this format.",
        Choice("csv"),
        idle=REDUCE,
        effect="tests/debug/dumps/test_op_summary.py::test_a_row_per_target",
    )
    skip_compile = graph(
        True,
        "After the report run the FX graph eagerly instead of compiling it.",
        effect="tests/debug/dumps/test_op_summary.py::test_op_summary_skips_or_compiles_afterwards",
    )
    path = graph(
        None,
        "Directory of the report; the working directory when unset.",
        PathText(),
        plain=True,
        cached=False,
        own=True,
        effect="tests/debug/dumps/test_op_summary.py::test_a_row_per_target",
    )
    _path = CellOf("path")


class AclGraphDebug(Group):
    """Recording and replaying: switches for single passes and memory reuse."""

    disable_reinplace_inplaceable_ops_pass = capture(
        False,
        "Do not make out-of-place ops on intermediate values in-place.",
        flat="!inplace_pass",
        idle=AUTO,
        effect=SWITCHES,
    )
    disable_reinplace_input_mutated_ops_pass = capture(
        False,
        "Keep each update of a graph input as a functional op and a copy.",
        flat="!input_inplace_pass",
        idle=AUTO,
        effect=SWITCHES,
    )
    disable_mempool_reuse_in_same_fx = capture(
        False,
        "Give each recording of one FX graph separate memory instead of sharing it.",
        flat="!reuse_graph_pool_in_same_fx",
        engine=local("disable_mempool_reuse_in_same_fx"),
        effect="tests/integration/test_option_effects.py::test_pools_of_recordings",
    )
    enable_output_clone = capture(
        False,
        "Return clones of the outputs; outputs that share storage with an input are never cloned.",
        flat="clone_output",
        engine=local("enable_output_clone"),
        effect="tests/integration/test_option_effects.py::test_outputs_are_copied",
    )
    static_capture_size_limit = capture(
        64,
        "Maximum number of recordings of one FX graph.",
        IntRange(1),
        flat="capture_limit",
        engine=local("static_capture_size_limit"),
        effect=""
        "tests/integration/test_capture_acceptance.py::test_06_at_the_limit_the_least_recently_used_goes",
    )
    clone_input = capture(
        True,
        "Copy plain inputs into buffers of the recording before replay; False records the first call's "
        "tensors.",
        flat="clone_input",
        idle=AUTO,
        engine=local("clone_input"),
        effect="tests/integration/test_option_effects.py::test_inputs_are_copied",
    )
    remove_cat_ops = capture(
        True,
        "Let the producers of concatenated tensors write into slices of the result.",
        flat="remove_cat_ops",
        effect=SWITCHES,
    )


class DebugConfig(Group):
    """Debugging: dumps, reports, and the deadlock check."""

    graph_dump = Nested(GraphDump)
    data_dump = Nested(DataDump)
    fx_summary = Nested(FxSummary)
    aclgraph = Nested(AclGraphDebug)
    run_eagerly = Option(
        False,
        "Convert and rewrite as usual, then run the graph eagerly: nothing is compiled or recorded.",
        flat="force_eager",
        engine=local("run_eagerly"),
        effect="tests/integration/test_option_effects.py::test_nothing_is_compiled_or_recorded",
    )
    deadlock_check = Option(
        False,
        "The same as `capture.deadlock_check`, for both modes; warns if there is no recording to check.",
        engine=local("deadlock_check"),
        effect="tests/integration/test_option_effects.py::test_deadlocks_are_searched",
    )
