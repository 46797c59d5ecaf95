"""The models that are measured: rows of a table, built from random weights, nothing downloaded.

BERT and the Llama prefill are `transformers` models; what must run at any size (the decoder with its static
cache, the CNN, the MLP) is written here in plain PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional as F

Inputs = dict[str, Any]


@dataclass(frozen=True)
class Model:
    """One row: how to build it, what to feed it, where it makes sense."""

    name: str
    about: str
    build: Callable[[], nn.Module]
    inputs: Callable[[], Inputs]
    devices: tuple[str, ...] = ("cpu", "cuda")
    dtype: torch.dtype = torch.float32
    tolerance: dict[str, float] | None = None
    """`rtol` and `atol` against eager; PyTorch's own for the dtype unless given."""
    other: Callable[[], Inputs] | None = None
    """Inputs of a second shape, where the model takes one."""

    def make(self, device: str) -> nn.Module:
        """The model in eval mode on a device, weights seeded."""
        torch.manual_seed(0)
        previous = torch.get_default_dtype()
        torch.set_default_dtype(self.dtype)
        try:
            with torch.device(device):
                model = self.build()
        finally:
            torch.set_default_dtype(previous)
        return model.eval().requires_grad_(False)

    def feed(self, device: str, second: bool = False) -> Inputs:
        """Keyword arguments on a device, the same on every call."""
        torch.manual_seed(1)
        make = self.other if second and self.other is not None else self.inputs
        return {name: self._place(value, device) for name, value in make().items()}

    def _place(self, value: Tensor, device: str) -> Tensor:
        return value.to(device, self.dtype if value.is_floating_point() else None)


@dataclass(frozen=True)
class DecoderShape:
    """Sizes of a Llama-like decoder. `head` is the width of one head."""

    layers: int
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    vocab: int
    context: int
    batch: int = 1

    @property
    def head(self) -> int:
        return self.hidden // self.heads


class Norm(nn.Module):
    """Root-mean-square norm, computed in float32 as Llama does."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        return self.weight * (wide * scale).to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding: the two halves of each head turn against each other."""
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-high, low), dim=-1) * sin


class Layer(nn.Module):
    """Attention over a static cache that is written in place, then SwiGLU."""

    def __init__(self, shape: DecoderShape, *, indexes: bool = False) -> None:
        super().__init__()
        self.shape = shape
        self.indexes = indexes  # the cache is written as most people write it
        kv_width = shape.kv_heads * shape.head
        self.norm1, self.norm2 = Norm(shape.hidden), Norm(shape.hidden)
        self.q = nn.Linear(shape.hidden, shape.hidden, bias=False)
        self.k = nn.Linear(shape.hidden, kv_width, bias=False)
        self.v = nn.Linear(shape.hidden, kv_width, bias=False)
        self.o = nn.Linear(shape.hidden, shape.hidden, bias=False)
        self.gate = nn.Linear(shape.hidden, shape.inner, bias=False)
        self.up = nn.Linear(shape.hidden, shape.inner, bias=False)
        self.down = nn.Linear(shape.inner, shape.hidden, bias=False)
        cache = (shape.batch, shape.kv_heads, shape.context, shape.head)
        self.register_buffer("keys", torch.randn(cache))
        self.register_buffer("values", torch.randn(cache))

    def forward(self, x: Tensor, position: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        y = self.norm1(x)
        q, k, v = (self._heads(project(y)) for project in (self.q, self.k, self.v))
        if self.indexes:
            self.keys[:, :, position] = rotate(k, cos, sin)
            self.values[:, :, position] = v
        else:
            self.keys.index_copy_(2, position, rotate(k, cos, sin))
            self.values.index_copy_(2, position, v)
        attended = F.scaled_dot_product_attention(
            rotate(q, cos, sin), self.keys, self.values, attn_mask=mask, enable_gqa=True
        )
        x = x + self.o(attended.transpose(1, 2).flatten(2))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.shape.head)).transpose(1, 2)


class Decoder(nn.Module):
    """A Llama-like decoder that holds its own cache: one call is one decode step."""

    def __init__(self, shape: DecoderShape) -> None:
        super().__init__()
        self.embed = nn.Embedding(shape.vocab, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = Norm(shape.hidden)
        self.head = nn.Linear(shape.hidden, shape.vocab, bias=False)
        exponent = torch.arange(0, shape.head, 2, dtype=torch.float32) / shape.head
        self.register_buffer("frequency", 500_000.0**-exponent)
        self.register_buffer("slots", torch.arange(shape.context))

    def forward(self, tokens: Tensor, position: Tensor) -> Tensor:
        angle = position.float()[:, None] * self.frequency.float()
        angle = torch.cat((angle, angle), dim=-1)
        x = self.embed(tokens)
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        mask = self.slots[None, :] <= position[:, None]
        for layer in self.layers:
            x = layer(x, position, cos, sin, mask)
        return self.head(self.norm(x))


class IndexedDecoder(nn.Module):
    """The same step, written with tables and indices: `cache[:, :, pos] = k`, `cos[pos]`, `mask[pos]`."""

    def __init__(self, shape: DecoderShape) -> None:
        super().__init__()
        self.embed = nn.Embedding(shape.vocab, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape, indexes=True) for _ in range(shape.layers))
        self.norm = Norm(shape.hidden)
        self.head = nn.Linear(shape.hidden, shape.vocab, bias=False)
        exponent = torch.arange(0, shape.head, 2, dtype=torch.float32) / shape.head
        angle = torch.arange(shape.context).float()[:, None] * 500_000.0**-exponent
        angle = torch.cat((angle, angle), dim=-1)
        self.register_buffer("cos", angle.cos().to(torch.get_default_dtype()))
        self.register_buffer("sin", angle.sin().to(torch.get_default_dtype()))
        self.register_buffer("mask", torch.ones(shape.context, shape.context, dtype=torch.bool).tril())

    def forward(self, tokens: Tensor, position: Tensor) -> Tensor:
        x = self.embed(tokens)
        cos, sin, mask = self.cos[position], self.sin[position], self.mask[position]
        for layer in self.layers:
            x = layer(x, position, cos, sin, mask)
        return self.head(self.norm(x))


class Block(nn.Module):
    """A basic residual block: two 3x3 convolutions beside a projection."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outer)
        self.conv2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outer)
        self.down = nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(y)) + self.down(x))


class ResNet(nn.Module):
    """Stem, residual blocks, average pool, classifier."""

    def __init__(self, width: int = 8, classes: int = 10, blocks: int = 3) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        widths = [width, *(width << place for place in range(blocks))]
        self.blocks = nn.Sequential(
            *(Block(before, after, after // before) for before, after in pairwise(widths))
        )
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        y = self.blocks(self.stem(x))
        return self.head(torch.flatten(F.adaptive_avg_pool2d(y, 1), 1))


class Mlp(nn.Module):
    """Many narrow layers: nearly all of the time is overhead."""

    def __init__(self, layers: int = 32, width: int = 64) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


class OneOp(nn.Module):
    """The smallest graph there is: what remains is the cost of a call."""

    def forward(self, x: Tensor) -> Tensor:
        return x + 1


def llama(layers: int = 4) -> nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=512, hidden_size=128, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=256, max_position_embeddings=512, use_cache=False,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def bert(layers: int = 4) -> nn.Module:
    config = transformers.BertConfig(
        vocab_size=512, hidden_size=128, num_hidden_layers=layers, num_attention_heads=4,
        intermediate_size=256,
    )  # fmt: skip
    return transformers.BertModel(config)


def text(batch: int, length: int) -> Callable[[], Inputs]:
    """Token ids and a mask that pads the last row."""

    def make() -> Inputs:
        mask = torch.ones(batch, length, dtype=torch.int64)
        mask[-1, :3] = 0
        return {"input_ids": torch.randint(0, 512, (batch, length)), "attention_mask": mask}

    return make


def images(batch: int, size: int) -> Callable[[], Inputs]:
    return lambda: {"x": torch.randn(batch, 3, size, size)}


def rows(*size: int) -> Callable[[], Inputs]:
    return lambda: {"x": torch.randn(*size)}


def decode(shape: DecoderShape) -> Callable[[], Inputs]:
    """One token in the last slot of the cache."""
    return lambda: {
        "tokens": torch.randint(0, shape.vocab, (shape.batch, 1)),
        "position": torch.tensor([shape.context - 1]),
    }


TINY = DecoderShape(layers=4, hidden=128, inner=256, heads=4, kv_heads=2, vocab=512, context=128)
DEEP = DecoderShape(layers=32, hidden=64, inner=128, heads=4, kv_heads=2, vocab=512, context=64)
LLAMA_8B = DecoderShape(layers=32, hidden=4096, inner=14336, heads=32, kv_heads=8, vocab=128256, context=1024)

MODELS = (
    Model("llama-decode", "tiny Llama, one step over a static cache", lambda: Decoder(TINY), decode(TINY)),
    Model("llama-indexed", "the same, with indices", lambda: IndexedDecoder(TINY), decode(TINY)),
    Model("llama-prefill", "tiny transformers Llama, 32 tokens", llama, text(1, 32), other=text(1, 40)),
    Model("bert", "tiny transformers BERT, 32 tokens", bert, text(1, 32), other=text(1, 40)),
    Model("cnn", "ResNet-like, one image of 32 x 32", lambda: ResNet(16), images(1, 32), other=images(1, 48)),
    Model("mlp", "32 layers of width 64, batch 1", Mlp, rows(1, 64), other=rows(5, 64)),
    Model("decoder32", "32 narrow decoder layers, one step", lambda: Decoder(DEEP), decode(DEEP)),
    Model("one-op", "a single addition", OneOp, rows(8), other=rows(9)),
    # bfloat16 through 32 layers: a different order of sums shows in the second digit.
    Model(
        "llama-8b-decode", "Llama-3-8B shape, bf16, batch 1, context 1024",
        lambda: Decoder(LLAMA_8B), decode(LLAMA_8B),
        devices=("cuda",), dtype=torch.bfloat16, tolerance={"rtol": 5e-2, "atol": 5e-2},
    ),
    Model(
        "llama-8b-indexed", "the same, with indices", lambda: IndexedDecoder(LLAMA_8B), decode(LLAMA_8B),
        devices=("cuda",), dtype=torch.bfloat16, tolerance={"rtol": 5e-2, "atol": 5e-2},
    ),
)  # fmt: skip
BY_NAME = {model.name: model for model in MODELS}
