"""Which code generator serves a graph when nobody asks for one by name, and who comes next when it cannot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from torchair.backend.pipeline import compile as backend
from torchair.backend.pipeline import generate, link
from torchair.backend.pipeline.plan import MANY_CALLS
from torchair.backend.settings.settings import resolve_settings
from torchair.configs.compiler_config import CompilerConfig
from torchair.core.errors import DegradedWarning
from torchair.core.torch_private.fake.fake_tensors import make_fx


def chain(length: int) -> Any:
    def run(x: torch.Tensor) -> list[torch.Tensor]:
        for _ in range(length):
            x = x.sin()
        return [x]

    return make_fx(run)(torch.randn(3))


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The kinds that were tried; only plain Python can be built, and nothing was built before."""
    monkeypatch.setenv("TORCHAIR_PROGRAMS", str(tmp_path / "programs"))
    kinds: list[str] = []
    build = generate.build

    def refuse(kind: str, *args: Any, **kwargs: Any) -> Any:
        kinds.append(kind)
        if kind != "eager":
            raise RuntimeError(f"no {kind} here")
        return build(kind, *args, **kwargs)

    monkeypatch.setattr(generate, "build", refuse)
    return kinds


@pytest.mark.parametrize("mode", ["npugraph_ex", "max-autotune"])
def test_the_first_call_is_served_by_the_eager_program(mode: str, tried: list[str]) -> None:
    config = CompilerConfig()
    config.mode = mode
    x, gm = torch.randn(3), chain(MANY_CALLS)
    runner = backend.compile_fx(gm, [x], resolve_settings(config))
    assert tried == ["eager"]
    torch.testing.assert_close(runner.run(x), gm(x))


@pytest.mark.parametrize(
    ("mode", "length", "kinds"),
    [
        ("npugraph_ex", MANY_CALLS, ["native", "inductor", "eager"]),
        ("npugraph_ex", MANY_CALLS - 1, ["inductor", "eager"]),
        ("max-autotune", MANY_CALLS, ["inductor", "eager"]),
    ],
)
def test_the_next_one_serves_what_is_compiled_here(
    mode: str, length: int, kinds: list[str], tried: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A graph that no other process knows is compiled in its first call."""
    monkeypatch.setattr(link, "worker_unsupported_reason", lambda gm: "of this process alone")
    config = CompilerConfig()
    config.mode = mode
    x = torch.randn(3)
    gm = chain(length)
    with pytest.warns(DegradedWarning, match=r"no inductor here.*codegen='eager'"):
        runner = backend.compile_fx(gm, [x], resolve_settings(config))
    assert tried == kinds
    torch.testing.assert_close(runner.run(x), gm(x))


def test_requested_codegen_falls_back_with_warning(tried: list[str]) -> None:
    config = CompilerConfig()
    config.engine_config.codegen = "native"
    x = torch.randn(3)
    with pytest.warns(DegradedWarning, match=r"no (native|inductor) here"):
        runner = backend.compile_fx(chain(2), [x], resolve_settings(config))
    assert tried == ["native", "inductor", "eager"]
    assert [reason.op for reason in runner.conversion.detours] == ["codegen native", "codegen inductor"]
    torch.testing.assert_close(runner.run(x), chain(2)(x))
