"""AOTInductor libraries and the directory that caches them.

One entry is a directory named by the digest of everything that determines the code: graph, symbols, options,
torch, processor. It appears by one rename, so it is complete or absent. Its manifest contains the digest of
the library, so a damaged one is compiled again.
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

# Constants of any size remain constants: their values are bound later.
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
    """One compiled library and its C++ source."""

    path: Path
    source: str

    @property
    def calls(self) -> bytes | None:
        """Description of the user-defined operators that the library calls, with their arguments; None if
        there are none.
        """
        return _read(_calls_of(self.path))

    def __reduce__(self) -> Any:
        """Pickle the content of the library."""
        return keep, (self.path.read_bytes(), self.source, self.calls)


def _calls_of(path: Path) -> Path:
    """Return the path where the library looks for this description."""
    return path.with_suffix(".json")


def _read(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def _sha(content: bytes | None) -> str:
    return "" if content is None else hashlib.sha256(content).hexdigest()


def any_exists() -> bool:
    """Return whether there is a library of any graph on disk."""
    return any(cache_folder().glob("*/manifest.json"))


def get_or_compile(parts: HostDeviceSplit, mode: Any, how: CodegenOptions) -> Library:
    """Return the library for this graph from disk, or compile it unless only cached ones are requested.

    Raises:
        NotPossible: if AOTInductor cannot compile the graph, or only cached ones are requested and there is
            none.
    """
    keep_output_strides(parts.library)
    # Inductor writes into this dictionary; a new one keeps the digest the same in each build.
    options = known_options({**how.options, **OPTIONS, "aot_inductor.metadata": {}})
    with inductor_config.patch(options):
        key = digest(parts, mode, f"{how.backward} {how.inference}")
        entry = cache_folder() / key
        found = load(entry)
        if found is not None:
            _check_calls(found.path)
            return found
        if how.kept_only:
            raise NotPossible(
                "the cache has no native library of this graph", next='set codegen="native" to compile one'
            )
        with fake_tracing(mode):
            return _build(parts, entry, backward=how.backward, inference=how.inference)


def load(entry: Path) -> Library | None:
    """Return the library in `entry`, or None if there is none or it is damaged."""
    try:
        manifest = json.loads((entry / "manifest.json").read_text())
        path = entry / manifest["library"]
        found = [_sha(path.read_bytes()), _sha(_read(_calls_of(path)))]
        if found != [manifest["sha256"], manifest.get("calls", "")]:
            Diagnostics().add(f"the native library {path} does not match its manifest; it is compiled again")
            return None
        return Library(path, "\n".join((entry / name).read_text() for name in manifest["sources"]))
    except (OSError, ValueError, KeyError):
        return None


def keep(content: bytes, source: str = "", calls: bytes | None = None) -> Library:
    """Store a library from another place, named by the digest of its content."""
    path = cache_folder() / f"restored_{_sha(content + (calls or b''))[:32]}.so"
    if calls is not None:
        _write(_calls_of(path), calls)
    _write(path, content)
    check_loadable(path)
    return Library(path, source)


def _write(path: Path, content: bytes) -> None:
    if _read(path) == content:
        return
    file, made = tempfile.mkstemp(dir=path.parent, prefix="making_")
    with os.fdopen(file, "wb") as out:
        out.write(content)
    os.replace(made, path)


def _build(parts: HostDeviceSplit, entry: Path, *, backward: bool, inference: bool) -> Library:
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
    """Raise if the library contains its own C++ runtime: with two of them the process crashes."""
    if sys.platform != "linux" or any(name in path.read_bytes() for name in (b"libstdc++.so", b"libc++.so")):
        return
    raise NotPossible(
        f"{get_cpp_compiler()} links a static C++ runtime into the library, but torch uses a shared one",
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
    """Remove the files that only the compiler needed, and write the manifest."""
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
    """Rename the finished directory. Another process may have been faster, or left a damaged entry."""
    if entry.exists() and load(entry) is None:
        entry.rename(Path(tempfile.mkdtemp(prefix="damaged_", dir=entry.parent)) / entry.name)
    try:
        place.rename(entry)
    except OSError:
        logger.debug("another process has compiled the native library %s meanwhile", entry)
    made = load(entry)
    assert made is not None, f"{entry} was just written"
    return made


def digest(parts: HostDeviceSplit, mode: Any, extra: str) -> str:
    """Return the digest of everything that determines the generated code."""
    lines = [
        extra,
        CAREFUL,
        *build_facts(),
        *symbol_facts(mode),
        *graph_text(parts.library),
    ]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:32]


def graph_text(gm: fx.GraphModule, *, by_place: bool = False) -> Iterator[str]:
    """Yield a graph as lines that are the same in every process. With `by_place`, names of nodes do not
    matter.
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
        # The kernel is in a table of this process, so the graph's text does not identify it.
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
