"""Compute the descriptors of a graph: stored fields, completed by the known values on the edges."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from torchair.ge.attr import Attr, Str
from torchair.ge.graph import INPUT_TYPES, OUTPUT_TYPE, Desc, Op, Slot, Tensor
from torchair.ge.host import Host, is_symbol


def output_desc(tensor: Tensor) -> Desc:
    """Return the descriptor of an output. Only graph inputs get their sizes here: engines infer all
    others.
    """
    desc, meta = tensor.desc, tensor.meta
    if meta is None:
        return desc
    attrs: dict[str, Attr] = {**desc.attrs, "_meta": Str(meta_text(meta))}
    if tensor.op.type not in INPUT_TYPES:
        return replace(desc, dtype=tensor.dtype, attrs=attrs)
    on_host = isinstance(meta, Host) or meta.device.type == "cpu"
    device = "CPU" if on_host else "NPU"
    return replace(desc, dtype=tensor.dtype, attrs=attrs, shape=dims(meta), layout="ND", device=device)


def input_desc(op: Op, slot: Slot) -> Desc:
    """Return the descriptor of an input: its producer's, overridden by the slot. A graph input describes
    itself.
    """
    own = slot.desc
    source = slot.tensor
    if source is None and op.type in INPUT_TYPES and op.outputs:
        source = op.outputs[0]
    if source is None or not own.inherit:
        return own
    base = output_desc(source)
    shape = base.shape if own.shape is None else own.shape
    if op.type == OUTPUT_TYPE and own.shape is None and source.meta is not None:
        shape = dims(source.meta)
    dtype = base.dtype if own.dtype == Desc.dtype else own.dtype
    return Desc(
        own.name,
        dtype,
        shape,
        own.layout or base.layout,
        own.device or base.device,
        {**base.attrs, **own.attrs},
        rest=own.rest or base.rest,
    )


def dims(meta: torch.Tensor | Host) -> tuple[int, ...]:
    """Return the sizes with -1 for symbols."""
    return tuple(-1 if is_symbol(size) else int(size) for size in meta.shape)


def meta_text(meta: Any) -> str:
    """Return the text of `_meta` as other tools write it; they leave the parenthesis of a tensor open."""
    if isinstance(meta, Host):
        value = list(meta.items) if meta.ndim else meta.value
        return f"{type(value)}({value})"
    sizes = ", ".join(str(size) for size in meta.shape)
    return f"Tensor(dtype={meta.dtype}, shape=torch.Size([{sizes}])"
