"""`torchair.op`: an operator from one annotated function, for eager use and both modes, files included."""

from __future__ import annotations

import inspect
import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, overload

import torch

from torchair.convert.base.auto_converters import camel_case, device_of, is_tensor
from torchair.convert.base.registry import register_fx_node_ge_converter
from torchair.core import dtypes
from torchair.core.errors import BadConverter, BadGraph, NotPossible
from torchair.core.registries.user_registrations import extend, has_user_kernel
from torchair.core.torch_private.operators.schemas import (
    OpOverload,
    arguments_of,
    auto_functionalized_v2,
    parse_schema,
)
from torchair.engine.registry import Kernel, describe, set_kernel
from torchair.fxgraph.effects import written_in, written_names
from torchair.ge.attr import Attr, Str
from torchair.ge.builder.build import add_op, make_attr
from torchair.ge.builder.torch_kernel_binding import CALL
from torchair.ge.graph import Tensor
from torchair.ge.prototype import AttrParam, Param, Prototype, catalogue, declare

Fn = Callable[..., Any]
_KINDS = {
    "int": "Int", "SymInt": "Int", "float": "Float", "bool": "Bool", "str": "String", "ScalarType": "Type",
    "List[int]": "ListInt", "List[SymInt]": "ListInt", "List[float]": "ListFloat", "List[bool]": "ListBool",
    "List[str]": "ListString",
}  # fmt: skip
"""The kind of attribute that an argument of a schema becomes, by its type."""
_CURES = {
    "can be mutated": "leave it out of mutates_args",
    "varargs": "give each parameter a name of its own: no *args, no **kwargs, no /",
    "default value type": "Optional[Sequence[int]] = None for a list, and let None mean it",
    "unsupported type": "take tensors, numbers, lists of these, texts and dtypes; Optional of one",
    "annotation": "annotate all parameters and the result: def f(x: torch.Tensor, k: float) -> torch.Tensor",
}
"""What to do about a signature, by words of what torch says about it."""


@overload
def op(name: Fn) -> Any: ...
@overload
def op(
    name: str | None = None,
    *,
    mutates_args: Sequence[str] | str = (),
    fake: Fn | None = None,
    ge_op: str | None = "",
) -> Callable[[Fn], Any]: ...
def op(
    name: str | Fn | None = None,
    *,
    mutates_args: Sequence[str] | str = (),
    fake: Fn | None = None,
    ge_op: str | None = "",
) -> Any:
    """Make an operator of an annotated function: `@torchair.op` or `@torchair.op("mylib::scale", ...)`.

    `mutates_args` names what it writes. `fake` gives results of the right sizes and types from fake tensors;
    without it the function itself is run on them. `ge_op` is the name of its IR op and None for none; if not
    given, it is CamelCase of its own name (`Scale`) and, where that is taken, of both (`MylibScale`). Returns
    the operator: call it like the function.
    """
    if callable(name):
        return _made(name, None, (), None, "")
    return lambda fn: _made(fn, name, mutates_args, fake, ge_op)


def _made(
    fn: Fn, name: str | None, mutates_args: Sequence[str] | str, fake: Fn | None, ge_op: str | None
) -> Any:
    if not (inspect.isfunction(fn) or inspect.ismethod(fn)):
        raise BadConverter(
            "torchair.op makes operators of functions",
            got=repr(fn),
            next="write one that calls it: def f(x: torch.Tensor) -> torch.Tensor: return thing(x)",
        )
    title = _title(fn, name)
    schema = _schema(fn, title, mutates_args)
    # Checked before torch is asked, and let in once it has agreed.
    proto = None if ge_op is None else _prototype(schema, ge_op)
    try:
        made = torch.library.custom_op(title, fn, mutates_args=mutates_args)
    except (ValueError, TypeError, RuntimeError) as error:
        raise BadConverter(f"torch refuses {title}: {_short(error)}", at=_place(fn)) from error
    made.register_fake(fake or fn)
    extend(f"operator {title}", fn)
    if proto is not None:
        declare(proto, title)
        register_fx_node_ge_converter(made._opoverload)(_converter(made._opoverload, proto))
        set_kernel(_kernel(made._opoverload, proto))
    return made


# The schema


def _schema(fn: Fn, title: str, mutates_args: Sequence[str] | str) -> Any:
    """The schema that the annotations say; what torch or its compilers would stumble over is refused."""
    _check_written(fn, title, mutates_args)
    _check_defaults(fn, title)
    try:
        schema = parse_schema(f"{title}{torch.library.infer_schema(fn, mutates_args=mutates_args)}")
    except (ValueError, TypeError, RuntimeError) as error:
        known = (cure for words, cure in _CURES.items() if words in str(error))
        raise BadConverter(
            f"{title} cannot be an operator: {_short(error)}",
            at=_place(fn),
            next=next(known, "def f(x: torch.Tensor, k: float) -> torch.Tensor"),
        ) from error
    if by_name := [arg.name for arg in schema.arguments if arg.kwarg_only and is_tensor(arg)]:
        raise BadConverter(
            f"{title} takes the tensor {by_name[0]!r} by name alone, which torch has no operators for",
            at=_place(fn),
            next="put it before the *",
        )
    others = [str(each.type) for each in schema.returns if str(each.type) != "Tensor"]
    if others and written_in(schema):
        raise BadConverter(
            f"{title} writes {', '.join(written_in(schema))} and returns {others[0]}: no compiler takes that",
            at=_place(fn),
            next="return single tensors, -> tuple[torch.Tensor, torch.Tensor], or write nothing",
        )
    return schema


def _check_written(fn: Fn, title: str, mutates_args: Sequence[str] | str) -> None:
    known = list(inspect.signature(fn).parameters)
    if mutates_args == "unknown":
        return
    if isinstance(mutates_args, str):
        raise BadConverter(
            f"mutates_args of {title} is a sequence of names, and no text",
            at=_place(fn),
            got=repr(mutates_args),
            next=f"mutates_args=({mutates_args!r},)",
        )
    if unknown := [name for name in mutates_args if name not in known]:
        raise BadConverter(
            f"mutates_args of {title} names what is no parameter",
            at=_place(fn),
            got=", ".join(map(repr, unknown)),
            near=", ".join(known) or "it has none",
            next="names of parameters that are tensors, or lists of them",
        )


def _check_defaults(fn: Fn, title: str) -> None:
    """Schemas are text, in which not every value can be written."""
    for name, parameter in inspect.signature(fn).parameters.items():
        value = parameter.default
        is_unwritable = isinstance(value, float) and not math.isfinite(value)
        if is_unwritable or (isinstance(value, str) and re.search(r'["\\\n]', value)):
            raise BadConverter(
                f"the default of {name!r} of {title} cannot be written in a schema of torch",
                at=_place(fn),
                got=repr(value),
                next=f"{name}: Optional[{type(value).__name__}] = None, and let None mean it",
            )


def _place(fn: Fn) -> str:
    return f"{fn.__code__.co_filename}:{fn.__code__.co_firstlineno}"


def _short(error: Exception) -> str:
    """What torch says, without its list of all types."""
    text = str(error).strip().removeprefix("infer_schema(func): ")
    return re.split(r" The valid types are| Got func with|\n", text)[0].rstrip(". ")


def _title(fn: Fn, name: str | None) -> str:
    """`namespace::name`; the namespace is the package that the function is in, if none is given."""
    title = name or fn.__name__
    if "::" not in title:
        package = re.sub(r"\W", "_", fn.__module__.split(".")[0]).strip("_")
        title = f"{package or 'ops'}::{title}"
    if not re.fullmatch(r"[A-Za-z_]\w*::[A-Za-z_]\w*", title):
        raise BadConverter("the name of an operator is namespace::name", got=repr(title))
    return title


# The prototype


def _prototype(schema: Any, ge_op: str) -> Prototype:
    """The IR op of the chosen name, or of the first that is free."""
    space, own = map(camel_case, schema.name.split("::"))
    protos = [prototype_of(schema, name) for name in ([ge_op] if ge_op else [own, space + own])]
    free = [proto for proto in protos if not ge_op and _is_free(proto, schema.name)]
    chosen = free[0] if free else protos[-1]
    near = "CamelCase, as in MylibScale"
    try:
        if not re.fullmatch(r"[A-Za-z_]\w*", chosen.name):
            raise BadGraph("this is no name of an IR op", got=repr(chosen.name), near=near)
        catalogue().check(chosen, owner=schema.name)
    except BadGraph as error:
        raise NotPossible(
            f"the IR op of {schema.name} cannot be {chosen.name!r}: {error.what}",
            got=error.details["got"],
            near=error.details["near"],
            next="choose another with ge_op='Name', or none with ge_op=None",
        ) from error
    return chosen


def _is_free(proto: Prototype, title: str) -> bool:
    """Has nobody else this name? What the user has declared for it beforehand, and equal, is meant for it."""
    known = catalogue()
    if proto.name not in known or known.owner(proto.name) == title:
        return True
    return known[proto.name] == proto and not known.owner(proto.name) and not known.is_builtin(proto.name)


def prototype_of(schema: Any, name: str) -> Prototype:
    """The prototype that the schema of an operator says: what it writes is returned under the same name."""
    lacking = [arg for arg in schema.arguments if not is_tensor(arg) and _kind(arg) is None]
    if lacking:
        raise NotPossible(
            f"{schema.name} has an argument that no attribute of an IR op can hold",
            got=f"{lacking[0].name}: {lacking[0].real_type}",
            next="ge_op=None makes an operator without an IR op",
        )
    inputs = [Param(arg.name, _slot(arg)) for arg in schema.arguments if is_tensor(arg)]
    pairs = zip(_result_names(schema), schema.returns, strict=True)
    outputs = [Param(result, _slot(each)) for result, each in pairs]
    outputs += [param for param in inputs if param.name in written_in(schema)]
    attrs = [_attribute(arg) for arg in schema.arguments if not is_tensor(arg)]
    return Prototype(name, tuple(inputs), tuple(outputs), tuple(attrs))


def _result_names(schema: Any) -> list[str]:
    """`y`, or `y_0` and `y_1`, or the like: an output that has the name of an input is that one, written."""
    taken, count = {arg.name for arg in schema.arguments}, len(schema.returns)
    stems = ("y" + "_" * length for length in itertools.count())
    names = ([stem] if count == 1 else [f"{stem}_{place}" for place in range(count)] for stem in stems)
    return next(each for each in names if taken.isdisjoint(each))


def _slot(argument: Any) -> str:
    text = str(argument.type)
    if text.startswith(("List", "Optional[List")):
        return "dynamic"
    return "optional" if text.startswith("Optional") else "required"


def _kind(argument: Any) -> str | None:
    text = str(argument.real_type)
    inner = re.fullmatch(r"Optional\[(.*)\]", text)
    return _KINDS.get(inner[1] if inner else text)


def _attribute(argument: Any) -> AttrParam:
    """None is left out, so what may be None has no default: its value is written wherever there is one. So
    are types, which have other numbers in the IR.
    """
    kind = _kind(argument)
    assert kind is not None, "an argument without a kind was refused"
    may_be_none = str(argument.real_type).startswith("Optional")
    is_told = argument.has_default_value() and kind != "Type" and not may_be_none
    default = argument.default_value if is_told else None
    return AttrParam(argument.name, kind, required=False, default=default)


# The converter and the kernel


def _converter(target: OpOverload, proto: Prototype) -> Fn:
    """The call of the operator as its IR op, which the operator itself runs."""

    def convert(*args: Any, meta_outputs: Any = None, **kwargs: Any) -> Any:
        given = arguments_of(target._schema, args, kwargs)
        inputs = {param.name: given.get(param.name) for param in proto.inputs}
        lists = {param.name for param in proto.inputs if param.kind == "dynamic"}
        inputs = {name: value for name, value in inputs.items() if value is not None or name not in lists}
        attrs = _attributes(proto, given)
        if not has_user_kernel(proto.name, device_of(inputs.values())):
            attrs[CALL] = Str("")
        count = len(target._schema.returns)
        results = [meta_outputs] if count == 1 else list(meta_outputs) if count else []
        results += [given.get(name) for name in written_names(target)]
        pairs = zip(proto.outputs, results, strict=True)
        counts = [(param, len(like or ()) if param.kind == "dynamic" else None) for param, like in pairs]
        outputs = [(param.name, length) for param, length in counts]
        made = add_op(proto.name, inputs, attrs, outputs)
        own = (list(made) if isinstance(made, tuple) else [made])[:count]
        return own[0] if count == 1 else (tuple(own) or None)

    return convert


def _attributes(proto: Prototype, given: Mapping[str, Any]) -> dict[str, Attr]:
    made: dict[str, Attr] = {}
    for row in proto.attrs:
        value = given.get(row.name)
        if isinstance(value, Tensor):
            raise NotImplementedError(f"its argument {row.name!r} is a size that changes, no attribute")
        if value is not None:
            made[row.name] = make_attr(proto.name, row, value)
    return made


def _kernel(target: OpOverload, proto: Prototype) -> Kernel:
    """The meaning of the IR op: the operator, on copies of what it writes."""
    optional = {arg.name for arg in target._schema.arguments if arg.has_default_value()}

    def run(*inputs: Any, **attrs: Any) -> list[Any]:
        given = dict(zip(proto.input_names, inputs, strict=True))
        given |= {row.name: _plain(row.type, attrs[row.name]) for row in proto.attrs}
        if written_names(target):
            return _on_copies(target, given)
        result = target(**{name: value for name, value in given.items() if not _is_left(name, value)})
        return list(result) if isinstance(result, tuple) else [result]

    def _is_left(name: str, value: Any) -> bool:
        return value is None and name in optional

    run.__name__ = str(target)
    kinds = inspect.Parameter
    parameters = [kinds(param.name, kinds.POSITIONAL_ONLY) for param in proto.inputs]
    parameters += [kinds(row.name, kinds.KEYWORD_ONLY) for row in proto.attrs]
    return describe(proto.name, run, None, inspect.Signature(parameters))


def _on_copies(target: OpOverload, given: dict[str, Any]) -> list[Any]:
    """Results, then what was written: as AOTAutograd calls an operator that writes, so that compilers take
    it.
    """
    bases: list[Any] = []
    told = {arg.name: arg.default_value for arg in target._schema.arguments} | given
    for name in written_names(target):
        value = told.pop(name)
        listed = value if isinstance(value, list | tuple) else None
        if listed is not None:
            told[f"_{name}_length"] = len(listed)
            told |= {f"_{name}_{i}_base_index": len(bases) + i for i in range(len(listed))}
        else:
            told[f"_{name}_base_index"] = None if value is None else len(bases)
        bases += [] if value is None else [value] if listed is None else listed
    made = auto_functionalized_v2(target, **told, _all_bases=bases)
    count = len(target._schema.returns)
    new = iter(made[max(count, 1) :])
    return [*made[:count], *(_taken(given[name], new) for name in written_names(target))]


def _taken(like: Any, new: Iterator[Any]) -> Any:
    """The next values, in the shape of the argument; one that was not given is empty."""
    if isinstance(like, list | tuple):
        return [next(new) for _ in like]
    return torch.empty(0) if like is None else next(new)


def _plain(kind: str, value: Any) -> Any:
    return dtypes.to_torch(value) if kind == "Type" and value is not None else value
