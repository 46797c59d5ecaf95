"""The option tree of `torchair.CompilerConfig`. Each option is one row here and nowhere else.

What a row can say is in `option.py`; which values a kind accepts is in `kinds.py`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torchair.configs.engine_config import EngineConfig
from torchair.configs.engine_options import engine_options, rank_directory
from torchair.configs.idle import acts
from torchair.configs.json_form import JsonForm
from torchair.configs.kinds import (
    BOOL,
    Choice,
    ExistingDir,
    ExistingFile,
    ExistingJson,
    Function,
    Instance,
    IntList,
    IntRange,
    Kind,
    PathText,
    Raw,
    Regex,
)
from torchair.configs.option import (
    ALL_MODES,
    CAPTURE_MODES,
    GRAPH_MODES,
    CellOf,
    Engine,
    FlatView,
    Group,
    Nested,
    Option,
    flat_names,
    flat_rows,
    walk,
)
from torchair.core.errors import BadOption

AUTO, REDUCE = "max-autotune", "reduce-overhead"

# Rows that are alike in several facts. `hint`: for the Ascend engine, idle when recording.
graph = partial(Option, modes=GRAPH_MODES)
hint = partial(Option, modes=GRAPH_MODES, idle=REDUCE, hint=True)
capture = partial(Option, modes=CAPTURE_MODES)
ex_only = partial(Option, modes=CAPTURE_MODES, ex_only=True, own=True)
local = partial(Engine, scope="local")
session = partial(Engine, scope="global")

TRUE_FALSE = {True: "true", False: "false"}.__getitem__
SORTING = {"BFS": "0", "DFS": "1", "RDFS": "2", "StableRDFS": "3"}

# Integers and ranges joined by bars. Accepts what ^(((\d+)|(\d+-{0,1}\d+))\|{0,1})*$ accepts, but in linear
# time. That pattern takes ranges without a bar between them ("0-12-3") if two digits are between the hyphens.
_RANGES = r"\d+(?:-\d\d+)*(?:-\d+)?"
STEPS = Regex(rf"(?:{_RANGES}(?:\|{_RANGES})*\|?)?", "integers and ranges joined by `|`, as `0|2-5`")
NODE_NAMES = Regex(
    r'[0-9a-zA-Z_" "/\\.]*', 'node names separated by spaces: letters, digits, `_`, `"`, `/`, `\\`, `.`'
)


class GraphDump(Group):
    """Writing the graph to a file."""

    type = Option(
        None,
        "Format in which the graph is dumped. Capture modes write the readable FX graph and know `py` only.",
        Choice("txt", "pbtxt", "py"),
        cached=False,
    )
    path = Option(
        None, "Directory of the dump; the working directory when unset.", PathText(), plain=True, cached=False
    )
    _path = CellOf("path")


class DataDump(Group):
    """Running node by node and writing every result."""

    type = Option(
        None,
        "Run the FX graph eagerly and dump the inputs and outputs of its nodes.",
        Choice("npy"),
    )
    path = Option(
        None, "Root of the dump; the working directory when unset.", PathText(), plain=True, cached=False
    )
    _path = CellOf("path")
    filter = Option(
        None,
        "Called with a node; the node is dumped when the result is not None.",
        Raw(),
        plain=True,
        cached=False,
    )


class FxSummary(Group):
    """The report of which operators a model uses and which have converters."""

    type = graph(None, "Format of the report.", Choice("csv"), idle=REDUCE)
    skip_compile = graph(True, "After the report run the FX graph eagerly instead of compiling it.")
    path = graph(
        None,
        "Directory of the report; the working directory when unset.",
        PathText(),
        plain=True,
        cached=False,
        own=True,
    )
    _path = CellOf("path")


class AclGraphDebug(Group):
    """Recording and replaying: switches of single passes and of memory."""

    disable_reinplace_inplaceable_ops_pass = capture(
        False, "Leave out-of-place ops on intermediate values out of place.", flat="!inplace_pass", idle=AUTO
    )
    disable_reinplace_input_mutated_ops_pass = capture(
        False,
        "Leave updates of graph inputs as a functional op and a copy.",
        flat="!input_inplace_pass",
        idle=AUTO,
    )
    disable_mempool_reuse_in_same_fx = capture(
        False,
        "Give each recording of one FX graph its own memory instead of overlaying them.",
        flat="!reuse_graph_pool_in_same_fx",
        engine=local("disable_mempool_reuse_in_same_fx"),
    )
    enable_output_clone = capture(
        False,
        "Return clones of the outputs; outputs that share storage with an input are never cloned.",
        flat="clone_output",
        engine=local("enable_output_clone"),
    )
    static_capture_size_limit = capture(
        64,
        "How many recordings one FX graph may hold.",
        IntRange(1),
        flat="capture_limit",
        engine=local("static_capture_size_limit"),
    )
    clone_input = capture(
        True,
        "Copy plain inputs into buffers of the recording before replay; False uses the first call's tensors.",
        flat="clone_input",
        idle=AUTO,
        engine=local("clone_input"),
    )
    remove_cat_ops = capture(
        True, "Let producers write into slices of the concatenated tensor.", flat="remove_cat_ops"
    )


class DebugConfig(Group):
    """Looking inside."""

    graph_dump = Nested(GraphDump)
    data_dump = Nested(DataDump)
    fx_summary = Nested(FxSummary)
    aclgraph = Nested(AclGraphDebug)
    run_eagerly = Option(
        False,
        "Convert and rewrite as usual, then run the graph eagerly: nothing is compiled or recorded.",
        flat="force_eager",
        engine=local("run_eagerly"),
    )
    deadlock_check = Option(
        False,
        "The same as `capture.deadlock_check`; graph mode has no recordings, which a log line says.",
        engine=local("deadlock_check"),
    )


class ExportExperimental(Group):
    """What an exported graph contains beyond the ops."""

    enable_record_nn_module_stack = graph(
        False, "Attach the stack of modules to each op as attribute `nn_module_stack`.", idle=REDUCE
    )
    auto_atc_config_generated = graph(
        False, "Also write the JSON templates for several devices.", idle=REDUCE
    )
    enable_lite_export = graph(
        False, "Use the converters of the lite set; they override all others for their ops."
    )


class ExportConfig(Group, open=True):
    """Filled in by `dynamo_export`."""

    export_mode = graph(
        False,
        "Export instead of running.",
        Raw(),
        plain=True,
    )
    export_path_dir = graph("./", "Directory of the export.", Raw(), plain=True, cached=False)
    export_name = graph(None, "Base name of the export.", Raw(), plain=True, cached=False)
    weight_name = graph(None, "id of a weight tensor -> its qualified name.", Raw(), plain=True, cached=False)
    inputs_name = graph(None, "Kept for old scripts; unused.", Raw(), plain=True, cached=False)
    experimental = Nested(ExportExperimental)


class DumpConfig(Group):
    """Dump of op inputs and outputs by the engine, or by the recording in capture modes."""

    enable_dump = Option(
        False,
        "Dump tensors while the graph runs.",
        flat="dump_tensor_data",
        idle=REDUCE,
        engine=session("ge.exec.enableDump", gate="enable_dump"),
    )
    dump_path = Option(
        "./",
        "Root of the dump; each rank writes to its own folder in it.",
        ExistingDir(),
        flat="data_dump_dir",
        engine=session("ge.exec.dumpPath", rank_directory, gate="enable_dump"),
    )
    dump_mode = graph(
        "all",
        "Which sides of an op are dumped.",
        Choice("input", "output", "all"),
        engine=session("ge.exec.dumpMode", gate="enable_dump"),
    )
    quant_dumpable = graph(
        False,
        "Keep data before quantisation so that it can be dumped.",
        engine=session("ge.quant_dumpable", gate="enable_dump"),
    )
    dump_step = graph(
        "",
        "Which iterations are dumped; empty means all.",
        STEPS,
        engine=session("ge.exec.dumpStep", gate="enable_dump"),
    )
    dump_layer = graph(
        "",
        "Names of the ops that are dumped; empty means all.",
        NODE_NAMES,
        engine=session("ge.exec.dumpLayer", gate="enable_dump"),
    )
    dump_data = graph(
        "tensor",
        "Whole tensors, or a CSV of their statistics.",
        Choice("tensor", "stats"),
        engine=session("ge.exec.dumpData", gate="enable_dump"),
    )
    dump_config_path = graph(
        None,
        "A complete dump configuration as a file; options given here win over it.",
        ExistingJson(),
        engine=session("ge_dump_with_acl_config"),
    )
    data_dump_stage = capture(
        "optimized",
        "Which graph is dumped: `original` runs eagerly, without recording.",
        Choice("original", "optimized"),
        flat="data_dump_stage",
    )


class FusionConfig(Group):
    """Fusions of the engine."""

    fusion_switch_file = hint(
        None,
        "File of rules that switch engine fusions on and off.",
        ExistingFile(),
        engine=session("ge.fusionSwitchFile"),
    )


class InferenceConfig(Group):
    """Gears: a few fixed sizes instead of a dynamic dimension."""

    dynamic_gears_merge_policy = graph(
        "zip",
        "How the gears of several dimensions combine: pairwise, or each with each.",
        Choice("zip", "product"),
        idle=REDUCE,
    )


class AoeConfig(Group):
    """Offline tuning of operators by the engine."""

    aoe_mode = graph(
        None,
        "`2` tunes operators on the first call of a static graph.",
        Choice("2"),
        hint=True,
        engine=local("aoe_mode"),
    )
    work_path = graph(
        "./",
        "Working directory of the tuning.",
        ExistingDir(),
        hint=True,
        engine=local("work_path", gate="aoe_mode"),
    )
    aoe_config_file = graph(
        None,
        "Configuration file of the tuning.",
        ExistingFile(),
        hint=True,
        engine=local("aoe_config_file", gate="aoe_mode"),
    )


class AclGraphExperimental(Group):
    """Kernels made for one shape, and chains of kernels."""

    _aclnn_static_shape_kernel = capture(
        False,
        "Compile kernels for the very shapes of each recording in the background; the plain one serves until "
        "they are ready.",
        flat="static_kernel_compile",
        idle=AUTO,
    )
    _aclnn_static_shape_kernel_build_dir = capture(
        None, "Directory of these kernels.", Instance(str), idle=AUTO
    )
    _aclnn_static_shape_kernel_sym_value_range = capture(
        None,
        "Symbol values for which kernels are compiled; unset means every new value.",
        IntList(),
        flat="_vllm_aclnn_static_kernel_sym_range",
    )
    _aclnn_static_shape_kernel_sym_index = capture(
        0,
        "Index of the symbol that is compared with these values.",
        IntRange(0),
        flat="_vllm_aclnn_static_kernel_sym_index",
    )
    _super_kernel_optimize = capture(
        False, "Chain the kernels of a recording into larger ones.", flat="super_kernel_optimize", hint=True
    )
    _super_kernel_optimize_options = capture(
        None, "Options of the chaining.", Instance(dict), flat="super_kernel_optimize_options", hint=True
    )
    _super_kernel_debug_options = capture(
        None, "Debug options of the chaining.", Instance(dict), flat="super_kernel_debug_options", hint=True
    )


class ExperimentalConfig(Group):
    """How the graph is made, rewritten and run."""

    cc_parallel_enable = hint(
        False,
        "Split AllReduce and its neighbours so that computing and communicating overlap.",
        engine=session("ge.exec.enableEngineParallel"),
    )
    keep_inference_input_mutations = Option(
        True, "Keep updates of inputs in the graph; False returns new values and copies them outside."
    )
    memory_efficiency = graph(
        False,
        "Allocate working memory for each run and release it afterwards.",
        engine=local("ge.featureBaseRefreshable"),
    )
    frozen_parameter = Option(
        False,
        "Parameters never move: their addresses are not compared before a call. Not with export.",
        flat="frozen_parameter",
        engine=local("frozen_parameter"),
    )
    static_model_ops_lower_limit = hint(
        None,
        "Smallest number of ops of a static part inside a dynamic graph; -1 keeps everything dynamic.",
        IntRange(-1),
        engine=local("ge.exec.static_model_ops_lower_limit"),
    )
    jit_compile = graph(
        "auto",
        "When kernels are compiled online.",
        Choice("auto"),
        hint=True,
        engine=local("ge.jit_compile", encode={"auto": "2"}.__getitem__),
    )
    npu_fx_pass = Option(
        False, "Fuse patterns of the joint graph: RMSNorm, rotary multiplication, attention."
    )
    aot_config_enable_joint_graph = Option(
        False,
        "Compile forward and backward as one graph; gradients go to `.grad`, mutated buffers to `.data`.",
    )
    aot_config_output_loss_index = Option(0, "Which output is the loss in the joint graph.", Kind())
    topology_sorting_strategy = hint(
        "DFS",
        "Order of ops in the engine. Level O1 always sorts by StableRDFS.",
        Choice("BFS", "DFS", "RDFS", "StableRDFS"),
        engine=local("ge.topoSortingMode", encode=SORTING.__getitem__),
    )
    enable_ref_data = graph(
        False, "Make mutated graph inputs reference inputs. Always on in export.", idle=REDUCE
    )
    enable_view_optimize = graph(
        True,
        "Fold chains of views and make ops of them only where they are consumed.",
        idle=REDUCE,
        idle_always=True,
    )
    remove_noop_ops = Option(
        True, "Drop ops that change nothing.", flat="remove_noop_ops", engine=local("remove_noop_ops")
    )
    tiling_schedule_optimize = hint(
        False,
        "Compute tilings that depend on values on the device.",
        engine=local("ge.tiling_schedule_optimize"),
    )
    pattern_fusion_pass = Option(
        True,
        "Replace patterns, ours and those registered by users, with fused ops.",
        flat="pattern_fusion_pass",
        engine=local("pattern_fusion_pass"),
    )
    aclgraph = Nested(AclGraphExperimental)


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


class AclGraphConfig(Group, open=True):
    """Memory of recordings."""

    use_custom_pool = capture(
        None,
        "Memory pool shared by all recordings made with these options: a pair of ints, one of them 0.",
        Raw(),
        flat="use_graph_pool",
    )


class CaptureConfig(Group):
    """Recording and replaying: what npugraph_ex offers beyond the older groups."""

    force_recapture = ex_only(False, "Record again on every call.", flat="force_recapture")
    capture_error_mode = ex_only(
        "global",
        "Whose unsafe actions end a recording with an error: any thread's, this thread's, nobody's.",
        Choice("global", "thread_local", "relaxed"),
        flat="capture_error_mode",
    )
    deadlock_check = ex_only(
        False, "Search recordings (of the npu) for kernels that may starve each other.", flat="deadlock_check"
    )
    unsafe_skip_npugraph_capture_validation = ex_only(
        False,
        "Skip every test whether a recording is still valid; the caller guarantees that nothing changed.",
        flat="unsafe_skip_npugraph_capture_validation",
    )
    record_statistics_debug_info = ex_only(
        False,
        "Add min, max, norm and mean of tensors to what a graph compiled at DEBUG logs about its calls.",
        flat="record_statistics_debug_info",
        cached=False,
    )
    disable_static_kernel_compile_cache = ex_only(
        False,
        "Neither read nor write the cache of kernels made for one shape.",
        flat="disable_static_kernel_compile_cache",
        cached=False,
    )


class OptionTree(JsonForm):
    """All groups and rows, without the flat names."""

    mode = Option(
        AUTO,
        "How the graph runs: compiled as a graph (`max-autotune`), or recorded and replayed.",
        Choice(*ALL_MODES),
        engine=local("mode"),
        deprecated={REDUCE: "npugraph_ex"},
    )
    post_grad_custom_pre_pass = Option(
        None,
        "Your FX pass, called as `f(gm, example_inputs, config)` before the built-in ones.",
        Function(),
        flat="post_grad_custom_pre_pass",
    )
    post_grad_custom_post_pass = Option(
        None,
        "Your FX pass, called as `f(gm, example_inputs, config)` after the built-in ones.",
        Function(),
        flat="post_grad_custom_post_pass",
    )
    debug = Nested(DebugConfig)
    export = Nested(ExportConfig)
    dump_config = Nested(DumpConfig)
    fusion_config = Nested(FusionConfig)
    inference_config = Nested(InferenceConfig)
    aoe_config = Nested(AoeConfig)
    experimental_config = Nested(ExperimentalConfig)
    ge_config = Nested(GeConfig)
    aclgraph_config = Nested(AclGraphConfig, fixed=True)
    capture = Nested(CaptureConfig)
    engine_config = Nested(EngineConfig)

    def __init__(self) -> None:
        super().__init__()

    def as_dict(self) -> tuple[dict[str, str], dict[str, str]]:
        """The options of one graph and of the session, as the engine spells them."""
        local, session = engine_options(self)
        if self.ge_config.oo_level.raw == "O1":
            local["ge.topoSortingMode"] = SORTING["StableRDFS"]
        return local, session


for _path, _row in walk(OptionTree):
    _row.acts = acts(_path)


class NpuGraphExNames(
    FlatView, paths=flat_names(OptionTree, ex=False), rows=flat_rows(OptionTree, ex=False), open=True
):
    """The names of `torch.compile(options=...)`: other names of options in the tree, not further options."""


class CompilerConfig(OptionTree):
    """The configuration of a torchair backend: a tree of options, each checked when it is assigned."""

    @property
    def npugraphex_config(self) -> NpuGraphExNames:
        return NpuGraphExNames(self, "npugraphex_config.")

    @npugraphex_config.setter
    def npugraphex_config(self, value: Any) -> None:
        raise BadOption(
            "npugraphex_config cannot be replaced", next="assign the options inside it one by one"
        )
