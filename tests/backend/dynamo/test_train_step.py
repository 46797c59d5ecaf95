"""Forward and backward as one graph: a call is a training step, gradients and buffers are where eager puts
them.
"""

from __future__ import annotations

import copy
import io
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import torchair
from tests.models.zoo import GROUPED, VOCAB
from tests.support.compile import Seen, compile_fn, make_config, watching
from tests.support.simulated_device import SimulatedDevice
from torchair.backend.dynamo.train_step import GradientAccumulation, accumulate_grad
from torchair.backend.settings.settings import PATIENCE, resolve_settings
from torchair.capture import Role
from torchair.configs.option import CAPTURE_MODES, GRAPH_MODES
from torchair.core.errors import BadOption, DegradedWarning, NotPossible
from torchair.core.torch_private.compilers import aot_autograd as torch_private

JOINT = "experimental_config.aot_config_enable_joint_graph"
INDEX = "experimental_config.aot_config_output_loss_index"
EACH_MODE = pytest.mark.parametrize("mode", [GRAPH_MODES[0], CAPTURE_MODES[1]])
Step = Callable[..., Any]


class Picture(nn.Module):
    """Convolutions with batch statistics; the loss comes first."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 5)

    def forward(self, x: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        made = self.head(F.relu(self.norm(self.conv(x))).mean((2, 3)))
        return F.cross_entropy(made, wanted), made


class Text(nn.Module):
    """A tiny Llama that returns its loss and its logits."""

    def __init__(self) -> None:
        super().__init__()
        self.model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**GROUPED))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        made = self.model(input_ids=x, labels=x, attention_mask=torch.ones_like(x))
        return made.loss, made.logits


def pictures(rows: int) -> tuple[Tensor, ...]:
    return torch.randn(rows, 3, 6, 6), torch.randint(0, 5, (rows,))


def texts(rows: int) -> tuple[Tensor, ...]:
    return (torch.randint(0, VOCAB, (rows, 7)),)


def steps(model: nn.Module, call: Step, batches: list[tuple[Tensor, ...]], is_joint: bool) -> list[Any]:
    """Train; what the calls return."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    returned = []
    for batch in batches:
        optimizer.zero_grad()
        made = call(*batch)
        if not is_joint:
            made[0].backward()
        optimizer.step()
        returned.append([x.detach().clone() for x in made])
    return returned


def trained(model: nn.Module, batches: list[Any], mode: str, **rest: Any) -> Seen:
    """What is compiled for training that is like eager's: results, parameters, buffers, gradients."""
    twin = copy.deepcopy(model)
    wanted = steps(twin, twin, batches, is_joint=False)
    with watching() as seen:
        got = steps(model, compile_fn(model, {JOINT: True}, mode, **rest), batches, is_joint=True)
    torch.testing.assert_close(got, wanted)
    torch.testing.assert_close(model.state_dict(), twin.state_dict())
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)
    return seen


@EACH_MODE
@pytest.mark.parametrize(("kind", "batch"), [(Picture, pictures), (Text, texts)])
def test_a_step_is_one_graph(kind: Any, batch: Any, mode: str) -> None:
    """There is no backward graph, parameters are known as such, and buffers are written in place."""
    seen = trained(kind(), [batch(4) for _ in range(4)], mode)
    assert len(seen.runners) == 1
    (runner,) = seen.runners
    # Parameters and buffers: of the Llama's two one is not read.
    held = len(kind().state_dict()) if kind is Picture else len(list(kind().parameters())) + 1
    assert runner.strategy.inputs.roles.count(Role.PARAMETER) == held
    if mode == GRAPH_MODES[0]:
        (graph,) = seen.graphs
        assert [op.type for op in graph.ops if op.type.startswith("Conv2D")] == (
            ["Conv2D", "Conv2DBackpropFilter"] if kind is Picture else []
        )


def test_without_the_option_there_are_two_graphs() -> None:
    model = Picture()
    with watching() as seen:
        compile_fn(model, {})(*pictures(4))[0].backward()
    assert len(seen.runners) == 2


@EACH_MODE
def test_train_step_with_varying_batch_uses_one_runner(mode: str) -> None:
    seen = trained(Picture(), [pictures(rows) for rows in (4, 6, 3)], mode, dynamic=True)
    assert len(seen.runners) == 1


class Regression(nn.Sequential):
    """The loss alone; a recording may begin with any targets."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x: Tensor) -> tuple[Tensor]:
        return (super().forward(x).square().mean(),)


@EACH_MODE
def test_steps_are_recorded(mode: str, row: SimulatedDevice) -> None:
    """What `.grad` holds is not overwritten by the next step, be it recorded or not."""
    trained(Regression(), [(torch.randn(4, 4),) for _ in range(PATIENCE + 4)], mode)
    assert row.captures >= 1
    assert row.replays >= 2


def two_losses(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    made = x @ w
    return made, made.square().mean(), made.detach().sum(), made.abs().sum()


@EACH_MODE
@pytest.mark.parametrize("index", [1, 3])
def test_the_index_of_the_loss(index: int, mode: str) -> None:
    x, w = torch.randn(3, 4), torch.randn(4, 2, requires_grad=True)
    got = compile_fn(two_losses, {JOINT: True, INDEX: index}, mode)(x, w)
    wanted = two_losses(x, w)
    torch.testing.assert_close(got, tuple(each.detach() for each in wanted))
    (gradient,) = torch.autograd.grad(wanted[index], w)
    torch.testing.assert_close(w.grad, gradient)
    assert not any(each.requires_grad for each in got)


def test_without_an_index_the_loss_is_the_only_scalar() -> None:
    x, w = torch.randn(3, 4), torch.randn(4, 2, requires_grad=True)
    compile_fn(lambda x, w: two_losses(x, w)[:3], {JOINT: True, INDEX: None})(x, w)
    (gradient,) = torch.autograd.grad(two_losses(x, w)[1], w)
    torch.testing.assert_close(w.grad, gradient)


def test_a_batch_of_one_has_one_loss_still() -> None:
    """Its other results have one number, too."""
    x, w = torch.randn(1, 4), torch.randn(4, 1, requires_grad=True)
    compile_fn(lambda x, w: ((made := x @ w), made.square().mean()), {JOINT: True, INDEX: None})(x, w)
    torch.testing.assert_close(w.grad, 2 * (x @ w.detach()) * x.t())


def test_result_of_unknown_size_is_not_the_loss() -> None:
    def fn(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        made = x @ w
        return made.sum(), made[made > 0]

    x, w = torch.randn(3, 4), torch.randn(4, 2, requires_grad=True)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        got = compile_fn(fn, {JOINT: True})(x, w)
    torch.testing.assert_close(got, tuple(each.detach() for each in fn(x, w)))
    torch.testing.assert_close(w.grad, x.sum(0)[:, None].expand(4, 2))


def test_the_index_counts_what_is_computed_once() -> None:
    """Inputs and numbers that are returned, and results that are returned twice, are none of the graph's."""
    x, w = torch.randn(4), torch.randn(4, requires_grad=True)

    def fn(x: Tensor, w: Tensor) -> tuple[Any, ...]:
        other = w.sin().sum()
        return x, 3, other, other, (x * w.square()).sum()

    compile_fn(fn, {JOINT: True, INDEX: 1})(x, w)
    torch.testing.assert_close(w.grad, 2 * w.detach() * x)


@pytest.mark.parametrize(
    ("index", "said"),
    [
        (0, r"is 0, and no output .* scalars that require gradients: \[1, 3\]"),
        (2, r"is 2, and no output .* output 2: float32\[\] without gradients"),
        (9, r"is 9, and no output .*\(fullgraph=True\)"),
        (None, "is None, and several outputs"),
    ],
)
def test_an_output_that_is_no_loss_is_refused(index: int | None, said: str) -> None:
    x, w = torch.randn(3, 4), torch.randn(4, 2, requires_grad=True)
    with pytest.raises(Exception, match=f"(?s){said}") as caught:
        compile_fn(two_losses, {JOINT: True, INDEX: index})(x, w)
    assert isinstance(getattr(caught.value, "inner_exception", caught.value), BadOption)
    assert w.grad is None


def test_loss_index_without_joint_graph_warns() -> None:
    with pytest.warns(DegradedWarning, match="aot_config_enable_joint_graph is not set"):
        assert not resolve_settings(make_config({INDEX: 1})).joint_graph


def test_a_graph_that_is_given_has_no_gradients() -> None:
    gm = torch.fx.symbolic_trace(lambda x: (torch.ops.aten.sin.default(x),))
    compiler = torchair.get_compiler(make_config({JOINT: True}))
    with pytest.warns(DegradedWarning, match="aot_config_enable_joint_graph=True has no effect"):
        compiler(gm, [torch.ones(3)])


@pytest.mark.parametrize("value", ["loss", -1, 0.5])
def test_an_index_is_a_number(value: Any) -> None:
    with pytest.raises(BadOption, match=INDEX):
        make_config({INDEX: value})


def test_a_model_in_two_graphs_has_no_loss_in_the_first() -> None:
    def fn(x: Tensor, w: Tensor) -> Tensor:
        made = x @ w
        torch._dynamo.graph_break()
        return made.square().mean()

    with pytest.raises(Exception, match="fullgraph=True"):
        compile_fn(fn, {JOINT: True})(torch.randn(3, 4), torch.randn(4, 2, requires_grad=True))


def test_a_loss_has_no_second_backward() -> None:
    w = torch.randn(4, requires_grad=True)
    loss = compile_fn(lambda w: w.square().sum(), {JOINT: True})(w)
    assert (loss.requires_grad, loss.grad_fn) == (False, None)
    with pytest.raises(NotPossible, match=r"leave out loss\.backward\(\)"):
        loss.backward()
    torch.testing.assert_close(w.grad, 2 * w.detach())


def test_a_loss_is_saved_like_any_tensor() -> None:
    w = torch.randn(4, requires_grad=True)
    loss = compile_fn(lambda w: w.square().sum(), {JOINT: True})(w)
    file = io.BytesIO()
    torch.save({"loss": loss}, file)
    assert b"torchair" not in file.getvalue()
    file.seek(0)
    loaded = torch.load(file, weights_only=True)["loss"]
    torch.testing.assert_close(loaded, loss)
    assert vars(loaded) == {}
    torch.testing.assert_close(copy.deepcopy(loss), loss)


@EACH_MODE
def test_a_state_that_is_written_has_no_history(mode: str) -> None:
    """It is written from values that have one, call after call; eager would drag it along."""

    class Averaging(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)
            self.register_buffer("mean", torch.zeros(4))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            made = self.inner(x)
            self.mean.mul_(0.9).add_(0.1 * made.mean(0))
            return made.square().mean(), made

    model = Averaging()
    seen = trained(model, [(torch.randn(3, 4),) for _ in range(3)], mode)
    assert not model.mean.requires_grad
    assert len(seen.runners) == 1


@EACH_MODE
def test_gradients_add_up_and_hooks_are_called(mode: str) -> None:
    """Inputs may have a history of their own, into which autograd goes on."""
    first, w = torch.randn(4, requires_grad=True), torch.randn(4, requires_grad=True)
    twins = [x.detach().clone().requires_grad_() for x in (first, w)]
    called = []
    w.register_hook(lambda gradient: called.append("before") or gradient * 2)
    w.register_post_accumulate_grad_hook(lambda _: called.append("behind"))
    twins[1].register_hook(lambda gradient: gradient * 2)

    def fn(x: Tensor, w: Tensor) -> Tensor:
        return (x * w).sin().sum()

    run = compile_fn(fn, {JOINT: True}, mode)
    for _ in range(3):
        run(first.exp(), w)
        fn(twins[0].exp(), twins[1]).backward()
    torch.testing.assert_close((first.grad, w.grad), (twins[0].grad, twins[1].grad))
    assert called == ["before", "behind"] * 3


def test_what_the_loss_does_not_depend_on_has_no_gradient() -> None:
    model = nn.Linear(4, 4)
    compile_fn(lambda x: (x @ model.weight.t()).sum() + model.bias.detach().sum(), {JOINT: True})(
        torch.ones(4)
    )
    assert model.weight.grad is not None
    assert model.bias.grad is None


@EACH_MODE
@pytest.mark.parametrize("why", ["no_grad", "frozen", "no result depends on it"])
def test_inference_stays_inference(why: str, mode: str) -> None:
    model, x = nn.Linear(4, 4), torch.randn(3, 4)

    def fn(x: Tensor) -> Tensor:
        return model(x).detach() if why.startswith("no result") else model(x)

    model.requires_grad_(why != "frozen")
    with watching() as seen, torch.set_grad_enabled(why != "no_grad"):
        got = compile_fn(fn, {JOINT: True}, mode)(x)
    torch.testing.assert_close(got, fn(x).detach())
    assert len(seen.runners) == 1
    assert model.weight.grad is None
    assert "backward" not in vars(got)


def test_random_numbers_are_drawn_once() -> None:
    """Backward has the mask of forward, and it is that of eager."""
    x, w = torch.randn(64), torch.randn(64, requires_grad=True)

    def fn(x: Tensor, w: Tensor) -> Tensor:
        return F.dropout(x * w, 0.5).sum()

    torch.manual_seed(7)
    (wanted,) = torch.autograd.grad(fn(x, w), w)
    torch.manual_seed(7)
    compile_fn(fn, {JOINT: True})(x, w)
    torch.testing.assert_close(w.grad, wanted)


def checkpointed(x: Tensor, w: Tensor) -> Tensor:
    made = checkpoint(lambda x: F.dropout((x * w).sin(), 0.5).exp(), x, use_reentrant=False)
    return made.square().sum()


@EACH_MODE
def test_what_is_checkpointed_is_computed_again(mode: str) -> None:
    """All but random numbers, which are drawn once."""
    x, w = torch.randn(64), torch.randn(64, requires_grad=True)
    calls: Counter[str] = Counter()

    def look(gm: torch.fx.GraphModule, *_: Any) -> None:
        calls.update(str(node.target) for node in gm.graph.nodes)

    torch.manual_seed(7)
    (wanted,) = torch.autograd.grad(checkpointed(x, w), w)
    torch.manual_seed(7)
    compile_fn(checkpointed, {JOINT: True, "post_grad_custom_pre_pass": look}, mode)(x, w)
    torch.testing.assert_close(w.grad, wanted)
    assert (calls["aten.exp.default"], calls["aten.bernoulli.p"] + calls["aten.native_dropout.default"]) == (
        2,
        1,
    )


def test_checkpoint_that_is_not_recomputed_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_private, "_remat", torch_private.LazyModule("torch.no_such_module"))
    with pytest.warns(DegradedWarning, match="what is checkpointed is kept"):
        compile_fn(checkpointed, {JOINT: True})(torch.randn(4), torch.randn(4, requires_grad=True))


@pytest.mark.parametrize("inside", [True, False])
def test_train_step_backward_runs_outside_autocast(inside: bool) -> None:
    """Backward runs without it, as outside of its block."""
    x, w = torch.randn(3, 4), torch.randn(4, 2, requires_grad=True)

    def fn(x: Tensor, w: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=inside):
            return (x @ w).float().square().mean()

    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=not inside):
        wanted_loss = fn(x, w)
        got_loss = compile_fn(fn, {JOINT: True})(x, w)
    (wanted,) = torch.autograd.grad(wanted_loss, w)
    torch.testing.assert_close(got_loss, wanted_loss.detach())
    torch.testing.assert_close(w.grad, wanted)
    assert w.grad.dtype == torch.float32


def test_views_and_writes() -> None:
    """A state that is written through a view, an output that is a view of an input, one input twice."""
    w, state, twin = torch.randn(4, requires_grad=True), torch.zeros(2, 4), torch.zeros(2, 4)

    def fn(w: Tensor, state: Tensor, other: Tensor) -> tuple[Tensor, ...]:
        with torch.no_grad():
            state[1].add_(w)
        loss = (w.view(2, 2) @ w.view(2, 2)).sum() + other[0].sum()
        return loss, state[0], w[1:]

    wanted = fn(w, twin, twin)
    (gradient,) = torch.autograd.grad(wanted[0], w)
    got = compile_fn(fn, {JOINT: True})(w, state, state)
    torch.testing.assert_close(list(got), [each.detach() for each in wanted])
    torch.testing.assert_close((state, w.grad), (twin, gradient))
    assert got[1].data_ptr() == state.data_ptr()


def test_gradients_are_kept_and_not_copied() -> None:
    w, gradients = torch.ones(3, requires_grad=True), [torch.ones(3)]
    where = gradients[0].data_ptr()
    accumulate_grad([w], gradients)
    assert w.grad is not None
    assert w.grad.data_ptr() == where
    assert gradients == []


def test_nothing_is_handed_over_where_there_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GradientAccumulation, "apply", None)
    accumulate_grad([torch.ones(3, requires_grad=True)], [None])
