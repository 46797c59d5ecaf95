"""Convert calls that print or save: text is a StringFormat and a PrintV2; files are not supported by
the IR.
"""

from __future__ import annotations

import torch

from torchair import ge
from torchair.convert.base.operands import cast, size_of, sizes
from torchair.convert.base.registry import converter
from torchair.core import dtypes
from torchair.ge.attr import Str
from torchair.ge.builder.torch_op import torch_op
from torchair.ge.schema.op_dtypes import taken
from torchair.ge.schema.string_format import FORMAT
from torchair.ops.io import print_tensor, save_tensor

FLOAT = dtypes.BY_NAME["FLOAT"].runtime
KERNEL = "extend"
"""The library of kernels that print on the device."""


@converter(torch.ops.air.print.default)
def print_(tensors, msg_format, placeholder, summarize_size, tensor_detail):
    """Print tensors; shapes and dtypes are part of the text, unknown sizes are scalars in it."""
    template, *rest = print_tensor.pieces(msg_format, placeholder, len(tensors))
    shown = []
    for x, text in zip(tensors, rest, strict=True):
        is_number = text.startswith(print_tensor.NUMBER)
        shown.append(_printable(x))
        if tensor_detail and not is_number:
            dims = [size_of(x, dim) for dim in range(len(sizes(x)))]
            shown += [dim for dim in dims if not isinstance(dim, int)]
            listed = ", ".join(str(dim) if isinstance(dim, int) else placeholder for dim in dims)
            template += f"tensor({placeholder}, shape=[{listed}], dtype={x.meta.dtype})"
        else:
            template += placeholder
        template += text.removeprefix(print_tensor.NUMBER)
    result = ge.StringFormat(shown, template=template, placeholder=placeholder, summarize=summarize_size)
    ge.PrintV2(result, output_stream=print_tensor.STREAMS[0], attrs={"_kernel": Str(KERNEL)})


def _printable(x):
    """Cast small floats to FLOAT, which holds all of their values."""
    return x if dtypes.BY_RUNTIME[x.dtype].name in taken(FORMAT, "x0") else cast(x, FLOAT)


def _as_opaque(op):
    """Keep the call as an opaque op: nothing is lost."""

    def call(*args, **kwargs):
        torch_op(op, list(args), kwargs, 0, str(op))

    return call


for op in print_tensor.OPS | save_tensor.OPS:
    if op.namespace == "npu":
        converter(op)(_as_opaque(op))
