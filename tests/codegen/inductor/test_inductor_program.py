"""Generated modules as data: what they load comes along, and lies where another process looks for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._inductor import select_algorithm
from torch._inductor.codegen import memory_planning
from torch._inductor.runtime.autotune_cache import AutotuneCache

from tests.codegen.tracing import trace
from torchair.codegen import CodegenOptions, build
from torchair.codegen.inductor.inductor_program import InductorCode
from torchair.core.native.memory_overlap import overlap_safe_writes
from torchair.core.program import code_of
from torchair.core.storage.serialization import pack, unpack
from torchair.core.torch_private.compilers import inductor_modules

HASH = "KERNEL"
KERNEL_FILE = "ab/cabc.py"


def program(x: torch.Tensor) -> list[torch.Tensor]:
    return [torch.tanh(x) * 1.25 + x.sum()]


@pytest.fixture
def code(inductor_dir: Path) -> InductorCode:
    traced = trace(program, torch.randn(5, 7))
    made = code_of(build("inductor", traced.gm, traced.inputs, CodegenOptions()))
    assert isinstance(made, InductorCode)
    return made


@pytest.fixture
def inductor_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return moved(tmp_path / "first", monkeypatch)


def moved(place: Path, patch: pytest.MonkeyPatch) -> Path:
    """Another directory of Inductor's, as on another machine."""
    patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(place))
    patch.setenv("TRITON_CACHE_DIR", str(place / "triton"))
    return place


def test_libraries_come_along(code: InductorCode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert code.module.files
    data = pack(code)
    place = moved(tmp_path / "second", monkeypatch)
    loaded = unpack(data)
    x = torch.randn(5, 7)
    torch.testing.assert_close(loaded.load()([x]), program(x))
    assert all((place / file.path).is_file() for file in loaded.module.files)


@pytest.mark.parametrize("built", ["in this process", "in another"])
def test_kernels_come_along_as_they_are_chosen(
    code: InductorCode, inductor_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, built: str
) -> None:
    """Which kernel was the fastest is known when they have run, and not when they were compiled."""
    if built == "in another":
        code = unpack(pack(code))
        code.load()
    tuner = with_tuner(code.module.scope, inductor_dir)
    before = unpack(pack(code)).module
    assert [name for name, *_ in before.kernels] == ["FIRST", HASH]
    assert before.choices == ()
    tuner.launchers = tuner.launchers[1:]
    choice = Path(tuner.save_cache_hook.__self__.local_cache[1])
    choice.parent.mkdir()
    choice.write_text("the second")
    data = pack(code)

    place = moved(tmp_path / "second", monkeypatch)
    looked_for = looked_for_in(place)
    assert looked_for.name != choice.name
    looked_for.parent.mkdir(parents=True)
    looked_for.write_text("another")
    loaded = unpack(data)
    loaded.load()
    assert looked_for.read_text() == "the second"
    assert [path.name for path in (place / "triton").iterdir()] == [HASH]
    assert (place / "triton" / HASH / "kernel.cubin").read_bytes() == b"code"
    assert (place / "triton" / HASH / "kernel.json").read_text() == str(place / "triton" / HASH)
    # Its kernels are still told, where nothing of Triton was loaded.
    assert unpack(pack(loaded)).module.kernels == loaded.module.kernels


def products(x: torch.Tensor) -> list[torch.Tensor]:
    return [(x @ x.T).tanh() @ x]


LOADED = """
import sys, torch
from pathlib import Path
from torchair.core.storage.serialization import unpack
run = unpack(Path(sys.argv[1]).read_bytes()).load()
run([torch.zeros(5, 7)])
print(*(name for name in sys.modules if name.startswith("torch._inductor.")))
"""


def test_loading_one_needs_no_compiler(tmp_path: Path, inductor_dir: Path) -> None:
    """Inductor's templates and lowerings take a second to import."""
    traced = trace(products, torch.randn(5, 7))
    code = code_of(build("inductor", traced.gm, traced.inputs, CodegenOptions()))
    assert isinstance(code, InductorCode)
    assert all(code.source.count(f"\n{line}\n") == 1 for line in inductor_modules.LIGHTER)
    assert "extern_kernels.mm(" in code.source
    x = torch.randn(5, 7)
    torch.testing.assert_close(code.load()([x]), products(x))
    packed = tmp_path / "packed"
    packed.write_bytes(pack(code))
    command = [sys.executable, "-c", LOADED, str(packed)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    modules = set(done.stdout.split())
    assert "torch._inductor.async_compile" in modules
    assert not modules & {f"torch._inductor.{name}" for name in ("select_algorithm", "lowering", "ir")}


def test_what_is_light_is_the_same() -> None:
    for name in inductor_modules.OF_TORCH:
        assert getattr(select_algorithm.extern_kernels, name) is getattr(torch, name), name
    assert memory_planning._align is torch._inductor.utils._align
    head = "\n" + "\n".join(inductor_modules.LIGHTER) + "\n"
    for text in (
        "extern_kernels.bias_addmm(x)",
        "torch.ops.prims.inductor_seed.default()",
        "torch.ops.my.op(x)",
    ):
        assert inductor_modules._light(head + text) == head + text
    text = "extern_kernels.mm(x)  # torch.ops.prims.mul.default\naten = torch.ops.aten"
    assert (
        inductor_modules._light(head + text)
        == "\n" + "\n".join(inductor_modules.LIGHTER.values()) + "\n" + text
    )


def test_kernels_that_are_not_kept_any_more(code: InductorCode, inductor_dir: Path) -> None:
    """What came with the code stays."""
    code.module.kernels = (("OLD", 0, ()),)
    tuner = with_tuner(code.module.scope, inductor_dir)
    tuner.launchers.append(SimpleNamespace(cache_hash="GONE"))
    assert [name for name, *_ in unpack(pack(code)).module.kernels] == ["OLD"]


def looked_for_in(place: Path) -> Path:
    """Where Inductor looks for what was chosen of a kernel."""
    meta: Any = {"autotune_remote_cache": False}
    cache: Any = AutotuneCache.create(meta, str(place / KERNEL_FILE), "")
    return Path(cache.local_cache[1])


def with_tuner(scope: Any, place: Path) -> Any:
    """A kernel of Triton with two forms in a module's globals, as there are where a GPU is."""
    __import__(inductor_modules._TUNERS)
    kind: Any = sys.modules[inductor_modules._TUNERS].CachingAutotuner
    tuner = object.__new__(kind)
    for name in ("FIRST", HASH):
        folder = place / "triton" / name
        folder.mkdir(parents=True)
        (folder / "kernel.cubin").write_bytes(b"code")
        (folder / "kernel.json").write_text(str(folder))
    tuner.filename = str(place / KERNEL_FILE)
    with overlap_safe_writes():  # as while a program is built
        cache = SimpleNamespace(local_cache=(None, str(looked_for_in(place))))
    tuner.launchers = [SimpleNamespace(cache_hash=name) for name in ("FIRST", HASH)]
    tuner.triton_meta, tuner.save_cache_hook = {"device": 0}, Saves(cache).save
    scope["kernel_0"] = tuner
    return tuner


class Saves:
    def __init__(self, cache: Any) -> None:
        self.local_cache = cache.local_cache

    def save(self) -> None: ...
