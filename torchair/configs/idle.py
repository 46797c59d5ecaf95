"""Options that nothing acts on in this version: assigning one says so. Hints are the Ascend engine's."""

from __future__ import annotations

NOT_YET = (
    "debug.graph_dump",
    "debug.data_dump",
    "debug.fx_summary",
    "export",
    "dump_config.dump_mode",
    "dump_config.quant_dumpable",
    "dump_config.dump_step",
    "dump_config.dump_layer",
    "dump_config.dump_data",
    "dump_config.dump_config_path",
    "inference_config.dynamic_gears_merge_policy",
    "experimental_config.memory_efficiency",
    "experimental_config.npu_fx_pass",
    "experimental_config.aot_config_enable_joint_graph",
    "experimental_config.aot_config_output_loss_index",
    "experimental_config.enable_ref_data",
    "experimental_config.aclgraph._aclnn_static_shape_kernel_build_dir",
)


def acts(path: str) -> bool:
    """Does something read the option at this path?"""
    return not any(path == name or path.startswith(f"{name}.") for name in NOT_YET)
