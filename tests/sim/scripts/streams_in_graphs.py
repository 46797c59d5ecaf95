"""Streams by name inside a compiled function."""

import proof
import torch
import torch_npu

import torchair

done = torchair.ops.npu_create_tagged_event("script_done")


def f(a, b):
    torch.ops.air.scope_enter(["_user_stream_label"], ["side"])
    c = a @ b
    torchair.ops.npu_tagged_event_record(done)
    torchair.ops.npu_record_tagged_stream(a, "side")
    torch.ops.air.scope_exit()
    d = a + 1
    torchair.ops.npu_tagged_event_wait(done)
    return c + d


config = torchair.CompilerConfig()
config.mode = "npugraph_ex"
opt = torch.compile(f, backend=torchair.get_npu_backend(compiler_config=config), fullgraph=True)
a, b = torch.randn(4, 4), torch.randn(4, 4)
with proof.compiled(), proof.replayed():
    for _ in range(3):
        proof.close(opt(a.npu(), b.npu()), a @ b + a + 1)
