"""Gradients of library ops that have a backward partner in the library."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

npu = torch.ops.npu


class Gradient(NamedTuple):
    """`keep(arguments, output)` is what the backward needs, `backward(*kept, *grads)` gives the gradients of
    the first arguments; the others have none.
    """

    keep: Callable[[Mapping[str, Any], Any], tuple[Any, ...]]
    backward: Callable[..., tuple[Any, ...]]


def _rms_norm(x, gamma, rstd, dy, _):
    dx, dgamma = npu.npu_rms_norm_backward(dy, x, gamma, rstd)
    return dx, dgamma.to(gamma.dtype)


GRADIENTS = {
    "npu_rms_norm": Gradient(lambda given, out: (given["self"], given["gamma"], out[1]), _rms_norm),
    "npu_swiglu": Gradient(
        lambda given, _: (given["self"], given["dim"]),
        lambda x, dim, dy: (npu.npu_swiglu_backward(dy, x, dim),),
    ),
    "npu_gelu": Gradient(
        lambda given, _: (given["self"], given["approximate"]),
        lambda x, approximate, dy: (npu.npu_gelu_backward(dy, x, approximate=approximate),),
    ),
    "npu_fast_gelu": Gradient(
        lambda given, _: (given["self"],), lambda x, dy: (npu.npu_fast_gelu_backward(dy, x),)
    ),
    "fast_gelu": Gradient(
        lambda given, _: (given["self"],), lambda x, dy: (npu.npu_fast_gelu_backward(dy, x),)
    ),
    "npu_rotary_mul": Gradient(
        lambda given, _: (given["self"], given["r1"], given["r2"], given["rotary_mode"]),
        lambda x, r1, r2, mode, dy: npu.npu_rotary_mul_backward(dy, x, r1, r2, mode),
    ),
    "npu_dtype_cast": Gradient(
        lambda given, _: (given["self"].dtype,),
        lambda dtype, dy: (npu.npu_dtype_cast_backward(dy, dtype),),
    ),
    "_npu_dtype_cast": Gradient(
        lambda given, _: (given["self"].dtype,),
        lambda dtype, dy: (npu._npu_dtype_cast_backward(dy, dtype),),
    ),
}
