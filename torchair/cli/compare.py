"""Run `python -m torchair compare script.py:function`: find the source of wrong numbers."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from torchair.compare.compare import AGAINST, compare
from torchair.configs.compiler_config import CompilerConfig
from torchair.configs.option import ALL_MODES
from torchair.core.errors import BadCall, BadPath

DESCRIPTION = """Runs a model eagerly and through every stage of its compile, and reports the first stage,
node and culprit with different numbers. The exit status is 0 if all stages are equal, 1 if one differs, 2 if
the comparison fails."""
EXPECTED = (
    "a function that returns (model, args) or (model, args, kwargs); args is a tuple, a dict or one tensor"
)


def declare(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to the parser."""
    parser.description = DESCRIPTION
    parser.add_argument("function", metavar="SCRIPT.py:FUNCTION", help=EXPECTED)
    parser.add_argument("--against", choices=AGAINST, default="eager", help="the reference values")
    parser.add_argument("--mode", choices=ALL_MODES, help="the mode to compile in; the default is graph mode")
    parser.add_argument("--codegen", help="the code generator, as in engine_config.codegen")
    parser.add_argument(
        "--tolerance", nargs=2, type=float, metavar=("RELATIVE", "ABSOLUTE"), help="for all float types"
    )
    parser.add_argument("--backward", action="store_true", help="also compare gradients")
    parser.add_argument("--dynamic", action="store_true", help="compile with symbolic sizes")
    parser.add_argument(
        "--every-node", action="store_true", help="also compare the nodes of stages with equal outputs"
    )
    parser.add_argument("--save", metavar="FILE", help="write a script that reproduces the difference")


def run(given: argparse.Namespace) -> int:
    """Compare and return the exit status."""
    model, args, kwargs = call_of(function_of(given.function)())
    config = CompilerConfig()
    if given.mode is not None:
        config.mode = given.mode
    if given.codegen is not None:
        config.engine_config.codegen = given.codegen
    found = compare(
        model,
        *args,
        config=config,
        tolerances=None if given.tolerance is None else tuple(given.tolerance),
        against=given.against,
        dynamic=True if given.dynamic else None,
        backward=given.backward,
        every_node=given.every_node,
        **kwargs,
    )
    print(found)
    if given.save is not None:
        print(f"written: {found.save(given.save)}")
    return int(not found.ok)


def function_of(text: str) -> Callable[[], Any]:
    """Return the function that `script.py:function` names; the script is imported as a module."""
    path, _, name = text.rpartition(":")
    file = Path(path)
    if not name or file.suffix != ".py":
        raise BadCall(f"{text!r} does not name a function in a script", next="write script.py:function")
    if not file.is_file():
        raise BadPath(f"there is no script {path!r}", next="name an existing .py file")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None, "a .py file has a loader"
    module = importlib.util.module_from_spec(spec)
    # The script may import modules from its directory, and Dynamo looks modules up by name.
    sys.path.insert(0, str(file.parent.resolve()))
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        names = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise BadCall(f"{path} has no function {name!r}", near=", ".join(names), next=EXPECTED)
    return function


def call_of(made: Any) -> tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]]:
    """Return the model, the arguments and the keyword arguments from the result of the function."""
    if not isinstance(made, tuple | list) or len(made) not in (2, 3) or not callable(made[0]):
        raise BadCall(
            "the function did not return a model and its arguments", got=repr(made)[:80], next=EXPECTED
        )
    model, args = made[:2]
    kwargs: Mapping[str, Any] = made[2] if len(made) == 3 else {}
    if isinstance(args, Mapping):
        args, kwargs = (), {**args, **kwargs}
    return model, (args,) if isinstance(args, torch.Tensor) else tuple(args), kwargs
