"""Provide inference attention with the API of serving frameworks: with output and scratch memory from the
caller, and the older operators of the `atb` library for paged caches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from torchair.ops.npu import schemas
from torchair.sim.npu.handlers import ATTENTION

SCRATCH = 512
"""Bytes of the scratch memory; the kernels here need none, whatever the lengths."""
_libraries = {name: torch.library.Library(name, "FRAGMENT") for name in ("npu", "atb")}


def _define(namespace: str, schema: str, call: Callable[..., Any], fake: Callable[..., Any]) -> None:
    library = _libraries[namespace]
    library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    name = schema.partition("(")[0]
    library.impl(name, call, "CompositeExplicitAutograd")
    library.impl(name, fake, "Meta")


def _scratch(query: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    return query.new_empty(SCRATCH, dtype=torch.uint8)


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Do nothing, for fake tensors."""


def _into(name: str) -> Callable[..., None]:
    def call(*args: Any, out: list[torch.Tensor], workspace: Any = None, **kwargs: Any) -> None:
        with_lse = kwargs.get("softmax_lse_flag") or kwargs.get("return_softmax_lse")
        made = getattr(torch.ops.npu, name)(*args, **kwargs)
        for into, part in zip(out, made[: 2 if with_lse else 1], strict=False):
            if into.shape != part.shape or into.dtype != part.dtype:
                raise RuntimeError(
                    f"{name}.out: a result is {part.dtype}{list(part.shape)}, but the output tensor is "
                    f"{into.dtype}{list(into.shape)}"
                )
            into.copy_(part)

    return call


for _name in ATTENTION:
    _arguments = schemas()[f"npu.{_name}.default"].partition("(")[2].rpartition(") ->")[0]
    _define("npu", f"_{_name}_get_max_workspace({_arguments}) -> Tensor", _scratch, _scratch)
    _into_schema = f"{_name}.out({_arguments}, Tensor? workspace=None, Tensor(a!)[] out) -> ()"
    _define("npu", _into_schema, _into(_name), _nothing)


# Caches are [pages, rows, heads, width], tokens [tokens, heads, width], lengths on the host.


def _put(cache: torch.Tensor, slots: torch.Tensor, values: torch.Tensor) -> None:
    rows = cache.view(-1, *cache.shape[2:])
    torch.ops.npu.npu_scatter_nd_update_(rows, slots.reshape(-1, 1), values.view(-1, *rows.shape[1:]))


def reshape_and_cache(key: Any, value: Any, key_cache: Any, value_cache: Any, slot_indices: Any) -> None:
    """Write tokens to their cache slots."""
    _put(key_cache, slot_indices, key)
    _put(value_cache, slot_indices, value)


def reshape_and_cache_siso(key: Any, key_cache: Any, slot_indices: Any) -> None:
    """Write tokens to the slots of a single cache."""
    _put(key_cache, slot_indices, key)


def paged_attention(
    query: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor, num_kv_heads: int,
    num_heads: int, scale_value: float, block_table: torch.Tensor, context_lens: torch.Tensor,
    out: torch.Tensor, workspace: torch.Tensor | None = None,
) -> None:  # fmt: skip
    """Compute attention for one token of each sequence."""
    made = torch.ops.npu.npu_fused_infer_attention_score(
        query.reshape(query.shape[0], 1, -1), key_cache.flatten(2), value_cache.flatten(2),
        num_heads=num_heads, num_key_value_heads=num_kv_heads, scale=scale_value, input_layout="BSH",
        block_table=block_table, block_size=key_cache.shape[1], actual_seq_lengths_kv=context_lens.tolist(),
    )[0]  # fmt: skip
    out.copy_(made.view(out.shape))


def _attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, scale: float
) -> torch.Tensor:
    """Compute attention for one sequence; the queries are its last tokens.

    Positions that the mask excludes are ignored, whatever number the mask uses. A mask that is smaller than
    the sequence is the pattern of a causal mask.
    """
    count, seen = query.shape[0], key.shape[0]
    hidden = None
    if mask is not None and mask.shape[-2] >= seen and mask.shape[-1] >= seen:
        hidden = mask.reshape(-1, *mask.shape[-2:])[0, seen - count : seen, :seen] != 0
    elif mask is not None and mask.shape[-2] == count and mask.shape[-1] >= seen:
        hidden = mask.reshape(-1, *mask.shape[-2:])[0, :, :seen] != 0
    elif mask is not None:
        hidden = torch.ones(count, seen, dtype=torch.bool, device=query.device).triu(seen - count + 1)
    q, k, v = (x.transpose(0, 1).float() for x in (query, key, value))
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=None if hidden is None else ~hidden, scale=scale, enable_gqa=True
    ).transpose(0, 1)


def flash_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None,
    seq_len: torch.Tensor, scale_value: float, num_heads: int, num_kv_heads: int, out: torch.Tensor,
) -> None:  # fmt: skip
    """Compute self-attention for concatenated sequences."""
    heads = [
        x.reshape(x.shape[0], count, -1)
        for x, count in ((query, num_heads), (key, num_kv_heads), (value, num_kv_heads))
    ]
    lengths = seq_len.tolist()
    parts = zip(*(x[: sum(lengths)].split(lengths) for x in heads), strict=True)
    made = torch.cat([_attend(q, k, v, mask, scale_value) for q, k, v in parts])
    out[: made.shape[0]].copy_(made.reshape(made.shape[0], *out.shape[1:]))


def flash_attention_unpad(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, seq_len: torch.Tensor, scale_value: float,
    num_heads: int, num_kv_heads: int, out: torch.Tensor,
) -> None:  # fmt: skip
    """Compute self-attention for concatenated sequences without a mask."""
    flash_attention(query, key, value, None, seq_len, scale_value, num_heads, num_kv_heads, out)


def _of_pages(
    query: torch.Tensor, caches: tuple[torch.Tensor, ...], block_table: torch.Tensor, mask: torch.Tensor,
    lengths: torch.Tensor, seen: torch.Tensor, scale: float, out: torch.Tensor,
) -> None:  # fmt: skip
    """Compute attention for the queries of each sequence, with keys and values in pages."""
    begin = 0
    for number, (count, length) in enumerate(zip(lengths.tolist(), seen.tolist(), strict=True)):
        end = begin + count
        key, value = (cache[block_table[number]].flatten(0, 1)[:length] for cache in caches)
        made = _attend(query[begin:end].reshape(count, -1, key.shape[-1]), key, value, mask, scale)
        out[begin:end].copy_(made.reshape(count, *out.shape[1:]))
        begin = end


def flash_attention_qlens(
    query: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor, block_table: torch.Tensor,
    mask: torch.Tensor, seq_len: torch.Tensor, context_lens: torch.Tensor, num_kv_heads: int, num_heads: int,
    scale_value: float, out: torch.Tensor,
) -> None:  # fmt: skip
    """Compute attention for new tokens of sequences that are partly in the cache."""
    _of_pages(query, (key_cache, value_cache), block_table, mask, seq_len, context_lens, scale_value, out)


def paged_attention_splitfuse(
    query: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor, block_table: torch.Tensor,
    context_lens: torch.Tensor, mask: torch.Tensor, seq_len: torch.Tensor, num_kv_heads: int, num_heads: int,
    scale_value: float, out: torch.Tensor,
) -> None:  # fmt: skip
    """Compute attention for split prompts, together with sequences of one new token."""
    _of_pages(query, (key_cache, value_cache), block_table, mask, seq_len, context_lens, scale_value, out)


def rotary_embedding(
    positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor, head_size: int,
    cos_sin_cache: torch.Tensor, is_neox_style: bool,
) -> None:  # fmt: skip
    """Rotate query and key in place by cached cosines and sines; pairs are halves or neighbors."""
    cos, sin = (part.unsqueeze(1).float() for part in cos_sin_cache[positions.flatten()].chunk(2, -1))
    width = 2 * cos.shape[-1]
    for x in (query, key):
        turned = x.view(positions.numel(), -1, head_size)[..., :width]
        first, second = turned.chunk(2, -1) if is_neox_style else (turned[..., 0::2], turned[..., 1::2])
        pair = (first * cos - second * sin, second * cos + first * sin)
        made = torch.cat(pair, -1) if is_neox_style else torch.stack(pair, -1).flatten(-2)
        turned.copy_(made.to(x.dtype))


_CACHE = "Tensor query, Tensor key_cache, Tensor value_cache"
_HEADS = "int num_kv_heads, int num_heads, float scale_value"
_LENGTHS = "Tensor context_lens, Tensor mask, Tensor seq_len"
_PAGED = f"{_CACHE}, {_HEADS}, Tensor block_table, Tensor context_lens, Tensor(a!) out"
_UNPAD = "Tensor seq_len, float scale_value, int num_heads, int num_kv_heads, Tensor(a!) out"
ATB: dict[Callable[..., Any], str] = {
    reshape_and_cache: (
        "Tensor key, Tensor value, Tensor(a!) key_cache, Tensor(b!) value_cache, Tensor slot_indices"
    ),
    reshape_and_cache_siso: "Tensor key, Tensor(a!) key_cache, Tensor slot_indices",
    paged_attention: f"{_PAGED}, Tensor? workspace=None",
    flash_attention: f"Tensor query, Tensor key, Tensor value, Tensor? mask, {_UNPAD}",
    flash_attention_unpad: f"Tensor query, Tensor key, Tensor value, {_UNPAD}",
    flash_attention_qlens: (
        f"{_CACHE}, Tensor block_table, Tensor mask, Tensor seq_len, Tensor context_lens, {_HEADS}, "
        "Tensor(a!) out"
    ),
    paged_attention_splitfuse: f"{_CACHE}, Tensor block_table, {_LENGTHS}, {_HEADS}, Tensor(a!) out",
    rotary_embedding: (
        "Tensor positions, Tensor(a!) query, Tensor(b!) key, int head_size, Tensor cos_sin_cache, "
        "bool is_neox_style"
    ),
}
"""Schemas of the arguments of `torch_npu._npu_<name>`."""
for _call, _takes in ATB.items():
    _define("atb", f"_npu_{_call.__name__}({_takes}) -> ()", _call, _nothing)
_define("atb", f"_npu_paged_attention_get_workspace({_PAGED}) -> Tensor", _scratch, _scratch)
NAMES = {
    **{f"_npu_{call.__name__}": "atb" for call in ATB},
    "_npu_paged_attention_get_workspace": "atb",
    **{f"_{name}_get_max_workspace": "npu" for name in ATTENTION},
}
"""Attributes of `torch_npu`, by the library that defines them."""
