"""Handle text in the IR: a StringFormat has a template and tensors, a PrintV2 prints its result.

Here text is not a tensor. The value between the two ops is a placeholder: the op that prints receives the
tensors of the template.
"""

from __future__ import annotations

from torchair.core import dtypes
from torchair.core.errors import UnsupportedOp
from torchair.ge.graph import Op, Tensor

FORMAT, PRINT = "StringFormat", "PrintV2"
STRING = dtypes.BY_NAME["STRING"].runtime


def read_by(op: Op) -> list[Tensor]:
    """Return the tensors that one of the two ops reads."""
    return [] if op.type == FORMAT else template_of(op).inputs


def template_of(op: Op) -> Op:
    """Return the op that makes the text that a PrintV2 prints."""
    found = op.inputs[0].op
    if found.type != FORMAT:
        raise UnsupportedOp(
            f"{op.name} prints the result of a {found.type}",
            at=op.origin.source if op.origin else "",
            near=f"a {PRINT} must print the result of a {FORMAT}",
        )
    return found
