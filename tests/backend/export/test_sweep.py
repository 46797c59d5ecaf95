"""Families of `transformers`, each as a file of one size and of all: equal to eager, without their code."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import torchair
from tests.backend.export.test_round_trip import exported
from tests.models.families import tiny
from tests.models.sweep import TOLERANCE, eager
from tests.models.zoo import leaves

FAMILIES = (
    "albert", "bart", "bloom", "clip", "convnext", "deberta-v2", "deit", "dinov2", "distilbert", "electra",
    "esm", "falcon", "gemma3_text", "glm4", "gpt2", "gpt_neox", "mistral", "mpnet", "phi3", "t5", "vit",
    "wav2vec2",
)  # fmt: skip
pytestmark = [pytest.mark.full, pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("family", FAMILIES)
def test_exported_transformers_family_equals_eager(family: str, dynamic: bool, tmp_path: Path) -> None:
    found = tiny(family)
    want = eager(found)
    exported(found.model, tmp_path, dynamic=dynamic, **found.inputs)
    config = torchair.CompilerConfig()
    config.engine_config.codegen = "eager"
    loaded = torchair.load_air(tmp_path / "net.air", config=config)
    torch.manual_seed(2)
    got = leaves(loaded(**found.inputs))
    torch.testing.assert_close(got, want, equal_nan=True, **TOLERANCE["cpu"])
