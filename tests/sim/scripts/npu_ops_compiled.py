"""A block of npu ops, compiled in both modes; one of its weights is cast to a layout of the hardware."""

import proof
import torch
import torch_npu

import torchair


def block(x, gamma, up, down):
    h = torch_npu.npu_rms_norm(x, gamma, epsilon=1e-6)[0]
    return x + torch_npu.npu_swiglu(h @ up, dim=-1) @ down


def cast(x, gamma, up, down):
    return block(x, gamma, up, torch_npu.npu_format_cast(down, torch_npu.Format.FRACTAL_NZ))


torch.manual_seed(0)
args = [torch.randn(3, 8), torch.randn(8), torch.randn(8, 16), torch.randn(8, 8)]
given = [arg.npu() for arg in args]
want = block(*args)
proof.close(block(*given), want, rtol=1e-4, atol=1e-4)
for mode in ("max-autotune", "npugraph_ex"):
    torch.compiler.reset()
    config = torchair.CompilerConfig()
    config.mode = mode
    opt = torch.compile(cast, backend=torchair.get_npu_backend(compiler_config=config), fullgraph=True)
    with proof.compiled(), proof.replayed(2):
        for _ in range(3):
            proof.close(opt(*given), want, rtol=1e-4, atol=1e-4)
