"""What the public API promises, written down a second time: defaults, flat names and engine keys."""

from __future__ import annotations

from typing import Any

# Path -> default. 56 options of graph mode ...
GRAPH: dict[str, Any] = {
    "mode": "max-autotune",
    "post_grad_custom_pre_pass": None,
    "post_grad_custom_post_pass": None,
    "debug.graph_dump.type": None,
    "debug.graph_dump.path": None,
    "debug.data_dump.type": None,
    "debug.data_dump.path": None,
    "debug.data_dump.filter": None,
    "debug.fx_summary.type": None,
    "debug.fx_summary.skip_compile": True,
    "debug.run_eagerly": False,
    "debug.deadlock_check": False,
    "export.export_mode": False,
    "export.export_path_dir": "./",
    "export.export_name": None,
    "export.weight_name": None,
    "export.inputs_name": None,
    "export.experimental.enable_record_nn_module_stack": False,
    "export.experimental.auto_atc_config_generated": False,
    "export.experimental.enable_lite_export": False,
    "dump_config.enable_dump": False,
    "dump_config.dump_path": "./",
    "dump_config.dump_mode": "all",
    "dump_config.quant_dumpable": False,
    "dump_config.dump_step": "",
    "dump_config.dump_layer": "",
    "dump_config.dump_data": "tensor",
    "dump_config.dump_config_path": None,
    "dump_config.data_dump_stage": "optimized",
    "fusion_config.fusion_switch_file": None,
    "inference_config.dynamic_gears_merge_policy": "zip",
    "aoe_config.aoe_mode": None,
    "aoe_config.work_path": "./",
    "aoe_config.aoe_config_file": None,
    "experimental_config.cc_parallel_enable": False,
    "experimental_config.keep_inference_input_mutations": True,
    "experimental_config.memory_efficiency": False,
    "experimental_config.frozen_parameter": False,
    "experimental_config.static_model_ops_lower_limit": None,
    "experimental_config.jit_compile": "auto",
    "experimental_config.npu_fx_pass": False,
    "experimental_config.aot_config_enable_joint_graph": False,
    "experimental_config.aot_config_output_loss_index": 0,
    "experimental_config.topology_sorting_strategy": "DFS",
    "experimental_config.enable_ref_data": False,
    "experimental_config.enable_view_optimize": True,
    "experimental_config.remove_noop_ops": True,
    "experimental_config.tiling_schedule_optimize": False,
    "experimental_config.pattern_fusion_pass": True,
    "ge_config.enable_single_stream": False,
    "ge_config.oo_level": "O3",
    "ge_config.oo_constant_folding": None,
    "ge_config.oo_dead_code_elimination": None,
    "ge_config.export_compile_stat": "2",
    "ge_config.aicore_num": None,
    "ge_config.optimization_switch": None,
}

# ... 15 of capture mode in the same tree ...
CAPTURE: dict[str, Any] = {
    "debug.aclgraph.disable_reinplace_inplaceable_ops_pass": False,
    "debug.aclgraph.disable_reinplace_input_mutated_ops_pass": False,
    "debug.aclgraph.disable_mempool_reuse_in_same_fx": False,
    "debug.aclgraph.enable_output_clone": False,
    "debug.aclgraph.static_capture_size_limit": 64,
    "debug.aclgraph.clone_input": True,
    "debug.aclgraph.remove_cat_ops": True,
    "experimental_config.aclgraph._aclnn_static_shape_kernel": False,
    "experimental_config.aclgraph._aclnn_static_shape_kernel_build_dir": None,
    "experimental_config.aclgraph._aclnn_static_shape_kernel_sym_value_range": None,
    "experimental_config.aclgraph._aclnn_static_shape_kernel_sym_index": 0,
    "experimental_config.aclgraph._super_kernel_optimize": False,
    "experimental_config.aclgraph._super_kernel_optimize_options": None,
    "experimental_config.aclgraph._super_kernel_debug_options": None,
    "aclgraph_config.use_custom_pool": None,
}

# ... one that users' documents have beside these ...
MORE: dict[str, Any] = {"experimental_config.separate_atomic_clean": True}

# ... and our own.
OWN: dict[str, Any] = {
    "debug.fx_summary.path": None,
    "capture.force_recapture": False,
    "capture.capture_error_mode": "global",
    "capture.deadlock_check": False,
    "capture.unsafe_skip_npugraph_capture_validation": False,
    "capture.record_statistics_debug_info": False,
    "capture.disable_static_kernel_compile_cache": False,
    "engine_config.codegen": "auto",
    "engine_config.compile_budget_s": None,
    "engine_config.compile_workers": 1,
    "engine_config.program_cache_mb": 2048,
    "engine_config.memory_budget": None,
    "engine_config.soc": "",
    "engine_config.verify": False,
    "engine_config.strict": False,
}

# Other names of options in the tree.
ALIASES = {
    "debug.graph_dump.dtype": "debug.graph_dump.type",
    "experimental_config.keep_inference_input_mutation": "experimental_config.keep_inference_input_mutations",
    "experimental_config.enable_single_stream": "ge_config.enable_single_stream",
}

# The 23 names both backends share, with the path they stand for; ! negates.
SHARED_FLAT = {
    "force_eager": "debug.run_eagerly",
    "use_graph_pool": "aclgraph_config.use_custom_pool",
    "reuse_graph_pool_in_same_fx": "!debug.aclgraph.disable_mempool_reuse_in_same_fx",
    "capture_limit": "debug.aclgraph.static_capture_size_limit",
    "clone_input": "debug.aclgraph.clone_input",
    "clone_output": "debug.aclgraph.enable_output_clone",
    "static_kernel_compile": "experimental_config.aclgraph._aclnn_static_shape_kernel",
    "super_kernel_optimize": "experimental_config.aclgraph._super_kernel_optimize",
    "super_kernel_optimize_options": "experimental_config.aclgraph._super_kernel_optimize_options",
    "super_kernel_debug_options": "experimental_config.aclgraph._super_kernel_debug_options",
    "frozen_parameter": "experimental_config.frozen_parameter",
    "remove_noop_ops": "experimental_config.remove_noop_ops",
    "remove_cat_ops": "debug.aclgraph.remove_cat_ops",
    "inplace_pass": "!debug.aclgraph.disable_reinplace_inplaceable_ops_pass",
    "input_inplace_pass": "!debug.aclgraph.disable_reinplace_input_mutated_ops_pass",
    "pattern_fusion_pass": "experimental_config.pattern_fusion_pass",
    "post_grad_custom_pre_pass": "post_grad_custom_pre_pass",
    "post_grad_custom_post_pass": "post_grad_custom_post_pass",
    "dump_tensor_data": "dump_config.enable_dump",
    "data_dump_stage": "dump_config.data_dump_stage",
    "data_dump_dir": "dump_config.dump_path",
    "_vllm_aclnn_static_kernel_sym_index": (
        "experimental_config.aclgraph._aclnn_static_shape_kernel_sym_index"
    ),
    "_vllm_aclnn_static_kernel_sym_range": (
        "experimental_config.aclgraph._aclnn_static_shape_kernel_sym_value_range"
    ),
}
OWN_FLAT = {
    name: f"engine_config.{name}"
    for name in (
        "codegen",
        "compile_budget_s",
        "compile_workers",
        "memory_budget",
        "program_cache_mb",
        "verify",
        "strict",
    )
}

# The 30 names of npugraph_ex with their defaults.
EX: dict[str, Any] = {
    "force_eager": False,
    "use_graph_pool": None,
    "reuse_graph_pool_in_same_fx": True,
    "capture_limit": 64,
    "clone_input": True,
    "clone_output": False,
    "disable_static_kernel_compile_cache": False,
    "static_kernel_compile": False,
    "frozen_parameter": False,
    "remove_noop_ops": True,
    "remove_cat_ops": True,
    "inplace_pass": True,
    "input_inplace_pass": True,
    "pattern_fusion_pass": True,
    "post_grad_custom_pre_pass": None,
    "post_grad_custom_post_pass": None,
    "dump_tensor_data": False,
    "data_dump_stage": "optimized",
    "data_dump_dir": "./",
    "_vllm_aclnn_static_kernel_sym_index": 0,
    "_vllm_aclnn_static_kernel_sym_range": None,
    "super_kernel_optimize": False,
    "super_kernel_optimize_options": None,
    "super_kernel_debug_options": None,
    "deadlock_check": False,
    "capture_error_mode": "global",
    "mode": "npugraph_ex",
    "force_recapture": False,
    "unsafe_skip_npugraph_capture_validation": False,
    "record_statistics_debug_info": False,
}

LOCAL = {
    "disable_mempool_reuse_in_same_fx": "0",
    "enable_output_clone": "0",
    "static_capture_size_limit": "64",
    "clone_input": "1",
    "run_eagerly": "0",
    "deadlock_check": "0",
    "remove_noop_ops": "1",
    "pattern_fusion_pass": "1",
    "frozen_parameter": "0",
    "ge.tiling_schedule_optimize": "0",
    "ge.featureBaseRefreshable": "0",
    "ge.topoSortingMode": "1",
    "ge.jit_compile": "2",
    "mode": "max-autotune",
}
GLOBAL = {
    "ge.exec.enableEngineParallel": "0",
    "ge.enableSingleStream": "false",
    "ge.oo.level": "O3",
    "ge.exportCompileStat": "2",
}
