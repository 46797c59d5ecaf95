"""The plug-in's profiler sees the ops, and writes a trace."""

import json
import tempfile
from pathlib import Path

import torch
import torch_npu
from torch_npu.profiler.profiler import analyse

folder = Path(tempfile.mkdtemp())
config = torch_npu.profiler._ExperimentalConfig(
    export_type=[torch_npu.profiler.ExportType.Text, torch_npu.profiler.ExportType.Db],
    profiler_level=torch_npu.profiler.ProfilerLevel.Level1,
    aic_metrics=torch_npu.profiler.AiCMetrics.MemoryAccess,
    mstx=False,
    l2_cache=False,
    op_attr=False,
    data_simplification=False,
    record_op_args=False,
    gc_detect_threshold=None,
    host_sys=[torch_npu.profiler.HostSystem.CPU],
    sys_io=False,
)
with torch_npu.profiler.profile(
    activities=[torch_npu.profiler.ProfilerActivity.CPU, torch_npu.profiler.ProfilerActivity.NPU],
    schedule=torch_npu.profiler.schedule(wait=0, warmup=1, active=2, repeat=1),
    on_trace_ready=torch_npu.profiler.tensorboard_trace_handler(str(folder), analyse_flag=True),
    record_shapes=True,
    experimental_config=config,
) as prof:
    x = torch.randn(8, 8, device="npu")
    for _ in range(3):
        with torch_npu.npu.mstx.mstx_range("products"):
            x = torch.mm(x, x).relu()
        prof.step()
(path,) = folder.glob("*.json")
names = [event["name"] for event in json.loads(path.read_text())["traceEvents"]]
assert names.count("aten::mm") >= 2, names
assert "products" in names
analyse(str(folder))
try:
    torch_npu.profiler.profile(activities=["npu"])
except TypeError:
    pass
else:
    raise AssertionError("that is no activity")
