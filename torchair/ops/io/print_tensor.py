"""Print tensors whenever a graph runs: `air::print`, and `npu::print_npugraph_tensor`, which uses it.

On the host an op prints immediately. While a device graph is recorded there are no values to print: the
device copies the values out and calls the host at every replay (`on_host`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import has_static_value
from torch.fx.node import has_side_effect

from torchair.core.errors import NotPossible
from torchair.core.registries.vendor_plugin import real_plugin
from torchair.core.torch_private.operators.schemas import has_operator, register_fake
from torchair.devices import get_device

ALL = -1
"""Value of `summarize_size` that shows all elements."""
STREAMS = ("stdout", "stderr")
PLACEHOLDER = "{}"
NUMBER = "\0"
"""Suffix of a placeholder for a tensor that holds a Python number unknown before the run."""
EDGE, MANY = 3, 1000
"""A tensor with more elements is shown by the ends of its dimensions, as in torch."""
EXACT = 2.0**63
"""Integral floats up to this value are written as integers."""
_WHAT = "Tensor[] tensors, str msg_format, str placeholder, int summarize_size, bool tensor_detail"
SCHEMAS = {"print": f"({_WHAT}) -> ()", "print.stream": f"({_WHAT}, str output_stream) -> ()"}
NAMED = "print_npugraph_tensor(Tensor input, *, str? tensor_name=None) -> ()"


# Text


def tensor_text(x: torch.Tensor, size: int) -> str:
    """Format a tensor as `[[1 2]\\n [3 4]]`; dims of more than 2 `size` elements show only `size`
    at each end.
    """
    return _nested(_listed(excerpt(x, size)), x.shape, size)


def excerpt(x: torch.Tensor, size: int) -> torch.Tensor:
    """Return the elements of a tensor that its text shows."""
    if size == ALL:
        return x
    for dim, length in enumerate(x.shape):
        if length > 2 * size:
            x = torch.cat((x.narrow(dim, 0, size), x.narrow(dim, length - size, size)), dim)
    return x


def message(
    shown: Sequence[torch.Tensor],
    shapes: Sequence[Sequence[int]],
    msg_format: str,
    placeholder: str,
    size: int,
    detail: bool,
) -> str:
    """Return the text with the placeholders replaced by the tensors; `shown` are their excerpts."""
    made, *rest = pieces(msg_format, placeholder, len(shown))
    for x, shape, piece in zip(shown, shapes, rest, strict=True):
        is_number = piece.startswith(NUMBER)
        # A tensor that holds a Python number is printed like a number.
        text = str(x.item()) if is_number else _nested(_listed(x), shape, size)
        if detail and not is_number:
            text = f"tensor({text}, shape={list(shape)}, dtype={x.dtype})"
        made += text + piece.removeprefix(NUMBER)
    return made


def pieces(msg_format: str, placeholder: str, count: int) -> list[str]:
    """Return the text around each of `count` tensors."""
    found = msg_format.split(placeholder) if placeholder else [msg_format]
    if len(found) != count + 1:
        raise ValueError(
            f"{msg_format!r} has {len(found) - 1} placeholders {placeholder!r} for {count} tensors"
        )
    return found


def _listed(x: torch.Tensor) -> Any:
    if x.is_floating_point() and x.dtype is not torch.float64:
        x = x.float()
    return x.tolist()


def _nested(values: Any, shape: Sequence[int], size: int) -> str:
    if not shape:
        return number_text(values)
    items = [_nested(value, shape[1:], size) for value in values]
    if size != ALL and shape[0] > 2 * size:
        items.insert(size, "...")
    return f"[{(' ' if len(shape) == 1 else chr(10) + ' ').join(items)}]"


def number_text(value: bool | int | float) -> str:
    """Format a number without decimals if it is integral, otherwise with nine significant digits."""
    if not isinstance(value, float):
        return str(value)
    return f"{value:.0f}" if value.is_integer() and abs(value) < EXACT else f"{value:.9g}"


# The ops


def on_host(tensors: Sequence[torch.Tensor], act: Callable[[list[torch.Tensor]], None]) -> None:
    """Call `act` with the values on the host: immediately, or at every replay of a recording."""
    device = next((x.device for x in tensors if x.device.type != "cpu"), None)
    row = None if device is None else get_device(device)
    if row is None or row.why_no_graphs() is not None or not row.is_capturing():
        act([x.detach().cpu() for x in tensors])
        return
    if not row.calls_host:
        raise NotPossible(
            f"cannot print or save tensors in a recording: graphs of {row.type} do not call the host"
        )
    row.call_on_host([x.detach() for x in tensors], act)


def _print(
    tensors: list[torch.Tensor],
    msg_format: str,
    placeholder: str,
    summarize_size: int,
    tensor_detail: bool,
    output_stream: str = STREAMS[0],
) -> None:
    _fake(tensors)
    shapes = [tuple(x.shape) for x in tensors]

    def act(shown: list[torch.Tensor]) -> None:
        text = message(shown, shapes, msg_format, placeholder, summarize_size, tensor_detail)
        print(text, file=getattr(sys, output_stream), flush=True)

    on_host([excerpt(x, summarize_size) for x in tensors], act)


def _fake(tensors: list[torch.Tensor], *options: Any) -> None:
    for x in tensors:
        if x.is_complex():
            raise TypeError(f"npu_print cannot print complex numbers, got a tensor of {x.dtype}")


def _print_named(input: torch.Tensor, *, tensor_name: str | None = None) -> None:
    name = "" if tensor_name is None else f"{tensor_name}="
    size = EDGE if input.numel() > MANY else ALL
    placeholder = free_placeholder([name])
    torch.ops.air.print([input], name + placeholder, placeholder, size, True)


def _define() -> list[torch.library.Library]:
    libraries = [torch.library.Library("air", "FRAGMENT")]
    for name, arguments in SCHEMAS.items():
        libraries[0].define(name + arguments, tags=(torch.Tag.pt2_compliant_tag,))
        # The simulated device shows its tensors to the CPU, and records the call during capture.
        for key in ("CPU", "CUDA", *(("PrivateUse1",) if real_plugin() else ())):
            libraries[0].impl(name, _print, key)
        register_fake(libraries[0], name, _fake)
    if real_plugin() is None and not has_operator("npu::print_npugraph_tensor"):
        libraries.append(torch.library.Library("npu", "FRAGMENT"))
        libraries[1].define(NAMED, tags=(torch.Tag.pt2_compliant_tag,))
        libraries[1].impl("print_npugraph_tensor", _print_named, "CompositeExplicitAutograd")
        register_fake(libraries[1], "print_npugraph_tensor", _fake_named)
    return libraries


def _fake_named(input: torch.Tensor, *, tensor_name: str | None = None) -> None:
    _fake([input])


LIBRARIES = _define()
_PACKETS = (
    torch.ops.air.print,
    *((torch.ops.npu.print_npugraph_tensor,) if has_operator("npu::print_npugraph_tensor") else ()),
)
OPS = frozenset(getattr(packet, name) for packet in _PACKETS for name in packet.overloads())
"""All ops that print."""
for op in (*_PACKETS, *OPS):
    has_side_effect(op)


# The calls


def free_placeholder(texts: Sequence[str]) -> str:
    """Return a placeholder that occurs in none of the texts."""
    placeholder = PLACEHOLDER
    while any(placeholder in text for text in texts):
        placeholder = placeholder[:-1] + "_}"
    return placeholder


def print_all(args: Sequence[Any], summarize_size: int, tensor_detail: bool) -> None:
    """Implement `npu_print`."""
    for arg in args:
        if not isinstance(arg, (torch.Tensor, str, bool, float, int)):
            raise TypeError(
                f"npu_print expects tensors, texts and numbers, got {type(arg).__name__}: {arg!r}"
            )
    if not isinstance(summarize_size, int) or isinstance(summarize_size, bool):
        raise TypeError(f"summarize_size must be an int, got {summarize_size!r}")
    if summarize_size < ALL or summarize_size == 0:
        raise ValueError(f"summarize_size must be positive, or -1 for all elements, got {summarize_size}")
    if not isinstance(tensor_detail, bool):
        raise TypeError(f"tensor_detail must be True or False, got {tensor_detail!r}")
    if not any(isinstance(arg, torch.Tensor) for arg in args):
        raise ValueError("npu_print expects at least one tensor; use Python's print for texts")
    placeholder = free_placeholder([arg for arg in args if isinstance(arg, str)])
    device = next(arg.device for arg in args if isinstance(arg, torch.Tensor))
    tensors, texts = [], []
    for arg in args:
        is_tensor = isinstance(arg, torch.Tensor)
        if is_tensor or _is_unknown(arg):
            tensors.append(arg if is_tensor else _number_tensor(arg, device))
            texts.append(placeholder if is_tensor else placeholder + NUMBER)
        elif isinstance(arg, bool):
            texts.append("True" if arg else "False")  # the graph is guarded on this value
        else:
            texts.append(str(arg))
    torch.ops.air.print(tensors, " ".join(texts), placeholder, summarize_size, tensor_detail)


def _is_unknown(arg: Any) -> bool:
    """Return whether a number is a graph input, so that it differs from call to call."""
    return not isinstance(arg, (str, bool)) and not has_static_value(arg)


def _number_tensor(number: float, device: torch.device) -> torch.Tensor:
    dtype = torch.int64 if isinstance(number, int) else torch.float64
    return torch.scalar_tensor(number, dtype=dtype, device=device)


def print_tensor(input: torch.Tensor, *, tensor_name: str | None = None) -> None:
    """Print value, shape and dtype of a tensor, immediately or at every replay of a graph.

    This is `torch_npu.print_npugraph_tensor`. The text begins with `tensor_name=`.

    Args:
        input: The tensor.
        tensor_name: Name to print.

    Raises:
        TypeError: An argument has the wrong type.
    """
    if not isinstance(input, torch.Tensor):
        raise TypeError(f"print_npugraph_tensor expects a tensor, got {type(input).__name__}: {input!r}")
    if tensor_name is not None and not isinstance(tensor_name, str):
        raise TypeError(f"tensor_name must be a str, got {tensor_name!r}")
    torch.ops.npu.print_npugraph_tensor(input, tensor_name=tensor_name)
