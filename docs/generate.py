"""Writes the reference pages that are read off the code: `make docs`. A structure test fails when one is old.

`docs/reference/errors.md` comes from `torchair/core/errors.py` and the cures below, `docs/reference/api.md`
from the `__all__` and the docstrings of the public modules.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import re
from pathlib import Path
from types import ModuleType

from torchair.core import errors

REFERENCE = Path(__file__).resolve().parent / "reference"

# In the order of the page: what users meet first comes first.
PUBLIC_MODULES = (
    "torchair",
    "torchair.configs.compiler_config",
    "torchair.npugraph_ex",
    "torchair.inference",
    "torchair.scope",
    "torchair.ops",
    "torchair.ge",
    "torchair.ge.attr",
)

CURES = {
    "AirError": (
        "Read the lines below the first one: `at` is your source line, `got` is what was there, `near` is"
        " what would work, `next` is what to do. Catch this class to catch everything torchair raises on "
        "purpose."
    ),
    "BadOption": (
        "Compare the name with [the options page](options.md); the message lists the allowed values and "
        "the closest name. Options are checked when they are assigned, so the failing line is the one "
        "that sets it."
    ),
    "BadOptionType": (
        "Pass the Python type that the message names; options are values, not text to be parsed."
    ),
    "BadPath": (
        "Create the file or directory first, or correct the path: relative paths start at the working "
        "directory."
    ),
    "UnknownOp": (
        "Check the spelling: IR op types are case-sensitive (`MatMulV2`). For an op that only your device"
        " knows, build it with `torchair.ge.custom_op`."
    ),
    "BadAttribute": (
        "Use the attributes the message lists; wrap values in `torchair.ge.attr` types where kinds differ."
    ),
    "BadInput": (
        "Give every required input in prototype order; numbers, lists and torch tensors become constants."
    ),
    "BadGraph": (
        "If a pass of yours ran last, look there first: the message names it. Otherwise please report it "
        'with the text of the graph (`config.debug.graph_dump.type = "py"`).'
    ),
    "BadConverter": (
        "Make the converter return as many tensors as the FX node does, with the same dtypes and shapes; "
        "insert `ge.Cast` or `ge.Reshape` where they differ. The message shows both sides."
    ),
    "UnsupportedOp": (
        "Do what `near` offers, or register a converter ([five minutes](../develop/converter.md)). "
        "Running a model never needs this: an op without a converter runs as it is. Only exports and "
        "hand-built graphs do."
    ),
    "BadPass": (
        "Run the pass alone on the graph text in the message. A pass must keep the graph valid: every "
        "used value defined before its use, outputs unchanged in number."
    ),
    "BadCall": (
        "Call with the shapes, dtypes and devices the graph was compiled for, or compile with "
        "`dynamic=True`. Through `torch.compile` this cannot happen; it happens to direct calls of a "
        "compiled graph."
    ),
    "NotPossible": (
        "Choose another mode or device as the message says, or drop the request: nothing was half done."
    ),
}


def error_classes() -> list[type[Exception]]:
    """All error classes, in the order of the source file."""
    found = [
        value
        for value in vars(errors).values()
        if inspect.isclass(value) and issubclass(value, errors.AirError)
    ]
    return [value for value in found if value.__module__ == errors.__name__]


def errors_page() -> str:
    """One heading per error class: what it means, which built-in catches it, what to do."""
    lines = [
        "# Errors",
        "",
        "Every error is a short letter: what failed, then `at` (your line), `got` (what was there), `near`",
        "(what would work), `next` (what to do). Each class is also a built-in: `except ValueError` works.",
    ]
    for error in error_classes():
        builtin = next(base.__name__ for base in error.__mro__ if base.__module__ == "builtins")
        lines += ["", f"## {error.__name__}", "", _text(error)]
        lines += ["", f"Caught by `except {builtin}`."] if builtin != "Exception" else []
        lines += ["", f"**Cure.** {CURES[error.__name__]}"]
    return "\n".join(lines) + "\n"


def api_page() -> str:
    """One heading per public name, with signature and docstring."""
    lines = [
        "# Public names",
        "",
        "Everything below is stable; what is not listed may change without notice.",
    ]
    for name in PUBLIC_MODULES:
        module = importlib.import_module(name)
        lines += ["", f"## {name}", "", _text(module)]
        for public in public_names(module):
            lines += ["", f"### {name}.{public}", "", *_entry(public, getattr(module, public))]
    return "\n".join(lines) + "\n"


def public_names(module: ModuleType) -> list[str]:
    """The names of `__all__`; submodules have a heading of their own."""
    return [name for name in sorted(module.__all__) if not inspect.ismodule(getattr(module, name))]


def _entry(name: str, value: object) -> list[str]:
    if not callable(value) or isinstance(value, enum.EnumMeta):
        shown = ", ".join(value.__members__) if isinstance(value, enum.EnumMeta) else type(value).__name__
        return [f"`{shown}`", "", _text(value if isinstance(value, type) else type(value))]
    return ["```python", f"{name}{_signature(value)}", "```", "", _text(value)]


def _signature(value: object) -> str:
    """As written in the source, without addresses of default objects."""
    try:
        text = str(inspect.signature(value))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return "(...)"
    return re.sub(r" at 0x[0-9a-f]+", "", text).replace("'", "")


def _text(value: object) -> str:
    return inspect.cleandoc(getattr(value, "__doc__", None) or "")


PAGES = {"errors.md": errors_page, "api.md": api_page}


if __name__ == "__main__":
    for page, write in PAGES.items():
        (REFERENCE / page).write_text(write(), encoding="utf-8")
        print(f"docs/reference/{page}")
