"""Read and write the files of a graph: `.air`, external weights, and the digests of all of them.

All files of one graph appear together, so an interrupted write leaves the previous files intact.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import torch

from torchair.core import dtypes
from torchair.core.errors import BadGraph, BadPath
from torchair.core.fingerprint.atomic_files import FileTransaction, file_transaction, make_parents
from torchair.core.torch_private.fake.fake_tensors import disable_modes
from torchair.ge.attr import DataType, ListInt, Str, as_bytes
from torchair.ge.attr import Tensor as TensorAttr
from torchair.ge.graph import Desc, Graph, Op
from torchair.ge.proto.read import from_model

EXTERNAL_FROM = (2048 - 200) << 20
"""Total bytes of graph and weights from which weights become separate files."""
DIGESTS = ".sha256"
CHUNK = 1 << 24


@dataclass
class Writing:
    """Collect files that appear together, in one folder."""

    folder: Path
    files: FileTransaction
    digests: dict[str, str] = field(default_factory=dict)

    @contextmanager
    def file(self, name: str) -> Iterator[_Hashed]:
        """Open a file with this name below the folder, and hash it while it is written."""
        path = self.folder / name
        make_parents(path.parent)
        with self.files.file(path) as file:
            hashed = _Hashed(file)
            yield hashed
        self.digests[name] = hashed.hash.hexdigest()


class _Hashed:
    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.hash = hashlib.sha256()

    def write(self, data: bytes | memoryview) -> None:
        self._file.write(data)
        self.hash.update(data)


@contextmanager
def writing(folder: Path) -> Iterator[Writing]:
    """Write several files of one folder: all of them, or none."""
    with file_transaction() as files:
        yield Writing(folder, files)


def write_bytes(into: Writing, name: str, data: bytes) -> None:
    """Write one file."""
    with into.file(name) as file:
        file.write(data)


def write_readable(into: Writing, name: str, text: str) -> None:
    """Write a file that is never loaded, so it has no digest: the next export into the folder may
    replace it.
    """
    write_bytes(into, name, text.encode())
    del into.digests[name]


def write_digests(into: Writing, name: str) -> None:
    """Write `<name>.sha256`: the digests of all files so far, in the format of `sha256sum -c`."""
    lines = "".join(f"{digest}  {file}\n" for file, digest in into.digests.items())
    write_bytes(into, f"{name}{DIGESTS}", lines.encode())


def write_weights(into: Writing, weights: Mapping[str, torch.Tensor], *, is_shown: bool = True) -> None:
    """Write each weight as raw bytes, in chunks, with a progress line on the terminal."""
    whole = sum(tensor.nbytes for tensor in weights.values())
    done = 0
    for name, tensor in weights.items():
        with into.file(name) as file, disable_modes():
            for chunk in _chunks(tensor):
                file.write(chunk)
                done += len(chunk)
                if is_shown:
                    print(f"\rsaving weights: {100 * done // max(whole, 1)} %", end="", flush=True)
    if is_shown:
        print()


def _chunks(tensor: torch.Tensor) -> Iterator[memoryview]:
    """Yield chunks without a second copy of contiguous CPU tensors."""
    flat = tensor.detach().contiguous().reshape(-1)
    step = max(CHUNK // flat.element_size(), 1)
    for start in range(0, flat.numel(), step):
        piece: Any = as_bytes(flat[start : start + step].cpu()).numpy()
        yield memoryview(piece)


def embed(op: Op, tensor: torch.Tensor) -> None:
    """Turn a graph input into a constant."""
    with disable_modes():
        _become(op, "Const")
        op.attrs = {"value": TensorAttr(tensor.detach().cpu().contiguous())}


def refer(op: Op, tensor: torch.Tensor, path: str) -> None:
    """Turn a graph input into a constant in a file."""
    _become(op, "FileConstant")
    op.attrs = {
        "shape": ListInt(list(tensor.shape)),
        "dtype": DataType(dtypes.to_ge(tensor.dtype)),
        "file_path": Str(path),
        "file_id": Str(""),
    }


def _become(op: Op, kind: str) -> None:
    op.type, op.slots = kind, []
    for output in op.outputs:
        output.desc = Desc("" if kind == "Const" else "y", dtype=output.dtype, layout="ND")


# Reading


def read_air(path: Path) -> Graph:
    """Read the graph of a file, check its digests if they exist, and load its external constants."""
    if not path.is_file():
        raise BadPath(f"no such file: {path}", next="write it with torchair.dynamo_export")
    check_digests(path)
    graph = from_model(path.read_bytes())
    for part in (graph, *graph.subgraphs.values()):
        for op in part.ops:
            if op.type == "FileConstant":
                _load_file(op, path.parent)
    return graph


def check_digests(path: Path) -> None:
    """Raise if a listed file is missing or differs from what was written, or if this file is not listed."""
    listed = path.with_name(path.name + DIGESTS)
    if not listed.is_file():
        return
    lines = listed.read_text(encoding="utf-8", errors="replace").splitlines()
    if not any(line.endswith(f"  {path.name}") for line in lines):
        raise BadGraph(
            f"{listed} has no digest of {path.name}", next="export again, or remove the digest file"
        )
    for line in lines:
        digest, _, name = line.partition("  ")
        file = within(path.parent, name)
        if not os.path.isfile(file) or _digest(file) != digest:
            what = "differs from what was exported" if os.path.isfile(file) else "is missing"
            raise BadGraph(f"{file} {what}", next=f"export again; if the change is intended, remove {listed}")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        found = hashlib.sha256()
        while chunk := file.read(CHUNK):
            found.update(chunk)
        return found.hexdigest()


def within(folder: Path, name: str) -> Path:
    """Return the path of a file below the folder; raise if the name leads elsewhere."""
    asked = Path(name)
    if not name or asked.is_absolute() or ".." in asked.parts:
        raise BadPath(f"a graph in {folder} names the file {name!r}, which is not below that folder")
    return folder / asked


def _load_file(op: Op, folder: Path) -> None:
    """Load a constant from its file.

    Paths are as they were passed to the export: relative to its working directory, or else to the graph.
    """
    attrs = op.attributes()
    asked = Path(str(attrs["file_path"]))
    # Next to the graph first: the folder may have moved, and another export may have replaced the original
    # path.
    below = [part for part in asked.parts if part not in ("..", asked.anchor)]
    places = [folder.joinpath(*below[-count:]) for count in range(1, min(len(below), 3) + 1)]
    found = next((place for place in (*places, asked) if os.path.isfile(place)), None)
    if found is None:
        raise BadPath(f"the file of weight {op.name} does not exist: {str(asked)[:200]!r}")
    op.type, op.attrs = "Const", {"value": TensorAttr(read_tensor(found, attrs["shape"], attrs["dtype"]))}


def read_tensor(path: Path, shape: Sequence[int], dtype: int) -> torch.Tensor:
    """Return the tensor whose raw bytes are in a file."""
    kind = dtypes.BY_RUNTIME[dtype].torch if dtype in dtypes.BY_RUNTIME else None
    if kind is None or any(size < 0 for size in shape):
        raise BadGraph(
            f"the weight {path} has a size or data type that torch does not support",
            got=f"{list(shape)}, {dtype}",
        )
    count = math.prod(shape)
    is_there = os.path.isfile(path)
    if not is_there or path.stat().st_size != count * kind.itemsize:
        have = f"{path.stat().st_size} bytes" if is_there else "no such file"
        raise BadGraph(f"{path} must have {count * kind.itemsize} bytes", got=have)
    with disable_modes():
        if not count:
            return torch.empty(tuple(shape), dtype=kind)
        data = torch.from_file(str(path), shared=False, size=count, dtype=kind)
        return data.reshape(tuple(shape))
