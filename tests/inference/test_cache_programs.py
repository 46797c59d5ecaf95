"""Programs that this project's authors did not write are kept, too."""

from __future__ import annotations

import dataclasses
import importlib
import os
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

import torchair
from tests.inference.programs import CALLS, Below, Programs, X
from tests.models.families import tiny
from tests.models.zoo import leaves
from tests.support.slow import slow
from torchair.backend.cache.compiled_method import CachedMethod
from torchair.core.errors import DegradedWarning
from torchair.inference import cache_compile

MODES = ("npugraph_ex", "max-autotune")
FAMILIES = ["llama", "bert", "mamba", "mixtral", "wav2vec2", "t5", "whisper", "gemma2", "falcon", "clip"]


def kept(method: Any, folder: Path, mode: str = "npugraph_ex", dynamic: bool = False) -> CachedMethod:
    config = torchair.CompilerConfig()
    config.mode = mode
    config.engine_config.codegen = "eager"
    made = cache_compile(method, config=config, dynamic=dynamic, cache_dir=str(folder))
    assert isinstance(made, CachedMethod)
    return made


def frames() -> int:
    return sum(torch._dynamo.utils.counters["stats"].values())


def flat(value: Any) -> list[Any]:
    value = vars(value) if dataclasses.is_dataclass(value) else value
    return [each for each in pytree.tree_leaves(value) if not isinstance(each, str)]


ROWS = [(Programs, name) for name in CALLS] + [(Below, "attributes"), (Below, "wrapped")]
QUICK = {"results", "a_named_tuple", "keywords", "any_number", "attributes"}


@pytest.mark.parametrize(
    ("kind", "name"), [row if row[1] in QUICK and row[0] is Programs else slow(*row) for row in ROWS]
)
def test_cached_method_accepts_each_signature(kind: type[Programs], name: str, tmp_path: Path) -> None:
    args, kwargs = CALLS[name]
    for number in range(2):
        torch.manual_seed(0)
        net = kind().eval()
        torch.manual_seed(0)
        plain = kind().eval()
        torch._dynamo.utils.counters.clear()
        run = kept(getattr(net, name), tmp_path)
        for _ in range(2):
            got = run(*args, **kwargs)
            with torch.no_grad():
                wanted = getattr(plain, name)(*args, **kwargs)
            assert type(got) is type(wanted)
            torch.testing.assert_close(flat(got), flat(wanted))
        assert len(run.variants) == 1
        assert bool(frames()) is (number == 0), "the second process traces nothing"


def call_family(family: str, folder: Path, mode: str, dynamic: bool) -> tuple[bool, int]:
    """Is it kept, and how many frames were traced; the result is that of eager."""
    torch.manual_seed(0)
    found = tiny(family)
    with torch.no_grad():
        wanted = leaves(found.model(**found.inputs))
    torch._dynamo.utils.counters.clear()
    run = kept(found.model.forward, folder, mode, dynamic)
    with warnings.catch_warnings():
        warnings.simplefilter("error", DegradedWarning)
        got = leaves(run(**found.inputs))
    torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-3)
    place = run.place()
    return place is not None and place.path.exists(), frames()


@pytest.mark.parametrize("family", ["llama", "bert"])
def test_a_model_of_transformers(family: str, tmp_path: Path) -> None:
    assert call_family(family, tmp_path, "npugraph_ex", False)[0]
    torch.compiler.reset()
    assert call_family(family, tmp_path, "npugraph_ex", False) == (True, 0)


@pytest.mark.full
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("family", FAMILIES)
def test_models_in_two_processes(family: str, mode: str, dynamic: bool, tmp_path: Path) -> None:
    for number in range(2):
        words = [family, str(tmp_path), mode, str(int(dynamic))]
        command = [sys.executable, "-W", "ignore", "-m", "tests.inference.test_cache_programs", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, env={**os.environ})
        assert done.returncode == 0, done.stderr
        is_kept, traced = done.stdout.split()[-2:]
        assert is_kept == "True"
        assert (traced == "0") is (number == 1)


CLASSES = {
    "default of a dataclass": ("@dataclasses.dataclass\nclass C:\n  k: int = 2", "C().k", "= 2", "= 3"),
    "default of a constructor": (
        "class C:\n  def __init__(self, k=(2,)): self.k = k[0]",
        "C().k",
        "2,",
        "3,",
    ),
    "closure of a constructor": (
        "def made(k):\n  class C:\n    def __init__(self): self.k = k\n  return C\nC = made(2)",
        "C().k",
        "made(2)",
        "made(3)",
    ),
    "bases": (
        "class A: pass\nclass B(A): pass\nb = B()",
        "(2 if isinstance(b, A) else 3)",
        "class B(A)",
        "class B",
    ),
    "order of bases": (
        "class A:\n  def f(self): return 2\nclass B:\n  def f(self): return 3\nclass C(A, B): pass\nc = C()",
        "c.f()",
        "(A, B)",
        "(B, A)",
    ),
    "attribute of its class": ("class M(type): k = 2\nclass C(metaclass=M): pass", "C.k", "k = 2", "k = 3"),
    "members of an enum": (
        "class E(enum.Enum):\n  A = 'a'\n  B = 'b'",
        "(2 if E('a') is E.A else 3)",
        "A = 'a'\n  B = 'b'",
        "B = 'a'\n  A = 'b'",
    ),
    "registered as one of an abstract class": (
        "class A(abc.ABC): pass\nclass B: pass\nA.register(B)",
        "(2 if issubclass(B, A) else 3)",
        "A.register(B)",
        "B",
    ),
}
"""Of each: classes, an expression that reads them, and what changes."""


def model_of(folder: Path, text: str, expression: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Of a module with this text, as another process imports it."""
    folder.mkdir()
    head = "import abc\nimport dataclasses\nimport enum\nimport torch\n"
    model = f"class Model(torch.nn.Module):\n  def forward(self, x): return x * {expression}\n"
    (folder / "some_classes.py").write_text(f"{head}{text}\n{model}")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "some_classes", raising=False)
    return importlib.import_module("some_classes").Model()


@pytest.mark.parametrize("change", CLASSES)
def test_a_class_that_has_changed_is_noticed(
    change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where Dynamo has no guard for what it has read."""
    text, expression, old, new = CLASSES[change]
    assert old in text
    for folder, each, misses in (("a", text, 1), ("b", text, 0), ("c", text.replace(old, new), 1)):
        model = model_of(tmp_path / folder, each, expression, monkeypatch)
        run = kept(model.forward, tmp_path / "kept")
        torch.testing.assert_close(run(X), model.forward(X))
        assert len(run.misses) == misses, run.misses


def test_hooks_of_all_modules_are_noticed(tmp_path: Path) -> None:
    """Dynamo asks for them when it traces, and has no guard for them."""
    net = Programs().eval()
    kept(net.keywords, tmp_path)(X)
    hook = torch.nn.modules.module.register_module_forward_hook(lambda module, args, out: out + 100)
    try:
        run = kept(net.keywords, tmp_path)
        with pytest.warns(DegradedWarning, match="all modules have hooks"):
            got = run(X)
        with torch.no_grad():
            torch.testing.assert_close(got, net.keywords(X))
    finally:
        hook.remove()


def test_threads_share_the_first_call(tmp_path: Path) -> None:
    net = Programs().eval()
    for number in range(2):
        run, found = kept(net.containers, tmp_path), list[torch.Tensor]()

        def call(run: CachedMethod = run, found: list[torch.Tensor] = found) -> None:
            found.append(run(X))

        threads = [threading.Thread(target=call) for _ in range(8)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        with torch.no_grad():
            torch.testing.assert_close(found, [net.containers(X)] * 8)
        assert len(run.variants) == 1
        assert len(run.misses) == 1 - number


def test_modes_around_the_call_are_variants(tmp_path: Path) -> None:
    net = Programs().eval()
    for number in range(2):
        run = kept(net.tying, tmp_path)
        with torch.inference_mode():
            first = run(X.clone())
        with torch.autocast("cpu", dtype=torch.bfloat16):
            second = run(X)
        third = run(X)
        with torch.no_grad():
            torch.testing.assert_close([first, third], [net.tying(X)] * 2)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                torch.testing.assert_close(second, net.tying(X))
        assert second.dtype is torch.bfloat16
        assert bool(run.misses) is (number == 0)


def test_full_disk_warns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net, folder = Programs().eval(), tmp_path / "kept"

    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        run = kept(net.tying, folder)
        with pytest.warns(DegradedWarning, match="not kept: .*No space left"):
            got = run(X)
    with torch.no_grad():
        torch.testing.assert_close(got, net.tying(X))
    assert not [path for path in folder.rglob("*") if path.is_file()]
    kept(net.tying, folder)(X)
    assert [path.name for path in folder.rglob("*") if path.is_file()] == ["compiled_module"]


if __name__ == "__main__":
    family, folder, mode, is_dynamic = sys.argv[1:]
    print(*call_family(family, Path(folder), mode, is_dynamic == "1"))
