"""StringFormat and PrintV2: the text is formatted by the op that prints it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torchair.core.errors import UnsupportedOp
from torchair.ge.graph import Op
from torchair.ge.host import Host
from torchair.ge.schema.string_format import FORMAT, template_of
from torchair.ops.io.print_tensor import STREAMS


def run_text(op: Op, given: Sequence[torch.Tensor | Host], device: torch.device) -> list[Host]:
    """Return the outputs of a StringFormat or PrintV2, given its inputs."""
    if op.type == FORMAT:
        return [Host(0, torch.uint8)]
    template, stream = template_of(op).attributes(), op.attributes()["output_stream"]
    if stream not in STREAMS:
        raise UnsupportedOp(
            f"{op.name} prints to the unsupported stream {stream!r}",
            at=op.origin.source if op.origin else "",
            near=", ".join(STREAMS),
        )
    tensors = [value.to_tensor(device) if isinstance(value, Host) else value for value in given]
    text, placeholder, size = (template[name] for name in ("template", "placeholder", "summarize"))
    torch.ops.air.print.stream(tensors, text, placeholder, size, False, stream)
    return []
