"""The options page, made from the rows; `make docs` writes it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from torchair.configs import npugraph_ex
from torchair.configs.compiler_config import OptionTree
from torchair.configs.option import (
    ALL_MODES,
    CAPTURE_MODES,
    GRAPH_MODES,
    Group,
    Option,
    flat_names,
    flat_rows,
    walk,
)
from torchair.core.tables import markdown_lines

INTRO = """# Options

Made by `make docs`; edit the rows in `torchair/configs/groups/` instead.

Every option is checked when it is assigned. `config.group.option` reads as an option object: `.value` is
the value as text, `.raw` the plain Python value, `.default` and `.optional` what the tables below say; `del
config.group.option` goes back to the default. Options marked *plain* read as their value. Booleans take
`True`, `False`, `1` and `0`.

A wrong value is a `ValueError`, a wrong type where a type is required a `TypeError`, a missing file or
directory a `FileNotFoundError`; an unknown name is a `ValueError` that lists the valid ones. Configs
compare by value, can be copied, and are written and read with `to_json()` and `from_json()`.

Marks: **HINT** is addressed to the Ascend engine; elsewhere it is accepted, checked and part of the cache
key, and does nothing. **own** is an option of this implementation. **plain** reads as its value. **not
keyed** does not enter the cache key.
"""

FLAT_INTRO = """## Flat names

`torch.compile(..., options={...})` takes flat names. Backend `npu` takes those marked *npu*; backend
`npugraph_ex`, and `npugraph_ex.CompilerConfig`, take all of them. In `npugraph_ex.CompilerConfig` booleans
read as booleans. A flat name is another name of an option above; *not* says that it means the opposite.
"""

_MODES: dict[tuple[str, ...], str] = {ALL_MODES: "all", GRAPH_MODES: "graph", CAPTURE_MODES: "capture"}


def page(tree: type[Group] = OptionTree) -> str:
    """The whole page as Markdown."""
    lines = [INTRO]
    for group, rows in groupby(walk(tree), key=lambda item: item[0].rpartition(".")[0]):
        lines += [f"## `{group}`" if group else "## Top level", ""]
        columns = ("option", "default", "accepts", "modes", "meaning")
        lines += [*markdown_lines(columns, [_cells(path, row) for path, row in rows]), ""]
    lines += [FLAT_INTRO, *markdown_lines(("name", "default", "option", "backends"), _flat_cells(tree))]
    return "\n".join(lines) + "\n"


def _cells(path: str, row: Option) -> tuple[str, ...]:
    marks = {"HINT": row.hint, "own": row.own, "plain": row.plain, "not keyed": not row.cached}
    notes = [f"**{mark}**" for mark, there in marks.items() if there]
    notes += [f"`{value!r}` is deprecated: use `{other!r}`." for value, other in row.deprecated.items()]
    meaning = " ".join([row.help, *notes])
    return f"`{path}`", f"`{row.default!r}`", row.kind.text(), _MODES[row.modes], meaning


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
