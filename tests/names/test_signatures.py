"""Every documented name is where it should be and takes what it should, defaults included."""

from __future__ import annotations

import functools
import importlib
import inspect
import subprocess
import sys
from typing import Any

import pytest

import npugraph_ex
import torchair
from torchair.configs.compiler_config import CompilerConfig

CONFIG = "CompilerConfig()"  # stands for a default that is one
CACHE = "dynamic=True, cache_dir=None, global_rank=None, tp_rank=None, pp_rank=None"
REPLACEMENT = (
    "search_fn, replace_fn, example_inputs, trace_fn=fwd_only, extra_check=…, search_fn_pattern=None, "
    "scalar_workaround=None, skip_duplicates=False"
)
FUSED = (
    "query, key, value, *, pse_shift=None, atten_mask=None, actual_seq_lengths=None, "
    "actual_seq_lengths_kv=None, dequant_scale1=None, quant_scale1=None, dequant_scale2=None, "
    "quant_scale2=None, quant_offset2=None, antiquant_scale=None, antiquant_offset=None, "
    "key_antiquant_scale=None, key_antiquant_offset=None, value_antiquant_scale=None, "
    "value_antiquant_offset=None, block_table=None, query_padding_size=None, kv_padding_size=None, "
    "key_shared_prefix=None, value_shared_prefix=None, actual_shared_prefix_len=None, query_rope=None, "
    "key_rope=None, key_rope_antiquant_scale=None, num_heads=1, scale=1.0, pre_tokens=2147483647, "
    "next_tokens=2147483647, input_layout='BSH', num_key_value_heads=0, sparse_mode=0, inner_precise=0, "
    "block_size=0, antiquant_mode=0, key_antiquant_mode=0, value_antiquant_mode=0, softmax_lse_flag=False"
)
FUSED_V2 = (
    "query, key, value, *, query_rope=None, key_rope=None, pse_shift=None, atten_mask=None, "
    "actual_seq_qlen=None, actual_seq_kvlen=None, block_table=None, dequant_scale_query=None, "
    "dequant_scale_key=None, dequant_offset_key=None, dequant_scale_value=None, dequant_offset_value=None, "
    "dequant_scale_key_rope=None, quant_scale_out=None, quant_offset_out=None, quant_scale_p=None, "
    "learnable_sink=None, num_query_heads=1, num_key_value_heads=0, softmax_scale=1.0, "
    "pre_tokens=2147483647, next_tokens=2147483647, input_layout='BSH', sparse_mode=0, block_size=0, "
    "query_quant_mode=0, key_quant_mode=0, value_quant_mode=0, inner_precise=0, return_softmax_lse=False, "
    "query_dtype=None, key_dtype=None, value_dtype=None, query_rope_dtype=None, key_rope_dtype=None, "
    "key_shared_prefix_dtype=None, value_shared_prefix_dtype=None, dequant_scale_query_dtype=None, "
    "dequant_scale_key_dtype=None, dequant_scale_value_dtype=None, dequant_scale_key_rope_dtype=None, "
    "out_dtype=None"
)
SIGNATURES = {
    "torchair.get_npu_backend": "*, compiler_config=None, custom_decompositions={}",
    "torchair.get_compiler": "compiler_config=None",
    "torchair.CompilerConfig": "",
    "torchair.dynamo_export": (
        f"*args, model, export_path='export_file', export_name='export', dynamic=False, config={CONFIG}, "
        "**kwargs"
    ),
    "torchair.CompiledModel.save_graph": (
        f"model, args, dynamic=False, config={CONFIG}, save_path='save_path', **kwargs"
    ),
    "torchair.CompiledModel.load_graph": "load_path",
    "torchair.use_internal_format_weight": "model",
    "torchair.npu_format_cast": "self, acl_format, customize_dtype=None",
    "torchair.npu_format_cast_via_cpu": "self, acl_format, customize_dtype=None, input_dtype=None",
    "torchair.register_fx_node_ge_converter": "aten_op",
    "torchair.patch_for_hcom": "",
    "torchair.register_replacement": REPLACEMENT,
    "torchair.ge.Const": "v, dtype=None, node_name=None, readable=True",
    # `attrs` is ours: what the text of a graph needs beyond the builder's own.
    "torchair.ge.Cast": "x, *, dst_type, dependencies=…, node_name=None, attrs=None",
    "torchair.ge.Clone": "x, *, dependencies=…, node_name=None",
    "torchair.ge.custom_op": "op_type, *args, inputs=None, outputs=None, attrs=None, node_name=None",
    "torchair.inference.cache_compile": f"func, *, config=None, {CACHE}, **kwargs",
    "torchair.inference.readable_cache": "cache_bin, print_output=True, file=None",
    "torchair.inference.set_dim_gears": "t, dim_gears",
    "torchair.inference._cache_compiler.CompiledModel.get_cache_bin": (
        f"func, *, config=None, {CACHE}, ge_cache=False, **kwargs"
    ),
    "torchair.inference._cache_compiler.CompiledModel.rebase": (
        "self, model, global_vars=None, func=None, cache_dir=None"
    ),
    "torchair.inference._cache_compiler.CompiledModel.readable": "self, print_output=True, file=None",
    "torchair.ops.npu_print": "*args, summarize_size=3, tensor_detail=False",
    "torchair.ops.record": "",
    "torchair.ops.wait": "tensors",
    "torchair.ops.npu_create_tagged_event": "tag",
    "torchair.ops.npu_tagged_event_record": "event",
    "torchair.ops.npu_tagged_event_wait": "event",
    "torchair.ops.npu_record_tagged_stream": "input, tagged_stream",
    "torchair.ops.npu_fused_infer_attention_score": FUSED,
    "torchair.ops.npu_fused_infer_attention_score_v2": FUSED_V2,
    "torchair.scope.npu_stream_switch": "stream_tag, stream_priority=0, enable_inner_parallel=True",
    "torchair.scope.super_kernel": "scope, options=''",
    "torchair.scope.limit_core_num": "op_aicore_num, op_vectorcore_num",
    "torchair.scope.op_never_timeout": "enable=True",
    "torchair.scope.data_dump": "",
    "torchair.scope.npu_wait_tensor": "self, dependency",
    "torchair.llm_datadist.create_npu_tensors": "shape, dtype, addresses",
    "torchair.tools.gegraph_check.filter_operators.filter_comm_ops": "input_path, output_path, merge_gap=0.0",
    "torchair.tools.gegraph_check.deadlock_check.deadlock_check": (
        "input_path, output_path, aivec_total, merge_gap=0.0"
    ),
    "torchair.tools.gegraph_check.align_trace.align_trace_json": "input, output, merge_gap=0.0",
    "npugraph_ex.get_npu_backend": "*, compiler_config=None, custom_decompositions={}",
    "npugraph_ex.get_compiler": "compiler_config=None",
    "npugraph_ex.compile_fx": "gm, example_inputs=None, options=None",
    "npugraph_ex.CompilerConfig": "",
    "npugraph_ex.register_replacement": REPLACEMENT,
    "npugraph_ex.patterns.register_replacement": REPLACEMENT,
    "npugraph_ex.npu_fx_compiler.get_compiler": "compiler_config=None",
    "npugraph_ex.configs.compiler_config.CompilerConfig": "",
    "npugraph_ex.inference.cache_compile": f"func, *, {CACHE}, **kwargs",
    "npugraph_ex.inference.readable_cache": "cache_bin, print_output=True, file=None",
    "npugraph_ex.scope.limit_core_num": "op_aicore_num, op_vectorcore_num, stream=None",
    "npugraph_ex.scope.deterministic": "level",
    "npugraph_ex.tools.aclgraph_check.deadlock_check.deadlock_check": (
        "input_path, output_path, aivec_total, merge_gap=0.0"
    ),
}
ALL = {
    "torchair": (
        "get_compiler get_npu_backend dynamo_export CompilerConfig use_internal_format_weight logger "
        "register_fx_node_ge_converter patch_for_hcom register_replacement npu_format_cast_via_cpu "
        "CompiledModel npu_format_cast"
    ),
    "torchair.ge": "custom_op Const Cast Clone DataType Format Tensor TensorSpec attr",
    "torchair.inference": "auto_gears cache_compile readable_cache set_dim_gears",  # `auto_gears` is ours
    "torchair.ops": (
        "npu_print record wait npu_fused_infer_attention_score npu_fused_infer_attention_score_v2 "
        "npu_create_tagged_event npu_tagged_event_record npu_tagged_event_wait npu_record_tagged_stream"
    ),
    "torchair.scope": (
        "npu_stream_switch super_kernel limit_core_num op_never_timeout data_dump npu_wait_tensor"
    ),
    "torchair.llm_datadist": "create_npu_tensors",
    "npugraph_ex": "get_npu_backend get_compiler compile_fx CompilerConfig logger register_replacement",
}
LOADED = [
    *(f"torchair.{name}" for name in ("inference", "scope", "llm_datadist", "ops", "npugraph_ex", "ge")),
    *(
        f"torchair.npugraph_ex.{name}"
        for name in ("configs", "inference", "scope", "ops", "patterns", "tools", "npu_fx_compiler")
    ),
]


def find(path: str) -> Any:
    """The module that a path begins with, and what hangs on it."""
    parts = path.split(".")
    for end in range(len(parts), 0, -1):
        try:
            module = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        return functools.reduce(getattr, parts[end:], module)
    raise AssertionError(path)


def written(path: str, likely: str) -> str:
    """A signature without annotations. Where the table writes … for a default, any will do."""
    open_ones = {part.partition("=")[0].strip() for part in likely.split(", ") if part.endswith("=…")}
    texts: list[str] = []
    for item in inspect.signature(find(path)).parameters.values():
        if item.kind is item.KEYWORD_ONLY and not any(text.startswith("*") for text in texts):
            texts.append("*")
        star = {item.VAR_POSITIONAL: "*", item.VAR_KEYWORD: "**"}.get(item.kind, "")
        texts.append(star + item.name + default_text(item, item.name in open_ones))
    return ", ".join(texts)


def default_text(item: inspect.Parameter, is_open: bool) -> str:
    if item.default is item.empty:
        return ""
    if is_open:
        return "=…"
    if isinstance(item.default, CompilerConfig):
        return f"={CONFIG}"
    return f"={item.default.__name__ if inspect.isfunction(item.default) else repr(item.default)}"


@pytest.mark.parametrize("path", SIGNATURES)
def test_public_name_has_documented_signature(path: str) -> None:
    assert written(path, SIGNATURES[path]) == SIGNATURES[path]


@pytest.mark.parametrize("module", ALL)
def test_star_import_gives_the_documented_names(module: str) -> None:
    assert set(ALL[module].split()) <= set(importlib.import_module(module).__all__)


REACHED = f"""
import sys, types
before = set(sys.modules)
import torchair
slow = {{"torch._dynamo", "torch._inductor", "torchair.ops"}} & ({{*sys.modules}} - before)
assert not slow, slow
assert "npu_rms_norm" in str(torch.ops.npu.npu_rms_norm)
for name in {LOADED}:
    assert isinstance(eval(name), types.ModuleType), name
"""


def test_importing_torchair_is_quick_and_reaches_its_packages() -> None:
    """Nothing slow is imported before it is asked for."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", f"import torch\n{REACHED}"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_both_names_of_capture_mode_are_one_module() -> None:
    for name in ("configs", "inference", "scope", "ops", "patterns", "tools", "npu_fx_compiler"):
        assert importlib.import_module(f"npugraph_ex.{name}") is getattr(torchair.npugraph_ex, name)
    assert npugraph_ex.configs.compiler_config is torchair.npugraph_ex.configs.compiler_config


def test_positional_arguments_are_refused_with_the_way_to_write_it() -> None:
    with pytest.raises(TypeError, match="accepts only keyword arguments"):
        torchair.get_npu_backend(CompilerConfig())  # type: ignore[misc]
