"""Every pass can be switched off, by both spellings; on or off, results are eager's. They fire on models."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch._dynamo

import torchair
from tests.models.zoo import ROWS, leaves
from tests.support.slow import slow
from torchair.backend.pipeline import compile as backend
from torchair.backend.settings.settings import Settings
from torchair.passes import CAPTURE_PASSES, FX_PASSES, PassContext
from torchair.passes.pass_manager import Skip

aten = torch.ops.aten
SWITCHES = ("remove_noop_ops", "remove_cat_ops", "inplace_pass", "input_inplace_pass", "pattern_fusion_pass")
# Flat name -> the same switch in the tree, and the value that switches off.
TREE: dict[str, tuple[str, bool]] = {
    "remove_noop_ops": ("experimental_config.remove_noop_ops", False),
    "pattern_fusion_pass": ("experimental_config.pattern_fusion_pass", False),
    "remove_cat_ops": ("debug.aclgraph.remove_cat_ops", False),
    "inplace_pass": ("debug.aclgraph.disable_reinplace_inplaceable_ops_pass", True),
    "input_inplace_pass": ("debug.aclgraph.disable_reinplace_input_mutated_ops_pass", True),
}
PASSES = {
    "remove_noop_ops": "optimize_noop_ops",
    "remove_cat_ops": "remove_cat_ops",
    "inplace_pass": "reinplace_inplaceable_ops_pass",
    "input_inplace_pass": "reinplace_input_mutated_ops",
    "pattern_fusion_pass": "apply_pattern_passes",
}
LEFT, RIGHT = torch.randn(3, 4, 128), torch.randn(3, 128, 256)


def step(cache: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Something for every pass."""
    turned = torch.bmm(left[:], right).transpose(0, 1)
    joined = torch.cat([torch.relu(turned * 2 + 1), torch.sin(turned)])
    cache[1:3].add_(joined[0, 0, :2, None])
    return torch.exp(joined).clone() - 1


def arguments() -> tuple[torch.Tensor, ...]:
    return torch.zeros(4, 5), LEFT.clone(), RIGHT.clone()


@pytest.fixture
def contexts(monkeypatch: pytest.MonkeyPatch) -> list[PassContext]:
    """What the passes of each compilation said."""
    seen: list[PassContext] = []
    made = backend.pass_context

    def keep(*args: Any) -> PassContext:
        seen.append(made(*args))
        return seen[-1]

    monkeypatch.setattr(backend, "pass_context", keep)
    return seen


def config_with_passes(options: dict[str, bool]) -> torchair.CompilerConfig:
    """The tree's spelling, for the program that is most written in place."""
    config = torchair.CompilerConfig()
    config.mode = "npugraph_ex"
    config.engine_config.codegen = "eager"
    config.engine_config.verify = True
    for name, value in options.items():
        path, off = TREE[name]
        *groups, last = path.split(".")
        group: Any = config
        for part in groups:
            group = getattr(group, part)
        setattr(group, last, off if not value else not off)
    return config


def run_and_compare(compiled: Any, fn: Any, *args: torch.Tensor) -> None:
    for _ in range(2):
        theirs, ours = [arg.clone() for arg in args], [arg.clone() for arg in args]
        with torch.no_grad():
            want, got = fn(*theirs), compiled(*ours)
        torch.testing.assert_close(got, want)
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("off", [None, *SWITCHES])
def test_each_switch_in_the_tree(off: str | None, contexts: list[PassContext]) -> None:
    options = {} if off is None else {off: False}
    backend = torchair.get_npu_backend(compiler_config=config_with_passes(options))
    run_and_compare(torch.compile(step, backend=backend), step, *arguments())
    (context,) = contexts
    fired = {name for name, title in PASSES.items() if context.changes.get(title, 0)}
    assert fired == set(SWITCHES) - {off}


@pytest.mark.parametrize("value", [True, False])
@pytest.mark.parametrize("name", SWITCHES)
def test_each_switch_by_its_flat_name(name: str, value: bool, contexts: list[PassContext]) -> None:
    """`force_eager` runs the graph as the passes left it; without it, the default program on this device."""
    for eager in (True, False):
        torch.compiler.reset()
        compiled = torch.compile(step, backend="npugraph_ex", options={name: value, "force_eager": eager})
        run_and_compare(compiled, step, *arguments())
    assert (PASSES[name] in contexts[0].changes) == value


def test_all_off_is_the_graph_as_it_came(contexts: list[PassContext]) -> None:
    options = dict.fromkeys(SWITCHES, False) | {"force_eager": True}
    run_and_compare(torch.compile(step, backend="npugraph_ex", options=options), step, *arguments())
    assert contexts[0].changes.get("eliminate_self_copy") == 0
    assert not {"decompose_auto_functionalized", *PASSES.values()} & set(contexts[0].changes)


@pytest.mark.parametrize("dynamic", [False, True])
def test_passes_with_symbolic_sizes_equal_eager(dynamic: bool) -> None:
    backend = torchair.get_npu_backend(compiler_config=config_with_passes({}))
    compiled = torch.compile(step, backend=backend, dynamic=dynamic)
    for batch in (3, 5):
        run_and_compare(
            compiled, step, torch.zeros(4, 5), torch.randn(batch, 4, 128), torch.randn(batch, 128, 256)
        )


def test_other_programs_keep_their_graphs_functional() -> None:
    """Inductor writes in place by itself, and from a functional graph only."""
    hooks = {"post_grad_custom_pre_pass": print, "post_grad_custom_post_pass": print}
    settings = Settings.of({"mode": "npugraph_ex", **hooks})
    for kind in ("inductor", "native"):
        found = settings.switches(kind)
        assert not any(found[name] for name in ("runs_op_by_op", "remove_cat_ops", "inplace_pass"))
        assert not found["input_inplace_pass"]
    found = settings.switches("eager")
    of_capture = {step.on for step in (*FX_PASSES, *CAPTURE_PASSES) if step.on} - {
        "ge_config.enable_single_stream",
        "drops_streams",
    }
    assert all(found[name] for name in of_capture)


# The debug names of the passes of capture mode, in their order.
DOCUMENTED = (
    "post_grad_custom_pre_pass",
    "optimize_noop_ops",
    "recover_view_inplace_pattern",
    "apply_pattern_passes",
    "view_to_reshape",
    "post_grad_custom_post_pass",
    "remove_cat_ops",
    "apply_event_closure_with_multi_stream",
    "apply_event_record",
    "eliminate_dead_code",
    "reinplace_inplaceable_ops_pass",
    "reinplace_input_mutated_ops",
    "decompose_auto_functionalized",
    "eliminate_self_copy",
    "replace_dynamic_workspace_ops",
    "resolve_default_stream_markers",
)


def test_the_lists_have_the_documented_names_in_order() -> None:
    titles = [item.title for item in (*FX_PASSES, *CAPTURE_PASSES)]
    assert tuple(title for title in titles if title in DOCUMENTED) == DOCUMENTED


@pytest.mark.parametrize(
    ("name", "dynamic"), [("llama", False), slow("llama", True), slow("bert", False), slow("bert", True)]
)
def test_passes_fire_on_models(name: str, dynamic: bool, contexts: list[PassContext]) -> None:
    """Passes fire on real models, and the numbers stay."""
    row = next(row for row in ROWS if row.name == name)
    model = row.model()
    backend = torchair.get_npu_backend(compiler_config=config_with_passes({}))
    compiled = torch.compile(model, backend=backend, dynamic=dynamic, fullgraph=True)
    with torch._dynamo.config.patch({"specialize_float": True, **row.dynamo}), torch.no_grad():
        for shape in row.shapes:
            feed = row.feed(shape)
            torch.testing.assert_close(leaves(compiled(**feed)), leaves(model(**feed)))
    changes = contexts[0].changes
    assert changes["reinplace_inplaceable_ops_pass"] >= 8
    assert changes["optimize_noop_ops"] >= 1
    assert all(isinstance(skip, Skip) and skip.reason for skip in contexts[0].skips)
