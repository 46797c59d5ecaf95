"""The options of `auto_gears`, which are validated when it is called, not when the model is called."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from torchair.backend.specialize.size_buckets import MOST
from torchair.configs.compiler_config import CompilerConfig
from torchair.core.errors import BadGears
from torchair.inference._padding.output_crop import Declared


@dataclass(frozen=True)
class BucketOptions:
    """The arguments of `auto_gears`."""

    dims: Mapping[str, int]
    pad: Mapping[str, Any]
    crop: bool | Declared
    most: int
    waste: float
    after: int
    check: bool
    memory_bytes: int | None
    seconds: float | None

    @property
    def may_pad(self) -> bool:
        """Whether each named argument has a padding value."""
        return set(self.dims) <= set(self.pad)


def signature_of(model: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a model; raise `BadGears` if it has none."""
    if not callable(model):
        raise BadGears("auto_gears() expects a module or a function as its model", got=type(model).__name__)
    try:
        return inspect.signature(model.forward if isinstance(model, nn.Module) else model)
    except (TypeError, ValueError) as error:
        raise BadGears(
            "auto_gears() cannot determine the argument names of the model",
            got=repr(model),
            next="wrap the model in a function, for example lambda x: model(x)",
        ) from error


def checked(options: BucketOptions, model: Callable[..., Any], config: Any) -> BucketOptions:
    """Return the options; raise `BadGears` if one is invalid."""
    if not isinstance(config, CompilerConfig):
        raise BadGears("'config' must be a torchair.CompilerConfig", got=type(config).__name__)
    if config.mode.value not in (None, "max-autotune"):
        raise BadGears(
            "auto_gears() requires graph mode",
            got=f"mode {config.mode.value!r}",
            next="leave config.mode unset, or set it to 'max-autotune'",
        )
    _check_dims(options.dims, signature_of(model).parameters)
    _check_pad(options)
    _check_crop(options.crop)
    _check_numbers(options)
    return options


def _check_dims(dims: Any, parameters: Mapping[str, inspect.Parameter]) -> None:
    if not isinstance(dims, Mapping) or not dims:
        raise BadGears(
            "'dims' must map argument names to dimensions", got=repr(dims), next='for example dims={"x": 1}'
        )
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    known = [name for name, each in parameters.items() if each.kind not in several]
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    for name, dim in dims.items():
        if not _is_int(dim):
            raise BadGears(f"the dimension of {name!r} in 'dims' must be an int", got=repr(dim))
        is_any = isinstance(name, str) and takes_any and name not in parameters
        if name not in known and not is_any:
            raise BadGears(f"the model has no argument {name!r}", near=", ".join(known))


def _check_pad(options: BucketOptions) -> None:
    if not isinstance(options.pad, Mapping):
        raise BadGears("'pad' must map argument names to padding values", got=repr(options.pad))
    for name, value in options.pad.items():
        if name not in options.dims:
            raise BadGears(
                f"'pad' has the argument {name!r}, which is not in 'dims'", near=", ".join(options.dims)
            )
        if not isinstance(value, bool | int | float | complex):
            raise BadGears(f"the padding value of {name!r} must be a number", got=repr(value))


def _check_crop(crop: Any) -> None:
    if isinstance(crop, bool):
        return
    if not isinstance(crop, Mapping):
        raise BadGears(
            "'crop' must be True, False or a dict of outputs and dimensions",
            got=repr(crop),
            next='for example crop={"logits": 1}',
        )
    for key, dims in crop.items():
        listed = dims if isinstance(dims, list | tuple) else [dims]
        if not all(map(_is_int, listed)) or not (isinstance(key, str) or _is_int(key)):
            raise BadGears(
                "'crop' must map names or indices of outputs to dimensions", got=f"{key!r}: {dims!r}"
            )


def _check_numbers(options: BucketOptions) -> None:
    if not _is_int(options.most) or not 1 <= options.most <= MOST:
        raise BadGears(f"'most' must be between 1 and {MOST}", got=repr(options.most))
    if not _is_int(options.after) or options.after < 0:
        raise BadGears("'after' must be a nonnegative int, the number of calls", got=repr(options.after))
    if not isinstance(options.check, bool):
        raise BadGears("'check' must be True or False", got=repr(options.check))
    _check_number("waste", options.waste)
    if math.isinf(options.waste):
        raise BadGears("'waste' must be finite", got=repr(options.waste))
    for name, number in (("memory_bytes", options.memory_bytes), ("seconds", options.seconds)):
        if number is not None:
            _check_number(name, number)


def _check_number(name: str, number: Any) -> None:
    if not (_is_int(number) or isinstance(number, float)) or not number >= 0:
        raise BadGears(f"{name!r} must be a nonnegative number", got=repr(number))


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
