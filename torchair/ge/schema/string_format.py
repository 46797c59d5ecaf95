"""Text in the IR: a StringFormat has a template and tensors, a PrintV2 writes what it makes.

Here text is no tensor. What flows between the two stands for nothing: the op that prints is given the tensors
of the template itself.
"""

from __future__ import annotations

from torchair.core import dtypes
from torchair.core.errors import UnsupportedOp
from torchair.ge.graph import Op, Tensor

FORMAT, PRINT = "StringFormat", "PrintV2"
STRING = dtypes.BY_NAME["STRING"].runtime


def read_by(op: Op) -> list[Tensor]:
    """The tensors that one of the two ops reads."""
    return [] if op.type == FORMAT else template_of(op).inputs


def template_of(op: Op) -> Op:
    """The op that makes the text which a PrintV2 prints."""
    found = op.inputs[0].op
    if found.type != FORMAT:
        raise UnsupportedOp(
            f"{op.name} prints what a {found.type} makes",
            at=op.origin.source if op.origin else "",
            near=f"a {PRINT} prints what a {FORMAT} makes",
        )
    return found
