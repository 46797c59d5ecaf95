"""Run `python -m torchair sim script.py`: run an NPU script on a simulated device."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from torchair.core.environment import text_of
from torchair.core.errors import BadCall, BadPath
from torchair.sim import path as children
from torchair.sim.autoload import BACKING, DEVICES, MEMORY, provided
from torchair.sim.install import BACKINGS
from torchair.sim.install import MEMORY as BYTES

DESCRIPTION = """Runs a script or a module, as python would, with a simulated npu device in its process and in
its child processes: `import torch_npu` and `device="npu"` work."""

_FOR_CHILDREN = str(Path(children.__file__).parent)


def declare(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to the parser."""
    parser.description = DESCRIPTION
    parser.usage = (
        "python -m torchair sim [--devices N] [--backing cpu|cuda] [--memory BYTES] SCRIPT.py|-m MODULE ..."
    )
    parser.add_argument("--devices", type=int, default=8, metavar="N", help="number of simulated devices")
    parser.add_argument("--backing", choices=BACKINGS, default="cpu", help="the device that runs the kernels")
    parser.add_argument("--memory", type=int, default=BYTES, metavar="BYTES", help="memory of each device")
    parser.add_argument(
        "-m", dest="module", nargs=argparse.REMAINDER, metavar="MODULE", help="a module and its arguments"
    )
    parser.add_argument("script", nargs="?", metavar="SCRIPT.py")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="arguments of the script")


def run(given: argparse.Namespace) -> int:
    """Run the script and return the exit status; 1 means that the script raised an error."""
    if given.module is not None:
        name, *arguments = given.module or [""]
        code, main = _module(name)
        place = os.getcwd()
    elif given.script is not None:
        name, arguments = given.script, given.arguments
        code, main = _script(name)
        place = str(Path(name).resolve().parent)
    else:
        raise BadCall(
            "no script to run",
            next="run: python -m torchair sim SCRIPT.py, or python -m torchair sim -m MODULE",
        )
    _for_children(given)
    provided()
    sys.argv[:] = [str(main.__file__) if given.module is not None else name, *arguments]
    sys.path[0] = place
    sys.path.append(_FOR_CHILDREN)  # multiprocessing passes sys.path to child processes that it spawns
    return _run(code, main)


def _script(name: str) -> tuple[bytes, ModuleType]:
    path = Path(name)
    if path.is_dir():
        path = path / "__main__.py"
    if not path.is_file():
        raise BadPath(f"cannot open file {name!r}: there is no such script", next="name an existing script")
    return path.read_bytes(), _main(name)


def _module(name: str) -> tuple[CodeType, ModuleType]:
    sys.path.insert(0, os.getcwd())
    try:
        spec = importlib.util.find_spec(name) if name else None
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__")
    except ModuleNotFoundError:
        spec = None
    finally:
        sys.path.pop(0)
    loader: Any = spec.loader if spec is not None else None
    code = loader.get_code(spec.name) if spec is not None and hasattr(loader, "get_code") else None
    if spec is None or code is None:
        raise BadCall(
            f"there is no module {name!r} that can be run", next="name an importable module after -m"
        )
    main = _main(spec.origin or name)
    main.__spec__, main.__package__ = spec, spec.parent
    return code, main


def _main(file: str) -> ModuleType:
    main = ModuleType("__main__")
    main.__file__, main.__spec__, main.__package__ = file, None, None
    vars(main)["__builtins__"] = __builtins__
    return main


def _for_children(given: argparse.Namespace) -> None:
    """Let child processes of the script find a `torch_npu` of the same kind."""
    before = text_of("PYTHONPATH")
    os.environ.update(
        {
            "PYTHONPATH": os.pathsep.join([_FOR_CHILDREN, *([before] if before else [])]),
            DEVICES: str(given.devices),
            BACKING: given.backing,
            MEMORY: str(given.memory),
        }
    )


def _run(code: CodeType | bytes, main: ModuleType) -> int:
    """Run the code as Python does: a traceback begins with the script."""
    ours, sys.modules["__main__"] = sys.modules["__main__"], main
    try:
        if isinstance(code, bytes):
            code = compile(code, str(main.__file__), "exec", dont_inherit=True)
        exec(code, vars(main))
    except Exception as error:
        own = error.__traceback__.tb_next if error.__traceback__ is not None else None
        sys.excepthook(type(error), error.with_traceback(own), own)
        return 1
    assert ours is not main, "the module of this command must not be replaced"
    return 0
