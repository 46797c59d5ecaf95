"""The model zoo: tiny random models, each a row with inputs for two shapes.

A row holds everything a test needs: how to build the model, how to make inputs for a (batch, length) pair,
and what stock Dynamo needs for it. Nothing is downloaded. With these settings stock Dynamo takes every row in
one graph (`fullgraph=True`), and with `dynamic=True` one graph serves both shapes. Masks are given and
`use_cache` is off: a cache made inside the model is a new object per call, and a mask may branch on data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from benchmarks.models import ResNet

VOCAB = 99
Inputs = dict[str, Any]

# What every text model shares: two layers of width 32.
TEXT = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 128,
    "use_cache": False,
}
GROUPED = {**TEXT, "num_key_value_heads": 2}


@dataclass(frozen=True)
class Row:
    """One model: `build()` gives it in eval mode, `inputs(batch, length)` its keyword arguments."""

    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[int, int], Inputs]
    shapes: tuple[tuple[int, int], tuple[int, int]] = ((2, 7), (3, 11))
    dynamo: dict[str, Any] = field(default_factory=dict)
    """Dynamo settings without which stock Dynamo does not take the model in one graph."""
    one_length_on: str = ""
    """A device where Dynamo itself fixes the length, whatever the backend."""

    def model(self, seed: int = 0) -> nn.Module:
        """The model with seeded weights, in eval mode."""
        torch.manual_seed(seed)
        return self.build().eval()

    def shapes_on(self, device: str) -> tuple[tuple[int, int], ...]:
        """The shapes that one dynamic graph serves on this device."""
        if device != self.one_length_on:
            return self.shapes
        return tuple((batch, self.shapes[0][1]) for batch, _ in self.shapes)

    def feed(self, shape: tuple[int, int], device: str = "cpu") -> Inputs:
        """Inputs for one (batch, length), the same on every call."""
        torch.manual_seed(1 + sum(shape))
        return {name: value.to(device) for name, value in self.inputs(*shape).items()}


def leaves(result: Any) -> list[Tensor]:
    """The tensors of a model's result, in order: a tensor, a tuple or a `ModelOutput`."""
    if isinstance(result, Tensor):
        return [result]
    if isinstance(result, dict):
        return [leaf for value in result.values() for leaf in leaves(value)]
    if isinstance(result, (tuple, list)):
        return [leaf for value in result for leaf in leaves(value)]
    return []


def tokens(batch: int, length: int) -> Inputs:
    """Token ids with the last row padded on the left, so that the mask matters."""
    mask = torch.ones(batch, length, dtype=torch.int64)
    mask[-1, :2] = 0
    return {"input_ids": torch.randint(0, VOCAB, (batch, length)), "attention_mask": mask}


def tokens_unmasked(batch: int, length: int) -> Inputs:
    return {"input_ids": torch.randint(0, VOCAB, (batch, length))}


def encoder_decoder(batch: int, length: int) -> Inputs:
    decoder = torch.randint(0, VOCAB, (batch, length + 1))
    return {
        **tokens(batch, length),
        "decoder_input_ids": decoder,
        "decoder_attention_mask": torch.ones_like(decoder),
    }


def audio(batch: int, length: int) -> Inputs:
    """Mel features have a fixed length in Whisper; the decoder's length varies."""
    return {
        "input_features": torch.randn(batch, 8, 32),
        "decoder_input_ids": torch.randint(0, VOCAB, (batch, length)),
    }


def pixels(batch: int, length: int) -> Inputs:
    """A fixed 16 x 16 image: position embeddings tie the size."""
    return {"pixel_values": torch.randn(batch, 3, 16, 16)}


def images(batch: int, length: int) -> Inputs:
    return {"x": torch.randn(batch, 3, 8 * length, 8 * length)}


def sequence(batch: int, length: int) -> Inputs:
    return {"x": torch.randn(batch, length, 16)}


class Lstm(nn.Module):
    """A bidirectional two-layer `nn.LSTM` with a classifier on the last step."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(16, 24, num_layers=2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(48, 10)

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.lstm(x)
        return self.head(y[:, -1])


def bert() -> nn.Module:
    return transformers.BertModel(transformers.BertConfig(**TEXT))


def gpt2() -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=VOCAB,
        n_positions=128,
        n_embd=32,
        n_layer=2,
        n_head=4,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=1,
    )
    return transformers.GPT2LMHeadModel(config)


def llama() -> nn.Module:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**GROUPED))


def qwen2() -> nn.Module:
    return transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**GROUPED))


def gemma2() -> nn.Module:
    config = transformers.Gemma2Config(**GROUPED, head_dim=8, query_pre_attn_scalar=8, sliding_window=4)
    return transformers.Gemma2ForCausalLM(config)


def t5() -> nn.Module:
    config = transformers.T5Config(
        vocab_size=VOCAB,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        use_cache=False,
        decoder_start_token_id=0,
    )
    return transformers.T5ForConditionalGeneration(config)


def vit() -> nn.Module:
    config = transformers.ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        image_size=16,
        patch_size=4,
    )
    return transformers.ViTModel(config)


def whisper() -> nn.Module:
    config = transformers.WhisperConfig(
        vocab_size=VOCAB,
        num_mel_bins=8,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        max_source_positions=16,
        max_target_positions=64,
        use_cache=False,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    return transformers.WhisperForConditionalGeneration(config)


def mixtral() -> nn.Module:
    config = transformers.MixtralConfig(**GROUPED, num_local_experts=4, num_experts_per_tok=2)
    # Plain ATen; the default goes through an op of the transformers library.
    config._experts_implementation = "batched_mm"
    return transformers.MixtralForCausalLM(config)


def mamba() -> nn.Module:
    config = transformers.MambaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        num_hidden_layers=2,
        state_size=8,
        time_step_rank=4,
        use_cache=False,
        use_associative_scan=False,
    )
    return transformers.MambaForCausalLM(config)


ROWS = (
    Row("bert", bert, tokens),
    Row("gpt2", gpt2, tokens),
    Row("llama", llama, tokens),
    Row("qwen2", qwen2, tokens),
    Row("gemma2", gemma2, tokens),
    Row("t5", t5, encoder_decoder),
    Row("vit", vit, pixels),
    Row("whisper", whisper, audio),
    Row("mixtral", mixtral, tokens),
    # The scan is a Python loop over the length: a new length is a new graph, a new batch size is not.
    Row("mamba", mamba, tokens_unmasked, shapes=((2, 4), (3, 4))),
    Row("resnet", ResNet, images, shapes=((2, 4), (3, 5))),
    # Dynamo skips a frame that holds an `nn.LSTM` unless it is told otherwise; on CUDA it traces a loop.
    Row("lstm", Lstm, sequence, dynamo={"allow_rnn": True}, one_length_on="cuda"),
)
