"""A new option is one row, and whoever acts on it: nothing else knows its name."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import torchair
from torchair.backend.settings.settings import resolve_settings
from torchair.configs.compiler_config import CompilerConfig
from torchair.configs.groups.capture import CaptureConfig
from torchair.configs.kinds import IntRange
from torchair.configs.option import Nested, Option
from torchair.configs.reference import page
from torchair.configs.resolve import with_options
from torchair.core.errors import UnknownOption
from torchair.passes import PassContext, Step, run
from torchair.passes.pass_manager import steps

HELP = "How many things are done at once."


class MoreOptions(CaptureConfig):
    """The group with a row more, and a switch of a pass."""

    depth = Option(4, HELP, IntRange(1, 64), flat="depth", own=True)
    without_hurry = Option(False, "Leave `hurry` out.", flat="!hurry", own=True)


class MoreConfig(CompilerConfig):
    """The tree with that group."""

    capture = Nested(MoreOptions)


def test_it_is_checked_where_it_is_assigned() -> None:
    config = MoreConfig()
    with pytest.raises(ValueError, match=r"capture\.depth is out of range"):
        config.capture.depth = 65
    with pytest.raises(ValueError, match="did you mean 'depth'"):
        config.capture.depht = 5
    assert config.capture.depth.value == "4"


def test_it_is_documented() -> None:
    line = f"| `capture.depth` | `4` | int, 1 to 64 | acts | acts | {HELP} **own** |  |"
    lines = page(MoreConfig).splitlines()
    assert line in lines
    assert "| `depth` | `4` | `capture.depth` | npu, npugraph_ex |" in lines
    assert "| `hurry` | `True` | not `capture.without_hurry` | npu, npugraph_ex |" in lines
    assert set(page().splitlines()) == set(lines) - {
        one for one in lines if "depth`" in one or "hurry" in one
    }


def test_it_reaches_the_settings() -> None:
    asked = with_options(MoreConfig(), {"depth": 9, "hurry": False})
    for config, depth in ((MoreConfig(), 4), (asked, 9)):
        options = resolve_settings(config).options
        assert options["depth"] == options["capture.depth"] == depth
    assert MoreConfig.from_json(asked.to_json()) == asked != MoreConfig()


def test_it_comes_through_the_door() -> None:
    seen: list[int] = []

    def look(gm: Any, inputs: Any, config: Any) -> None:
        seen.append(config.capture.depth.raw)

    config = MoreConfig()
    config.post_grad_custom_pre_pass = look
    backend = torchair.get_npu_backend(compiler_config=config)
    torch.compile(torch.sin, backend=backend, options={"depth": 9, "codegen": "eager"})(torch.ones(2))
    assert seen == [9]


@pytest.mark.parametrize("value", [True, False])
def test_it_switches_a_pass(value: bool) -> None:
    def hurry(graph: list[str], context: PassContext) -> int:
        graph.append("hurry")
        return 1

    settings = resolve_settings(with_options(MoreConfig(), {"hurry": value}))
    context = PassContext(settings.switches("inductor"))
    assert run(steps(Step(hurry, on="hurry")), [], context) == ["hurry"] * value


def test_the_tree_itself_has_not_changed() -> None:
    with pytest.raises(UnknownOption, match="depth"):
        with_options(CompilerConfig(), {"depth": 9})
