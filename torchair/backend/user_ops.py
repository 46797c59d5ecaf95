"""`torchair.op`: an operator from one annotated function, for eager use and both modes, files included."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, overload

import torch

from torchair.convert.automatic import camel_case, is_tensor
from torchair.convert.registry import register_fx_node_ge_converter
from torchair.core import dtypes
from torchair.core.errors import BadConverter, BadGraph, NotPossible
from torchair.core.extensions import EXTENSIONS, extend
from torchair.core.torch_private.ops import OpOverload, auto_functionalized_v2, parse_schema
from torchair.engine.registry import Kernel, describe, set_kernel
from torchair.fxgraph.effects import written_in, written_names
from torchair.ge.attr import Attr, Str
from torchair.ge.build import add_op, make_attr
from torchair.ge.face import CALL
from torchair.ge.graph import Tensor
from torchair.ge.prototype import Prototype, register_prototype

Fn = Callable[..., Any]
_KINDS = {
    "int": "Int", "SymInt": "Int", "float": "Float", "bool": "Bool", "str": "String", "ScalarType": "Type",
    "List[int]": "ListInt", "List[SymInt]": "ListInt", "List[float]": "ListFloat", "List[bool]": "ListBool",
    "List[str]": "ListString",
}  # fmt: skip
"""The kind of attribute that an argument of a schema becomes, by its type."""


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
    without it the function itself is run on them. `ge_op` is the name of its IR op, CamelCase of its own if
    not given, and None for none. Returns the operator: call it like the function.
    """
    if callable(name):
        return _made(name, None, (), None, "")
    return lambda fn: _made(fn, name, mutates_args, fake, ge_op)


def _made(
    fn: Fn, name: str | None, mutates_args: Sequence[str] | str, fake: Fn | None, ge_op: str | None
) -> Any:
    if not callable(fn):
        raise BadConverter("torchair.op makes operators of functions", got=repr(fn))
    title = _title(fn, name)
    try:
        schema = parse_schema(f"{title}{torch.library.infer_schema(fn, mutates_args=mutates_args)}")
    except (ValueError, TypeError) as error:
        raise BadConverter(
            f"{title} cannot be an operator: {_short(error)}",
            at=f"{fn.__code__.co_filename}:{fn.__code__.co_firstlineno}",
            next="annotate all parameters and the result: def f(x: torch.Tensor, k: float) -> torch.Tensor",
        ) from error
    proto = None if ge_op is None else _prototype(schema, ge_op or camel_case(title.split("::")[1]))
    made = torch.library.custom_op(title, fn, mutates_args=mutates_args)
    made.register_fake(fake or fn)
    extend(f"operator {title}", fn)
    if proto is not None:
        register_fx_node_ge_converter(made._opoverload)(_converter(made._opoverload, proto))
        set_kernel(_kernel(made._opoverload, proto))
    return made


def _short(error: Exception) -> str:
    """What torch says, without its list of all types."""
    text = str(error).removeprefix("infer_schema(func): ")
    return re.split(r" The valid types are| Got func with", text)[0].rstrip(".")


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


def _prototype(schema: Any, name: str) -> Prototype:
    try:
        return register_prototype(prototype_text(schema, name))
    except BadGraph as error:
        raise NotPossible(
            f"the IR op of {schema.name} cannot be {name!r}: {error.what}",
            got=error.details["got"],
            near=error.details["near"],
            next="choose another with ge_op='Name', or none with ge_op=None",
        ) from error


def prototype_text(schema: Any, name: str) -> str:
    """The prototype that the schema of an operator says: what it writes is returned under the same name."""
    lacking = [arg for arg in schema.arguments if not is_tensor(arg) and _kind(arg) is None]
    if lacking:
        raise NotPossible(
            f"{schema.name} has an argument that no attribute of an IR op can hold",
            got=f"{lacking[0].name}: {lacking[0].real_type}",
            next="ge_op=None makes an operator without an IR op",
        )
    inputs = ", ".join(arg.name + _mark(arg) for arg in schema.arguments if is_tensor(arg))
    attrs = ", ".join(_attribute(arg) for arg in schema.arguments if not is_tensor(arg))
    marks = list(map(_mark, schema.returns))
    returns = [f"y{mark}" for mark in marks] if len(marks) == 1 else []
    returns = returns or [f"y_{place}{mark}" for place, mark in enumerate(marks)]
    returns += [arg.name + _mark(arg) for arg in schema.arguments if arg.name in written_in(schema)]
    return f"{name}({inputs}{'; ' + attrs if attrs else ''}) -> {', '.join(returns) or 'nothing'}"


def _mark(argument: Any) -> str:
    text = str(argument.type)
    return "*" if text.startswith(("List", "Optional[List")) else "?" if text.startswith("Optional") else ""


def _kind(argument: Any) -> str | None:
    text = str(argument.real_type)
    inner = re.fullmatch(r"Optional\[(.*)\]", text)
    return _KINDS.get(inner[1] if inner else text)


def _attribute(argument: Any) -> str:
    """None is left out. Types have other numbers in the IR, and are written wherever they are given."""
    kind = _kind(argument)
    default = argument.default_value if argument.has_default_value() and kind != "Type" else None
    return f"{argument.name}: {kind} = {default!r}"


# The converter and the kernel


def _converter(target: OpOverload, proto: Prototype) -> Fn:
    """The call of the operator as its IR op, which the operator itself runs."""

    def convert(*args: Any, meta_outputs: Any = None, **kwargs: Any) -> Any:
        names = [arg.name for arg in target._schema.arguments if not arg.kwarg_only]
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        inputs = {param.name: given.get(param.name) for param in proto.inputs}
        lists = {param.name for param in proto.inputs if param.kind == "dynamic"}
        inputs = {name: value for name, value in inputs.items() if value is not None or name not in lists}
        attrs = _attributes(proto, given)
        if f"kernel of {proto.name}" not in EXTENSIONS:
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
