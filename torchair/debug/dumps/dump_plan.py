"""Plan the dumps of `dump_config` in graph mode: graphs, ops, sides, runs and the output directory.

The plan comes from options, from a JSON file (`dump_config_path`), or from both; options override the file.
The file has an object `dump` in one of four forms. Two of the forms watch the device itself, which torchair
cannot do: it warns, and the graph runs without them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchair.configs.binding import default_of
from torchair.core.diagnostics import Diagnostics
from torchair.core.errors import BadOption
from torchair.debug.dumps.files import rank_folder
from torchair.debug.dumps.options import DebugOptions

SIDES = {"input": ("input",), "output": ("output",), "all": ("input", "output")}
# The keys of the file -> their type, and the accepted values if they are restricted.
KEYS: dict[str, tuple[type, tuple[Any, ...]]] = {
    "dump_path": (str, ()),
    "dump_mode": (str, tuple(SIDES)),
    "dump_data": (str, ("tensor", "stats")),
    "dump_step": (str, ()),
    "dump_list": (list, ()),
    "dump_op_switch": (str, ("on", "off")),
    "dump_debug": (str, ("on", "off")),
    "dump_scene": (str, ("watcher",)),
    "quant_dumpable": (bool, ()),
}
ENTRY_KEYS = {"model_name": str, "layer": list, "watcher_nodes": list}
NEEDS_HARDWARE = {
    "dump_op_switch": "ops that run outside of graphs are dumped by the runtime of the device",
    "dump_scene": "only the device runtime can watch for memory that kernels overwrite",
}


@dataclass(frozen=True)
class DumpPlan:
    """Ops, graphs and runs to dump, and the output directory."""

    folder: Path
    sides: tuple[str, ...]
    stats: bool
    steps: tuple[range, ...]  # empty: all
    models: Mapping[str, frozenset[str]] | None = None  # graph -> its ops, empty: all; None: all graphs
    layers: frozenset[str] = field(default_factory=frozenset[str])  # ops of any graph, empty: all
    overflow: bool = False  # only the first ops whose results have infinities or NaNs

    def takes(self, model: str) -> bool:
        """Return whether this graph is dumped."""
        return self.models is None or model in self.models

    def layers_of(self, model: str) -> frozenset[str]:
        """Return the names of the ops of this graph to dump; empty means all."""
        return self.layers or (self.models or {}).get(model, frozenset())

    def at(self, step: int) -> bool:
        """Return whether this run is dumped."""
        return not self.steps or any(step in part for part in self.steps)


def plan_of(options: DebugOptions, degradations: Diagnostics) -> DumpPlan | None:
    """Return the plan, or None if nothing is dumped."""
    path = options.dump_config_path
    if path is None and not options.enable_dump:
        return None
    entries_of_file = _read(Path(path), degradations) if path is not None else {}
    for key, why in NEEDS_HARDWARE.items():
        if entries_of_file.get(key) in ("on", "watcher"):
            degradations.add(f"{key} {entries_of_file[key]!r} of {path} has no effect: {why}")
            return None
    own_folder = _is_chosen("dump_path", options) or path is None
    entries = entries_of_file.get("dump_list") or ()
    return DumpPlan(
        rank_folder(options.dump_path) if own_folder else Path(entries_of_file["dump_path"]),
        SIDES[_value("dump_mode", options, entries_of_file)],
        _value("dump_data", options, entries_of_file) == "stats",
        steps_of(_value("dump_step", options, entries_of_file)),
        {entry["model_name"]: frozenset(entry.get("layer", ())) for entry in entries} if entries else None,
        frozenset(options.dump_layer.split()),
        entries_of_file.get("dump_debug") == "on",
    )


def _value(key: str, options: DebugOptions, entries_of_file: Mapping[str, Any]) -> Any:
    """Return the value of a key; an option that is set overrides the file."""
    own = getattr(options, key)
    return own if _is_chosen(key, options) else entries_of_file.get(key, own)


def _is_chosen(key: str, options: DebugOptions) -> bool:
    return bool(getattr(options, key) != default_of(f"dump_config.{key}"))


def steps_of(text: str) -> tuple[range, ...]:
    """Parse `0|2-5` into ranges."""
    found: list[range] = []
    for part in filter(None, text.split("|")):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if last < first:
            raise BadOption(
                f"dump_step has an invalid part: {part!r}",
                got=repr(text),
                near="integers and ranges joined by bars, such as 0|2-5|7",
            )
        found.append(range(first, last + 1))
    return tuple(found)


def _read(path: Path, degradations: Diagnostics) -> dict[str, Any]:
    """Return the checked object `dump` of the file."""
    try:
        whole = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _bad(path, f"cannot be read as JSON: {error}") from error
    entries_of_file = whole.get("dump") if isinstance(whole, dict) else None
    if not isinstance(entries_of_file, dict):
        raise _bad(path, "has no object 'dump'")
    unknown = [*(key for key in whole if key != "dump"), *(key for key in entries_of_file if key not in KEYS)]
    if unknown:
        degradations.add(f"unknown keys of {path} have no effect: {', '.join(unknown)}")
    known = {key: value for key, value in entries_of_file.items() if key in KEYS}
    for key, value in known.items():
        kind, allowed = KEYS[key]
        if not isinstance(value, kind) or (allowed and value not in allowed):
            near = ", ".join(map(repr, allowed)) or f"a {kind.__name__}"
            raise _bad(path, f"{key} cannot be {value!r}", near)
    _check_form(path, known)
    return known


def _check_form(path: Path, entries_of_file: Mapping[str, Any]) -> None:
    """Raise if the file mixes forms or lacks a key of its form."""
    if not entries_of_file.get("dump_path"):
        raise _bad(path, "dump_path, the output directory, is missing")
    watches, overflow = "dump_scene" in entries_of_file, entries_of_file.get("dump_debug") == "on"
    single, entries = entries_of_file.get("dump_op_switch") == "on", entries_of_file.get("dump_list") or []
    for entry in entries:
        _check_entry(path, entry, watches)
    if watches + overflow + single > 1 or (overflow and entries) or (single and entries):
        raise _bad(path, "mixes forms", "use only one of: model, single ops, overflow, watcher")
    if watches and (entries_of_file.get("dump_mode", "output") != "output" or not entries):
        raise _bad(path, "a watcher needs a dump_list and dump_mode 'output'")


def _check_entry(path: Path, entry: Any, watches: bool) -> None:
    near = '{"model_name": "graph_1", "layer": ["Add_1"]}'
    if not isinstance(entry, dict) or not entry.keys() <= ENTRY_KEYS.keys():
        raise _bad(path, f"dump_list has an invalid entry {entry!r}", near)
    wrong = [key for key, value in entry.items() if not isinstance(value, ENTRY_KEYS[key])]
    names = [name for key in ("layer", "watcher_nodes") for name in entry.get(key, ())]
    wanted = {"layer", "watcher_nodes"} if watches else {"model_name"}
    others = {"model_name"} if watches else {"watcher_nodes"}
    if wrong or not all(isinstance(name, str) for name in names) or not wanted <= entry.keys():
        raise _bad(path, f"dump_list has an invalid entry {entry!r}", near)
    if others & entry.keys():
        raise _bad(path, f"an entry of dump_list cannot have {others.pop()} in this form")


def _bad(path: Path, what: str, near: str = "") -> BadOption:
    cure = "see docs/how-to/dump-tensors-and-graphs.md"
    return BadOption(f"dump_config_path {path}: {what}", near=near, next=cure)
