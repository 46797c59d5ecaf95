"""Facts that Dynamo's guards saw, as data, and the same guards in another process.

A guard is stored as its source (`L['self'].config.eps`), its kind, and the fact that its kind checks there.
In another process the source is looked up among the live objects. If every fact is the same, Dynamo creates
the guards for these objects, as after a trace. No value comes from the file, so modules, classes and
functions on the way are compared as well. A kind without a row in `FACTS` is not supported.
"""

# torch's own types describe one of the versions supported here, and leave out much of what is private.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false

from __future__ import annotations

import dataclasses
import functools
import logging
import threading
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed
from torch._dynamo import config as dynamo_config
from torch._dynamo import guards as dynamo_guards
from torch._dynamo.guards import (
    CheckFunctionManager,
    GuardBuilder,
    GuardManagerWrapper,
    match_on_id_for_tensor,
)
from torch._dynamo.output_graph import OutputGraphCommon
from torch._dynamo.source import NNModuleSource
from torch._guards import Guard, GuardsSet
from torch.nn.modules.module import _has_any_global_hook
from torch.overrides import _get_current_function_mode_stack

from torchair.core.errors import BadEntry, NotPossible, first_line
from torchair.core.fingerprint.python_objects import data, identity
from torchair.core.torch_private.dynamo.assumed_constants import Assumed
from torchair.core.torch_private.dynamo.unguarded_reads import READS, Reads, is_left_out

Scope = dict[str, Any]
Fact = tuple[Any, ...]
MARKS = (
    "_dynamo_dynamic_indices",
    "_dynamo_weak_dynamic_indices",
    "_dynamo_unbacked_indices",
    "_dynamo_strict_unbacked_indices",
    "_dynamo_static_indices",
    "_dynamo_shape_ids",
    "_dynamo_unbacked_bounds",
)
"""Attributes with which users mark sizes of a tensor."""
HOOKS_OF_ALL = "global module hooks are registered (register_module_forward_hook and the like)"


CURE = "read the value before the call and pass it as an argument"


class OtherCall(BadEntry):
    """The compilation is for other calls, or for another process."""


class Values:
    """Looks up sources in the variables of a call."""

    def __init__(self, local_scope: Scope, global_scope: Scope, modes: Sequence[Any], state: Any) -> None:
        self.modes = modes
        self.sizes: Mapping[Any, Any] = state.input_source_to_sizes_strides
        self._scopes = {"L": local_scope, "G": global_scope}
        self._known = dict[Any, Any]()
        self._names: Scope = dict(dynamo_guards._get_closure_vars())
        self.identity_of = functools.cache(identity)  # cached, because many objects have the same class
        self.ordered = {id(self.of(source)) for source in state.guard_on_key_order}

    def of(self, source: Any) -> Any:
        """Return the value of a source. Raise the error of Python if there is none."""
        if hasattr(source, "get_value"):
            return source.get_value(self._scopes, self._names, self._known)
        name = source.name() if callable(source.name) else source.name
        if name not in self._known:
            self._known[name] = eval(name, self._scopes, self._names)
        return self._known[name]


@dataclass(frozen=True)
class GuardRecord:
    """A guard, and the fact that it saw."""

    source: Any
    kind: str
    given: tuple[tuple[str, Any], ...]
    """The arguments of its kind: a key, or the name of an attribute."""
    fact: Fact = ()

    @staticmethod
    def of(guard: Any, values: Values) -> GuardRecord:
        """Return the record of a guard.

        Raises:
            NotPossible: if the fact cannot be serialized.
        """
        create, given = guard.create_fn, dict[str, Any]()
        if isinstance(create, functools.partial):
            given = {name: value for name, value in create.keywords.items() if name != "value"}
            if create.args:
                raise NotPossible(f"a guard cannot be serialized: {guard.create_fn_name()} of {guard.name}")
        seen = GuardRecord(guard.originating_source, guard.create_fn_name(), tuple(given.items()))
        if seen.kind == "TENSOR_MATCH" and match_on_id_for_tensor(guard):
            raise NotPossible(f"a guard cannot be serialized: the address of the tensor {guard.name}")
        try:
            return dataclasses.replace(seen, fact=seen.now(values))
        except NotPossible as error:
            raise NotPossible(
                f"a guard cannot be serialized: {seen.kind} of {guard.name}: {error.what}"
            ) from error

    @staticmethod
    def read(source: Any, kind: str, given: Fact, values: Values, line: str) -> GuardRecord:
        """Return the record of a read without a guard.

        Raises:
            NotPossible: if the value cannot be serialized.
        """
        seen = GuardRecord(source, kind, given)
        try:
            return dataclasses.replace(seen, fact=seen.now(values))
        except NotPossible as error:
            arguments = "".join(f" {value!r}" for _, value in given)
            raise NotPossible(
                f"{line} reads {seen.name} without a guard ({kind}{arguments}): {error.what}", next=CURE
            ) from error

    @property
    def name(self) -> str:
        """The source as Dynamo writes it."""
        name = self.source.name
        return str(name() if callable(name) else name)

    def now(self, values: Values) -> Fact:
        """Return the current fact."""
        if self.kind in OF_STATE:
            return OF_STATE[self.kind](values)
        if self.kind in READS:
            return READS[self.kind](values.of(self.source), **dict(self.given))
        if self.kind not in FACTS:
            raise NotPossible(f"guard kind {self.kind} has no meaning in another process")
        if self._names_attribute:
            source = self.source.base if isinstance(self.source, NNModuleSource) else self.source
            return (hasattr(values.of(source.base), source.member),)
        return FACTS[self.kind](self, values, values.of(self.source))

    @property
    def _names_attribute(self) -> bool:
        """Whether the source is an attribute that may be missing. torch 2.11 has this form; later versions
        store its name.
        """
        return self.kind == "HASATTR" and not self.given

    def why_other(self, values: Values) -> str | None:
        """Return what differs from the recorded fact, or None."""
        try:
            now = self.now(values)
        except Exception as error:
            now = ("nothing", first_line(error))
        if now == self.fact:
            return None
        read = (
            " ".join([self.kind, *(repr(value) for _, value in self.given), "of "])
            if self.kind in READS
            else ""
        )
        return f"{read}{self.name or self.kind} was {_short(self.fact)} and is {_short(now)}"

    def guard(self) -> Any:
        """Return the guard for Dynamo."""
        create = getattr(GuardBuilder, self.kind)
        return Guard(self.source, functools.partial(create, **dict(self.given)) if self.given else create)

    def held(self, values: Values) -> Any:
        """Return an object that must stay alive because the guard compares its address."""
        if self.kind in OF_STATE or self._names_attribute:
            return None
        value = values.of(self.source)
        return type(value) if isinstance(value, torch.Tensor) or self.kind == "TYPE_MATCH" else value


def _short(fact: Fact) -> str:
    text = " ".join(str(each) for each in fact)
    return text if len(text) <= 120 else f"{text[:120]}…"


@dataclass(frozen=True)
class Guards:
    """Everything that must hold for a frame's code to be valid. It can be serialized."""

    state: Any
    """Dynamo's facts in addition to the guards: sizes and strides of tensors, modes of torch, aliases."""
    shapes: Any
    seen: tuple[GuardRecord, ...]
    unguarded: tuple[GuardRecord, ...]
    """Unguarded reads of the trace."""
    called: tuple[Assumed, ...]
    """Calls whose results the trace assumed to be constant."""

    @staticmethod
    def of(code: types.CodeType, graph: Any, reads: Reads) -> Guards:
        """Return the guards of a trace.

        Raises:
            NotPossible: if a part of them cannot be serialized.
        """
        state = dataclasses.replace(
            graph.dump_guards_state(),
            local_scope={},
            global_scope={},
            torch_function_mode_stack=[],
            _guards=GuardsSet(),
            input_source_to_sizes_strides=_concrete(graph.input_source_to_sizes_strides),
            skip_guards_check=True,
        )
        if state.functorch_layers:
            raise NotPossible("the call is inside a torch.func transform")
        if _has_any_global_hook():
            raise NotPossible(HOOKS_OF_ALL)
        values = Values(graph.local_scope, graph.global_scope, graph.torch_function_mode_stack, state)
        left_out = [guard for guard in sorted(graph.guards, key=Guard.sort_key) if is_left_out(guard)]
        graph.guards.inner.difference_update(left_out)
        seen = tuple(GuardRecord.of(guard, values) for guard in sorted(graph.guards, key=Guard.sort_key))
        unguarded = [GuardRecord.of(guard, values) for guard in left_out]
        unguarded += [GuardRecord.read(*row, values, line) for row, line in reads.rows.items()]
        called = [_call(*call, result, line) for call, (result, line) in reads.calls.items()]
        with _quietly():
            made = _SizeConditions(code, graph, save_guards=True, strict_error=True)
        return Guards(state, made.shape_code_parts, seen, tuple(unguarded), tuple(called))

    def manager(self, code: types.CodeType, local_scope: Scope, global_scope: Scope) -> tuple[Any, Any]:
        """Return the guards for the objects of this call, and objects that must live as long.

        Raises:
            OtherCall: if one of the objects differs.
        """
        if _has_any_global_hook():  # Dynamo checks this only while it traces
            raise OtherCall(HOOKS_OF_ALL)
        modes = _get_current_function_mode_stack()
        try:
            values = Values(local_scope, global_scope, modes, self.state)
        except Exception as error:
            raise OtherCall(f"a guarded dictionary does not exist: {first_line(error)}") from error
        for each in (*self.seen, *self.unguarded):
            if (why := each.why_other(values)) is not None:
                raise OtherCall(why)
        for call in self.called:
            if (why := call.why_other()) is not None:
                raise OtherCall(why)
        graph = dataclasses.replace(
            self.state,
            local_scope=local_scope,
            global_scope=global_scope,
            torch_function_mode_stack=modes,
            _guards=GuardsSet({each.guard() for each in self.seen}),
        )
        with _quietly():
            made = _TextlessCheckFunctionManager(
                code,
                OutputGraphCommon(graph),
                shape_code_parts=self.shapes,
                runtime_global_scope=global_scope,
            )
        held = [each.held(values) for each in self.seen if each.kind in CHECKED_BY_ADDRESS]
        return made.guard_manager, held


def _call(function: Any, args: Any, named: Any, result: Any, line: str) -> Assumed:
    """Return the record of a call that Dynamo made while it traced this line."""
    try:
        return Assumed.of(function, args, dict(named), result)
    except NotPossible as error:
        raise NotPossible(f"{line}: {error.what}", next=CURE) from error


class _WithoutText(GuardManagerWrapper):
    """A guard manager without the text of all guards, which torch generates for a log that is rarely on."""

    def __str__(self) -> str:
        return "guards of cache_compile"


class _TextlessCheckFunctionManager(CheckFunctionManager):
    def build_guards(self, *args: Any, **kwargs: Any) -> Any:
        builder, manager = super().build_guards(*args, **kwargs)
        manager.__class__ = _WithoutText
        return builder, manager


class _SizeConditions(_TextlessCheckFunctionManager):
    """Computes only the conditions on sizes; Dynamo's own serialization of the other guards is not needed."""

    def serialize_guards(self, *args: Any, **kwargs: Any) -> bytes:
        return b""


def _concrete(sizes: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return the sizes without symbols."""
    number = dynamo_guards.convert_int_to_concrete_values
    return {
        source: {name: tuple(map(number, row[name])) for name in ("size", "stride")}
        for source, row in sizes.items()
    }


@contextmanager
def _quietly() -> Iterator[None]:
    """Install guards on hooks, which Dynamo omits by default, and silence torch's logs and warnings, which
    are for traces. Exceptions report errors.
    """
    here, log = threading.get_ident(), logging.getLogger("torch._guards")

    def is_of_others(record: logging.LogRecord) -> bool:
        return record.thread != here

    log.addFilter(is_of_others)
    try:
        with dynamo_config.patch(skip_nnmodule_hook_guards=False), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it reads the gradients of all tensors
            yield
    finally:
        log.removeFilter(is_of_others)


def _hooks(values: Values) -> Fact:
    if torch._C._autograd._top_saved_tensors_default_hooks(True):
        raise NotPossible("the call is inside torch.autograd.graph.saved_tensors_hooks")
    return ()


def _no_facts(values: Values) -> Fact:
    """Return no facts: the guard has its own data."""
    return ()


OF_STATE: dict[str, Callable[[Values], Fact]] = {
    "GRAD_MODE": _no_facts,
    "DETERMINISTIC_ALGORITHMS": _no_facts,
    "FSDP_TRAINING_STATE": _no_facts,
    "GLOBAL_STATE": _no_facts,
    "SHAPE_ENV": _no_facts,
    "DUAL_LEVEL": _no_facts,
    "FUNCTORCH_STACK_MATCH": _no_facts,
    "DEFAULT_DEVICE": lambda values: (repr(torch.utils._device.CURRENT_DEVICE),),
    "TORCH_FUNCTION_STATE": lambda values: tuple(values.identity_of(type(mode)) for mode in values.modes),
    "AUTOGRAD_SAVED_TENSORS_HOOKS": _hooks,
}
"""Guards on the state of the process, and their facts."""


def _value(seen: GuardRecord, values: Values, value: Any) -> Fact:
    return data(value)


def _address(seen: GuardRecord, values: Values, value: Any) -> Fact:
    return _group(seen, values, value) if _is_group(value) else identity(value)


def _is_group(value: Any) -> bool:
    return distributed.is_available() and isinstance(value, distributed.ProcessGroup)


def _type(seen: GuardRecord, values: Values, value: Any) -> Fact:
    return values.identity_of(type(value))


def _group(seen: GuardRecord, values: Values, value: Any) -> Fact:
    """Return the facts of a process group. Graphs contain its name, which refers to another group if others
    were created first.
    """
    if not _is_group(value):
        raise NotPossible(
            f"an object of class {type(value).__name__} cannot be identified in another process"
        )
    return (
        *values.identity_of(type(value)),
        value.group_name,
        tuple(distributed.get_process_group_ranks(value)),
    )


def _length(seen: GuardRecord, values: Values, value: Any) -> Fact:
    return (*values.identity_of(type(value)), len(value))


def _keys(seen: GuardRecord, values: Values, value: Any) -> Fact:
    keys = list(map(data, dict.keys(value) if isinstance(value, dict) else value.keys()))
    is_ordered = id(value) in values.ordered or not isinstance(value, dict)
    return (*values.identity_of(type(value)), tuple(keys if is_ordered else sorted(keys, key=repr)))


def _has(seen: GuardRecord, values: Values, value: Any) -> Fact:
    return (hasattr(value, dict(seen.given)["attr"]),)


def _has_own(seen: GuardRecord, values: Values, value: Any) -> Fact:
    return (dict(seen.given)["attr"] in value.__dict__,)


def _contains(seen: GuardRecord, values: Values, value: Any) -> Fact:
    key = dict(seen.given)["key"]
    return (dict.__contains__(value, key) if isinstance(value, dict) else key in value,)


def _is_other(seen: GuardRecord, values: Values, value: Any) -> Fact:
    return (value is values.of(dict(seen.given)["source_b"]),)


def _iterator(seen: GuardRecord, values: Values, value: Any) -> Fact:
    of = {
        "TUPLE_ITERATOR_LEN": "tuple_iterator_len",
        "RANGE_ITERATOR_MATCH": "normalize_range_iter",
        "COUNT_ITERATOR_MATCH": "normalize_count_iter",
    }
    return (*values.identity_of(type(value)), data(getattr(dynamo_guards, of[seen.kind])(value)))


def _tensor(seen: GuardRecord, values: Values, value: Any) -> Fact:
    """Return everything that torch compares of a tensor; sizes and strides only if they are not symbols."""
    if value.layout is not torch.strided:
        raise NotPossible(f"tensors with the layout {value.layout} are not supported")
    row = values.sizes[seen.source]
    shape, stride = row["size"], row["stride"]
    return (
        *values.identity_of(type(value)),
        torch._C._dispatch_keys(value).raw_repr(),
        str(value.dtype),
        str(value.device),
        value.requires_grad,
        value.dim(),
        tuple(None if kept is None else now for kept, now in zip(shape, value.shape, strict=False)),
        tuple(None if kept is None else now for kept, now in zip(stride, value.stride(), strict=False)),
        tuple((name, data(getattr(value, name))) for name in MARKS if hasattr(value, name)),
    )


FACTS: dict[str, Callable[[GuardRecord, Values, Any], Fact]] = {
    "TENSOR_MATCH": _tensor,
    "NOT_NONE_MATCH": lambda seen, values, value: (value is None,),
    "BOOL_MATCH": _value,
    "NONE_MATCH": _value,
    "EQUALS_MATCH": _value,
    "CONSTANT_MATCH": _value,
    "CONSTANT_SUBCLASS_MATCH": _value,
    "DISPATCH_KEY_SET_MATCH": lambda seen, values, value: (value.raw_repr(),),
    "TYPE_MATCH": _type,
    "FAKE_SCRIPT_TYPE_MATCH": _group,
    "OPAQUE_OBJ_GUARD_FN_MATCH": _group,
    "ID_MATCH": _address,
    "FUNCTION_MATCH": _address,
    "CLASS_MATCH": _address,
    "MODULE_MATCH": _address,
    "CLOSURE_MATCH": _address,
    "BUILTIN_MATCH": _address,
    "SEQUENCE_LENGTH": _length,
    "EMPTY_NN_MODULE_HOOKS_DICT": _length,
    "DICT_KEYS_MATCH": _keys,
    "MAPPING_KEYS_CHECK": _keys,
    "HASATTR": _has,
    "NOT_PRESENT_IN_GENERIC_DICT": _has_own,
    "DICT_CONTAINS": _contains,
    "DICT_NOT_CONTAINS": _contains,
    "SET_CONTAINS": _contains,
    "SET_NOT_CONTAINS": _contains,
    "TUPLE_ITERATOR_LEN": _iterator,
    "RANGE_ITERATOR_MATCH": _iterator,
    "COUNT_ITERATOR_MATCH": _iterator,
    "DUPLICATE_INPUT": _is_other,
}
"""Facts of each kind of guard."""
CHECKED_BY_ADDRESS = {name for name, fact in FACTS.items() if fact in (_type, _address)}
"""Kinds that identify an object, or its type, by its address."""
