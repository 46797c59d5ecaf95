"""Options under `experimental_config`."""

from __future__ import annotations

from torchair.configs.kinds import Choice, Instance, IntList, IntRange, NewDir
from torchair.configs.option import AUTO, GRAPH_MODES, REDUCE, Alias, Group, Nested, Option
from torchair.configs.option_kinds import capture, graph, hint, local, session

SORTING = {"BFS": "0", "DFS": "1", "RDFS": "2", "StableRDFS": "3"}


class AclGraphExperimental(Group):
    """Kernels made for one shape, and chains of kernels."""

    _aclnn_static_shape_kernel = capture(
        False,
        "Compile kernels for the very shapes of each recording in the background; the plain one serves until "
        "they are ready.",
        flat="static_kernel_compile",
        idle=AUTO,
        effect="tests/backend/specialize/test_static_shapes.py::test_taken_over_when_ready",
    )
    _aclnn_static_shape_kernel_build_dir = capture(
        None,
        "Where these kernels are built, kept and found again: in `static_kernel_compile_outputs` below it. "
        "Unset, they are in Inductor's cache.",
        NewDir(),
        idle=AUTO,
        effect="tests/backend/specialize/test_static_shapes.py::test_kept_in_the_build_dir",
    )
    _aclnn_static_shape_kernel_sym_value_range = capture(
        None,
        "Symbol values for which kernels are compiled; unset means every new value.",
        IntList(),
        flat="_vllm_aclnn_static_kernel_sym_range",
        effect="tests/integration/test_option_effects.py::test_static_kernel_options_select_sizes",
    )
    _aclnn_static_shape_kernel_sym_index = capture(
        0,
        "Index of the symbol that is compared with these values.",
        IntRange(0),
        flat="_vllm_aclnn_static_kernel_sym_index",
        effect="tests/integration/test_option_effects.py::test_static_kernel_options_select_sizes",
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
        True,
        "Keep updates of inputs in the graph; False returns new values and copies them outside.",
        modes=(*GRAPH_MODES, REDUCE),
        effect="tests/integration/test_engine_side_options.py::test_updates_of_inputs_stay_in_the_graph",
    )
    keep_inference_input_mutation = Alias("experimental_config.keep_inference_input_mutations")
    memory_efficiency = graph(
        False,
        "Allocate working memory for each run and release it afterwards: nothing is recorded, as recordings "
        "keep theirs.",
        engine=local("ge.featureBaseRefreshable"),
        effect="tests/integration/test_memory_efficiency.py::test_nothing_stays_between_calls",
    )
    frozen_parameter = Option(
        False,
        "Parameters never move: their addresses are not compared before a call, and views of them are made "
        "once. Values may change in place. Not with export.",
        flat="frozen_parameter",
        engine=local("frozen_parameter"),
        effect="tests/integration/test_option_effects.py::test_parameters_are_not_compared",
    )
    static_model_ops_lower_limit = graph(
        None,
        "In a graph with symbolic sizes, a size that comes often is recorded only if the graph has at least "
        "so many ops; -1 keeps everything dynamic.",
        IntRange(-1),
        idle=REDUCE,
        engine=local("ge.exec.static_model_ops_lower_limit"),
        effect="tests/integration/test_engine_side_options.py::test_small_graphs_stay_dynamic",
    )
    jit_compile = graph(
        "auto",
        "When kernels are compiled online.",
        Choice("auto"),
        hint=True,
        engine=local("ge.jit_compile", encode={"auto": "2"}.__getitem__),
    )
    npu_fx_pass = Option(
        False,
        "Before forward and backward are told apart, fuse what models write out: RMSNorm, rotary "
        "multiplication, attention. The fused ops bring their backward.",
        effect="tests/passes/patterns/sets/test_pre_grad_fusions.py::test_a_llama_has_fused_ops",
    )
    aot_config_enable_joint_graph = Option(
        False,
        "Compile forward and backward as one graph; gradients go to `.grad`, mutated buffers to `.data`. The "
        "loss that a call returns has no history.",
        effect="tests/backend/dynamo/test_train_step.py::test_a_step_is_one_graph",
    )
    aot_config_output_loss_index = Option(
        0,
        "Which output is the loss in the joint graph; `None` is the only scalar that requires gradients.",
        IntRange(0, none=True),
        effect="tests/backend/dynamo/test_train_step.py::test_the_index_of_the_loss",
    )
    topology_sorting_strategy = graph(
        "DFS",
        "Order of the ops in the IR, in which `reference` and `eager` run them; ops with side effects keep "
        "theirs. Unless this is assigned, ops stay in the order of the model. Level O1 always sorts by "
        "StableRDFS.",
        Choice("BFS", "DFS", "RDFS", "StableRDFS"),
        idle=REDUCE,
        engine=local("ge.topoSortingMode", encode=SORTING.__getitem__),
        effect="tests/integration/test_engine_side_options.py::test_the_order_of_ops",
    )
    enable_single_stream = Alias("ge_config.enable_single_stream")
    separate_atomic_clean = hint(
        True,
        "Clear the memory of each op that adds up in place on its own, instead of all at once.",
        # The engine does so unless it is told otherwise.
        engine=local("ge.exec.atomicCleanPolicy", encode={False: "0"}.get),
    )
    enable_ref_data = graph(
        False,
        "Make graph inputs that the graph writes reference inputs (`RefData`) in the IR.",
        idle=REDUCE,
        effect="tests/integration/test_engine_side_options.py::test_enable_ref_data_emits_ref_data",
    )
    enable_view_optimize = graph(
        True,
        "Fold chains of views and make ops of them only where they are consumed.",
        idle=REDUCE,
        idle_always=True,
        effect="tests/integration/test_option_effects.py::test_views_are_folded",
    )
    remove_noop_ops = Option(
        True,
        "Drop ops that change nothing.",
        flat="remove_noop_ops",
        engine=local("remove_noop_ops"),
        effect="tests/integration/test_option_effects.py::test_passes_of_both_modes",
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
        effect="tests/integration/test_option_effects.py::test_passes_of_both_modes",
    )
    aclgraph = Nested(AclGraphExperimental)
