"""Every row says who sees what it does, or is a hint that the engine is handed: no option is accepted and
ignored.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from torchair.backend.settings.settings import HARDWARE, SWITCHED, ineffective_options, resolve_settings
from torchair.configs import kinds, npugraph_ex
from torchair.configs.compiler_config import CompilerConfig
from torchair.configs.groups.ge_config import GeConfig
from torchair.configs.option import ALL_MODES, Nested, Option, assign, walk
from torchair.configs.option_kinds import hint
from torchair.configs.pass_switches import SwitchText
from torchair.configs.resolve import cache_key_paths
from torchair.core.errors import Degraded, DegradedWarning
from torchair.core.log import logger

ROOT = Path(__file__).resolve().parents[2]
ROWS = dict(walk(CompilerConfig))
# Features that come later: these rows say that nothing acts on them.
LATER = (
    "export.export_",
    "export.weight_name",
    "export.inputs_name",
    "export.experimental.enable_lite_export",
)

pytestmark = pytest.mark.filterwarnings("ignore:.*has no effect in this version:torchair.DegradedWarning")


def other_value(row: Option, folder: Path) -> Any:
    """A value that the option accepts, other than its default; the default where there is no other."""
    kind = row.kind
    if isinstance(kind, kinds.Choice):
        return next((value for value in kind.values if value != row.default), row.default)
    if isinstance(kind, kinds.IntRange):
        return kind.low + 1 if kind.low != row.default else kind.low + 2
    if isinstance(kind, kinds.Instance):
        return {"split_mode": 1} if kind.type is dict else "other"
    by_kind = {
        kinds.Kind: "24|48",
        kinds.Raw: (0, 7),
        kinds.ExistingDir: str(folder),
        kinds.ExistingFile: str(folder / "switches.json"),
        kinds.ExistingJson: str(folder / "switches.json"),
        kinds.Regex: "7",
        kinds.Function: len,
        kinds.IntList: [7],
        kinds.PathText: str(folder),
        kinds.NewDir: str(folder),
        SwitchText: "AddNFusionPass:off",
    }
    return by_kind[type(kind)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "switches.json").write_text('{"Switch": {}}')
    return tmp_path


def why_silent(row: Option) -> str | None:
    """What is wrong with what a row says about its effect."""
    said = [bool(row.effect), row.hint, not row.acts].count(True)
    if said != 1:
        return f"one of effect, hint and acts=False is wanted, there are {said}"
    if not row.effect:
        return None
    file, _, name = row.effect.partition("::")
    path = ROOT / file
    body = ast.parse(path.read_text(encoding="utf-8")).body if path.is_file() else []
    names = {item.name for item in body if isinstance(item, ast.FunctionDef)}
    return None if name.startswith("test_") and name in names else f"there is no test {row.effect}"


@pytest.mark.parametrize("path", ROWS)
def test_option_names_effect_or_is_hint_or_ineffective(path: str) -> None:
    assert why_silent(ROWS[path]) is None
    later = path.startswith(LATER)
    assert ROWS[path].acts == (not later), "an option that nothing acts on is one of a later feature"


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({}, "there are 0"),
        (
            {"hint": True, "effect": "tests/configs/test_rows.py::test_rows_of_both_modes_and_of_one"},
            "there are 2",
        ),
        (
            {"effect": "tests/configs/test_rows.py::test_of_nothing"},
            "no test tests/configs/test_rows.py::test_of",
        ),
        ({"effect": "tests/configs/no_such.py::test_it"}, "there is no test"),
        ({"effect": "tests/configs/test_rows.py::why_silent"}, "there is no test"),
    ],
)
def test_option_without_effect_is_found(facts: dict[str, Any], why: str) -> None:
    assert why in str(why_silent(Option(False, "Does nothing.", **facts)))


def engine_sees(tree: type[CompilerConfig], path: str, value: Any) -> Any:
    """The engine's options with this value; of both kinds of config, and with the switch of super kernels."""
    config, flat = tree(), npugraph_ex.CompilerConfig()
    flat.super_kernel_optimize = True
    assign(config, path, value)
    name = dict(walk(tree))[path].flat
    if name:
        assign(flat, name, value)
    return config.as_dict(), flat.as_dict()


@pytest.mark.parametrize("path", [path for path, row in ROWS.items() if row.hint])
def test_a_hint_reaches_the_engine_and_the_log(
    path: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = ROWS[path]
    value = other_value(row, folder)
    assert path in cache_key_paths()
    if value == row.default:
        assert row.engine is not None
        assert row.engine.key in CompilerConfig().as_dict()[0]
        return
    assert engine_sees(CompilerConfig, path, value) != engine_sees(CompilerConfig, path, row.default)
    config = CompilerConfig()
    config.mode = row.modes[-1]
    assign(config, path, value)
    assert ineffective_options(config) == {path: HARDWARE}
    logger.setLevel("INFO")
    resolve_settings(config)
    logger.setLevel("ERROR")
    assert capsys.readouterr().out.count(f"option {path}={value!r} has no effect: {HARDWARE}") == 1


def test_hint_that_reaches_no_engine_is_found() -> None:
    class Deaf(GeConfig):
        quiet = hint(False, "Goes nowhere.")

    class Config(CompilerConfig):
        ge_config = Nested(Deaf)

    assert engine_sees(Config, "ge_config.quiet", True) == engine_sees(Config, "ge_config.quiet", False)


@pytest.mark.parametrize(
    ("switches", "path"), [(switches, path) for switches, paths in SWITCHED.items() for path in paths]
)
def test_option_of_disabled_feature_warns(switches: tuple[str, ...], path: str, folder: Path) -> None:
    config = CompilerConfig()
    config.mode = ROWS[path].modes[-1]
    assign(config, path, other_value(ROWS[path], folder))
    with pytest.warns(DegradedWarning, match=f"{path}=.* has no effect: {switches[0]}"):
        resolve_settings(config)


ELSEWHERE = [(path, mode) for path, row in ROWS.items() for mode in ALL_MODES if mode not in row.modes]


@pytest.mark.parametrize(("path", "mode"), ELSEWHERE)
def test_option_of_other_mode_has_no_effect_and_warns(path: str, mode: str, folder: Path) -> None:
    config = CompilerConfig()
    config.mode = mode
    value = other_value(ROWS[path], folder)
    if value == ROWS[path].default:
        return
    assign(config, path, value)
    with pytest.warns(DegradedWarning, match=rf"{path}=.* has no effect: {mode} mode does not read it"):
        settled = resolve_settings(config)
    assert settled.options[path] == ROWS[path].default
    resolve_settings(config)  # told once
    config.engine_config.strict = True
    with pytest.raises(Degraded, match="does not read it"):
        resolve_settings(config)


def test_rows_of_both_modes_and_of_one() -> None:
    """Which is which, written down a second time."""
    graph = {path for path, row in ROWS.items() if row.modes == ("max-autotune",)}
    groups = ("ge_config", "export", "fusion_config", "inference_config", "aoe_config")
    assert {path for path in ROWS if path.startswith(groups)} <= graph
    capture = {path for path, row in ROWS.items() if "max-autotune" not in row.modes}
    assert {path for path in ROWS if ".aclgraph." in path or path.startswith(("capture.", "aclgraph_"))} | {
        "dump_config.data_dump_stage"
    } == capture
