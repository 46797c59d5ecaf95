"""Options under `experimental_config`."""

from __future__ import annotations

from torchair.configs.kinds import Choice, Instance, IntList, IntRange, NewDir
from torchair.configs.option import AUTO, GRAPH_MODES, REDUCE, Alias, Group, Nested, Option
from torchair.configs.option_kinds import capture, graph, hint, local, session

SORTING = {"BFS": "0", "DFS": "1", "RDFS": "2", "StableRDFS": "3"}


class AclGraphExperimental(Group):
    """Kernels compiled for one shape, and super kernels."""

    _aclnn_static_shape_kernel = capture(
        False,
        "Compile kernels for the exact shapes of each recording in the background; the generic kernels run "
        "until they are ready.",
        flat="static_kernel_compile",
        idle=AUTO,
        effect="tests/backend/specialize/test_static_shapes.py::test_taken_over_when_ready",
    )
    _aclnn_static_shape_kernel_build_dir = capture(
        None,
        "Directory where these kernels are built and cached, in `static_kernel_compile_outputs` below it. "
        "Unset uses Inductor's cache.",
        NewDir(),
        idle=AUTO,
        effect="tests/backend/specialize/test_static_shapes.py::test_kept_in_the_build_dir",
    )
    _aclnn_static_shape_kernel_sym_value_range = capture(
        None,
        "Values of the symbol for which kernels are compiled; unset means every new value.",
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
        False, "Combine the kernels of a recording into larger ones.", flat="super_kernel_optimize", hint=True
    )
    _super_kernel_optimize_options = capture(
        None, "Options of super kernels.", Instance(dict), flat="super_kernel_optimize_options", hint=True
    )
    _super_kernel_debug_options = capture(
        None, "Debug options of super kernels.", Instance(dict), flat="super_kernel_debug_options", hint=True
    )


class ExperimentalConfig(Group):
    """How the graph is traced, rewritten and run."""

    cc_parallel_enable = hint(
        False,
        "Split AllReduce and its neighbors so that computation and communication overlap.",
        engine=session("ge.exec.enableEngineParallel"),
    )
    keep_inference_input_mutations = Option(
        True,
        "Keep updates of inputs in the graph; False returns new values and copies them outside of the graph.",
        modes=(*GRAPH_MODES, REDUCE),
        effect="tests/integration/test_engine_side_options.py::test_updates_of_inputs_stay_in_the_graph",
    )
    keep_inference_input_mutation = Alias("experimental_config.keep_inference_input_mutations")
    memory_efficiency = graph(
        False,
        "Allocate working memory for each run and release it afterwards. This disables recording, because "
        "recordings keep their memory.",
        engine=local("ge.featureBaseRefreshable"),
        effect="tests/integration/test_memory_efficiency.py::test_nothing_stays_between_calls",
    )
    frozen_parameter = Option(
        False,
        "Parameters never move: torchair does not compare their addresses before a call, and creates views "
        "of them once. Their values may change in place. Not available for export.",
        flat="frozen_parameter",
        engine=local("frozen_parameter"),
        effect="tests/integration/test_option_effects.py::test_parameters_are_not_compared",
    )
    static_model_ops_lower_limit = graph(
        None,
        "In a graph with symbolic sizes, record a frequent size only if the graph has at least this many "
        "ops; -1 keeps everything dynamic.",
        IntRange(-1),
        idle=REDUCE,
        engine=local("ge.exec.static_model_ops_lower_limit"),
        effect="tests/integration/test_engine_side_options.py::test_small_graphs_stay_dynamic",
    )
    jit_compile = graph(
        "auto",
        "When the engine compiles kernels online.",
        Choice("auto"),
        hint=True,
        engine=local("ge.jit_compile", encode={"auto": "2"}.__getitem__),
    )
    npu_fx_pass = Option(
        False,
        "Fuse RMSNorm, rotary multiplication and attention before forward and backward are separated. The "
        "fused ops have their own backward.",
        effect="tests/passes/patterns/sets/test_pre_grad_fusions.py::test_a_llama_has_fused_ops",
    )
    aot_config_enable_joint_graph = Option(
        False,
        "Compile forward and backward as one graph; gradients go to `.grad`, mutated buffers to `.data`. The "
        "returned loss has no autograd history.",
        effect="tests/backend/dynamo/test_train_step.py::test_a_step_is_one_graph",
    )
    aot_config_output_loss_index = Option(
        0,
        "Index of the loss among the outputs of the joint graph; `None` is the only scalar that "
        "requires gradients.",
        IntRange(0, none=True),
        effect="tests/backend/dynamo/test_train_step.py::test_the_index_of_the_loss",
    )
    topology_sorting_strategy = graph(
        "DFS",
        "Order in which `reference` and `eager` run the ops of the IR; ops with side effects keep their "
        "order. If this is not assigned, ops stay in the order of the model. Level O1 always sorts by "
        "StableRDFS.",
        Choice("BFS", "DFS", "RDFS", "StableRDFS"),
        idle=REDUCE,
        engine=local("ge.topoSortingMode", encode=SORTING.__getitem__),
        effect="tests/integration/test_engine_side_options.py::test_the_order_of_ops",
    )
    enable_single_stream = Alias("ge_config.enable_single_stream")
    separate_atomic_clean = hint(
        True,
        "Clear the memory of each accumulating op (such as atomic add) separately instead of in one step.",
        # The engine does so unless this option is passed.
        engine=local("ge.exec.atomicCleanPolicy", encode={False: "0"}.get),
    )
    enable_ref_data = graph(
        False,
        "Turn graph inputs that the graph writes to into reference inputs (`RefData`) of the IR.",
        idle=REDUCE,
        effect="tests/integration/test_engine_side_options.py::test_enable_ref_data_emits_ref_data",
    )
    enable_view_optimize = graph(
        True,
        "Fold chains of views and create ops for them only where they are used.",
        idle=REDUCE,
        idle_always=True,
        effect="tests/integration/test_option_effects.py::test_views_are_folded",
    )
    remove_noop_ops = Option(
        True,
        "Remove ops that have no effect.",
        flat="remove_noop_ops",
        engine=local("remove_noop_ops"),
        effect="tests/integration/test_option_effects.py::test_passes_of_both_modes",
    )
    tiling_schedule_optimize = hint(
        False,
        "Compute value-dependent tilings on the device.",
        engine=local("ge.tiling_schedule_optimize"),
    )
    pattern_fusion_pass = Option(
        True,
        "Replace built-in and user-registered patterns with fused ops.",
        flat="pattern_fusion_pass",
        engine=local("pattern_fusion_pass"),
        effect="tests/integration/test_option_effects.py::test_passes_of_both_modes",
    )
    aclgraph = Nested(AclGraphExperimental)
