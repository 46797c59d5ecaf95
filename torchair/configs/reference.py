"""The options page, made from the rows; `make docs` writes it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from torchair.configs import npugraph_ex
from torchair.configs.compiler_config import OptionTree
from torchair.configs.option import (
    CAPTURE_MODES,
    GRAPH_MODES,
    Group,
    Option,
    aliases,
    flat_names,
    flat_rows,
    walk,
)
from torchair.core.text_table import markdown_lines

INTRO = """# Options

Made by `make docs`; edit the rows in `torchair/configs/groups/` instead.

Every option is checked when it is assigned. `config.group.option` reads as an option object: `.value` is
the value as text, `.raw` the plain Python value, `.default` and `.optional` what the tables below say; `del
config.group.option` goes back to the default. Options marked *plain* read as their value. Booleans take
`True`, `False`, `1` and `0`.

A wrong value is a `ValueError`, a wrong type where a type is required a `TypeError`, a missing file or
directory a `FileNotFoundError`; an unknown name is a `ValueError` that lists the valid ones. Configs
compare by value, can be copied, and are written and read with `to_json()` and `from_json()`.

What an option does on CPU and CUDA stands under *graph mode* (`max-autotune`) and *capture mode*
(`npugraph_ex`, `reduce-overhead`): it *acts*, as the test in the last column sees; it is a *hint* to the
Ascend engine, which is handed on with the engine's options (`config.as_dict()`), is part of the cache key,
stands in the log at INFO, and changes nothing else; or it has no effect (*–*): then a set value is taken for
the default, and a `DegradedWarning` says so, in strict mode an error. *not yet* is an option that is kept and
checked, and on which nothing in this version acts; assigning it says so.

Marks: **own** is an option of this implementation. **plain** reads as its value. **not keyed** does not enter
the cache key.
"""

ALIAS_INTRO = """## Other names

These read, and are assigned, as the options that they stand for.
"""

FLAT_INTRO = """## Flat names

`torch.compile(..., options={...})` takes flat names. Backend `npu` takes those marked *npu*; backend
`npugraph_ex`, and `npugraph_ex.CompilerConfig`, take all of them. In `npugraph_ex.CompilerConfig` booleans
read as booleans. A flat name is another name of an option above; *not* says that it means the opposite.
"""

COLUMNS = ("option", "default", "accepts", "graph mode", "capture mode", "meaning", "seen by")


def page(tree: type[Group] = OptionTree) -> str:
    """The whole page as Markdown."""
    lines = [INTRO]
    for group, rows in groupby(walk(tree), key=lambda item: item[0].rpartition(".")[0]):
        lines += [f"## `{group}`" if group else "## Top level", ""]
        lines += [*markdown_lines(COLUMNS, [_cells(path, row) for path, row in rows]), ""]
    other = [(f"`{name}`", f"`{path}`") for name, path in aliases(tree).items()]
    lines += [ALIAS_INTRO, *markdown_lines(("name", "option"), other), ""]
    lines += [FLAT_INTRO, *markdown_lines(("name", "default", "option", "backends"), _flat_cells(tree))]
    return "\n".join(lines) + "\n"


def _cells(path: str, row: Option) -> tuple[str, ...]:
    marks = {"own": row.own, "plain": row.plain, "not keyed": not row.cached}
    notes = [f"**{mark}**" for mark, there in marks.items() if there]
    notes += [f"`{value!r}` is deprecated: use `{other!r}`." for value, other in row.deprecated.items()]
    does = [_does(row, modes) for modes in (GRAPH_MODES, CAPTURE_MODES)]
    effect = f"`{row.effect}`" if row.effect else ""
    return f"`{path}`", f"`{row.default!r}`", row.kind.text(), *does, " ".join([row.help, *notes]), effect


def _does(row: Option, modes: tuple[str, ...]) -> str:
    """What an option does in one of two kinds of modes."""
    there = [mode for mode in modes if mode in row.modes]
    if not there:
        return "–"
    word = "not yet" if not row.acts else "hint" if row.hint else "acts"
    return word if len(there) == len(modes) else f"{word} in `{there[0]}`"


def _flat_cells(tree: type[Group]) -> Iterator[tuple[str, ...]]:
    shared = flat_names(tree, ex=False)
    targets = {"mode": "mode"} | flat_names(tree, ex=True)
    rows = {"mode": npugraph_ex.CompilerConfig.mode} | flat_rows(tree, ex=True)
    for name, row in rows.items():
        path = targets[name]
        option = f"not `{path[1:]}`" if path.startswith("!") else f"`{path}`"
        backends = "npu, npugraph_ex" if name in shared else "npugraph_ex"
        yield f"`{name}`", f"`{row.default!r}`", option, backends


if __name__ == "__main__":
    print(page(), end="")
