"""JSON out and in: any valid assignment survives, callables are named, and nothing unknown gets through."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.configs.strategies import accepted
from torchair.configs import npugraph_ex
from torchair.configs.compiler_config import CompilerConfig
from torchair.configs.json_form import callable_name
from torchair.configs.option import assign, cell, walk

# What is kept is tested here, whether something acts on it or not.
pytestmark = pytest.mark.filterwarnings("ignore:.*has no effect in this version:torchair.DegradedWarning")

CONFIGS = [CompilerConfig, npugraph_ex.CompilerConfig]
CALLABLES = {callable_name(function): function for function in (os.path.join, len)}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A working directory of its own: `as_dict` makes folders in dump directories."""
    (tmp_path / "dump.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    return str(tmp_path)


@pytest.mark.parametrize("kind", CONFIGS)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_valid_assignments_survive(kind: Any, data: st.DataObject, folder: str) -> None:
    rows, config = dict(walk(kind)), kind()
    for path in data.draw(st.lists(st.sampled_from(sorted(rows)), unique=True, max_size=12)):
        assign(config, path, data.draw(accepted(rows[path], folder), label=path))
    back = kind.from_json(config.to_json(), callables=CALLABLES)
    assert back == config
    assert {path: cell(back, path).raw for path in rows} == {path: cell(config, path).raw for path in rows}
    assert back.as_dict() == config.as_dict()


@pytest.mark.parametrize("kind", CONFIGS)
def test_defaults_are_not_written(kind: Any) -> None:
    assert json.loads(kind().to_json())["options"] == {}


def test_tuples_stay_tuples() -> None:
    config = CompilerConfig()
    config.aclgraph_config.use_custom_pool = (0, 7)
    assert CompilerConfig.from_json(config.to_json()).aclgraph_config.use_custom_pool.value == (0, 7)


def test_callables_are_named_and_must_be_handed_in() -> None:
    config = CompilerConfig()
    config.post_grad_custom_pre_pass = os.path.join
    text = config.to_json()
    assert '"posixpath.join"' in text
    with pytest.raises(ValueError, match=r"pass callables=\{'posixpath.join': function\}"):
        CompilerConfig.from_json(text)
    assert CompilerConfig.from_json(text, callables=CALLABLES) == config


def test_other_objects_are_refused() -> None:
    config = CompilerConfig()
    config.aclgraph_config.use_custom_pool = object()
    with pytest.raises(TypeError, match=r"aclgraph_config\.use_custom_pool cannot be written as JSON"):
        config.to_json()


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{", "cannot parse the config as JSON"),
        ("[]", "an object with an object 'options'"),
        ('{"config": "torchair"}', "an object with an object 'options'"),
        ('{"config": "npugraph_ex", "options": {}}', "another kind of config"),
        ('{"config": "torchair", "options": {"nothing.here": 1}}', "no option 'nothing'"),
        ('{"config": "torchair", "options": {"debug.here": 1}}', "no option 'here'"),
        ('{"config": "torchair", "options": {"mode.value": 1}}', "no option 'mode'"),
        ('{"config": "torchair", "options": {"mode": "fast"}}', "mode does not accept 'fast'"),
    ],
)
def test_from_json_refuses_invalid_text(text: str, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        CompilerConfig.from_json(text)
