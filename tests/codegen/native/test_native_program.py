"""The native program's own promises: binding by address, memory it does not hold, libraries on disk."""

from __future__ import annotations

import contextlib
import gc
import json
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from tests.codegen.tracing import Traced, trace
from torchair.codegen import CodegenOptions, build
from torchair.codegen.native import native_library
from torchair.codegen.native.native_split import split
from torchair.core.errors import DegradedWarning, NotPossible
from torchair.core.storage.cache_dir import cache_folder
from torchair.core.storage.serialization import pack, unpack

aten = torch.ops.aten


def layer(w: torch.Tensor, b: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return torch.relu(torch.addmm(b, x, w.t())) * 2 + 1


def traced_layer() -> Traced:
    return trace(lambda *a: [layer(*a)], torch.randn(8, 4), torch.randn(8), torch.randn(5, 4), dynamic=[2])


def test_rebinding_and_the_second_build(monkeypatch: pytest.MonkeyPatch) -> None:
    w, b = torch.nn.Parameter(torch.randn(8, 4)), torch.nn.Parameter(torch.randn(8))
    x = torch.randn(3, 4)
    first = traced_layer()
    program = build("native", first.gm, first.inputs, CodegenOptions(static=[0, 1]))
    torch.testing.assert_close(program([w, b, x])[0], layer(w, b, x).detach())
    with torch.no_grad():
        w.mul_(2)
    torch.testing.assert_close(program([w, b, x])[0], layer(w, b, x).detach(), msg="written in place")

    old = StorageWeakRef(w.untyped_storage())
    w.data = torch.randn(8, 4)
    torch.testing.assert_close(program([w, b, x])[0], layer(w, b, x).detach(), msg="moved")
    gc.collect()
    assert old.expired(), "a program keeps no replaced parameter alive"

    monkeypatch.setattr(native_library, "_compile", _no_compiler)
    again = traced_layer()
    second = build("native", again.gm, again.inputs, CodegenOptions(static=[0, 1], frozen=True))
    torch.testing.assert_close(second([w, b, x])[0], layer(w, b, x).detach())
    before = layer(w, b, x).detach()
    w.data = torch.randn(8, 4)
    torch.testing.assert_close(second([w, b, x])[0], before, msg="frozen: the promise is taken at its word")


def _no_compiler(*_: Any, **__: Any) -> Path:
    raise AssertionError("the library is on disk: nothing is to be compiled")


def test_a_damaged_library_is_no_library(tmp_path: Path) -> None:
    assert native_library.load(tmp_path) is None
    (tmp_path / "lib.so").write_bytes(b"code")
    manifest = {"library": "lib.so", "sha256": "0", "sources": []}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.warns(DegradedWarning, match="does not match its manifest"):
        assert native_library.load(tmp_path) is None
    manifest["sha256"] = "5694d08a2e53ffcae0c3103e5ad6f6076abd960eb1f8a56577040bc1028f702b"
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    found = native_library.load(tmp_path)
    assert found is not None
    assert found.path == tmp_path / "lib.so"
    (tmp_path / "lib.json").write_text("calls of operators that nobody wrote")
    assert native_library.load(tmp_path) is None


def test_calls_of_operators_of_users_come_along(tmp_path: Path) -> None:
    """The library reads them from the file beside it."""
    first = native_library.keep(b"needs libstdc++.so", "text", b'{"nodes": []}')
    second = unpack(pack(first))
    assert second == first
    assert second.path.with_suffix(".json").read_bytes() == b'{"nodes": []}'
    assert native_library.keep(b"needs libstdc++.so").calls is None


def test_a_library_with_its_own_runtime_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "lib.so"
    path.write_bytes(b"\x7fELF libtorch.so libstdc++.so.6")
    native_library.check_loadable(path)
    path.write_bytes(b"\x7fELF libtorch.so")
    with pytest.raises(NotPossible, match="CXX"):
        native_library.check_loadable(path)


@pytest.mark.parametrize(("target", "is_refused"), [("aten::sub.Tensor", True), ("npu::npu_add", False)])
def test_library_that_calls_aten_by_name_is_refused(target: str, is_refused: bool, tmp_path: Path) -> None:
    """torch 2.13 fails on the `alpha` of such a subtraction. Operators of users have no other way."""
    path = tmp_path / "lib.so"
    path.with_suffix(".json").write_text(json.dumps({"nodes": [{"node": {"target": target}}]}))
    with pytest.raises(NotPossible, match="by name") if is_refused else contextlib.nullcontext():
        native_library._check_calls(path)


@pytest.mark.full
def test_complex_subtraction_is_not_given_to_a_native_library() -> None:
    traced = trace(lambda x: [x.sin() - x], torch.randn(5, dtype=torch.complex64))
    with pytest.raises(NotPossible, match="by name"):
        build("native", traced.gm, traced.inputs, CodegenOptions(()))


def test_the_directory_is_closed_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    (tmp_path / "torchair_native").mkdir(mode=0o755)
    assert cache_folder().stat().st_mode & 0o077 == 0


def test_the_digest_tells_graphs_apart() -> None:
    def name(factor: float) -> str:
        traced = trace(lambda x: [x * factor], torch.randn(5, 4), dynamic=[0])
        return native_library.digest(split(traced.gm, ()), traced.inputs[0].fake_mode, "")

    assert name(2.0) == name(2.0)
    assert name(2.0) != name(3.0)


def test_reasons_why_not() -> None:
    nothing = trace(lambda x: [x.t(), x], torch.randn(5, 4))
    with pytest.raises(NotPossible, match="nothing to compile"):
        build("native", nothing.gm, nothing.inputs)
    half = trace(lambda x: [x + 1], torch.randn(5, 4))
    placeholder = next(iter(half.gm.graph.nodes))
    with half.gm.graph.inserting_after(placeholder):
        number = half.gm.graph.placeholder("number")
    number.meta["val"] = object()
    half.gm.graph.find_nodes(op="call_function", target=aten.add.Tensor)[0].update_arg(1, number)
    with pytest.raises(NotPossible, match="accepts only tensors"):
        build("native", half.gm, [*half.inputs, object()])


@pytest.mark.full
def test_a_number_that_is_no_size_travels_as_a_length() -> None:
    """The symbol's own tensor is gone from the inputs, as when only its size was used."""
    x, sized = torch.randn(5, 4), torch.randn(7)
    traced = trace(lambda size, x, _: [x * size, x + 1], x, sized, dynamic=[1], size_first=True)
    last = list(traced.gm.graph.find_nodes(op="placeholder"))[-1]
    traced.gm.graph.erase_node(last)
    traced.gm.recompile()
    program = build("native", traced.gm, traced.inputs[:2])
    for size in (7, 3, 11):
        torch.testing.assert_close(program([size, x])[0], x * size)


def test_a_program_can_be_dropped() -> None:
    traced = traced_layer()
    program = build("native", traced.gm, traced.inputs, CodegenOptions(static=[0, 1]))
    program([torch.randn(8, 4), torch.randn(8), torch.randn(5, 4)])
    gone = weakref.ref(program)
    del program
    gc.collect()
    assert gone() is None


@pytest.mark.cuda
def test_native_program_runs_on_cuda() -> None:
    w, b, x = (torch.randn(*size, device="cuda") for size in ((8, 4), (8,), (5, 4)))
    cache = torch.zeros(64, 8, device="cuda")

    def fn(w: torch.Tensor, b: torch.Tensor, cache: torch.Tensor, x: torch.Tensor) -> list[torch.Tensor]:
        y = layer(w, b, x)
        index = torch.arange(x.size(0), device=x.device)
        updated = aten.index_put(cache, [index], y)
        aten.copy_(cache, updated)
        return [y, updated.sum(1)]

    traced = trace(fn, w, b, cache, x, dynamic=[3])
    try:
        program = build("native", traced.gm, traced.inputs, CodegenOptions(static=[0, 1, 2]))
    except NotPossible as error:
        if "links a static C++ runtime" not in error.what:
            raise
        pytest.skip(f"libraries cannot be loaded here: {error.what}")
    for batch in (5, 9):
        x = torch.randn(batch, 4, device="cuda")
        y, _ = program([w, b, cache, x])
        torch.testing.assert_close(y, layer(w, b, x))
        torch.testing.assert_close(cache[:batch], y)
    w = torch.randn_like(w)
    torch.testing.assert_close(program([w, b, cache, x])[0], layer(w, b, x))
