"""Compile forward and backward as one graph (`aot_config_enable_joint_graph`): one call per training step.

Nodes are added at the beginning and the end of Dynamo's graph. Inputs that require gradients become leaves.
Other inputs are detached, so that a buffer that is updated from values with a history has none itself. After
the last call, the loss is differentiated with respect to the leaves. The graph returns its results, detached,
and then the gradients.

Seen from outside, nothing requires gradients, so AOTAutograd creates one inference graph. It updates buffers
like other mutated inputs. Each call then passes the gradients to autograd, which adds them to `.grad`, calls
hooks, and continues into the history of the inputs.
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
    """A Dynamo graph with its gradients. `index` selects the output that is the loss; if it is None, the loss
    is the only scalar that requires gradients.
    """

    def __init__(self, gm: fx.GraphModule, inputs: Sequence[Any], index: int | None) -> None:
        self._index = index
        self._leaves = [index for index, value in enumerate(inputs) if requires_gradient(value)]
        self._differentiable = [index for index, value in enumerate(inputs) if can_have_gradient(value)]
        self._loss: int | None = None
        self._count = 0
        self.gm = self._with_gradients(gm)

    @classmethod
    def of(cls, gm: fx.GraphModule, inputs: Sequence[Any], index: int | None) -> TrainStepGraph | None:
        """Create the graph of a training step; return None for inference, if no input requires gradients."""
        is_training = torch.is_grad_enabled() and any(map(requires_gradient, inputs))
        return cls(gm, inputs, index) if is_training else None

    def step(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function that Dynamo calls: it runs the compiled graph and accumulates the gradients."""

        def run(*args: Any) -> list[Any]:
            outputs = compiled(*args)
            results, gradients = list(outputs[: self._count]), list(outputs[self._count :])
            del outputs
            accumulate_grad([args[index] for index in self._leaves], gradients)
            if self._loss is not None:
                without_backward(results[self._loss])
            return results

        return run

    def _with_gradients(self, gm: fx.GraphModule) -> fx.GraphModule:
        joint = copy_graph(gm)
        take_over_sources(joint, gm)
        inputs, graph, leaves = placeholders(joint), joint.graph, list[fx.Node]()
        with graph.inserting_after(inputs[-1]):
            begin = graph.call_function(torch.set_grad_enabled, (True,))
        for index in self._differentiable:
            is_leaf = index in self._leaves
            # Dynamo recognizes a number that it passes as a tensor only if the tensor is not detached.
            if not is_leaf and all(user.target == "item" for user in inputs[index].users):
                continue
            with graph.inserting_after(begin):
                new = graph.call_function(as_leaf if is_leaf else torch.Tensor.detach, (inputs[index],))
            inputs[index].replace_all_uses_with(new, delete_user_cb=lambda user, new=new: user is not new)
            leaves.extend([new] if is_leaf else [])
        end = output(joint)
        with graph.inserting_before(end):
            end.args = (graph.call_function(self._differentiated(), (end.args[0], leaves)),)
        joint.recompile()
        return joint

    def _differentiated(self) -> Callable[..., Any]:
        """Return the last call of the graph, which adds the gradients of all leaves to the results."""

        def differentiated(results: Sequence[Any], leaves: Sequence[torch.Tensor]) -> tuple[Any, ...]:
            self._count, self._loss = len(results), find_loss(results, self._index)
            gradients = (None,) * len(leaves)
            if self._loss is not None:
                gradients = gradients_of(results[self._loss], leaves)
            torch.set_grad_enabled(False)
            return *(x.detach() if isinstance(x, torch.Tensor) else x for x in results), *gradients

        return differentiated


def requires_gradient(value: Any) -> bool:
    """Whether the value is a tensor that requires gradients."""
    return isinstance(value, torch.Tensor) and value.requires_grad


def can_have_gradient(value: Any) -> bool:
    """Whether the value is a tensor with a differentiable dtype."""
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def as_leaf(x: torch.Tensor) -> torch.Tensor:
    """Return a leaf that requires gradients and shares the memory of `x`."""
    return x.detach().requires_grad_()


def gradients_of(loss: torch.Tensor, leaves: Sequence[torch.Tensor]) -> tuple[torch.Tensor | None, ...]:
    """Return the gradients of `loss.backward()`; None for a leaf that the loss does not depend on."""
    keep_source_lines(loss)
    with torch.autocast(loss.device.type, enabled=False):
        return torch.autograd.grad(loss, leaves, allow_unused=True)


def find_loss(results: Sequence[Any], index: int | None) -> int | None:
    """Return the index of the loss, or None if no result requires gradients."""
    differentiable = [number for number, value in enumerate(results) if requires_gradient(value)]
    losses = [number for number in differentiable if statically_known_true(results[number].numel() == 1)]
    if not differentiable:
        return None
    if index in losses:
        return index
    # With a batch size of 1, other results also have one element.
    scalars = [number for number in losses if results[number].dim() == 0] or losses
    if index is None and len(scalars) == 1:
        return scalars[0]
    found = (
        "several outputs of this graph are"
        if index is None and losses
        else f"output {index} of this graph is not"
        if index is not None
        else "no output of this graph is"
    )
    raise BadOption(
        f"{OPTION} is {index}, but {found} a scalar that requires gradients",
        got=", ".join(f"output {number}: {_describe(value)}" for number, value in enumerate(results)),
        near=f"scalars that require gradients: {losses}",
        next="assign the index of the loss among these outputs (an output that is returned twice counts "
        "once; inputs and numbers do not count). If the model is split into several graphs, only the last "
        "one has the loss: find the graph breaks with torch.compile(fullgraph=True)",
    ).of_user()


def _describe(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return repr(value)
    kind = f"{value.dtype}{list(value.shape)}".removeprefix("torch.")
    return kind if value.requires_grad else f"{kind} without gradients"


class GradientAccumulation(torch.autograd.Function):
    """An autograd function with precomputed gradients. Its backward clears the list of gradients, so that
    autograd can use them without copies.
    """

    @staticmethod
    def forward(ctx: Any, gradients: list[Any], *inputs: torch.Tensor) -> torch.Tensor:
        ctx.gradients = gradients
        return torch.zeros(())

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        gradients = tuple(ctx.gradients)
        ctx.gradients.clear()
        return None, *gradients


def accumulate_grad(inputs: Sequence[torch.Tensor], gradients: list[Any]) -> None:
    """Add gradients to `.grad` as `backward()` does, and propagate them through the history of the inputs."""
    if any(gradient is not None for gradient in gradients):
        GradientAccumulation.apply(gradients, *inputs).backward()


def without_backward(loss: torch.Tensor) -> None:
    """Make `loss.backward` raise an error that explains why.

    Copies and serialized forms are plain tensors, so reading a checkpoint does not need this package.
    """
    loss.backward, loss.__reduce_ex__ = no_second_backward, loss.detach().__reduce_ex__  # type: ignore[method-assign]


def no_second_backward(*args: Any, **kwargs: Any) -> None:
    """Replace `backward` of a loss whose gradients have been accumulated already."""
    raise NotPossible(
        "loss.backward() is not needed: the graph was compiled with aot_config_enable_joint_graph and has "
        "already added the gradients to .grad",
        next="remove loss.backward(), or set experimental_config.aot_config_enable_joint_graph = False",
    )
