"""What a user asks of `auto_gears`, and what is wrong with it: told where it is said, never in a call."""

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
class Wishes:
    """What the user said."""

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
        """Has each argument a value to fill up with?"""
        return set(self.dims) <= set(self.pad)


def signature_of(model: Callable[..., Any]) -> inspect.Signature:
    """Of its arguments."""
    if not callable(model):
        raise BadGears("a model is a module or a function", got=type(model).__name__)
    try:
        return inspect.signature(model.forward if isinstance(model, nn.Module) else model)
    except (TypeError, ValueError) as error:
        raise BadGears(
            "nobody can tell the names of the model's arguments",
            got=repr(model),
            next="wrap it in a function: lambda x: model(x)",
        ) from error


def checked(wishes: Wishes, model: Callable[..., Any], config: Any) -> Wishes:
    """The wishes, if they can be met."""
    if not isinstance(config, CompilerConfig):
        raise BadGears("config is a CompilerConfig", got=type(config).__name__)
    if config.mode.value not in (None, "max-autotune"):
        raise BadGears("gears are of graph mode", got=f"mode {config.mode.value!r}")
    _check_dims(wishes.dims, signature_of(model).parameters)
    _check_pad(wishes)
    _check_crop(wishes.crop)
    _check_numbers(wishes)
    return wishes


def _check_dims(dims: Any, parameters: Mapping[str, inspect.Parameter]) -> None:
    if not isinstance(dims, Mapping) or not dims:
        raise BadGears("dims names arguments and the dimension of each", got=repr(dims))
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    known = [name for name, each in parameters.items() if each.kind not in several]
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    for name, dim in dims.items():
        if not _is_int(dim):
            raise BadGears(f"the dimension of {name} is an int", got=repr(dim))
        is_any = isinstance(name, str) and takes_any and name not in parameters
        if name not in known and not is_any:
            raise BadGears(f"the model has no argument {name!r}", near=", ".join(known))


def _check_pad(wishes: Wishes) -> None:
    if not isinstance(wishes.pad, Mapping):
        raise BadGears("pad names arguments and what fills up each", got=repr(wishes.pad))
    for name, value in wishes.pad.items():
        if name not in wishes.dims:
            raise BadGears(f"pad names {name!r}, which dims does not", near=", ".join(wishes.dims))
        if not isinstance(value, bool | int | float | complex):
            raise BadGears(f"what fills up {name} is a number", got=repr(value))


def _check_crop(crop: Any) -> None:
    if isinstance(crop, bool):
        return
    if not isinstance(crop, Mapping):
        raise BadGears('crop is True, False or a dict of outputs, as {"logits": 1}', got=repr(crop))
    for key, dims in crop.items():
        wanted = dims if isinstance(dims, list | tuple) else [dims]
        if not all(map(_is_int, wanted)) or not (isinstance(key, str) or _is_int(key)):
            raise BadGears("crop has names or places of outputs, and dimensions", got=f"{key!r}: {dims!r}")


def _check_numbers(wishes: Wishes) -> None:
    if not _is_int(wishes.most) or not 1 <= wishes.most <= MOST:
        raise BadGears(f"there are 1 to {MOST} gears at most", got=repr(wishes.most))
    if not _is_int(wishes.after) or wishes.after < 0:
        raise BadGears("after is a number of calls, 0 and more", got=repr(wishes.after))
    if not isinstance(wishes.check, bool):
        raise BadGears("check is True or False", got=repr(wishes.check))
    _check_number("waste", wishes.waste)
    if math.isinf(wishes.waste):
        raise BadGears("waste is a finite number of 0 and more", got=repr(wishes.waste))
    for what, number in (("memory_bytes", wishes.memory_bytes), ("seconds", wishes.seconds)):
        if number is not None:
            _check_number(what, number)


def _check_number(what: str, number: Any) -> None:
    if not (_is_int(number) or isinstance(number, float)) or not number >= 0:
        raise BadGears(f"{what} is a number of 0 and more", got=repr(number))


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
