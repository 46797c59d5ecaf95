"""Provide torchair's operators with their fake kernels, and calls for streams and events in models.
`torchair.ops.npu_…` is an op of the `npu` library.
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
"""Importing these modules registers their ops."""

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
    "npu_fused_infer_attention_score": """Compute attention of a query to dense or paged keys and values.
    The lengths of sequences are tensors on the device. Returns (attention, log-sum-exp); the latter is
    empty unless requested.
    """,
    "npu_fused_infer_attention_score_v2": """Compute attention like `npu_fused_infer_attention_score`, with
    the argument names and number formats of the second version, and without shared prefixes.
    """,
}
"""Operators with an explicit docstring."""


def npu_print(*args: Any, summarize_size: int = 3, tensor_detail: bool = False) -> None:
    """Print texts, numbers and at least one tensor, separated by spaces, immediately or on every run of a
    graph.

    Args:
        *args: Texts, numbers and tensors; at least one tensor.
        summarize_size: Number of elements to show at each end of long dimensions; -1 shows all.
        tensor_detail: Whether to add shape and dtype.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: There is no tensor, or `summarize_size` is not valid.

    Example:
        >>> torchair.ops.npu_print("x =", x)
    """
    print_tensor.print_all(args, summarize_size, tensor_detail)


def record() -> torch.Tensor:
    """Record this point of the current stream.

    Returns:
        A token for `wait`.
    """
    return torch.ops.air.record()


def wait(tensors: list[torch.Tensor]) -> None:
    """Let the current stream wait until these tensors are computed.

    Args:
        tensors: Tensors, or tokens of `record`; at least one.

    Raises:
        ValueError: `tensors` is not a list of tensors, or it is empty.
    """
    is_list = isinstance(tensors, list | tuple)
    if not is_list or not tensors or not all(isinstance(tensor, torch.Tensor) for tensor in tensors):
        raise ValueError(f"wait expects a list with at least one tensor, got {tensors!r}")
    torch.ops.air.wait(list(tensors))


def npu_create_tagged_event(tag: str) -> stream_ops.Event:
    """Create a named event. Call this outside of compiled functions.

    Args:
        tag: Unique name of the event.

    Returns:
        The event.

    Raises:
        TypeError: `tag` is not a str.
        ValueError: An event of this name exists already.
    """
    if not isinstance(tag, str):  # pyright: ignore[reportUnnecessaryIsInstance] - users pass anything
        raise TypeError(f"the tag of an event must be a str, got {tag!r}")
    return stream_ops.create_event(tag)


def npu_tagged_event_record(event: stream_ops.Event) -> None:
    """Record the event at this point of the current stream.

    Args:
        event: An event of `npu_create_tagged_event`.
    """
    torch.ops.air.tagged_event_record(stream_ops.tag_of(event))


def npu_tagged_event_wait(event: stream_ops.Event) -> None:
    """Let the current stream wait for the event.

    Args:
        event: An event of `npu_create_tagged_event`.
    """
    torch.ops.air.tagged_event_wait(stream_ops.tag_of(event))


def npu_record_tagged_stream(input: torch.Tensor, tagged_stream: str) -> None:
    """Keep the memory of `input` until the work of a stream up to this point is done.

    Args:
        input: A tensor that the stream uses.
        tagged_stream: Tag of the stream.
    """
    torch.ops.air.record_tagged_stream_(input, tagged_stream)


def __getattr__(name: str) -> Any:
    """Return a submodule, or an operator: `torchair.ops.npu_rms_norm` is `torch.ops.npu.npu_rms_norm`. The
    library is loaded on first access.
    """
    if find_spec(f"{__name__}.{name}") is not None:
        return lazy_getattr(__name__, {}, name)
    library = lazy_getattr(__name__, {}, "npu")
    if name in _TEXTS:
        found = globals()[name] = library.function(f"air::{name}", _TEXTS[name])
        return found
    return library.find(name)
