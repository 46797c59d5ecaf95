"""The decode loop: a static cache written in place, eager's tokens, and no step that copies the cache."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
import transformers
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.profiler import ProfilerActivity, profile

import torchair
from tests.models.zoo import TEXT, VOCAB

MODES = {"npu": "max-autotune", "npugraph_ex": "npugraph_ex"}
STEPS = 64
CONTEXT = 4096
Step = Callable[..., Any]


def tiny_llama(device: str = "cpu") -> transformers.LlamaForCausalLM:
    """As many key as query heads: with fewer, attention itself repeats the cache, in eager too."""
    torch.manual_seed(0)
    sizes = {**TEXT, "max_position_embeddings": CONTEXT, "use_cache": True}
    config = transformers.LlamaConfig(**sizes, num_key_value_heads=4, bos_token_id=None, eos_token_id=None)
    return transformers.LlamaForCausalLM(config).eval().to(device)


def prompt(device: str = "cpu") -> Tensor:
    return (torch.arange(5, device=device)[None] * 7 + 3) % VOCAB


def backend(mode: str, codegen: str) -> Step:
    config = torchair.CompilerConfig()
    config.mode = mode
    config.engine_config.codegen = codegen
    return torchair.get_npu_backend(compiler_config=config)


class Decoding:
    """One decode loop: prefill in eager, then `step` once per token over the same cache."""

    def __init__(self, model: nn.Module, step: Step, device: str = "cpu") -> None:
        self.step = step
        self.cache = transformers.StaticCache(config=model.config, max_cache_len=CONTEXT)
        with torch.no_grad():
            filled = model(prompt(device), past_key_values=self.cache, use_cache=True)
        self.token = filled.logits[:, -1].argmax(-1, keepdim=True)

    def advance(self) -> int:
        """One step; gives the token that was fed."""
        fed = int(self.token)
        with torch.no_grad():
            logits = self.step(self.token, past_key_values=self.cache, use_cache=True).logits
        self.token = logits[:, -1].argmax(-1, keepdim=True)
        return fed

    def run(self, steps: int) -> list[int]:
        return [self.advance() for _ in range(steps)]

    @property
    def cache_tensor_bytes(self) -> int:
        return self.cache.layers[0].keys.nbytes


def allocations(call: Callable[[], object], folder: Path) -> list[int]:
    """Bytes of every allocation on the CPU during a call, compiled code included: the allocator reports."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        call()
    trace = folder / "trace.json"
    seen.export_chrome_trace(str(trace))
    events = json.loads(trace.read_text())["traceEvents"]
    sizes = [event["args"]["Bytes"] for event in events if event["name"] == "[memory]"]
    return [size for size in sizes if size > 0]


@pytest.mark.parametrize("codegen", ["eager", pytest.param("auto", marks=pytest.mark.full)])
@pytest.mark.parametrize("mode", MODES.values())
def test_decode_loop_gives_eager_tokens(mode: str, codegen: str, device: torch.device) -> None:
    model = tiny_llama(device.type)
    want = Decoding(model, model, device.type).run(STEPS)
    compiled = torch.compile(model, backend=backend(mode, codegen), fullgraph=True)
    decoding = Decoding(model, compiled, device.type)
    addresses = [layer.keys.data_ptr() for layer in decoding.cache.layers]
    assert decoding.run(STEPS) == want
    assert len(set(want)) > 3, "the tokens vary, so equality says something"
    assert [layer.keys.data_ptr() for layer in decoding.cache.layers] == addresses


@pytest.mark.parametrize("mode", MODES.values())
def test_cache_holds_what_eager_wrote(mode: str, device: torch.device) -> None:
    model = tiny_llama(device.type)
    plain, ours = (
        Decoding(model, step, device.type)
        for step in (model, torch.compile(model, backend=backend(mode, "eager"), fullgraph=True))
    )
    plain.run(4)
    ours.run(4)
    for left, right in zip(plain.cache.layers, ours.cache.layers, strict=True):
        torch.testing.assert_close(right.keys, left.keys)
        torch.testing.assert_close(right.values, left.values)
        torch.testing.assert_close(right.cumulative_length, left.cumulative_length)


@pytest.mark.parametrize(
    "codegen", ["eager", *(pytest.param(kind, marks=pytest.mark.full) for kind in ("auto", "native"))]
)
@pytest.mark.parametrize("mode", MODES.values())
def test_no_step_copies_the_cache(mode: str, codegen: str, tmp_path: Path) -> None:
    model = tiny_llama()
    compiled = torch.compile(model, backend=backend(mode, codegen), fullgraph=True)
    decoding = Decoding(model, compiled)
    decoding.run(3)
    sizes = allocations(decoding.advance, tmp_path)
    assert sizes, "the counter saw the step"
    assert max(sizes) < decoding.cache_tensor_bytes
    assert sum(sizes) < decoding.cache_tensor_bytes


def test_the_counter_sees_a_copy(tmp_path: Path) -> None:
    """The control: stock `aot_eager` updates a copy of the cache and copies it back."""
    model = tiny_llama()
    decoding = Decoding(model, torch.compile(model, backend="aot_eager", fullgraph=True))
    decoding.run(2)
    copies = [size for size in allocations(decoding.advance, tmp_path) if size >= decoding.cache_tensor_bytes]
    assert len(copies) == 2 * len(decoding.cache.layers)


def generate(model: transformers.LlamaForCausalLM, **options: Any) -> list[int]:
    device = model.device.type
    chosen = {"max_new_tokens": 24, "do_sample": False, "cache_implementation": "static", **options}
    return model.generate(prompt(device), attention_mask=torch.ones_like(prompt(device)), **chosen)[
        0
    ].tolist()


def generate_eagerly(model: transformers.LlamaForCausalLM) -> list[int]:
    """Without `disable_compile`, generate() compiles decode steps by itself on some devices."""
    return generate(model, disable_compile=True)


@pytest.mark.parametrize("name", MODES)
def test_generate_with_compiled_forward(name: str, device: torch.device) -> None:
    """`model.forward = torch.compile(model.forward, backend=...)`: prefill and steps are both compiled."""
    model = tiny_llama(device.type)
    want = generate_eagerly(model)
    model.forward = torch.compile(model.forward, backend=name, options={"codegen": "eager"})
    counters.clear()
    assert generate(model, disable_compile=True) == want
    assert counters["stats"]["unique_graphs"] > 0


@pytest.mark.parametrize("name", MODES)
def test_generate_with_compile_config(name: str, device: torch.device) -> None:
    """The backend's name in `compile_config`: generate() compiles the decode step."""
    model = tiny_llama(device.type)
    want = generate_eagerly(model)
    config = transformers.CompileConfig(backend=name, mode=None, fullgraph=True, options={"codegen": "eager"})
    config._compile_all_devices = True
    counters.clear()
    assert generate(model, compile_config=config) == want
    assert counters["stats"]["unique_graphs"] > 0
