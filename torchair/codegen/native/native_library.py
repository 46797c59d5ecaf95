"""AOTInductor libraries and the directory that keeps them.

One entry is a directory named by the digest of everything that shaped the code: graph, symbols, options,
torch, processor. It appears by one rename, so it is whole or absent; its manifest records the digest of the
library, so a damaged one is made again.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import fx

from torchair.codegen.base import graph_prep
from torchair.codegen.base.options import CodegenOptions
from torchair.codegen.inductor.inductor_program import keep_output_strides
from torchair.codegen.native.native_split import HostDeviceSplit
from torchair.core.diagnostics import Diagnostics
from torchair.core.errors import NotPossible
from torchair.core.log import logger
from torchair.core.native.memory_overlap import CAREFUL, overlap_safe_writes
from torchair.core.processes.scratch_dir import Scratch
from torchair.core.storage.cache_dir import cache_folder
from torchair.core.torch_private.compilers.inductor import (
    BoxedBool,
    aot_compilation,
    build_facts,
    compile_fx_inner,
    fake_tracing,
    get_cpp_compiler,
    inductor_config,
    known_options,
    library_path,
)
from torchair.core.torch_private.fake.fake_tensors import symbol_facts
from torchair.core.torch_private.operators.schemas import HigherOrderOperator, OpOverload

# Constants stay constants, however small: their values are bound later.
OPTIONS: dict[str, Any] = {
    "always_keep_tensor_constants": True,
    "aot_inductor.package_constants_in_so": False,
    "aot_inductor.use_runtime_constant_folding": False,
    "cpp_wrapper": True,
    "fx_graph_cache": False,
}
LEFTOVERS = (".o", ".S", ".gch")


@dataclass(frozen=True)
class Library:
    """One compiled library and the C++ text it was made from."""

    path: Path
    source: str

    @property
    def calls(self) -> bytes | None:
        """What lies beside a library that calls operators of users: which they are, with their arguments."""
        return _read(_calls_of(self.path))

    def __reduce__(self) -> Any:
        """Packed, it is the content."""
        return keep, (self.path.read_bytes(), self.source, self.calls)


def _calls_of(path: Path) -> Path:
    """Where the library looks for it."""
    return path.with_suffix(".json")


def _read(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def _sha(content: bytes | None) -> str:
    return "" if content is None else hashlib.sha256(content).hexdigest()


def has_any() -> bool:
    """Is there a library on disk, of whatever graph?"""
    return any(cache_folder().glob("*/manifest.json"))


def obtain(parts: HostDeviceSplit, mode: Any, how: CodegenOptions) -> Library:
    """The library for this graph: from disk, else compiled now, unless only kept ones are wanted."""
    keep_output_strides(parts.library)
    # Inductor writes into this dictionary; a fresh one keeps the digest the same from build to build.
    options = known_options({**how.options, **OPTIONS, "aot_inductor.metadata": {}})
    with inductor_config.patch(options):
        key = digest(parts, mode, f"{how.backward} {how.inference}")
        entry = cache_folder() / key
        found = load(entry)
        if found is not None:
            _check_calls(found.path)
            return found
        if how.kept_only:
            raise NotPossible("no library of this graph is on disk", next="ask for codegen native by name")
        with fake_tracing(mode):
            return _make(parts, entry, backward=how.backward, inference=how.inference)


def load(entry: Path) -> Library | None:
    """The library kept in `entry`, or None where there is none or it is damaged."""
    try:
        manifest = json.loads((entry / "manifest.json").read_text())
        path = entry / manifest["library"]
        found = [_sha(path.read_bytes()), _sha(_read(_calls_of(path)))]
        if found != [manifest["sha256"], manifest.get("calls", "")]:
            Diagnostics().add(f"native library {path} does not match its manifest; it is compiled again")
            return None
        return Library(path, "\n".join((entry / name).read_text() for name in manifest["sources"]))
    except (OSError, ValueError, KeyError):
        return None


def keep(content: bytes, source: str = "", calls: bytes | None = None) -> Library:
    """A library that came from elsewhere, kept beside our own by the digest of its content."""
    path = cache_folder() / f"restored_{_sha(content + (calls or b''))[:32]}.so"
    if calls is not None:
        _place(_calls_of(path), calls)
    _place(path, content)
    check_loadable(path)
    return Library(path, source)


def _place(path: Path, content: bytes) -> None:
    if _read(path) == content:
        return
    file, made = tempfile.mkstemp(dir=path.parent, prefix="making_")
    with os.fdopen(file, "wb") as out:
        out.write(content)
    os.replace(made, path)


def _make(parts: HostDeviceSplit, entry: Path, *, backward: bool, inference: bool) -> Library:
    with Scratch(entry.parent) as folder:
        place = folder / "library"
        place.mkdir(mode=0o700)
        with inductor_config.patch({"aot_inductor.output_path": str(place)}):
            path = _compile(parts, backward=backward, inference=inference)
        check_loadable(path)
        _check_calls(path)
        _finish(place, path)
        return _publish(place, entry)


def _compile(parts: HostDeviceSplit, *, backward: bool, inference: bool) -> Path:
    try:
        with aot_compilation(), overlap_safe_writes():
            result = compile_fx_inner(
                parts.library,
                parts.examples,
                cudagraphs=BoxedBool(False),
                cpp_wrapper=True,
                is_backward=backward,
                is_inference=inference,
            )
    except Exception as error:
        raise NotPossible(
            "AOTInductor cannot compile this graph",
            got=str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__,
            next="use codegen inductor for this graph",
        ) from error
    return Path(library_path(result))


def check_loadable(path: Path) -> None:
    """Refuse a library with a C++ runtime of its own: with two of them the process crashes."""
    if sys.platform != "linux" or any(name in path.read_bytes() for name in (b"libstdc++.so", b"libc++.so")):
        return
    raise NotPossible(
        f"{get_cpp_compiler()} links a C++ runtime into the library, and torch has another",
        next="set CXX to a compiler that links libstdc++ dynamically",
    )


def _check_calls(path: Path) -> None:
    """Refuse a library that calls ops of ATen by name (complex ones, for instance): the torch that it calls
    fails on some of their arguments, such as an empty list of sizes or the `alpha` of a subtraction.
    """
    calls = json.loads(_read(_calls_of(path)) or b"{}").get("nodes", [])
    for target in (str(call["node"]["target"]) for call in calls):
        if target.startswith("aten::"):
            raise NotPossible(
                f"a native library would call {target} by name, and torch {torch.__version__} fails on some "
                "arguments of such calls",
                next="use codegen inductor for this graph",
            )


def _finish(place: Path, path: Path) -> None:
    """Drop what only the compiler needed, and write the manifest."""
    for file in place.rglob("*"):
        if file.suffix in LEFTOVERS:
            file.unlink()
    sources = sorted(str(file.relative_to(place)) for file in place.rglob("*.cpp"))
    manifest = {
        "library": str(path.relative_to(place)),
        "sha256": _sha(path.read_bytes()),
        "calls": _sha(_read(_calls_of(path))),
        "sources": sorted(sources, key=lambda name: "wrapper" not in name),
        "torch": torch.__version__,
    }
    (place / "manifest.json").write_text(json.dumps(manifest, indent=1))


def _publish(place: Path, entry: Path) -> Library:
    """Give the finished directory its name. Another process may have been faster, or left a damaged entry."""
    if entry.exists() and load(entry) is None:
        entry.rename(Path(tempfile.mkdtemp(prefix="damaged_", dir=entry.parent)) / entry.name)
    try:
        place.rename(entry)
    except OSError:
        logger.debug("native library %s was made by another process meanwhile", entry)
    made = load(entry)
    assert made is not None, f"{entry} was just written"
    return made


def digest(parts: HostDeviceSplit, mode: Any, extra: str) -> str:
    """Everything that shapes the generated code, as one name."""
    lines = [
        extra,
        CAREFUL,
        *build_facts(),
        *symbol_facts(mode),
        *graph_text(parts.library),
    ]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:32]


def graph_text(gm: fx.GraphModule, *, by_place: bool = False) -> Iterator[str]:
    """A graph in lines: the same for the same graph, in every process. By their places, nodes may have any
    names.
    """
    names = {node: ("node", place) if by_place else node.name for place, node in enumerate(gm.graph.nodes)}
    for node in gm.graph.nodes:
        value = _value(node.meta.get("val"))
        target = "" if node.op == "placeholder" else _target(node)
        given: Any = node.args, node.kwargs
        if by_place:
            given = fx.map_arg(given, names.__getitem__)
        yield f"{node.op} {names[node]} {target} {given} {value}"
        if node.op != "get_attr":
            continue
        attribute = graph_prep.attribute(gm, str(node.target))
        if isinstance(attribute, fx.GraphModule):
            yield from graph_text(attribute, by_place=by_place)


def _target(node: fx.Node) -> str:
    if isinstance(node.target, HigherOrderOperator) and "triton" in node.target.name():
        # Its kernel lives in a table of this process, so the graph's text does not say what it does.
        return os.urandom(16).hex()
    if isinstance(node.target, (str, OpOverload, HigherOrderOperator)):
        return str(node.target)
    return f"{node.target.__module__}.{node.target.__qualname__}"


def _value(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} {value.device} {tuple(value.size())} {value.stride()} {value.storage_offset()}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    return str(value)
