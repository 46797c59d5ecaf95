"""Writes the reference pages that are read off the code: `make docs`. A structure test fails when one is old.

| page | from |
| --- | --- |
| `errors.md` | `torchair/core/errors.py` and the cures below |
| `api.md` | `__all__` and the docstrings of the public modules |
| `options.md` | the rows in `torchair/configs/groups/` |
| `ops.md` | the registry of converters |
| `environment.md` | the rows in `torchair/core/environment.py` |
| `passes.md` | the lists of passes, and the replacements of patterns |
"""

from __future__ import annotations

import enum
import importlib
import inspect
import re
import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from types import ModuleType
from typing import Any

import torchair.backend.pipeline.compile  # noqa: F401 - fills the registries as a user's import does
from torchair.configs import reference
from torchair.convert.base.emitted_ops import emitted_by_target
from torchair.convert.base.registry import opaque_reasons, parted_targets
from torchair.core import errors
from torchair.core.environment import VARIABLES
from torchair.core.registries.lazy_registry import BACKENDS, NAMESPACES
from torchair.core.text_table import markdown_lines
from torchair.passes import DYNAMO_PASSES, FX_PASSES, GE_PASSES, LOWERED_PASSES, Step
from torchair.passes.patterns.sets.builtin import rules
from torchair.passes.patterns.sets.pre_grad_fusions import FUSIONS

REFERENCE = Path(__file__).resolve().parent / "reference"

# In the order of the page: what users meet first comes first. Names, or all of `__all__`.
PUBLIC_MODULES: dict[str, tuple[str, ...] | None] = {
    "torchair": None,
    "torchair.inference": None,
    "torchair.scope": None,
    "torchair.ops": None,
    "torchair.llm_datadist": None,
    "torchair.npugraph_ex": None,
    "torchair.npugraph_ex.inference": None,
    "torchair.npugraph_ex.scope": None,
    "torchair.npugraph_ex.ops": None,
    "torchair.sim": None,
    "torchair.configs.compiler_config": ("CompilerConfig",),
    "torchair.debug": ("compare",),
    "torchair.ge": None,
    "torchair.ge.attr": None,
    "torchair.ge.prototype": ("register_prototype",),
    "torchair.core.utils": None,
    "torchair.tools.gegraph_check.filter_operators": ("filter_comm_ops",),
    "torchair.tools.gegraph_check.deadlock_check": ("deadlock_check",),
    "torchair.tools.gegraph_check.align_trace": ("align_trace_json",),
    "torchair._ge_concrete_graph.ge_graph": None,
    "torchair._ge_concrete_graph.utils": None,
    "torchair._ge_concrete_graph.fx2ge_converter": None,
    "torchair._ge_concrete_graph.supported_declaration": None,
}

CURES = {
    "AirError": (
        "Read the lines below the first one: `at` is your source line, `got` is what was there, `near` is "
        "what would work, `next` is what to do. Catch this class to catch everything torchair raises on "
        "purpose."
    ),
    "CannotBuild": (
        "The first line has the compiler's own words. Install g++ or clang++ (the environment variable CXX "
        "names another one), and see that the cache directory can be written."
    ),
    "BadGroup": (
        "Ops that compute and communicate know a group by the name that torch's functional collectives know "
        "it by: start every process with `torch.distributed.init_process_group`, and give "
        "`group.group_name`, the size of the group and this process's rank. To trace or export in one "
        'process, make a group with torch\'s "fake" backend.'
    ),
    "DeviceTaken": (
        "A process has one `npu` device. Install the simulated one before anything else brings a device, "
        "once, and not beside the vendor's `torch_npu`."
    ),
    "PluginTaken": (
        "The vendor's plug-in answers to `import torch_npu`. On a machine with the hardware use it; on one "
        "without, uninstall it (`pip uninstall torch_npu`) before the simulated one is installed."
    ),
    "Degraded": (
        "The first line says what would be less than promised, `at` where, `next` what to do about it. Or "
        "leave strict mode: `engine_config.strict`, and TORCHAIR_STRICT in the environment."
    ),
    "UnknownOption": (
        "The message names the closest option or group and lists the others; see [the options "
        "page](options.md)."
    ),
    "BadOption": (
        "Compare the name with [the options page](options.md): the message lists the valid names or values "
        "and, for a name, the closest one. Options are checked when they are assigned, so the failing line "
        "is the one that sets it."
    ),
    "BadOptionType": (
        "Pass the Python type that the message names; options are values, not text to be parsed."
    ),
    "BadPath": (
        "Create the file or directory first, or correct the path: relative paths start at the working "
        "directory."
    ),
    "UnknownOp": (
        "Check the spelling: IR op types are case-sensitive (`MatMulV2`), and the message names the nearest "
        "ones. Declare an op of your own with `torchair.ge.prototype.register_prototype"
        '("Name(x, y?; k: Int = 1) -> z")`.'
    ),
    "BadPrototype": (
        "`at` names the file and the line, `got` what stands there, `near` what is expected. Correct the "
        "header, and run `python -m torchair codegen` again."
    ),
    "BadAttribute": (
        "`near` is the whole prototype of the op: use the attributes it lists, with values of the kind it "
        "names; `torchair.ge.attr` has a class for each kind."
    ),
    "BadInput": (
        "`near` is the whole prototype of the op: give every required input in that order, a list where it "
        "says `*`. Numbers, lists, numpy arrays and torch tensors become constants, nothing else does."
    ),
    "BadGraph": (
        "The message names the op and, where it is known, your source line. If you have a pass of your own, "
        "set `config.engine_config.verify = True`: the graph is then checked after every pass, and "
        "`logger.setLevel(logging.DEBUG)` lists the passes that left it whole. A graph that was read from a "
        "file or from text is refused as a whole, nothing of it is kept."
    ),
    "BadConverter": (
        "Make the converter return as many tensors as the op does, with the same dtypes and shapes; insert "
        "`ge.Cast` or `ge.Reshape` where they differ. The message shows both sides. A converter that cannot "
        "serve a call raises `NotImplementedError(reason)`: then the next one is tried."
    ),
    "BadKernel": (
        "Give the function one positional parameter for each input of the op, and a keyword-only one for "
        "each attribute it reads. `near` is the prototype of the op, or the annotations that inputs may have "
        "([five minutes](../develop/kernel.md))."
    ),
    "UnsupportedOp": (
        "Add a kernel ([five minutes](../develop/kernel.md)), or convert to IR ops that have one. An ATen op "
        "never meets this, because it runs as it is when nothing converts it; IR ops that you build yourself "
        "and attributes that a kernel does not know do."
    ),
    "BadPass": (
        "The message names the pass and the option that brought it. A pass must leave a valid graph: every "
        "value defined before its use. Print `gm.graph` at the end of your pass and compare."
    ),
    "BadGears": (
        "Set gears on the inputs of the first call, each a list of 2 to 100 sizes among which is that of the "
        "call; lists that are zipped are equally long."
    ),
    "BadCall": (
        "Call with the shapes and memory layouts that the graph was recorded with. Through `torch.compile` "
        "this cannot happen, as its guards compile again; it happens to direct calls of a compiled graph "
        "(`get_compiler`, `npugraph_ex.compile_fx`)."
    ),
    "NotPossible": (
        'Do what `next` says, often: use another `config.engine_config.codegen` (`"inductor"` instead of '
        '`"native"`). Nothing was half done. A code generator that cannot serve a graph is followed by the '
        "next one, with a `DegradedWarning`."
    ),
    "NotTrusted": (
        "Name a directory of your own that others cannot write, or close it (`chmod go-w`): what lies there "
        "is run as code. A file that was copied by hand needs mode 600."
    ),
    "BadEntry": (
        "Nothing needs to be done where `cache_compile` meets it: the entry is compiled again. A file that "
        "was named must be made again; `python -m torchair cache verify` finds the damaged ones."
    ),
    "NotInThisMode": (
        "Choose a value that this mode serves, or the mode that serves the value: `next` names both. In "
        'capture mode, `debug.graph_dump.type` is `"py"`.'
    ),
    "DegradedWarning": (
        "The result is right; the text says what it costs and why. Mend the cause, or report it: a stage of "
        'torchair has failed. `warnings.simplefilter("error", torchair.DegradedWarning)` stops where it is '
        "given."
    ),
}


def error_classes() -> list[type[Exception]]:
    """All error classes, in the order of the source file."""
    found = [
        value
        for value in vars(errors).values()
        if inspect.isclass(value) and issubclass(value, (errors.AirError, Warning))
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
        is_warning = issubclass(error, Warning)
        lines += ["", f"## {error.__name__}", "", _text(error)]
        lines += ["", f"Caught by `except {builtin}`."] if builtin != "Exception" and not is_warning else []
        lines += ["", f"**Cure.** {CURES[error.__name__]}"]
    return "\n".join(lines) + "\n"


def api_page() -> str:
    """One heading per public name, with signature and docstring."""
    lines = [
        "# Public names",
        "",
        "Everything below is stable; what is not listed may change without notice.",
        "",
        "In torch, `import torchair` changes nothing but this: `torch.compile` knows the backends",
        f"{_listed(BACKENDS)}, and `torch.ops` has the namespaces {_listed(NAMESPACES)}.",
        "With the first backend that is made, graphs have the collectives of `torch.distributed`, too.",
        "An `npu` device, `torch.npu` and `import torch_npu` are there once `torchair.sim.install()` was",
        "called.",
    ]
    for name in PUBLIC_MODULES:
        module = importlib.import_module(name)
        lines += ["", f"## {name}", "", _text(module)]
        for public in public_names(module):
            lines += ["", f"### {name}.{public}", "", *_entry(public, getattr(module, public))]
    return "\n".join(lines) + "\n"


def _listed(names: Sequence[str]) -> str:
    *most, last = (f"`{name}`" for name in names)
    return f"{', '.join(most)} and {last}"


def public_names(module: ModuleType) -> list[str]:
    """The public names of a module; submodules have a heading of their own."""
    names = PUBLIC_MODULES[module.__name__] or module.__all__
    return [name for name in sorted(names) if not inspect.ismodule(getattr(module, name))]


def _entry(name: str, value: object) -> list[str]:
    if isinstance(value, enum.EnumMeta):
        return [f"`{', '.join(value.__members__)}`", "", _text(value)]
    if isinstance(value, int | str):
        return [f"`{value!r}`"]
    if not callable(value):
        return [f"`{type(value).__name__}`", "", _text(type(value))]
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


def ops_page() -> str:
    """What becomes of each op: a row per FX target with a converter of ours, by namespace, then the rest."""
    emitted = {_target_name(target): ops for target, ops in emitted_by_target().items()}
    lines = [
        "# Converted ops",
        "",
        f"{len(emitted)} overloads and functions have a converter of ours. The right column names the GE",
        "ops that the converter can emit; which of them it does depends on dtypes, shapes and arguments.",
        "Casts, constants and sizes that operands need are named only where nothing else is. At the end are",
        "the ops that are taken apart here, and those that the IR cannot express. An op in none of the lists",
        "is taken apart by torch's own decomposition or, where it has none, runs as it is (`TorchOp`);",
        "`torchair.explain` says which it was in a model, and why.",
    ]
    for namespace, names in groupby(sorted(emitted), key=lambda name: name.split(".")[0]):
        rows = [(f"`{name}`", ", ".join(emitted[name]) or "none: checked, or run as it is") for name in names]
        lines += ["", f"## {namespace}", "", *markdown_lines(("op", "GE ops"), rows)]
    parted = sorted(map(_target_name, parted_targets()))
    lines += [
        "",
        "## Taken apart",
        "",
        "torch has no decomposition of these; ours is converted in their place.",
    ]
    lines += ["", ", ".join(f"`{name}`" for name in parted)]
    reasons = sorted((f"`{_target_name(target)}`", why) for target, why in opaque_reasons().items())
    lines += ["", "## Carried through as they are", "", *markdown_lines(("op", "reason"), reasons)]
    return "\n".join(lines) + "\n"


def _target_name(target: Any) -> str:
    """`aten.add.Tensor` for an overload, `operator.add` for a function."""
    if not hasattr(target, "__module__") or not callable(target) or hasattr(target, "overloadpacket"):
        return str(target)
    return f"{target.__module__.removeprefix('_')}.{target.__name__}"


def environment_page() -> str:
    """A row per environment variable."""
    rows = [
        (f"`{row.name}`", f"`{row.default}`" if row.default else "", row.read, row.does)
        for row in VARIABLES.values()
    ]
    lines = [
        "# Environment variables",
        "",
        "A variable that is not set, or is empty, has its default. Switches are on by `1`, `true`, `yes`,",
        "`on` and off by `0`, `false`, `no`, `off`, in any case; `TORCH_COMPILE_DEBUG` is torch's own and is",
        "on by `1` alone.",
        "",
        *markdown_lines(("variable", "default", "read", "does"), rows),
    ]
    return "\n".join(lines) + "\n"


PASSES_INTRO = """# Passes of graph mode

In the order in which they run. `config.ge_config.optimization_switch = "name:off;other:on"` switches them by
these names, as does a file (`config.fusion_config.fusion_switch_file`), over which the text wins. A *fusion*
is off at `ge_config.oo_level = "O1"` and where the file says `"GraphFusion": {"ALL": "off"}`, unless it is on
by its own name. A *mandatory* pass stays on: others count on it, and a `DegradedWarning` says so. Names of
the Ascend engine's own passes are handed on to the engine; a name that nobody knows is kept, and told once.
`ge_config.export_compile_stat` counts what each of them found and changed.
"""

FUSIONS_INTRO = """## Fusions of `apply_pattern_passes`

Widest first. At level O1 the name of the pass, switched on, stands for all of them that are not named. A
user's replacement (`torchair.register_replacement`) has the name of the function that says what to find.
"""


def passes_page() -> str:
    """The names by which the passes and fusions of graph mode can be switched."""
    lines = [PASSES_INTRO]
    lists = {
        "The graph of Dynamo (`experimental_config.npu_fx_pass`)": DYNAMO_PASSES,
        "The FX graph": FX_PASSES,
        "The IR": GE_PASSES,
        "FX', before `eager` is made": LOWERED_PASSES,
    }
    columns = ("name", "kind", "what it does")
    for title, listed in lists.items():
        lines += [f"## {title}", "", *markdown_lines(columns, map(_pass_cells, listed)), ""]
    found = [(f"`{rule.name}`", ", ".join(f"`{op}`" for op in rule.ops)) for rule in rules()]
    lines += [FUSIONS_INTRO, *markdown_lines(("name", "ops of the `npu` library"), found)]
    early = [(f"`{fusion.name}`", f"`{fusion.op}`") for fusion in FUSIONS]
    lines += ["", "## Fusions of `fuse_before_autograd`", ""]
    lines += markdown_lines(("name", "op of the `npu` library"), early)
    return "\n".join(lines) + "\n"


def _pass_cells(step: Step) -> tuple[str, str, str]:
    """A pass says what it does at the head of its file; where that has several, each says so itself."""
    passes = {item.fn for item in (*DYNAMO_PASSES, *FX_PASSES, *GE_PASSES, *LOWERED_PASSES)}
    alone = sum(other.__module__ == step.fn.__module__ for other in passes) == 1
    about = _text(sys.modules[step.fn.__module__] if alone else step.fn).partition("\n\n")[0]
    mark = "mandatory" if step.mandatory else "fusion" if step.fusion else ""
    return f"`{step.title}`", mark, about.replace("\n", " ")


PAGES = {
    "errors.md": errors_page,
    "api.md": api_page,
    "options.md": reference.page,
    "ops.md": ops_page,
    "environment.md": environment_page,
    "passes.md": passes_page,
}


if __name__ == "__main__":
    for page, write in PAGES.items():
        (REFERENCE / page).write_text(write(), encoding="utf-8")
        print(f"docs/reference/{page}")
