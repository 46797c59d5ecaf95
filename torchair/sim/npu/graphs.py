"""Graphs of the devices: what a stream is given is kept, and done again by one call."""

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
from torchair.sim.npu.handlers import Dispatch, give_again
from torchair.sim.npu.memory import empty_cache, new_pool
from torchair.sim.npu.streams import Stream, current_stream, stream

MODES = ("global", "thread_local", "relaxed")


def graph_pool_handle() -> tuple[int, int]:
    """A pool of memory that graphs can share."""
    return new_pool()


def is_current_stream_capturing() -> bool:
    """Is the work of this thread kept by a graph that is captured, or whose tasks are updated?"""
    return shim().is_capturing(current_device())


def graph_task_group_begin(stream: Stream) -> None:
    """Of a stream that is being captured: what it is given from now on is one group, up to the end."""
    shim().begin_group(stream)


def graph_task_group_end(stream: Stream) -> Any:
    """The group that was begun on this stream: its call can be given again, with other arguments."""
    return shim().end_group(stream)


def graph_task_update_begin(stream: Stream, handle: Any) -> None:
    """What this stream is given up to the end takes the place of what the group was given, and is not run."""
    if not isinstance(handle, shim().Group):
        raise TypeError(f"handle must be what graph_task_group_end returned: {handle!r}")
    shim().begin_update(stream, handle)


def graph_task_update_end(stream: Stream) -> None:
    """From the next replay on the group does what it was given last. An error where that was another call."""
    shim().end_update(stream)


class NPUGraph:
    """Work that was captured, and is done again by `replay`."""

    def __init__(self, keep_graph: bool = False) -> None:
        self._graph = shim().Graph()
        self._dispatch: Dispatch | None = None

    def capture_begin(self, pool: Any = None, capture_error_mode: str = MODES[0]) -> None:
        """Keep what the current stream is given from now on."""
        if capture_error_mode not in MODES:
            raise RuntimeError(
                f"capture_error_mode must be one of {', '.join(MODES)}: {capture_error_mode!r}"
            )
        pool = graph_pool_handle() if pool is None else pool
        if not (isinstance(pool, tuple | list) and [type(number) for number in pool] == [int, int]):
            raise TypeError(f"pool must be what graph_pool_handle() or a graph's pool() returned: {pool!r}")
        self._graph.begin(tuple(pool))

    def capture_end(self) -> None:
        """The graph is complete."""
        self._graph.end()

    def replay(self) -> None:
        """Do it all again, on the current stream."""
        self._graph.replay()

    def trust_addresses(self) -> None:
        """Whoever replays has made sure that what it reads lies where it lay, in whatever tensors."""
        self._graph.trusts_addresses = True

    def reset(self) -> None:
        """Let go of what was captured."""
        self._graph.reset()
        self._dispatch = None

    def pool(self) -> tuple[int, int]:
        """The pool that its memory is from."""
        return self._graph.pool()

    def register_generator_state(self, generator: torch.Generator) -> None:
        """Replays draw from every generator that was used: there is nothing to register."""

    def update(self, cpu_update_input: Any) -> None:
        """From the next replay on, calls have these numbers: a dictionary for each call that can be updated,
        in order, or one for all. Only graphs captured with `auto_dispatch_capture=True` know theirs.
        """
        if self._dispatch is None:
            raise RuntimeError("update() needs a graph that was captured with auto_dispatch_capture=True")
        if not self._dispatch.records:
            raise RuntimeError("no task of this graph takes numbers that can be changed")
        here = Stream(self._dispatch.device)
        with stream(here):
            give_again(
                self._dispatch.records,
                cpu_update_input,
                lambda group: graph_task_update_begin(here, group),
                lambda: graph_task_update_end(here),
            )

    def super_kernel_optimize(self, optimize_options: Any = None, debug_options: Any = None) -> None:
        """A hint for the hardware: kernels that are neighbours become one."""
        logger.info("super kernels are of the hardware: the simulated device runs the same kernels as before")

    def enable_debug_mode(self) -> None:
        """Keep what `debug_dump` writes: it is kept in any case."""

    def debug_dump(self, debug_path: str) -> None:
        """Write the tasks as a Chrome trace, and again with the streams side by side."""
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
            logger.warning("the aligned trace was not written: %s", error)


def _dispatch() -> Dispatch:
    return Dispatch(
        lambda: graph_task_group_begin(current_stream()), lambda: graph_task_group_end(current_stream())
    )


class graph:
    """Within this block, work is kept by a graph."""

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
                raise  # else the first error is the one to tell
        finally:
            self._context.__exit__(*error)


class _Graphed(torch.autograd.Function):
    """Forward and backward, each a graph."""

    @staticmethod
    def forward(ctx: Any, replayed: Any, *inputs: torch.Tensor) -> Any:
        ctx.replayed = replayed
        for kept, given in zip(replayed.inputs, inputs, strict=True):
            if kept.data_ptr() != given.data_ptr():
                kept.copy_(given)
        replayed.forward.replay()
        return tuple(output.detach() for output in replayed.outputs)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Any) -> Any:  # type: ignore[override]
        replayed = ctx.replayed
        for kept, given in zip(replayed.grad_outputs, grads, strict=True):
            if kept is not None and kept.data_ptr() != given.data_ptr():
                kept.copy_(given)
        replayed.backward.replay()
        return None, *(None if grad is None else grad.detach() for grad in replayed.grad_inputs)


class _Replayed:
    """One callable, captured: its inputs and parameters, outputs and gradients where the graphs have them.

    The backward is captured later, by `capture_backward`.
    """

    def __init__(self, call: Callable[..., Any], args: Sequence[Any], pool: Any) -> None:
        flat, self.args_spec = flatten(tuple(args))
        if not all(isinstance(arg, torch.Tensor) for arg in flat):
            raise TypeError("graphed callables take tensors, alone or in lists, tuples and dictionaries")
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
        """It takes the memory that it lets go, so all that runs between the two has to be captured before."""
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
    """Callables whose forward and backward are graphs, as `torch.cuda.make_graphed_callables` makes them."""
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
    # In the order in which they are replayed: they share the pool.
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
        """Captured in one of the modes: in the other the module is called as it is."""
        return replayed(*given) if call.training == training else plain(*given)

    call.forward = forward
    return call
