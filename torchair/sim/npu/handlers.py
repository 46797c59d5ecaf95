"""Handle calls in a captured graph that take numbers of the host: which ones, and how to update them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from torchair.core.torch_private.fake.fake_tensors import TorchDispatchMode, disable_modes
from torchair.sim.npu.device import current_device

Spec = tuple[str, int | str, str]
KINDS = {"arg": int, "kwarg": str}
_handlers: dict[str, type[NpuGraphOpHandler]] = {}


@dataclass
class Record:
    """One call in a graph: its arguments, and its task group."""

    op_name: str
    func: Any
    args: list[Any]
    kwargs: dict[str, Any]
    group: Any

    def copied(self) -> Record:
        """Return a copy that can be changed."""
        return replace(
            self,
            args=[_copied(value) for value in self.args],
            kwargs={name: _copied(value) for name, value in self.kwargs.items()},
        )

    def put(self, place: int | str, value: Any) -> None:
        """Set an argument, by its name or index in the schema."""
        names = [argument.name for argument in self.func._schema.arguments]
        if place not in names and not (isinstance(place, int) and place < len(names)):
            raise RuntimeError(f"{self.op_name} has no argument {place!r}; it has {', '.join(names)}")
        number = place if isinstance(place, int) else names.index(place)
        if number < len(self.args):
            self.args[number] = _copied(value)
        else:
            self.kwargs[names[number]] = _copied(value)


def _copied(value: Any) -> Any:
    return list(value) if isinstance(value, list) else value


class NpuGraphOpHandler:
    """Define how calls of some operators are captured with `auto_dispatch_capture=True`, and updated by
    `NPUGraph.update`. All methods are class methods that can be overridden.

    `UPDATE_SPECS` defines what `update` may change: `{op_name: [("arg" | "kwarg", index_or_name, key)]}`. The
    user passes the new value under `key`.
    """

    UPDATE_SPECS: ClassVar[dict[str, list[Spec]]] = {}

    @classmethod
    def should_handle(cls, func: Any, args: Any, kwargs: Any) -> bool:
        """Return whether this call can be updated."""
        return True

    @classmethod
    def prepare_capture(cls, func: Any, args: Any, kwargs: Any) -> tuple[Any, Any, Any]:
        """Return the call to capture instead of this one."""
        return func, args, kwargs

    @classmethod
    def postprocess_result(cls, result: Any, kwargs: Any) -> Any:
        """Return the result for the user from the result of the captured call."""
        return result

    @classmethod
    def record_wrap_kwarg(cls, key: str, value: Any) -> Any:
        """Return the value of a keyword argument to store for updates."""
        return value

    @classmethod
    def update_args(cls, record: Record, update_input: dict[str, Any]) -> None:
        """Set new numbers in a call that will be captured again."""
        specs = cls.UPDATE_SPECS.get(record.op_name) or cls.UPDATE_SPECS.get(_short(record.op_name), [])
        keys = [key for _, _, key in specs]
        unknown = sorted(set(update_input) - set(keys))
        if unknown:
            raise RuntimeError(
                f"update got unknown keys for {record.op_name}: {', '.join(unknown)}; known keys: {keys}"
            )
        for _, place, key in specs:
            if key in update_input:
                record.put(place, update_input[key])


def _short(name: str) -> str:
    return name.removesuffix(".default")


def register_npu_graph_handler(names: str | Sequence[str]) -> Callable[[type], type]:
    """Return a decorator that registers a handler class for operators (`op` or `op.overload`)."""
    wanted = [names] if isinstance(names, str) else list(names)
    if not wanted or not all(isinstance(name, str) and name for name in wanted):
        raise TypeError(f"names must be operator names, got {names!r}")

    def add(handler: type) -> type:
        if not (isinstance(handler, type) and issubclass(handler, NpuGraphOpHandler)):
            raise TypeError(f"a handler must be a class derived from NpuGraphOpHandler, got {handler!r}")
        for name, specs in handler.UPDATE_SPECS.items():
            for spec in specs:
                if len(spec) != 3 or not isinstance(spec[1], KINDS.get(spec[0], ())):
                    raise ValueError(f"UPDATE_SPECS[{name!r}]: {spec!r} is not (arg | kwarg, place, key)")
            if _short(name) not in map(_short, wanted):
                raise ValueError(f"UPDATE_SPECS has {name!r}, but the handler is for {', '.join(wanted)}")
        _handlers.update(dict.fromkeys(wanted, handler))
        return handler

    return add


ATTENTION = {
    "npu_fused_infer_attention_score": (
        "actual_seq_lengths",
        "actual_seq_lengths_kv",
        "actual_shared_prefix_len",
    ),
    "npu_fused_infer_attention_score_v2": ("actual_seq_qlen", "actual_seq_kvlen"),
}


@register_npu_graph_handler([f"{op}{overload}" for op in ATTENTION for overload in ("", ".out")])
class _Attention(NpuGraphOpHandler):
    """Handle the sequence lengths of attention."""

    UPDATE_SPECS: ClassVar[dict[str, list[Spec]]] = {
        f"{op}{overload}": [("kwarg", name, name) for name in names]
        for op, names in ATTENTION.items()
        for overload in ("", ".out")
    }


class Dispatch(TorchDispatchMode):
    """During capture, put each call that has a handler into its own task group and record it."""

    def __init__(self, begin: Callable[[], None], end: Callable[[], Any]) -> None:
        super().__init__()
        self.device = current_device()
        self._begin, self._end = begin, end
        self.records: list[tuple[type[NpuGraphOpHandler], Record]] = []
        self._is_inside = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = None if self._is_inside else _handled_name(func)
        if name is None or not _handlers[name].should_handle(func, args, kwargs):
            return func(*args, **kwargs)
        handler = _handlers[name]
        func, args, kwargs = handler.prepare_capture(func, args, kwargs)
        with self._inside():
            self._begin()
            try:
                result = func(*args, **kwargs)
            finally:
                group = self._end()
        recorded = {key: handler.record_wrap_kwarg(key, value) for key, value in kwargs.items()}
        self.records.append((handler, Record(name, func, list(args), recorded, group)))
        return handler.postprocess_result(result, kwargs)

    @contextmanager
    def _inside(self) -> Iterator[None]:
        """Treat calls inside of a handled call as part of it."""
        self._is_inside = True
        try:
            yield
        finally:
            self._is_inside = False


def _handled_name(func: Any) -> str | None:
    """Return the name under which this operator has a handler, or None."""
    packet, _, overload = str(func).rpartition(".")
    short = packet.rpartition(".")[2]
    names = (f"{short}.{overload}", short) if overload == "default" else (f"{short}.{overload}",)
    return next((name for name in names if name in _handlers), None)


def recapture(
    records: Sequence[Any], given: Any, begin: Callable[[Any], None], end: Callable[[], None]
) -> None:
    """Capture each call again with new numbers: one dictionary per call in order, or one for all."""
    inputs = [given] if isinstance(given, dict) else list(given) if isinstance(given, list | tuple) else None
    if inputs is None or not all(isinstance(each, dict) for each in inputs):
        raise TypeError(f"cpu_update_input must be a list of dictionaries, got {given!r}")
    if len(inputs) == 1:
        inputs *= len(records)
    if len(inputs) != len(records):
        raise RuntimeError(f"cpu_update_input has {len(inputs)} entries for {len(records)} calls")
    changed = [record.copied() for _, record in records]
    for (handler, _), record, update_input in zip(records, changed, inputs, strict=True):
        handler.update_args(record, update_input)
    done: list[Record] = []
    try:
        for (_, old), record, update_input in zip(records, changed, inputs, strict=True):
            try:
                _call_again(record, begin, end)
            except RuntimeError as error:
                what = f"cannot update {record.op_name} with {update_input}: {error}"
                raise RuntimeError(what) from error
            done.append(old)
    except BaseException:
        for old in done:  # update all calls or none
            _call_again(old, begin, end)
        raise
    for (_, old), record in zip(records, changed, strict=True):
        old.args, old.kwargs = record.args, record.kwargs


def _call_again(record: Record, begin: Callable[[Any], None], end: Callable[[], None]) -> None:
    begin(record.group)
    try:
        # This is not part of another graph that is being captured.
        with disable_modes(), torch.no_grad():
            record.func(*record.args, **record.kwargs)
    except BaseException:
        with suppress(RuntimeError):  # report the first error
            end()
        raise
    end()
