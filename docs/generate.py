"""Writes the reference pages that are read off the code: `make docs`. A structure test fails when one is old.

| page | from |
| --- | --- |
| `errors.md` | `torchair/core/errors.py` and the cures below |
| `api/` | `__all__` and the docstrings of the public modules; the site renders them with mkdocstrings |
| `options.md` | the rows in `torchair/configs/groups/` |
| `ops.md` | the registry of converters |
| `environment.md` | the rows in `torchair/core/environment.py` |
| `passes.md` | the lists of passes, and the replacements of patterns |
"""

from __future__ import annotations

import enum
import functools
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
        "Read the lines below the first one. `at` is your source line, `got` the actual value, `near` a "
        "value that works, `next` the next step. Catch this class to catch every error that torchair raises "
        "on purpose."
    ),
    "CannotBuild": (
        "The first line quotes the compiler. Install g++ or clang++ (the environment variable CXX names "
        "another one), and make sure that the cache directory is writable."
    ),
    "BadGroup": (
        "Ops that compute and communicate identify a group by its name, as torch's functional collectives "
        "do. Call `torch.distributed.init_process_group` in every process. Pass `group.group_name`, the size "
        "of the group and the rank of this process. To trace or export in one process, create a group with "
        'torch\'s "fake" backend.'
    ),
    "DeviceTaken": (
        "A process has one `npu` device. Install the simulated one once, before any other device is "
        "registered, and not together with the vendor's `torch_npu`."
    ),
    "PluginTaken": (
        "`import torch_npu` finds the vendor's plug-in. Use it on a machine with the hardware. On other "
        "machines, uninstall it (`pip uninstall torch_npu`) before you install the simulated one."
    ),
    "Degraded": (
        "The first line names the fallback, `at` the place, `next` what to do about it. Or switch off strict "
        "mode: `engine_config.strict`, and TORCHAIR_STRICT in the environment."
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
        "Pass the Python type that the message names. Options are values; torchair does not parse text."
    ),
    "BadPath": (
        "Create the file or directory first, or correct the path: relative paths start at the working "
        "directory."
    ),
    "UnknownOp": (
        "Check the spelling: IR op types are case-sensitive (`MatMulV2`), and the message names similar "
        "ones. Declare your own op with `torchair.ge.prototype.register_prototype"
        '("Name(x, y?; k: Int = 1) -> z")`.'
    ),
    "BadPrototype": (
        "`at` names the file and the line, `got` the text found there, `near` the expected one. Correct the "
        "header, and run `python -m torchair codegen` again."
    ),
    "BadAttribute": (
        "`near` is the whole prototype of the op: use the attributes it lists, with values of the kind it "
        "names; `torchair.ge.attr` has a class for each kind."
    ),
    "BadInput": (
        "`near` is the whole prototype of the op: pass every required input in that order, and a list for "
        "`*`. Only numbers, lists, numpy arrays and torch tensors become constants."
    ),
    "BadGraph": (
        "The message names the op and, where it is known, your source line. If you have a pass of your own, "
        "set `config.engine_config.verify = True`: the graph is then checked after every pass, and "
        "`logger.setLevel(logging.DEBUG)` lists the passes that left it valid. A graph from a file or from "
        "text is rejected as a whole."
    ),
    "BadConverter": (
        "The converter must return as many tensors as the op does, with the same dtypes and shapes. Insert "
        "`ge.Cast` or `ge.Reshape` if they differ. The message shows both sides. A converter that does not "
        "support a call raises `NotImplementedError(reason)`: torchair then tries the next one."
    ),
    "BadKernel": (
        "Give the function one positional parameter for each input of the op, and a keyword-only one for "
        "each attribute it reads. `near` is the prototype of the op, or the annotations that inputs may have "
        "([five minutes](../contributing/add-a-kernel.md))."
    ),
    "UnsupportedOp": (
        "Add a kernel ([five minutes](../contributing/add-a-kernel.md)), or convert to IR ops that have "
        "one. ATen ops never raise this error: an ATen op without a converter runs as it is. IR ops that you "
        "build yourself raise it, and attributes that a kernel does not know."
    ),
    "BadPass": (
        "The message names the pass and the option that enabled it. A pass must return a valid graph: every "
        "value is defined before its use. Print `gm.graph` at the end of your pass and compare."
    ),
    "BadGears": (
        "Set gears on the inputs of the first call. Each is a list of 2 to 100 sizes that contains the size "
        "of the call. Lists that are zipped have the same length."
    ),
    "BadCall": (
        "Call with the shapes and memory layouts that the graph was recorded with. Only direct calls of a "
        "compiled graph raise it (`get_compiler`, `npugraph_ex.compile_fx`): the guards of `torch.compile` "
        "compile again."
    ),
    "NotPossible": (
        'Do what `next` says; often: use another `config.engine_config.codegen` (`"inductor"` instead of '
        '`"native"`). No partial result remains. If a code generator cannot compile a graph, the next one '
        "does, with a `DegradedWarning`."
    ),
    "NotTrusted": (
        "Use a directory that belongs to you and that others cannot write (`chmod go-w`): its files are run "
        "as code. A file that was copied by hand needs mode 600. See [Security](../security.md)."
    ),
    "BadEntry": (
        "If `cache_compile` found it, do nothing: the entry is compiled again. A file that you named must be "
        "created again. `python -m torchair cache verify` finds damaged entries."
    ),
    "NotInThisMode": (
        "Choose a value that this mode supports, or a mode that supports the value: `next` names both. In "
        'capture mode, `debug.graph_dump.type` is `"py"`.'
    ),
    "DegradedWarning": (
        "The result is right; the text names the cost and the cause. Fix the cause. If a stage of torchair "
        'failed, report it. `warnings.simplefilter("error", torchair.DegradedWarning)` stops at the line '
        "that warns."
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
        "The first line of an error names what failed. The lines below it are:",
        "",
        *markdown_lines(
            ("line", "content"),
            [
                ("`at`", "your source line"),
                ("`got`", "the actual value"),
                ("`near`", "a value that works"),
                ("`next`", "the next step"),
            ],
        ),
        "",
        "Each class is also a built-in exception, so `except ValueError` works.",
    ]
    for error in error_classes():
        builtin = next(base.__name__ for base in error.__mro__ if base.__module__ == "builtins")
        is_warning = issubclass(error, Warning)
        lines += ["", f"## {error.__name__}", "", _text(error)]
        lines += ["", f"Caught by `except {builtin}`."] if builtin != "Exception" and not is_warning else []
        lines += ["", f"**Cure.** {CURES[error.__name__]}"]
    return "\n".join(lines) + "\n"


# Pages below `api/`: file, title, modules. Together they name every public module once.
API_PAGES: dict[str, tuple[str, tuple[str, ...]]] = {
    "torchair": ("torchair", ("torchair",)),
    "inference": ("torchair.inference", ("torchair.inference",)),
    "scope-and-ops": (
        "Scopes, streams and ops",
        ("torchair.scope", "torchair.ops", "torchair.llm_datadist"),
    ),
    "npugraph_ex": (
        "torchair.npugraph_ex",
        (
            "torchair.npugraph_ex",
            "torchair.npugraph_ex.inference",
            "torchair.npugraph_ex.scope",
            "torchair.npugraph_ex.ops",
        ),
    ),
    "debugging": (
        "Configuration and debugging",
        (
            "torchair.configs.compiler_config",
            "torchair.debug",
            "torchair.core.utils",
            "torchair.tools.gegraph_check.filter_operators",
            "torchair.tools.gegraph_check.deadlock_check",
            "torchair.tools.gegraph_check.align_trace",
        ),
    ),
    "ge": ("torchair.ge", ("torchair.ge", "torchair.ge.attr", "torchair.ge.prototype")),
    "converters": (
        "Import paths of converter scripts",
        (
            "torchair._ge_concrete_graph.ge_graph",
            "torchair._ge_concrete_graph.utils",
            "torchair._ge_concrete_graph.fx2ge_converter",
            "torchair._ge_concrete_graph.supported_declaration",
        ),
    ),
    "sim": ("torchair.sim", ("torchair.sim",)),
}


def api_index() -> str:
    """All public names with the first sentence of each, and links to the pages below."""
    lines = [
        "# Public API",
        "",
        "Every name below is stable. A name that is not listed may change without notice.",
        "",
        "`import torchair` changes two things in torch:",
        "",
        f"* `torch.compile` accepts the backends {_listed(BACKENDS)};",
        f"* `torch.ops` has the namespaces {_listed(NAMESPACES)}.",
        "",
        "The first backend that is created also registers the collectives of `torch.distributed` for graphs.",
        "An `npu` device, `torch.npu` and `import torch_npu` exist after `torchair.sim.install()`.",
    ]
    for stem, (_, modules) in API_PAGES.items():
        for name in modules:
            module = importlib.import_module(name)
            rows = [(f"`{public}`", _summary(getattr(module, public))) for public in public_names(module)]
            lines += ["", f"## [{name}]({stem}.md)", "", *markdown_lines(("name", "summary"), rows)]
    return "\n".join(lines) + "\n"


def api_page(stem: str) -> str:
    """The public names of a few modules, as directives for mkdocstrings."""
    title, modules = API_PAGES[stem]
    lines = [f"# {title}"]
    for name in modules:
        module = importlib.import_module(name)
        lines += ["", f"## Module {name}", "", _text(module)]
        for public in public_names(module):
            lines += ["", *_entry(f"{name}.{public}", getattr(module, public))]
    return "\n".join(lines) + "\n"


def _listed(names: Sequence[str]) -> str:
    *most, last = (f"`{name}`" for name in names)
    return f"{', '.join(most)} and {last}"


def public_names(module: ModuleType) -> list[str]:
    """The public names of a module; submodules have a heading of their own."""
    names = PUBLIC_MODULES[module.__name__] or module.__all__
    return [name for name in sorted(names) if not inspect.ismodule(getattr(module, name))]


def _entry(name: str, value: object) -> list[str]:
    """A directive if the package defines the value under one name; else its signature and docstring."""
    path = _defined_as(value)
    if path and _first_name(path) == name:
        return [
            f"::: {path}",
            "    options:",
            f'      heading: "{name}"',
            f'      toc_label: "{_last(name)}"',
        ]
    lines = [f"### {name}", ""]
    if path:
        return [*lines, f"The same object as [`{_first_name(path)}`][{path}]."]
    if isinstance(value, enum.EnumMeta):
        return [*lines, f"`{', '.join(value.__members__)}`", "", _text(value)]
    if isinstance(value, int | str):
        return [*lines, f"`{value!r}`"]
    if not callable(value):
        return [*lines, f"`{type(value).__name__}`", "", _text(type(value))]
    return [*lines, "```python", f"{_last(name)}{_signature(value)}", "```", "", _text(value)]


def _signature(value: object) -> str:
    """As written in the source, without addresses of default objects."""
    try:
        text = str(inspect.signature(value))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return "(...)"
    return re.sub(r" at 0x[0-9a-f]+", "", text).replace("'", "")


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _defined_as(value: object) -> str:
    """The full name under which a class or function is defined; empty where its module does not have it."""
    module, name = getattr(value, "__module__", None) or "", getattr(value, "__qualname__", None) or "<none>"
    if not module.startswith("torchair") or not name.isidentifier():
        return ""
    return f"{module}.{name}" if getattr(importlib.import_module(module), name, None) is value else ""


@functools.cache
def _first_names() -> dict[str, str]:
    """Where a value is defined, and the first public name of it in the order of the pages."""
    found: dict[str, str] = {}
    for _, modules in API_PAGES.values():
        for name in modules:
            module = importlib.import_module(name)
            for public in public_names(module):
                found.setdefault(_defined_as(getattr(module, public)), f"{name}.{public}")
    return found


def _first_name(path: str) -> str:
    return _first_names()[path]


def _summary(value: object) -> str:
    """The first sentence of a docstring; constants have their value."""
    if isinstance(value, int | str) and not isinstance(value, enum.EnumMeta):
        return f"`{value!r}`"
    text = _text(value if callable(value) else type(value)).partition("\n\n")[0].replace("\n", " ")
    return re.split(r"(?<=\.) (?=[A-Z`])", text)[0]


def _text(value: object) -> str:
    return inspect.cleandoc(getattr(value, "__doc__", None) or "")


def ops_page() -> str:
    """What becomes of each op: a row per FX target with a converter of ours, by namespace, then the rest."""
    emitted = {_target_name(target): ops for target, ops in emitted_by_target().items()}
    lines = [
        "# Converted ops",
        "",
        f"{len(emitted)} overloads and functions have a built-in converter. The right column names the GE",
        "ops that the converter can emit. Dtypes, shapes and arguments decide which of them it emits. Casts,",
        "constants and sizes of operands are named only if the converter emits nothing else.",
        "",
        "The end of the page lists the ops that torchair decomposes, and those that the IR cannot express.",
        "torch decomposes an op in none of the lists. Without a decomposition, the op runs as an opaque op",
        "(`TorchOp`). `torchair.explain` shows which case applies in a model, and why.",
    ]
    for namespace, names in groupby(sorted(emitted), key=lambda name: name.split(".")[0]):
        rows = [(f"`{name}`", ", ".join(emitted[name]) or "none: checked, or an opaque op") for name in names]
        lines += ["", f"## {namespace}", "", *markdown_lines(("op", "GE ops"), rows)]
    parted = sorted(map(_target_name, parted_targets()))
    lines += [
        "",
        "## Decomposed",
        "",
        "torch has no decomposition of these ops. torchair has one, and converts it instead.",
    ]
    lines += ["", ", ".join(f"`{name}`" for name in parted)]
    reasons = sorted((f"`{_target_name(target)}`", why) for target, why in opaque_reasons().items())
    lines += ["", "## Opaque ops", "", *markdown_lines(("op", "reason"), reasons)]
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
        "A variable that is not set, or is empty, has its default. `1`, `true`, `yes` and `on` switch a",
        "flag on; `0`, `false`, `no` and `off` switch it off, in any case. `TORCH_COMPILE_DEBUG` belongs to",
        "torch: only `1` switches it on.",
        "",
        *markdown_lines(("variable", "default", "read", "meaning"), rows),
    ]
    return "\n".join(lines) + "\n"


PASSES_INTRO = """# Passes of graph mode

The tables list passes in the order in which they run. Two settings switch passes by name:

* `config.ge_config.optimization_switch = "name:off;other:on"`;
* a file, `config.fusion_config.fusion_switch_file`. The option wins over the file.

| kind | meaning |
| --- | --- |
| *fusion* | off at `ge_config.oo_level = "O1"`, and if the file has `"GraphFusion": {"ALL": "off"}`, unless it is on by its own name |
| *mandatory* | cannot be switched off, because later passes depend on it; trying to is a `DegradedWarning` |

Names of the Ascend engine's own passes are passed on to the engine. An unknown name is kept, with one warning.
`ge_config.export_compile_stat` counts what each pass found and changed.
"""  # noqa: E501 - rows of a table

FUSIONS_INTRO = """## Fusions of `apply_pattern_passes`

The widest pattern comes first. At level O1 the name of the pass, switched on, switches on all fusions that
are not named. A user's replacement (`torchair.register_replacement`) has the name of its search function.
"""


def passes_page() -> str:
    """The names by which the passes and fusions of graph mode can be switched."""
    lines = [PASSES_INTRO]
    lists = {
        "Dynamo's graph (`experimental_config.npu_fx_pass`)": DYNAMO_PASSES,
        "The FX graph": FX_PASSES,
        "The IR": GE_PASSES,
        "FX', before `eager` is generated": LOWERED_PASSES,
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
    # `MatMul[transpose_x1](a, b)` is not a link.
    return f"`{step.title}`", mark, about.replace("\n", " ").replace("](", "\\](")


PAGES = {
    "errors.md": errors_page,
    "options.md": reference.page,
    "ops.md": ops_page,
    "environment.md": environment_page,
    "passes.md": passes_page,
    "api/index.md": api_index,
    **{f"api/{stem}.md": functools.partial(api_page, stem) for stem in API_PAGES},
}


if __name__ == "__main__":
    for page, write in PAGES.items():
        (REFERENCE / page).write_text(write(), encoding="utf-8")
        print(f"docs/reference/{page}")
