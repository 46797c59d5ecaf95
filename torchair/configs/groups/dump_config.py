"""Options under `dump_config`."""

from __future__ import annotations

from torchair.configs.engine_options import rank_directory
from torchair.configs.kinds import Choice, ExistingDir, ExistingJson, Regex
from torchair.configs.option import REDUCE, Group, Option
from torchair.configs.option_kinds import capture, graph, session

# Integers and ranges joined by bars. Accepts what ^(((\d+)|(\d+-{0,1}\d+))\|{0,1})*$ accepts, but in linear
# time. That pattern accepts ranges without a bar between them ("0-12-3") if two digits are between the
# hyphens.
_RANGES = r"\d+(?:-\d\d+)*(?:-\d+)?"
STEPS = Regex(rf"(?:{_RANGES}(?:\|{_RANGES})*\|?)?", "integers and ranges joined by `|`, as `0|2-5`")
NODE_NAMES = Regex(
    r'[0-9a-zA-Z_" "/\\.]*', 'node names separated by spaces: letters, digits, `_`, `"`, `/`, `\\`, `.`'
)


class DumpConfig(Group):
    """Dumps of op inputs and outputs: in graph mode from the reference engine, else from FX nodes."""

    enable_dump = Option(
        False,
        "Dump tensors while the graph runs, in capture mode also from recordings; nothing is compiled.",
        flat="dump_tensor_data",
        idle=REDUCE,
        engine=session("ge.exec.enableDump", gate="enable_dump"),
        effect="tests/debug/dumps/test_ge_op_dump.py::test_every_op_of_every_run",
    )
    dump_path = Option(
        "./",
        "Root directory of the dump; each rank writes to its own subdirectory.",
        ExistingDir(),
        flat="data_dump_dir",
        engine=session("ge.exec.dumpPath", rank_directory, gate="enable_dump"),
        effect="tests/debug/dumps/test_ge_op_dump.py::test_every_op_of_every_run",
    )
    dump_mode = graph(
        "all",
        "Which side of each op is dumped: inputs, outputs or both.",
        Choice("input", "output", "all"),
        engine=session("ge.exec.dumpMode", gate="enable_dump"),
        effect="tests/debug/dumps/test_ge_op_dump.py::test_dump_mode_selects_inputs_and_outputs",
    )
    quant_dumpable = graph(
        False,
        "Keep the data before quantization so that it can be dumped; a hint that is written to the JSON "
        "file of the dump.",
        engine=session("ge.quant_dumpable", gate="enable_dump"),
        effect="tests/debug/dumps/test_ge_op_dump.py::test_the_options_are_handed_on",
    )
    dump_step = graph(
        "",
        "The runs of a graph that are dumped, counted from 0; empty means all.",
        STEPS,
        engine=session("ge.exec.dumpStep", gate="enable_dump"),
        effect="tests/debug/dumps/test_ge_op_dump.py::test_dump_step_selects_runs",
    )
    dump_layer = graph(
        "",
        "Names of the IR ops to dump, together with the inputs that feed them; empty means all.",
        NODE_NAMES,
        engine=session("ge.exec.dumpLayer", gate="enable_dump"),
        effect="tests/debug/dumps/test_ge_op_dump.py::test_layers_and_the_inputs_that_feed_them",
    )
    dump_data = graph(
        "tensor",
        "Dump whole tensors, or a CSV file of their statistics.",
        Choice("tensor", "stats"),
        engine=session("ge.exec.dumpData", gate="enable_dump"),
        effect="tests/debug/dumps/test_ge_op_dump.py::test_dump_data_stats_writes_statistics",
    )
    dump_config_path = graph(
        None,
        "JSON file with a complete dump configuration, without `enable_dump`; options that are set "
        "override it.",
        ExistingJson(),
        engine=session("ge_dump_with_acl_config"),
        effect="tests/debug/dumps/test_ge_op_dump.py::test_a_model_by_file",
    )
    data_dump_stage = capture(
        "optimized",
        "The graph that is dumped: `original` runs eagerly, without recording.",
        Choice("original", "optimized"),
        flat="data_dump_stage",
        effect="tests/debug/dumps/test_tensor_dump.py::test_every_tensor_of_every_call",
    )
