"""The torchair tree: names, defaults, checks, reading rules, copies and equality."""

from __future__ import annotations

import copy
import os
import pickle
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.configs.expected import ALIASES, CAPTURE, GRAPH, MORE, OWN, SHARED_FLAT
from tests.configs.strategies import REFUSED
from torchair.configs import kinds
from torchair.configs.compiler_config import CompilerConfig
from torchair.configs.groups.dump_config import STEPS
from torchair.configs.option import Cell, Option, aliases, assign, cell, touched, walk
from torchair.core.errors import AirError, DegradedWarning

# What is kept is tested here, whether something acts on it or not.
pytestmark = pytest.mark.filterwarnings("ignore:.*has no effect in this version:torchair.DegradedWarning")

ROWS = dict(walk(CompilerConfig))
PLAIN = {path for path, row in ROWS.items() if row.plain}
BOOLS = [path for path, row in ROWS.items() if row.kind == kinds.BOOL]
GROUPS = sorted({path.rpartition(".")[0] for path in ROWS})
OPEN_GROUPS = ("export", "aclgraph_config", "npugraphex_config")


def group_at(config: Any, path: str) -> Any:
    for name in path.split(".") if path else []:
        config = getattr(config, name)
    return config


def read(config: CompilerConfig, path: str) -> Any:
    head, _, name = path.rpartition(".")
    return getattr(group_at(config, head), name)


def _pickled(config: CompilerConfig) -> CompilerConfig:
    return pickle.loads(pickle.dumps(config))


def refusals() -> list[Any]:
    return [
        pytest.param(path, value, error, id=f"{path}-{value!r}")
        for path, row in ROWS.items()
        for value, error in REFUSED[type(row.kind)]
        if not (value is None and getattr(row.kind, "none", False))
        and not (isinstance(value, int) and isinstance(row.kind, kinds.IntRange) and value == row.kind.low)
    ]


def test_the_tree_has_exactly_the_promised_options() -> None:
    assert len(GRAPH) == 56
    assert len(CAPTURE) == 15
    assert {path: row.default for path, row in ROWS.items()} == GRAPH | CAPTURE | MORE | OWN
    assert {path for path, row in ROWS.items() if row.own} == set(OWN)


@pytest.mark.parametrize("path", ROWS)
def test_option_has_documented_default(path: str) -> None:
    default, option = ROWS[path].default, read(CompilerConfig(), path)
    if path in PLAIN:
        assert option == default
        return
    assert option.value == _text(default)
    assert option.raw == option.default == default
    assert option.optional == (
        list(ROWS[path].kind.values) if isinstance(ROWS[path].kind, kinds.Choice) else None
    )
    assert bool(option) == bool(default)


def _text(default: Any) -> str | None:
    if default is None:
        return None
    return str(int(default)) if isinstance(default, bool) else str(default)


@pytest.mark.parametrize("path", ROWS)
def test_every_option_has_documentation(path: str) -> None:
    row = ROWS[path]
    assert row.help.endswith(".")
    assert row.kind.text()
    assert row.modes


def test_plain_options_are_the_promised_ones() -> None:
    exports = {path for path in GRAPH if path.startswith("export.") and "experimental" not in path}
    paths = {f"debug.{group}.path" for group in ("graph_dump", "data_dump", "fx_summary")}
    assert exports | paths | {"debug.data_dump.filter"} == PLAIN


@pytest.mark.parametrize("path", BOOLS)
def test_integers_become_booleans(path: str) -> None:
    config = CompilerConfig()
    for given_value, raw, text in ((1, True, "1"), (0, False, "0"), (True, True, "1"), (False, False, "0")):
        assign(config, path, given_value)
        assert cell(config, path).raw is raw
        assert cell(config, path).value == text
        assert bool(cell(config, path)) is raw


@pytest.mark.parametrize(("path", "value", "error"), refusals())
def test_option_refuses_invalid_value(path: str, value: Any, error: type[Exception]) -> None:
    config = CompilerConfig()
    with pytest.raises(error) as caught:
        assign(config, path, value)
    assert isinstance(caught.value, AirError)
    assert str(caught.value).startswith(f"{path} ")
    assert config == CompilerConfig()


@pytest.mark.parametrize(
    ("path", "good", "bad"),
    [
        ("debug.aclgraph.static_capture_size_limit", 1, 0),
        ("experimental_config.static_model_ops_lower_limit", -1, -2),
        ("experimental_config.aclgraph._aclnn_static_shape_kernel_sym_index", 0, -1),
        ("engine_config.memory_budget", 0, -1),
    ],
)
def test_int_option_refuses_value_below_bound(path: str, good: int, bad: int) -> None:
    config = CompilerConfig()
    assign(config, path, good)
    assert cell(config, path).raw == good
    with pytest.raises(ValueError, match="out of range"):
        assign(config, path, bad)
    assign(config, path, True)
    assert cell(config, path).value == "1"


def test_statistics_take_strings_only() -> None:
    config = CompilerConfig()
    config.ge_config.export_compile_stat = "0"
    with pytest.raises(ValueError, match="0 \\(int\\)"):
        config.ge_config.export_compile_stat = 0


def test_none_cannot_be_assigned_back_but_del_restores_the_default() -> None:
    config = CompilerConfig()
    config.debug.graph_dump.type = "py"
    with pytest.raises(ValueError, match="None"):
        config.debug.graph_dump.type = None
    del config.debug.graph_dump.type
    assert config.debug.graph_dump.type.value is None
    assert config == CompilerConfig()


@pytest.mark.parametrize("group", [group for group in GROUPS if group not in OPEN_GROUPS])
def test_unknown_names_are_refused_with_the_valid_ones(group: str) -> None:
    target = group_at(CompilerConfig(), group)
    with pytest.raises(ValueError, match="no_such_option") as caught:
        target.no_such_option = 1
    assert type(target).__name__ in str(caught.value)
    names = [path.rpartition(".")[2] for path in ROWS if path.rpartition(".")[0] == group]
    assert all(name in str(caught.value) for name in names)


def test_a_near_name_is_proposed() -> None:
    with pytest.raises(ValueError, match="did you mean 'oo_level'"):
        CompilerConfig().ge_config.oo_lvl = "O1"


@pytest.mark.parametrize("group", OPEN_GROUPS)
def test_open_groups_keep_unknown_names_and_say_so(group: str) -> None:
    config = CompilerConfig()
    with pytest.warns(DegradedWarning, match=f"{group}.unknown_in_{group} is not an option") as said:
        setattr(getattr(config, group), f"unknown_in_{group}", 3)
    assert said[0].filename == __file__
    assert getattr(getattr(config, group), f"unknown_in_{group}") == 3
    assert config != CompilerConfig()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DegradedWarning)
        assert copy.deepcopy(config) == config == CompilerConfig.from_json(config.to_json())


@pytest.mark.parametrize("group", ["aclgraph_config", "npugraphex_config"])
def test_fixed_groups_cannot_be_replaced(group: str) -> None:
    config = CompilerConfig()
    with pytest.raises(ValueError, match="cannot be replaced"):
        setattr(config, group, getattr(CompilerConfig(), group))


def test_groups_can_be_replaced_by_their_like() -> None:
    config, other = CompilerConfig(), CompilerConfig()
    other.debug.run_eagerly = True
    config.debug = other.debug
    assert config.debug.run_eagerly
    with pytest.raises(TypeError, match="debug must be a DebugConfig"):
        config.debug = 3


def test_option_objects_are_live_and_assignable() -> None:
    config = CompilerConfig()
    level = config.ge_config.oo_level
    config.ge_config.oo_level = "O1"
    assert isinstance(level, Cell)
    assert level.value == "O1"
    level.value = "O3"
    assert config.ge_config.oo_level == "O3"
    with pytest.raises(ValueError, match=re.escape("ge_config.oo_level does not accept 'O9'")):
        level.value = "O9"


def test_paths_read_as_real_paths(tmp_path: Path) -> None:
    config = CompilerConfig()
    for group in (config.debug.graph_dump, config.debug.data_dump, config.debug.fx_summary):
        group.path = "some/where"
        assert group.path == os.path.realpath("some/where")
        assert group._path.value == group.path
        group._path = tmp_path
        assert group.path == os.path.realpath(tmp_path)


def test_callables_are_their_own_value() -> None:
    config = CompilerConfig()
    config.post_grad_custom_pre_pass = len
    config.debug.data_dump.filter = str
    assert config.post_grad_custom_pre_pass.value is len
    assert config.debug.data_dump.filter is str


def test_class_access_gives_the_row() -> None:
    assert isinstance(CompilerConfig.mode, Option)
    assert CompilerConfig.mode.help


def test_configs_share_nothing() -> None:
    one, two = CompilerConfig(), CompilerConfig()
    one.npugraphex_config.capture_limit = 3
    one.ge_config.oo_level = "O1"
    assert two == CompilerConfig()
    assert two.npugraphex_config.capture_limit == 64


def test_equality_is_by_value_and_configs_cannot_be_hashed() -> None:
    one, two = CompilerConfig(), CompilerConfig()
    assert one == two
    one.debug.run_eagerly = True
    assert one != two
    assert one.debug != two.debug
    assert one.ge_config == two.ge_config
    two.debug.run_eagerly = 1
    assert one == two
    assert one != 3
    for thing in (one, one.debug, one.mode):
        with pytest.raises(TypeError):
            hash(thing)


class Pass:
    """A pass that is an object."""

    def __call__(self) -> None:
        """Does nothing."""


@pytest.mark.parametrize("twin_of", [copy.deepcopy, copy.copy])
def test_copies_are_independent_but_share_callables(twin_of: Any) -> None:
    config, user_pass = CompilerConfig(), Pass()
    config.post_grad_custom_pre_pass = user_pass
    config.experimental_config.aclgraph._super_kernel_optimize_options = {"split_mode": 1}
    twin = twin_of(config)
    assert twin == config
    assert twin.post_grad_custom_pre_pass.value is user_pass
    twin.experimental_config.aclgraph._super_kernel_optimize_options.raw["split_mode"] = 2
    twin.npugraphex_config.clone_input = False
    assert config.experimental_config.aclgraph._super_kernel_optimize_options.raw == {"split_mode": 1}
    assert config.debug.aclgraph.clone_input


def test_configs_can_be_pickled() -> None:
    config = CompilerConfig()
    config.debug.aclgraph.static_capture_size_limit = 7
    assert pickle.loads(pickle.dumps(config)) == config


def test_repr_shows_what_is_set() -> None:
    config = CompilerConfig()
    assert repr(config) == "CompilerConfig()"
    config.ge_config.oo_level = "O1"
    assert repr(config) == "CompilerConfig(ge_config.oo_level='O1')"


@pytest.mark.parametrize("steps", ["", "0|1|2-5|6", "02|3", "0-1", "1|", "7"])
def test_dump_step_accepts_valid_text(steps: str) -> None:
    config = CompilerConfig()
    config.dump_config.dump_step = steps
    assert config.dump_config.dump_step.value == steps


@pytest.mark.parametrize("steps", ["-1", "1-", "1--6", "02||34", "0ad", "|1", "1\n"])
def test_dump_step_refuses_invalid_text(steps: str) -> None:
    with pytest.raises(ValueError, match=r"dump_config\.dump_step has the wrong form"):
        CompilerConfig().dump_config.dump_step = steps


@given(st.text(alphabet="01-|x", max_size=9))
def test_the_linear_step_pattern_accepts_what_the_promised_one_does(steps: str) -> None:
    promised = re.match(r"^(((\d+)|(\d+-{0,1}\d+))\|{0,1})*$", steps)
    assert bool(promised) == bool(re.fullmatch(STEPS.pattern, steps))


def test_long_wrong_steps_are_refused_at_once() -> None:
    with pytest.raises(ValueError, match="wrong form"):
        CompilerConfig().dump_config.dump_step = "1" * 5000 + "x"


@pytest.mark.parametrize(("layers", "fits"), [('a_1 b/c.d "e" f\\g', True), ("a,b", False), ("节点", False)])
def test_dump_layer_checks_characters(layers: str, fits: bool) -> None:
    config = CompilerConfig()
    if fits:
        config.dump_config.dump_layer = layers
        assert config.dump_config.dump_layer.value == layers
        return
    with pytest.raises(ValueError, match="dump_layer"):
        config.dump_config.dump_layer = layers


def test_dump_config_path_accepts_json_file(tmp_path: Path) -> None:
    config, file = CompilerConfig(), tmp_path / "dump.json"
    file.write_text("{}")
    config.dump_config.dump_config_path = file
    assert config.dump_config.dump_config_path.value == str(file)
    config.dump_config.dump_config_path = None
    assert config.dump_config.dump_config_path.value is None


@pytest.mark.parametrize(("name", "path"), SHARED_FLAT.items())
def test_flat_names_are_views_of_the_tree(name: str, path: str) -> None:
    config = CompilerConfig()
    flat, target = cell(config.npugraphex_config, name), cell(config, path.removeprefix("!"))
    assert flat.raw == (not target.raw if path.startswith("!") else target.raw)
    if ROWS[path.removeprefix("!")].kind != kinds.BOOL:
        return
    for value in (True, False):
        setattr(config.npugraphex_config, name, value)
        assert flat.raw is value
        assert target.raw is (not value if path.startswith("!") else value)
    delattr(config.npugraphex_config, name)
    assert config == CompilerConfig()


def test_other_names_are_the_promised_ones() -> None:
    assert aliases(CompilerConfig) == ALIASES


@pytest.mark.parametrize(("name", "path"), ALIASES.items())
@pytest.mark.parametrize("twin_of", [lambda config: config, copy.deepcopy, copy.copy, _pickled])
def test_an_alias_is_the_option_itself(name: str, path: str, twin_of: Any) -> None:
    config = CompilerConfig()
    twin = twin_of(config)
    row = ROWS[path]
    value = "py" if row.default is None else not row.default
    assign(twin, name, value)
    assert read(twin, path).raw == read(twin, name).raw == value
    assert twin.to_json() == CompilerConfig.from_json(twin.to_json().replace(path, name)).to_json()
    assert (config == CompilerConfig()) == (twin is not config)
    with pytest.raises(ValueError, match=path):
        assign(twin, name, "neither")
    group, _, last = name.rpartition(".")
    delattr(group_at(twin, group), last)
    assert twin == CompilerConfig()


def test_an_alias_follows_its_group_into_another_tree() -> None:
    config, other = CompilerConfig(), CompilerConfig()
    config.experimental_config = other.experimental_config
    config.experimental_config.enable_single_stream = True
    assert config.ge_config.enable_single_stream
    assert not other.ge_config.enable_single_stream


def test_what_was_assigned_is_known_even_where_it_is_the_default() -> None:
    config = CompilerConfig()
    assert touched(config) == set()
    config.ge_config.export_compile_stat = "2"
    config.npugraphex_config.capture_limit = 64
    assert touched(config) == {
        "ge_config.export_compile_stat",
        "debug.aclgraph.static_capture_size_limit",
    }
    del config.ge_config.export_compile_stat
    assert touched(copy.deepcopy(config)) == {"debug.aclgraph.static_capture_size_limit"}
