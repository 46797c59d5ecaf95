"""Our torch.library ops, each with its fake (shape) function; `torchair.ops.npu_…` is an op of the `npu`
library. Beside them, what models say about streams and events.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch

from torchair.core.registries.lazy_registry import lazy_getattr
from torchair.ops.io import print_tensor, save_tensor
from torchair.ops.streams import stream_ops

if TYPE_CHECKING:
    from torchair.ops import npu

    npu_fused_infer_attention_score: Any
    npu_fused_infer_attention_score_v2: Any

_DEFINED = (print_tensor, save_tensor, stream_ops)
"""Their ops are there as soon as this package is."""

__all__ = [
    "npu",
    "npu_create_tagged_event",
    "npu_fused_infer_attention_score",
    "npu_fused_infer_attention_score_v2",
    "npu_print",
    "npu_record_tagged_stream",
    "npu_tagged_event_record",
    "npu_tagged_event_wait",
    "record",
    "wait",
]

_TEXTS = {
    "npu_fused_infer_attention_score": """Attention of a query to keys and values, in whole or by pages;
    lengths of sequences are tensors on the device. (attention, log-sum-exp), the latter empty unless asked
    for.
    """,
    "npu_fused_infer_attention_score_v2": """As `npu_fused_infer_attention_score`, with the names and the
    number formats of the second version, and without shared prefixes.
    """,
}
"""Operators that have a text of their own here."""


def npu_print(*args: Any, summarize_size: int = 3, tensor_detail: bool = False) -> None:
    """Print texts, numbers and tensors, at least one of these, with spaces between: at once or, inside a
    graph, whenever it runs. Of long dimensions the first and last `summarize_size` elements are shown, -1
    shows all; `tensor_detail` adds shape and dtype.
    """
    print_tensor.print_all(args, summarize_size, tensor_detail)


def record() -> torch.Tensor:
    """A token for this point of the current stream, for `wait`."""
    return torch.ops.air.record()


def wait(tensors: list[torch.Tensor]) -> None:
    """The current stream goes on when those that made these tensors, or tokens of `record`, have come so
    far.
    """
    is_list = isinstance(tensors, list | tuple)
    if not is_list or not tensors or not all(isinstance(tensor, torch.Tensor) for tensor in tensors):
        raise ValueError(f"wait takes a list of tensors, at least one; it got {tensors!r}")
    torch.ops.air.wait(list(tensors))


def npu_create_tagged_event(tag: str) -> stream_ops.Event:
    """A new event of that name, to be made outside of compiled functions; a name is given once."""
    if not isinstance(tag, str):  # pyright: ignore[reportUnnecessaryIsInstance] - users pass anything
        raise TypeError(f"the tag of an event is to be str, not {tag!r}")
    return stream_ops.create_event(tag)


def npu_tagged_event_record(event: stream_ops.Event) -> None:
    """The event is this point of the current stream."""
    torch.ops.air.tagged_event_record(stream_ops.tag_of(event))


def npu_tagged_event_wait(event: stream_ops.Event) -> None:
    """The current stream goes on when the event's point is reached."""
    torch.ops.air.tagged_event_wait(stream_ops.tag_of(event))


def npu_record_tagged_stream(input: torch.Tensor, tagged_stream: str) -> None:
    """The memory of `input` stays until the stream of that tag has come so far."""
    torch.ops.air.record_tagged_stream_(input, tagged_stream)


def __getattr__(name: str) -> Any:
    """A sub-module, or an operator: `torchair.ops.npu_rms_norm` is `torch.ops.npu.npu_rms_norm`. The library
    is loaded when something of it is asked for.
    """
    if find_spec(f"{__name__}.{name}") is not None:
        return lazy_getattr(__name__, {}, name)
    library = lazy_getattr(__name__, {}, "npu")
    if name in _TEXTS:
        found = globals()[name] = library.function(f"air::{name}", _TEXTS[name])
        return found
    return library.find(name)
