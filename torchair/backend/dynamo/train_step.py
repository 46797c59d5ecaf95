"""Forward and backward as one graph: a training step is one call (`aot_config_enable_joint_graph`).

Dynamo's graph gets a beginning and an end. Its inputs that require gradients become leaves; the others are
detached, so that a state that is written from values with a history has none itself. Behind the last call the
loss is differentiated for them, so the graph returns its results, without history, and then the
gradients. Seen from outside nothing requires a gradient any more: AOTAutograd makes one inference graph of
it, in which buffers are updated like any input that is written. What remains for each call is to hand the
gradients over to autograd, which adds them to `.grad`, calls hooks, and goes on into what made the inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from torchair.core.errors import BadOption, NotPossible
from torchair.core.torch_private.compilers.aot_autograd import keep_source_lines, take_over_sources
from torchair.core.torch_private.fake.fake_tensors import statically_known_true
from torchair.fxgraph.edit import copy_graph
from torchair.fxgraph.placeholders import output, placeholders

OPTION = "experimental_config.aot_config_output_loss_index"


class TrainStepGraph:
    """One graph of Dynamo's with its gradients; `index` says which output is the loss, None that it is the
    only scalar that requires gradients.
    """

    def __init__(self, gm: fx.GraphModule, inputs: Sequence[Any], index: int | None) -> None:
        self._index = index
        self._places = [place for place, value in enumerate(inputs) if requires_gradient(value)]
        self._states = [place for place, value in enumerate(inputs) if can_have_gradient(value)]
        self._loss: int | None = None
        self._count = 0
        self.gm = self._with_gradients(gm)

    @classmethod
    def of(cls, gm: fx.GraphModule, inputs: Sequence[Any], index: int | None) -> TrainStepGraph | None:
        """None where nothing can have a gradient: that is inference."""
        is_training = torch.is_grad_enabled() and any(map(requires_gradient, inputs))
        return cls(gm, inputs, index) if is_training else None

    def step(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """What Dynamo calls: the compiled graph, then its gradients are handed over."""

        def run(*args: Any) -> list[Any]:
            made = compiled(*args)
            results, gradients = list(made[: self._count]), list(made[self._count :])
            del made
            accumulate_grad([args[place] for place in self._places], gradients)
            if self._loss is not None:
                without_backward(results[self._loss])
            return results

        return run

    def _with_gradients(self, gm: fx.GraphModule) -> fx.GraphModule:
        made = copy_graph(gm)
        take_over_sources(made, gm)
        inputs, graph, leaves = placeholders(made), made.graph, list[fx.Node]()
        with graph.inserting_after(inputs[-1]):
            begin = graph.call_function(torch.set_grad_enabled, (True,))
        for place in self._states:
            needs = place in self._places
            # A number that Dynamo hands over as a tensor is that number only as it comes.
            if not needs and all(user.target == "item" for user in inputs[place].users):
                continue
            with graph.inserting_after(begin):
                new = graph.call_function(as_leaf if needs else torch.Tensor.detach, (inputs[place],))
            inputs[place].replace_all_uses_with(new, delete_user_cb=lambda user, new=new: user is not new)
            leaves.extend([new] if needs else [])
        end = output(made)
        with graph.inserting_before(end):
            end.args = (graph.call_function(self._differentiated(), (end.args[0], leaves)),)
        made.recompile()
        return made

    def _differentiated(self) -> Callable[..., Any]:
        """The last call of the graph: the results as they are, and the gradient of the loss for each leaf."""

        def differentiated(results: Sequence[Any], leaves: Sequence[torch.Tensor]) -> tuple[Any, ...]:
            self._count, self._loss = len(results), loss_among(results, self._index)
            gradients = (None,) * len(leaves)
            if self._loss is not None:
                gradients = gradients_of(results[self._loss], leaves)
            torch.set_grad_enabled(False)
            return *(x.detach() if isinstance(x, torch.Tensor) else x for x in results), *gradients

        return differentiated


def requires_gradient(value: Any) -> bool:
    """Does this input want to know its gradient?"""
    return isinstance(value, torch.Tensor) and value.requires_grad


def can_have_gradient(value: Any) -> bool:
    """Does this input, or what is written into it?"""
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def as_leaf(x: torch.Tensor) -> torch.Tensor:
    """The same memory, where a history begins."""
    return x.detach().requires_grad_()


def gradients_of(loss: torch.Tensor, leaves: Sequence[torch.Tensor]) -> tuple[torch.Tensor | None, ...]:
    """As `loss.backward()` would find them; None for a leaf that the loss does not depend on."""
    keep_source_lines(loss)
    with torch.autocast(loss.device.type, enabled=False):
        return torch.autograd.grad(loss, leaves, allow_unused=True)


def loss_among(results: Sequence[Any], index: int | None) -> int | None:
    """Which result is the loss; None where none requires gradients, so that there is nothing to do."""
    differentiable = [place for place, value in enumerate(results) if requires_gradient(value)]
    losses = [place for place in differentiable if statically_known_true(results[place].numel() == 1)]
    if not differentiable:
        return None
    if index in losses:
        return index
    # A batch of one makes other results as small as a loss.
    scalars = [place for place in losses if results[place].dim() == 0] or losses
    if index is None and len(scalars) == 1:
        return scalars[0]
    raise BadOption(
        f"{OPTION} is {index}, and "
        + ("several outputs" if index is None and losses else "no output")
        + " of this graph can be that loss: a scalar that requires gradients",
        got=", ".join(f"output {place}: {_described(value)}" for place, value in enumerate(results)),
        near=f"scalars that require gradients: {losses}",
        next="assign the index of the loss among these outputs (what is returned twice counts once, inputs "
        "and numbers not at all); a model that is split into several graphs "
        "(torch.compile(fullgraph=True) says where) has it in the last one only",
    ).of_user()


def _described(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return repr(value)
    kind = f"{value.dtype}{list(value.shape)}".removeprefix("torch.")
    return kind if value.requires_grad else f"{kind} without gradients"


class GradientAccumulation(torch.autograd.Function):
    """Its backward brings gradients that are there already; the list is emptied, so autograd may keep them
    instead of copies.
    """

    @staticmethod
    def forward(ctx: Any, gradients: list[Any], *inputs: torch.Tensor) -> torch.Tensor:
        ctx.gradients = gradients
        return torch.zeros(())

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        made = tuple(ctx.gradients)
        ctx.gradients.clear()
        return None, *made


def accumulate_grad(inputs: Sequence[torch.Tensor], gradients: list[Any]) -> None:
    """Add gradients to `.grad` as `backward()` does, through whatever history the inputs have."""
    if any(gradient is not None for gradient in gradients):
        GradientAccumulation.apply(gradients, *inputs).backward()


def without_backward(loss: torch.Tensor) -> None:
    """Calling `backward` says why there is none. Saved, copied and sent it is a tensor like any other: a
    checkpoint with it is read without this package.
    """
    loss.backward, loss.__reduce_ex__ = no_second_backward, loss.detach().__reduce_ex__  # type: ignore[method-assign]


def no_second_backward(*args: Any, **kwargs: Any) -> None:
    """Stands for `backward` of a loss whose gradients are there."""
    raise NotPossible(
        "this loss has no backward of its own: its graph was compiled with aot_config_enable_joint_graph and "
        "has added the gradients to .grad already",
        next="leave out loss.backward(), or set experimental_config.aot_config_enable_joint_graph = False",
    )
