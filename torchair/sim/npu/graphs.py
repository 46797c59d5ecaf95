"""Provide device graphs: capture the work of a stream and replay it with one call."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from torchair.core.environment import is_on
from torchair.core.log import logger
from torchair.core.torch_private.fake.pytree import flatten, leaves, unflatten
from torchair.sim.native import shim
from torchair.sim.npu.device import current_device, synchronize
from torchair.sim.npu.handlers import Dispatch, recapture
from torchair.sim.npu.memory import empty_cache, new_pool
from torchair.sim.npu.streams import Stream, current_stream, stream

MODES = ("global", "thread_local", "relaxed")


def graph_pool_handle() -> tuple[int, int]:
    """Return the handle of a memory pool that graphs can share."""
    return new_pool()


def is_current_stream_capturing() -> bool:
    """Return whether a graph captures the work of this thread, or updates its tasks."""
    return shim().is_capturing(current_device())


def graph_task_group_begin(stream: Stream) -> None:
    """Begin a task group on a stream that is being captured."""
    shim().begin_group(stream)


def graph_task_group_end(stream: Stream) -> Any:
    """End the task group of this stream and return its handle, with which its call can be updated."""
    return shim().end_group(stream)


def graph_task_update_begin(stream: Stream, handle: Any) -> None:
    """Begin an update: the work of this stream replaces that of the group, and does not run."""
    if not isinstance(handle, shim().Group):
        raise TypeError(f"handle must be the result of graph_task_group_end, got {handle!r}")
    shim().begin_update(stream, handle)


def graph_task_update_end(stream: Stream) -> None:
    """End an update: later replays run the new work. Raise if it consists of other calls."""
    shim().end_update(stream)


class NPUGraph:
    """Captured work that `replay` runs again."""

    def __init__(self, keep_graph: bool = False) -> None:
        self._graph = shim().Graph()
        self._dispatch: Dispatch | None = None

    def capture_begin(self, pool: Any = None, capture_error_mode: str = MODES[0]) -> None:
        """Begin capturing the work of the current stream."""
        if capture_error_mode not in MODES:
            raise RuntimeError(
                f"capture_error_mode must be one of {', '.join(MODES)}, got {capture_error_mode!r}"
            )
        pool = graph_pool_handle() if pool is None else pool
        if not (isinstance(pool, tuple | list) and [type(number) for number in pool] == [int, int]):
            raise TypeError(
                f"pool must be the result of graph_pool_handle() or pool() of a graph, got {pool!r}"
            )
        self._graph.begin(tuple(pool))

    def capture_end(self) -> None:
        """End capturing."""
        self._graph.end()

    def replay(self) -> None:
        """Run the captured work again on the current stream."""
        self._graph.replay()

    def trust_addresses(self) -> None:
        """Skip address checks: the caller guarantees that all inputs are at their captured addresses."""
        self._graph.trusts_addresses = True

    def reset(self) -> None:
        """Release the captured work."""
        self._graph.reset()
        self._dispatch = None

    def pool(self) -> tuple[int, int]:
        """Return the handle of the memory pool of the graph."""
        return self._graph.pool()

    def register_generator_state(self, generator: torch.Generator) -> None:
        """Do nothing: replays draw from every generator that the capture used."""

    def update(self, cpu_update_input: Any) -> None:
        """Set new numbers for later replays: one dictionary per updatable call, in order, or one for all
        calls.

        The graph must have been captured with `auto_dispatch_capture=True`.
        """
        if self._dispatch is None:
            raise RuntimeError("update() needs a graph that was captured with auto_dispatch_capture=True")
        if not self._dispatch.records:
            raise RuntimeError(
                "update() has no effect: no task of this graph has numbers that can be updated"
            )
        here = Stream(self._dispatch.device)
        with stream(here):
            recapture(
                self._dispatch.records,
                cpu_update_input,
                lambda group: graph_task_update_begin(here, group),
                lambda: graph_task_update_end(here),
            )

    def super_kernel_optimize(self, optimize_options: Any = None, debug_options: Any = None) -> None:
        """Do nothing: on the hardware, this combines neighboring kernels."""
        logger.info("super_kernel_optimize has no effect on the simulated device")

    def enable_debug_mode(self) -> None:
        """Do nothing: the data for `debug_dump` is always kept."""

    def debug_dump(self, debug_path: str) -> None:
        """Write the tasks as a Chrome trace, and a second trace with aligned streams."""
        events = [
            {"name": name, "ph": "X", "ts": at, "dur": 1, "pid": current_device(), "tid": 0}
            for at, name in enumerate(self._graph.names())
        ]
        path = Path(debug_path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"traceEvents": events}))
        try:
            path.with_name(f"{path.stem}.aligned.json").write_text(json.dumps({"traceEvents": events}))
        except OSError as error:
            logger.warning("cannot write the aligned trace: %s", error)


def _dispatch() -> Dispatch:
    return Dispatch(
        lambda: graph_task_group_begin(current_stream()), lambda: graph_task_group_end(current_stream())
    )


class graph:
    """Context manager that captures work into a graph."""

    default_capture_stream: Stream | None = None

    def __init__(
        self,
        npu_graph: NPUGraph,
        pool: Any = None,
        stream: Any = None,
        auto_dispatch_capture: bool = False,
        capture_error_mode: str = MODES[0],
    ) -> None:
        if stream is None:
            if graph.default_capture_stream is None:
                graph.default_capture_stream = Stream()
            stream = graph.default_capture_stream
        self.capture_stream = stream
        self.npu_graph = npu_graph
        self.pool = pool
        self.capture_error_mode = capture_error_mode
        self._dispatches = auto_dispatch_capture
        self._context: Any = None
        self._dispatch: Dispatch | None = None

    def __enter__(self) -> None:
        synchronize()
        if is_on("TORCH_NPUGRAPH_GC"):
            gc.collect()
        empty_cache()
        self._context = stream(self.capture_stream)
        self._context.__enter__()
        try:
            self.npu_graph.capture_begin(self.pool, self.capture_error_mode)
        except BaseException as error:
            self._context.__exit__(type(error), error, None)
            raise
        self._dispatch = self.npu_graph._dispatch = _dispatch() if self._dispatches else None
        if self._dispatch is not None:
            self._dispatch.__enter__()

    def __exit__(self, *error: object) -> None:
        try:
            if self._dispatch is not None:
                self._dispatch.__exit__(*error)
            self.npu_graph.capture_end()
        except RuntimeError:
            if error[0] is None:
                raise  # otherwise report the first error
        finally:
            self._context.__exit__(*error)


class _Graphed(torch.autograd.Function):
    """Run forward and backward, each as a graph."""

    @staticmethod
    def forward(ctx: Any, replayed: Any, *inputs: torch.Tensor) -> Any:
        ctx.replayed = replayed
        for buffer, given in zip(replayed.inputs, inputs, strict=True):
            if buffer.data_ptr() != given.data_ptr():
                buffer.copy_(given)
        replayed.forward.replay()
        return tuple(output.detach() for output in replayed.outputs)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Any) -> Any:  # type: ignore[override]
        replayed = ctx.replayed
        for buffer, given in zip(replayed.grad_outputs, grads, strict=True):
            if buffer is not None and buffer.data_ptr() != given.data_ptr():
                buffer.copy_(given)
        replayed.backward.replay()
        return None, *(None if grad is None else grad.detach() for grad in replayed.grad_inputs)


class _Replayed:
    """One captured callable: inputs, parameters, outputs and gradients at the addresses of the graphs.

    `capture_backward` captures the backward later.
    """

    def __init__(self, call: Callable[..., Any], args: Sequence[Any], pool: Any) -> None:
        flat, self.args_spec = flatten(tuple(args))
        if not all(isinstance(arg, torch.Tensor) for arg in flat):
            raise TypeError(
                "graphed callables accept only tensors, alone or in lists, tuples and dictionaries"
            )
        parameters = list(call.parameters()) if isinstance(call, torch.nn.Module) else []
        self.given = len(flat)
        self.inputs = [*flat, *parameters]
        self.forward, self.backward = NPUGraph(), NPUGraph()
        with graph(self.forward, pool=pool):
            results = call(*args)
        outputs, self.outputs_spec = flatten(results)
        self.outputs: tuple[Any, ...] = tuple(outputs)
        self.parameters = parameters

    def capture_backward(self, pool: Any, allow_unused: bool) -> None:
        """Capture the backward. It reuses freed memory, so all graphs that run between are captured first."""
        wanted = [each for each in self.inputs if each.requires_grad]
        self.grad_outputs = [torch.empty_like(o) if o.requires_grad else None for o in self.outputs]
        grads: list[Any] = []
        if any(grad is not None for grad in self.grad_outputs):
            with graph(self.backward, pool=pool):
                grads = list(
                    torch.autograd.grad(
                        [output for output in self.outputs if output.requires_grad],
                        wanted,
                        [grad for grad in self.grad_outputs if grad is not None],
                        only_inputs=True,
                        allow_unused=allow_unused,
                    )
                )
        left = iter(grads)
        self.grad_inputs = [next(left, None) if each.requires_grad else None for each in self.inputs]

    def __call__(self, *args: Any) -> Any:
        flat, _ = flatten(args)
        outputs = _Graphed.apply(self, *flat, *self.parameters)
        return unflatten(list(outputs), self.outputs_spec)


def make_graphed_callables(
    callables: Any,
    sample_args: Any,
    num_warmup_iters: int = 3,
    allow_unused_input: bool = False,
    pool: Any = None,
) -> Any:
    """Return callables with graphs for forward and backward, like `torch.cuda.make_graphed_callables`."""
    single = not isinstance(callables, tuple)
    calls = (callables,) if single else callables
    samples = (sample_args,) if single else sample_args
    pool = graph_pool_handle() if pool is None else pool
    synchronize()
    with stream(Stream()):
        for call, args in zip(calls, samples, strict=True):
            for _ in range(num_warmup_iters):
                outputs = [o for o in leaves(call(*args)) if o.requires_grad]
                inputs = [i for i in leaves(args) if i.requires_grad]
                inputs += list(call.parameters()) if isinstance(call, torch.nn.Module) else []
                if outputs:
                    torch.autograd.grad(
                        outputs,
                        [i for i in inputs if i.requires_grad],
                        [torch.zeros_like(o) for o in outputs],
                        allow_unused=allow_unused_input,
                    )
    current_stream().synchronize()
    # In the order of replay, because they share the pool.
    replayed = [_Replayed(call, args, pool) for call, args in zip(calls, samples, strict=True)]
    for each in reversed(replayed):
        each.capture_backward(pool, allow_unused_input)
    made = [_graphed(call, each) for call, each in zip(calls, replayed, strict=True)]
    return made[0] if single else tuple(made)


def _graphed(call: Any, replayed: _Replayed) -> Any:
    if not isinstance(call, torch.nn.Module):
        return replayed
    plain, training = call.forward, call.training

    def forward(*given: Any) -> Any:
        """Replay in the mode (training or evaluation) of the capture; call the module in the other mode."""
        return replayed(*given) if call.training == training else plain(*given)

    call.forward = forward
    return call
