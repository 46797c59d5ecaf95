"""Connect ops of the library with their backward ops."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

npu = torch.ops.npu


class Gradient(NamedTuple):
    """The backward of an op. `keep(arguments, output)` returns the values that it needs; `backward(*kept,
    *grads)` returns the gradients of the first arguments. The other arguments have none.
    """

    keep: Callable[[Mapping[str, Any], Any], tuple[Any, ...]]
    backward: Callable[..., tuple[Any, ...]]


def _rms_norm(x, gamma, rstd, dy, _):
    dx, dgamma = npu.npu_rms_norm_backward(dy, x, gamma, rstd)
    return dx, dgamma.to(gamma.dtype)


_ATTENTION = (
    "query", "key", "value", "head_num", "input_layout", "pse", "atten_mask", "scale", "keep_prob",
    "pre_tockens", "next_tockens", "prefix", "actual_seq_qlen", "actual_seq_kvlen", "sparse_mode", "sink",
)  # fmt: skip


def _fusion_attention(
    query, key, value, head_num, input_layout, pse, atten_mask, scale, keep_prob, pre_tockens, next_tockens,
    prefix, actual_seq_qlen, actual_seq_kvlen, sparse_mode, sink, out, softmax_max, softmax_sum, dy, *_,
):  # fmt: skip
    dq, dk, dv, dpse, dsink = npu.npu_fusion_attention_grad(
        query, key, value, dy, head_num, input_layout, pse=pse, atten_mask=atten_mask,
        softmax_max=softmax_max, softmax_sum=softmax_sum, attention_in=out, scale_value=scale,
        keep_prob=keep_prob, pre_tockens=pre_tockens, next_tockens=next_tockens, prefix=prefix,
        actual_seq_qlen=actual_seq_qlen, actual_seq_kvlen=actual_seq_kvlen, sparse_mode=sparse_mode,
        sink=sink,
    )  # fmt: skip
    between = (None,) * 14
    return dq, dk, dv, None, None, None if pse is None else dpse, *between, None if sink is None else dsink


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
    "npu_fusion_attention": Gradient(
        lambda given, out: (*(given[name] for name in _ATTENTION), *out[:3]), _fusion_attention
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
