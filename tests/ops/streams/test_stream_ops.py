"""Streams and events by their public names: in a graph of either mode, and what is refused."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import pytest
import torch

import torchair
from torchair import npugraph_ex
from torchair.core.errors import DegradedWarning

numbers = itertools.count()


def compile_and_list_ops(fn: Any, backend: str) -> tuple[Any, list[str]]:
    """The function compiled, and the ops of its graph."""
    seen: list[str] = []

    def look(gm: torch.fx.GraphModule, inputs: Any, config: Any) -> None:
        seen.extend(str(node.target) for node in gm.graph.nodes if node.op == "call_function")

    options = {"codegen": "eager", "post_grad_custom_pre_pass": look}
    return torch.compile(fn, backend=backend, fullgraph=True, options=options), seen


@pytest.mark.parametrize("backend", ["npu", "npugraph_ex"])
def test_tokens_and_events_are_in_the_graph(backend: str) -> None:
    event = torchair.ops.npu_create_tagged_event(f"step {next(numbers)}")

    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        token = torchair.ops.record()
        torchair.ops.npu_tagged_event_record(event)
        z = x + 1
        torchair.ops.wait([token])
        torchair.ops.npu_tagged_event_wait(event)
        torchair.ops.npu_record_tagged_stream(y, "side")
        return z - y

    x = torch.randn(4)
    run, seen = compile_and_list_ops(fn, backend)
    with warnings.catch_warnings():
        # Graph mode has no words for them, and says so.
        warnings.simplefilter("ignore" if backend == "npu" else "error", DegradedWarning)
        torch.testing.assert_close(run(x), fn(x))
    for name in ("record", "wait", "tagged_event_record", "tagged_event_wait", "record_tagged_stream"):
        assert f"air.{name}.default" in seen


def test_what_is_no_event_or_tensor_is_refused() -> None:
    tag = f"mine {next(numbers)}"
    npugraph_ex.ops.npu_create_tagged_event(tag)
    with pytest.raises(ValueError, match=tag):
        torchair.ops.npu_create_tagged_event(tag)
    for call in (torchair.ops.npu_tagged_event_record, torchair.ops.npu_tagged_event_wait):
        with pytest.raises(ValueError, match="npu_create_tagged_event"):
            call("unknown")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="the tag of an event must be a str, got 3"):
        torchair.ops.npu_create_tagged_event(3)  # type: ignore[arg-type]
    for wrong in ([], None, [1], [torch.ones(1), None], torch.ones(1), torch.ones(2), 3):
        with pytest.raises(ValueError, match="a list with at least one tensor"):
            torchair.ops.wait(wrong)  # type: ignore[arg-type]
