"""A method is compiled once for all processes, and no call gets a result that was meant for another."""

from __future__ import annotations

import copy
import gc
import json
import logging
import os
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

import torchair
from tests.backend.pipeline.test_tiered import Quick
from tests.inference import helper, models
from tests.inference.models import Net
from tests.support.compile import make_config
from tests.support.slow import slow
from torchair.__main__ import main
from torchair.backend.cache import compiled_method
from torchair.backend.cache.compiled_method import CachedMethod
from torchair.backend.cache.key import RankInfo, location_of
from torchair.backend.service import scheduler
from torchair.backend.service.scheduler import SCHEDULER, Job
from torchair.core.errors import BadCall, Degraded, DegradedWarning
from torchair.core.fingerprint import python_objects
from torchair.core.storage.artifact_store import MAGIC
from torchair.core.torch_private.dynamo import frames, guards
from torchair.core.torch_private.dynamo.guards import OtherCall
from torchair.inference import cache_compile, readable_cache
from torchair.inference._cache_compiler import (
    CompiledModel,
    _NoGuardCompiledFunction,
    _NoGuardCompiledMethod,
)

MODES = pytest.mark.parametrize("mode", ["max-autotune", "npugraph_ex"])
X = torch.randn(3, 8, generator=torch.Generator().manual_seed(1))


class Processes:
    """Each `new` is what another process would have: nothing but the directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.traces = 0

    def new(self, method: Any, **options: Any) -> CachedMethod:
        options = {"config": make_config(), "dynamic": False, "cache_dir": str(self.folder)} | options
        made = cache_compile(method, **options)
        assert isinstance(made, CachedMethod)
        return made


@pytest.fixture
def processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Processes:
    made = Processes(tmp_path / "kept")
    own = compiled_method.capture_frame

    def counted(*args: Any) -> Any:
        made.traces += 1
        return own(*args)

    monkeypatch.setattr(compiled_method, "capture_frame", counted)
    return made


@pytest.fixture
def net() -> Net:
    return Net().eval()


def wanted(method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with torch.no_grad():
        return method(*args, **kwargs)


def path_of(cached: CachedMethod) -> Path:
    place = cached.place()
    assert place is not None
    return place.path


@MODES
@pytest.mark.parametrize("dynamic", [True, False])
def test_the_second_process_traces_nothing(processes: Processes, mode: str, dynamic: bool) -> None:
    options: dict[str, Any] = {"config": make_config(mode=mode), "dynamic": dynamic}
    net = Net().eval()
    first = processes.new(net.step, **options)
    torch.testing.assert_close(first(X), wanted(net.step, X))
    assert processes.traces == 1
    other = Net().eval()  # other weights
    second = processes.new(other.step, **options)
    torch.testing.assert_close(second(X), wanted(other.step, X))
    torch.testing.assert_close(second(X * 2), wanted(other.step, X * 2))
    assert processes.traces == 1
    assert second.misses == []
    assert not second(X).requires_grad
    with torch.enable_grad():
        assert not second(X).requires_grad
    more = torch.randn(5, 8)
    torch.testing.assert_close(second(more), wanted(other.step, more))
    assert processes.traces == (1 if dynamic else 2)


Change = Callable[[Net, pytest.MonkeyPatch], Any]


def _nothing(net: Net, patch: pytest.MonkeyPatch) -> None:
    return None


def _default_dtype(net: Net, patch: pytest.MonkeyPatch) -> Any:
    own = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    return lambda: torch.set_default_dtype(own)


def _autocast(net: Net, patch: pytest.MonkeyPatch) -> Any:
    context = torch.autocast("cpu", dtype=torch.bfloat16)
    context.__enter__()
    return lambda: context.__exit__(None, None, None)


CHANGES: dict[str, tuple[Change, tuple[Any, ...], dict[str, Any]]] = {
    "shape": (_nothing, (torch.randn(4, 8),), {}),
    "stride": (_nothing, (torch.randn(8, 3).t(),), {}),
    "dtype": (lambda net, patch: net.double() and None, (X.double(),), {}),
    "python value": (_nothing, (X, False), {}),
    "another argument": (_nothing, (X,), {"extra": torch.ones(3, 8)}),
    "attribute": (lambda net, patch: setattr(net, "way", "tanh"), (X,), {}),
    "number": (lambda net, patch: setattr(net, "times", 5), (X,), {}),
    "training": (lambda net, patch: net.train() and None, (X,), {}),
    "global": (lambda net, patch: patch.setattr(models, "FACTOR", 7), (X,), {}),
    "item of a global": (lambda net, patch: patch.setitem(models.TABLE, "bias", 9), (X,), {}),
    "function": (lambda net, patch: patch.setattr(models, "shape_up", models.scaled_by(11)), (X,), {}),
    "requires grad": (_nothing, (X.clone().requires_grad_(),), {}),
    "submodule": (lambda net, patch: setattr(net, "first", torch.nn.Linear(8, 8, bias=False)), (X,), {}),
    "hook": (
        lambda net, patch: net.first.register_forward_hook(lambda m, a, out: out + 100) and None,
        (X,),
        {},
    ),
    "default dtype": (_default_dtype, (X,), {}),
    "autocast": (_autocast, (X,), {}),
}
SAME_TRACE = {"requires grad"}
"""What makes another variant, or not, as torch sees fit; the result is right in any case."""


@pytest.mark.parametrize("live", [False, slow(True)], ids=["before", "after"])
@pytest.mark.parametrize("change", CHANGES)
def test_what_has_changed_is_noticed(
    change: str, live: bool, processes: Processes, net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the entry is loaded, and after."""
    act, args, kwargs = CHANGES[change]
    processes.new(net.step)(X)
    second = processes.new(net.step)
    if live:
        second(X)
        assert processes.traces == 1
    undo = act(net, monkeypatch)
    try:
        torch.manual_seed(3)
        expected = wanted(net.step, *args, **kwargs)
        torch.manual_seed(3)
        got = second(*args, **kwargs)
    finally:
        if undo is not None and callable(undo):
            undo()
    if change != "training":  # random numbers are drawn by other kernels
        torch.testing.assert_close(got, expected)
    assert change in SAME_TRACE or processes.traces == 2


def _keyword_default(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(helper.shifted.__kwdefaults__, "times", 4)


ELSEWHERE: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "global": lambda patch: patch.setattr(helper, "OFFSET", 4),
    "attribute of a class": lambda patch: patch.setattr(helper.Settings, "scale", 7),
    "default": lambda patch: patch.setattr(helper.shifted, "__defaults__", (50,)),
    "keyword default": _keyword_default,
    "what is said to be constant": lambda patch: patch.setattr(helper, "OFFSET", 5),
}


@pytest.mark.parametrize("live", [False, slow(True)], ids=["before", "after"])
@pytest.mark.parametrize("change", ELSEWHERE)
def test_what_has_changed_in_another_module_is_noticed(
    change: str, live: bool, processes: Processes, net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Modules, classes and functions are no data: what guards see behind them is compared all the same."""
    is_constant = change.startswith("what is said")
    method = net.assuming if is_constant else net.elsewhere
    processes.new(method)(X)
    second = processes.new(method)
    if live:
        second(X)
        assert processes.traces == 1
    ELSEWHERE[change](monkeypatch)
    if not (live and is_constant):  # it is asked once in a process
        torch.testing.assert_close(second(X), wanted(method, X))
        assert processes.traces == 2


def test_decorated_methods_are_kept(
    processes: Processes, net: Net, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Guards go through the defaults of a function that a closure holds."""
    for _ in range(2):
        torch.testing.assert_close(processes.new(net.wrapped)(X), wanted(net.wrapped, X))
    assert processes.traces == 1
    inner = Net.wrapped.__closure__[0].cell_contents  # type: ignore[attr-defined]
    monkeypatch.setattr(inner, "__defaults__", (1, 9))
    second = processes.new(net.wrapped)
    torch.testing.assert_close(second(X), wanted(net.wrapped, X))
    assert processes.traces == 2
    assert "__defaults__" in second.misses[0]
    assert not [row for row in caplog.records if row.levelno >= logging.WARNING]


def test_variants_wait_for_their_calls(processes: Processes, net: Net) -> None:
    """A process that calls another variant first loses none, in memory or on the disk."""
    sizes = [torch.randn(rows, 8) for rows in (2, 3, 4)]
    first = processes.new(net.both)
    for x in sizes:
        first(x)
    assert processes.traces == 3
    second = processes.new(net.both)
    torch.testing.assert_close(second(sizes[2]), wanted(net.both, sizes[2]))
    assert len(second.variants) == 1, "the others are not loaded"
    second(torch.randn(5, 8))
    assert processes.traces == 4
    third = processes.new(net.both)
    for x in sizes:
        torch.testing.assert_close(third(x), wanted(net.both, x))
    assert processes.traces == 4
    assert third.misses == []


def test_names_in_the_module_are_removed_again(processes: Processes, net: Net) -> None:
    before = set(vars(models))
    for _ in range(2):
        cached = processes.new(net.step)
        cached(X)
        assert {name for name in set(vars(models)) - before if name.startswith("__compiled_fn")}
        del cached
        gc.collect()
        assert {name for name in set(vars(models)) - before if not name.startswith("__import_")} == set()


@pytest.mark.parametrize("live", [False, True])
def test_a_closure_that_has_changed_is_noticed(processes: Processes, live: bool) -> None:
    net = models.closed_over(2)().eval()
    processes.new(net.step)(X)
    second = processes.new(net.step)
    if live:
        second(X)
        assert processes.traces == 1
    net.grow(3)  # type: ignore[attr-defined]
    torch.testing.assert_close(second(X), wanted(net.step, X))
    assert processes.traces == 2


def test_the_grad_mode_makes_no_difference(processes: Processes, net: Net) -> None:
    with torch.no_grad():
        expected = processes.new(net.step)(X)
    with torch.enable_grad():
        got = processes.new(net.step)(X)
    assert torch.equal(got, expected)
    assert not got.requires_grad
    with torch.inference_mode():
        assert torch.equal(processes.new(net.step)(X.clone()), expected)


def test_other_sources_are_a_miss(processes: Processes, net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    processes.new(net.step)(X)

    def step(self: Net, x: torch.Tensor, flag: bool = True, *, extra: Any = None) -> torch.Tensor:
        return self.first(x) - 1

    step.__qualname__ = "Net.step"
    monkeypatch.setattr(Net, "step", step)
    torch.testing.assert_close(processes.new(net.step)(X), wanted(net.first, X) - 1)
    assert processes.traces == 2


def test_another_function_on_the_way_is_a_miss(
    processes: Processes, net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes.new(net.step)(X)
    monkeypatch.setattr(torch.nn.Linear, "__call__", torch.nn.Linear.__call__, raising=False)
    monkeypatch.setattr(models, "shape_up", models.scaled_by(5))
    torch.testing.assert_close(processes.new(net.step)(X), wanted(net.step, X))
    assert processes.traces == 2


@pytest.mark.parametrize("kept", ["torch's", "the user's"])
@pytest.mark.parametrize(
    ("kind", "name"), [(torch.nn.Linear, "forward"), (torch.nn.Linear, "__call__"), (torch.Tensor, "abs")]
)
def test_a_method_that_the_user_puts_into_a_class_of_torch(
    kind: type, name: str, kept: str, processes: Processes, net: Net
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for each in ("torch's", "the user's") if kept == "torch's" else ("the user's", "torch's"):
            if each == "torch's":
                patch.undo()
            else:
                patch.setattr(kind, name, lambda *args: args[-1] * 3, raising=False)
            torch.testing.assert_close(processes.new(net.size)(X), wanted(net.size, X))
    assert processes.traces == 2


@pytest.mark.parametrize("what", ["options", "torch", "torchair", "device", "sizes"])
def test_a_miss_names_what_differs(
    processes: Processes, net: Net, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes.new(net.both)(X)
    options: dict[str, Any] = {}
    if what == "options":
        options["config"] = make_config()
        options["config"].experimental_config.remove_noop_ops = False
    elif what == "sizes":
        options["dynamic"] = True
    else:
        own = cache_compile.__globals__["location_of"].__globals__["facts_of"]
        monkeypatch.setitem(own.__globals__, "facts_of", lambda *args: {**own(*args), what: "another"})
    second = processes.new(net.both, **options)
    second(X)
    assert processes.traces == 2
    place = second.place()
    assert place is not None
    place.store.remove(place.key)
    assert set(place.store.why_miss(place.facts).differs) == {what}


def test_outputs_that_are_inputs_or_views_of_them(processes: Processes, net: Net) -> None:
    for _ in range(2):
        y = torch.zeros(3, 8)
        x = X.clone()
        rows, same, new = processes.new(net.view)(x, y)
        assert same is y or same.data_ptr() == y.data_ptr()
        assert torch.equal(y, torch.ones(3, 8))
        assert rows.data_ptr() == x[1:].data_ptr()
        assert rows.stride() == x[1:].stride()
        x.zero_()
        assert rows.count_nonzero() == 0
        torch.testing.assert_close(new, wanted(net.first, X))
    assert processes.traces == 1


def test_a_model_holds_what_is_made_of_its_methods(processes: Processes) -> None:
    """As in the documented use, in `__init__`."""
    for _ in range(2):
        net = Net().eval()
        net.fast = processes.new(net.step)  # type: ignore[assignment]
        net.fast_both = processes.new(net.both)  # type: ignore[assignment]
        torch.testing.assert_close(net.fast(X), wanted(net.step, X))
        torch.testing.assert_close(net.fast_both(X), wanted(net.both, X))
    assert processes.traces == 2
    twin = copy.deepcopy(net)
    with torch.no_grad():
        twin.first.weight.zero_()
    torch.testing.assert_close(twin.fast(X), wanted(twin.step, X))
    torch.testing.assert_close(net.fast(X), wanted(net.step, X))


def test_uncacheable_method_is_compiled_with_warning(
    processes: Processes, net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(guards.FACTS, "CONSTANT_MATCH")
    cached = processes.new(net.step)
    with pytest.warns(DegradedWarning, match="not cached, .*: a guard cannot be serialized: CONSTANT_MATCH"):
        torch.testing.assert_close(cached(X), wanted(net.step, X))
    assert not path_of(cached).exists()
    torch.testing.assert_close(cached(X * 2), wanted(net.step, X * 2))
    monkeypatch.setenv("TORCHAIR_STRICT", "1")
    with pytest.raises(Degraded, match="not cached"):
        processes.new(net.step)(X)


def test_too_many_variants_are_compiled_as_usual(
    processes: Processes, net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled_method, "MOST", 2)
    cached = processes.new(net.both)
    cached(torch.randn(2, 8))
    cached(torch.randn(3, 8))
    with pytest.warns(DegradedWarning, match="compiled 2 times"):
        cached(torch.randn(4, 8))
    x = torch.randn(5, 8)
    torch.testing.assert_close(cached(x), wanted(net.both, x))
    assert processes.traces == 2
    assert len(processes.new(net.both).variants) == 0


def _places(data: bytes) -> Iterator[int]:
    """One byte of each region of an entry, and of each of its files: the first, the last, some between."""
    size = int.from_bytes(data[len(MAGIC) + 32 : len(MAGIC) + 40], "big")
    start = len(MAGIC) + 40
    ends = [0, len(MAGIC), len(MAGIC) + 32, start, start + size]
    for _, length, _ in json.loads(data[start : start + size])["files"]:
        ends.append(ends[-1] + length)
    assert ends[-1] == len(data)
    for begin, end in pairwise(ends):
        yield from range(begin, end, max(1, (end - begin) // 5))
        yield end - 1


def test_damaged_entries_are_compiled_again(
    processes: Processes, net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = processes.new(net.both)
    first(X)
    place = first.place()
    assert place is not None
    data = place.path.read_bytes()

    def damage(at: int) -> None:
        place.path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])

    places = sorted(set(_places(data)))
    assert len(places) > 40
    own, opened = compiled_method.Frame.unpack, list[bytes]()
    monkeypatch.setattr(compiled_method.Frame, "unpack", lambda data: opened.append(data) or own(data))
    for at in places:
        damage(at)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DegradedWarning)  # told once for each cause
            assert place.store.get(place.key) is None, at
    damage(places[len(places) // 2])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DegradedWarning)
        second = processes.new(net.both)
        second.load()
        assert opened == [], "nothing of it is read as code"
        torch.testing.assert_close(second(X), wanted(net.both, X))
    assert processes.traces == 2
    processes.new(net.both)(X)
    assert processes.traces == 2, "it was mended"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("meta", None),
        ("meta", b"{"),
        ("meta", b"[]"),
        ("meta", b"{}"),
        ("meta", b'{"version": "1.0.5", "variants": "2"}'),
        ("meta", b'{"version": "1.0.5", "variants": 9}'),
        ("0/frame", None),
    ],
)
def test_entries_of_other_programs_are_compiled_again(
    name: str, content: bytes | None, processes: Processes, net: Net
) -> None:
    first = processes.new(net.both)
    first(X)
    place = first.place()
    assert place is not None
    files = dict(place.store.get(place.key) or {})
    del files[name]
    place.store.put(place.key, files if content is None else {**files, name: content}, place.facts)
    with pytest.warns(DegradedWarning, match="the cache entry of .* is ignored"):
        torch.testing.assert_close(processes.new(net.both)(X), wanted(net.both, X))


def test_a_directory_in_the_place_of_an_entry_is_not_used(processes: Processes, net: Net) -> None:
    place = processes.new(net.both).place()
    assert place is not None
    place.path.mkdir(parents=True)
    for folder in (place.store.root, *(path for path in place.path.parents if path > place.store.root)):
        folder.chmod(0o700)
    with (
        pytest.warns(DegradedWarning, match="is not a regular file"),
        pytest.warns(DegradedWarning, match="not cached"),
    ):
        torch.testing.assert_close(processes.new(net.both)(X), wanted(net.both, X))


@pytest.mark.full
@pytest.mark.parametrize("rounds", [200])
def test_processes_may_be_killed_at_any_time(rounds: int) -> None:
    """Four at a time, of one directory: no wrong result, none is stuck, nothing unreadable is left."""
    command = [sys.executable, "-m", "tests.inference.killed", str(rounds)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["killed"] > rounds
    assert found["faults"] == [], done.stderr
    assert found["left"] == [], "those who came later have cleaned up"


def test_another_device_is_a_miss(processes: Processes, net: Net) -> None:
    """In the key, where the model has moved; in the guards, where an argument has."""
    cached = processes.new(net.view)
    y = torch.zeros(3, 8)
    cached(X.clone(), y)
    key = location_of(net.view, cached.how, str(processes.folder), RankInfo())
    moved = location_of(copy.deepcopy(net).to("meta").view, cached.how, str(processes.folder), RankInfo())
    assert (key.facts["device"], moved.facts["device"]) == ("cpu", "meta")
    assert key.key != moved.key
    ((ready, variant),) = cached._variants
    elsewhere = cached._scope((X.to("meta"), y), {})
    with torch.no_grad():
        assert ready.matches(cached._scope((X, y), {}))
        assert not ready.matches(elsewhere)
    with pytest.raises(OtherCall, match=r"L\['x'\] was .* cpu .* and is .* meta"):
        frames.Ready(variant.frame, net.view.__func__, elsewhere, lambda: None)


def _op(times: int) -> Any:
    """An operator whose shapes and kernels are Python functions."""
    library = torch.library.Library("air_kept", "DEF")
    library.define("scaled(Tensor x) -> Tensor")
    library.impl("scaled", lambda x: x * 2, "CPU")
    texts = {1: lambda x: torch.empty_like(x), 2: lambda x: x.new_empty(x.shape)}
    torch.library.register_fake("air_kept::scaled", texts[times], lib=library)
    return library


class WithOp(Net):
    """Calls an operator that is not torch's."""

    def step(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return torch.ops.air_kept.scaled(self.first(x))


def test_another_operator_of_the_user_is_a_miss(processes: Processes) -> None:
    net = WithOp().eval()
    for times, traces in ((1, 1), (1, 1), (2, 2)):
        library = _op(times)
        torch._dynamo.reset()
        second = processes.new(net.step, config=make_config(mode="npugraph_ex"))
        torch.testing.assert_close(second(X), wanted(net.first, X) * 2)
        assert processes.traces == traces
        library._destroy()
    assert second.misses == ["the operator air_kept.scaled.default has changed"]


@torch.compiler.allow_in_graph
def opaque(x: torch.Tensor) -> torch.Tensor:
    return x * models.FACTOR


class WithOpaque(Net):
    """Calls a function that Dynamo puts into the graph as it is."""

    def step(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return opaque(self.first(x))


def test_opaque_object_is_not_cached(processes: Processes) -> None:
    net = WithOpaque().eval()
    with pytest.warns(DegradedWarning, match="does not trace .*opaque"):
        torch.testing.assert_close(processes.new(net.step)(X), wanted(net.step, X))


def test_what_others_can_write_is_not_run(processes: Processes, net: Net) -> None:
    first = processes.new(net.both)
    first(X)
    processes.folder.chmod(0o777)
    with pytest.raises(ValueError, match="other users can write"):
        processes.new(net.both)
    processes.folder.chmod(0o700)
    second = processes.new(net.both)
    processes.folder.chmod(0o777)
    with pytest.warns(DegradedWarning, match="other users can write"):
        torch.testing.assert_close(second(X), wanted(net.both, X))
    assert processes.traces == 2
    processes.folder.chmod(0o700)
    path_of(first).chmod(0o644)
    with pytest.warns(DegradedWarning, match="by you only"):
        processes.new(net.both)(X)
    assert processes.traces == 3
    assert path_of(first).stat().st_mode & 0o777 == 0o600


def test_cache_compile_refuses_invalid_arguments() -> None:
    net = Net()
    for given in (Net.step, net, lambda x: x, 3):
        with pytest.raises(ValueError, match="bound method"):
            cache_compile(given)
    with pytest.raises(ValueError, match=r"torch.nn.Module"):
        cache_compile([].append)
    backend = torchair.get_npu_backend(compiler_config=make_config())
    with pytest.raises(ValueError, match="differ"):
        cache_compile(net.step, config=torchair.CompilerConfig(), backend=backend)
    cache_compile(net.step, config=make_config(), backend=backend)
    with pytest.warns(DegradedWarning, match="no keyword 'colour'"):
        cache_compile(net.step, colour="red")
    with pytest.raises(TypeError, match="CompilerConfig"):
        cache_compile(net.step, config="fast")  # type: ignore[arg-type]


def test_cache_path_names_class_rank_and_mode(
    tmp_path: Path, net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    get = CompiledModel.get_cache_bin
    path = Path(get(net.step, dynamic=False))
    assert path.parts[:-3] == (tmp_path / ".torchair_cache").parts
    assert path.match("Net_static_????????????????????????????????/step/compiled_module")
    assert Path(get(net.step)).match("Net_dynamic_*/step/compiled_module")
    assert Path(get(net.step, ge_cache=True)).match("Net_dynamic_gecache_*/step/compiled_module")
    assert Path(get(net.step, config=make_config(mode="npugraph_ex"))).match(
        "Net_dynamic_aclgraphcache_*/step/*"
    )
    assert Path(get(net.step, tp_rank=1, pp_rank=0)).match("Net_dynamic_*/tp_rank1_pp_rank0/step/*")
    assert str(get(net.step, cache_dir="below")).startswith(str(tmp_path / "below"))
    monkeypatch.setenv("TORCHAIR_CACHE_HOME", str(tmp_path / "home"))
    assert str(get(net.step)).startswith(str(tmp_path / "home"))
    assert get(net.step) != get(Net(4).step)
    monkeypatch.setattr("torchair.backend.cache.key.rank_and_size", lambda: (3, 4))
    assert Path(get(net.step)).match("Net_dynamic_*/world4global_rank3/step/*")
    assert Path(get(net.step, global_rank=1, tp_rank=2)).match("*/world4global_rank1_tp_rank2/step/*")


@pytest.mark.parametrize("compiles", [cache_compile, torchair.npugraph_ex.inference.cache_compile])
@pytest.mark.parametrize(("given", "folder"), [("below", "below"), (None, ".torchair_cache")])
def test_a_path_is_that_of_the_folder_it_was_given_in(
    compiles: Any, given: str | None, folder: str, tmp_path: Path, net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cached = compiles(net.step, cache_dir=given)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert cached.place().store.root == tmp_path / folder


def test_readable_cache_refuses_links_and_foreign_files(
    processes: Processes, net: Net, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cached = processes.new(net.step)
    cached(X)
    path, out = path_of(cached), tmp_path / "text" / "step.py"
    text = readable_cache(str(path), file=str(out))
    assert capsys.readouterr().out.strip() == text.strip()
    lines = text.splitlines()
    assert lines[0] == "=" * 100
    for title in ("graph module", "inputs", "compile options", "caller frame"):
        assert f" {title} ".center(100, "-") in lines
    assert "Net.step(self, x" in text
    assert "1.0.5" in text
    assert "LOAD_GLOBAL" in text
    assert any("Parameter" in line and "weight" in line for line in lines)
    assert any("UserInput" in line and "[3, 8]" in line for line in lines)
    written = out.read_text()
    assert written.startswith("# ====")
    compile(written, "step.py", "exec")
    assert "def " in "".join(line for line in written.splitlines(True) if not line.startswith("#"))
    assert out.stat().st_mode & 0o777 == 0o600
    out.chmod(0o644)
    with pytest.raises(PermissionError):
        readable_cache(str(path), print_output=False, file=str(out))
    (tmp_path / "link").symlink_to(path)
    for bad in (tmp_path / "link", tmp_path / "none"):
        with pytest.raises(ValueError, match="is not a regular file"):
            readable_cache(str(bad))
    path.chmod(0o640)
    with pytest.raises(PermissionError):
        readable_cache(str(path))


def test_compiled_model_loads_and_recompiles(processes: Processes, net: Net, tmp_path: Path) -> None:
    cached = processes.new(net.both)
    cached(X)
    kept = CompiledModel.load(str(path_of(cached)))
    kept.save(str(tmp_path / "copy"))
    assert (tmp_path / "copy").stat().st_mode & 0o777 == 0o600
    other = Net().eval()
    call = CompiledModel.load(str(tmp_path / "copy")).rebase(other)
    torch.testing.assert_close(call(X), wanted(other.both, X))
    assert processes.traces == 1
    scope = {**vars(models)}
    torch.testing.assert_close(
        kept.rebase(other, global_vars=scope, func=other.both)(X), wanted(other.both, X)
    )
    assert processes.traces == 1
    place = kept.rebase(other, cache_dir=str(tmp_path / "rebased")).place()  # type: ignore[attr-defined]
    assert place.facts["options"] == cached.place().facts["options"]  # type: ignore[union-attr]
    assert place.facts["sizes"] == "static"
    with pytest.raises(RuntimeError, match="rebase"):
        kept(X)
    with pytest.raises(RuntimeError, match="cannot be recompiled"):
        kept.recompile(torchair.CompilerConfig())
    (tmp_path / "copy").write_bytes(b"nonsense")
    with pytest.raises(ValueError, match="not a cache entry"):
        CompiledModel.load(str(tmp_path / "copy"))


def test_a_method_in_a_file_of_its_own(net: Net, tmp_path: Path, processes: Processes) -> None:
    file = str(tmp_path / "method")
    made = _NoGuardCompiledMethod(net.both, config=make_config(), dynamic=False)
    with pytest.raises(RuntimeError, match="no inputs"):
        made.save_to(file)
    made.for_inputs(X).save_to(file)
    with pytest.raises(RuntimeError):
        made.for_inputs(X)
    other = Net().eval()
    call = _NoGuardCompiledMethod.load(file, self=other)
    torch.testing.assert_close(call(X), wanted(other.both, X))
    with pytest.raises(BadCall, match="no compiled variant of"):
        call(torch.randn(5, 8))
    with pytest.raises(ValueError, match="already exists"):
        _NoGuardCompiledMethod(net.both, config=make_config()).for_inputs(X).save_to(file)
    assert processes.traces == 1


def test_a_function_in_a_file_of_its_own(tmp_path: Path, processes: Processes) -> None:
    file = str(tmp_path / "function")
    _NoGuardCompiledFunction(models.shape_up, config=make_config(), dynamic=True).for_inputs(X).save_to(file)
    call = _NoGuardCompiledFunction.load(file)
    more = torch.randn(6, 8)
    torch.testing.assert_close(call(more), more * 3)
    assert processes.traces == 1


@pytest.mark.usefixtures("builds")
@MODES
@pytest.mark.parametrize("fails", [False, True])
def test_an_entry_has_the_better_program(
    fails: bool, mode: str, processes: Processes, net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With codegen `auto` an entry is written after the first call, and again when the better program is
    there, or will never be.
    """
    builds = Quick()
    monkeypatch.setattr(scheduler, "compile_in_worker", builds)
    builds.gate.clear()
    builds.failed = "no compiler here" if fails else ""
    config = make_config(mode=mode)
    config.engine_config.codegen = "auto"
    first = processes.new(net.both, config=config)
    for _ in range(2):
        torch.testing.assert_close(first(X), wanted(net.both, X))
    path = path_of(first)
    assert path.exists(), list(path.parents[2].rglob("*"))
    builds.gate.set()
    assert torchair.wait_until_optimised(60)
    second = processes.new(net.both, config=config)
    torch.testing.assert_close(second(X), wanted(net.both, X))
    assert processes.traces == 1
    (variant,) = second.variants
    assert variant.kept is not None
    assert variant.awaited is None, "nothing more to build"
    assert len(builds.orders) == 1
    texts = [made.code.source for made in builds.made]
    assert (variant.kept.runner.program.source in texts) is not fails


@pytest.mark.usefixtures("builds")
@MODES
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_a_process_that_ends_early_leaves_the_rest_to_the_next(
    dynamic: bool, mode: str, processes: Processes, net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has kept the eager program, and how the better one is ordered: nothing is traced again for it."""
    taken = list[Job]()
    with monkeypatch.context() as patch:
        patch.setattr(SCHEDULER, "give", taken.append)
        config = make_config(mode=mode)
        config.engine_config.codegen = "auto"
        first = processes.new(net.both, config=config, dynamic=dynamic)
        for _ in range(3):
            torch.testing.assert_close(first(X), wanted(net.both, X))
        assert taken
        assert path_of(first).exists()
        patch.setattr(first, "write", lambda: False)
        for job in taken:
            job.end("the process ended", is_wished=True)
    builds = Quick()
    monkeypatch.setattr(scheduler, "compile_in_worker", builds)
    second = processes.new(net.both, config=config, dynamic=dynamic)
    for _ in range(3):
        torch.testing.assert_close(second(X), wanted(net.both, X))
    assert torchair.wait_until_optimised(60)
    assert len(builds.orders) == 1
    torch.testing.assert_close(second(X), wanted(net.both, X))
    third = processes.new(net.both, config=config, dynamic=dynamic)
    torch.testing.assert_close(third(X), wanted(net.both, X))
    (variant,) = third.variants
    assert variant.kept is not None
    assert variant.awaited is None, "nothing more to build"
    assert variant.kept.runner.program.source in [made.code.source for made in builds.made]
    assert processes.traces == 1
    if dynamic:
        x = torch.randn(5, *X.shape[1:])
        torch.testing.assert_close(third(x), wanted(net.both, x))


def test_programs_for_single_sizes_are_not_lost_in_silence(processes: Processes, net: Net) -> None:
    x = torch.randn(2, 8)
    torchair.inference.set_dim_gears(x, {0: [2, 4]})
    cached = processes.new(net.both, dynamic=True)
    with pytest.warns(DegradedWarning, match="Net.both is not cached"):
        torch.testing.assert_close(cached(x), wanted(net.both, x))
    assert not path_of(cached).exists()


def test_cache_commands_list_and_remove_entries(
    processes: Processes, net: Net, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def command(*words: str, folder: Path = processes.folder) -> tuple[int, str]:
        status = main(["cache", *words, "--dir", str(folder)])
        return status, capsys.readouterr().out

    cached = processes.new(net.both)
    cached(X)
    key = path_of(cached).parent.relative_to(processes.folder).as_posix()
    assert key in command("ls")[1]
    assert command("verify") == (0, "1 of 1 entries are intact\n")
    options = make_config()
    options.experimental_config.remove_noop_ops = False
    processes.new(net.both, config=options)(X)
    status, out = command("why-miss", key)
    assert status == 0
    lines = out.splitlines()
    assert lines[0] == f"{key}: matches this machine"
    assert "remove_noop_ops" in lines[1]
    assert lines[2:] == ["  variant 0 was compiled because: no cache entry was found"]
    assert command("rm", path_of(processes.new(net.both, config=options)).parts[-3])[0] == 0
    archive, other = str(tmp_path / "kept.tar"), tmp_path / "other"
    assert command("export", "--file", archive)[0] == 0
    assert command("import", "--file", archive, folder=other)[0] == 0
    assert (other / key / "compiled_module").read_bytes()[:16] == path_of(cached).read_bytes()[:16]
    traces = processes.traces
    torch.testing.assert_close(processes.new(net.both, cache_dir=str(other))(X), wanted(net.both, X))
    assert processes.traces == traces
    assert command("export", "--file", str(other))[0] == 2  # a directory
    limits = (
        ["--older-than", "-1"],
        ["--older-than", "nan"],
        ["--most-bytes", "-1"],
        ["Net", "--older-than", "0"],
    )
    assert [command("rm", *words)[0] for words in limits] == [2] * 4
    path_of(cached).write_bytes(b"x")
    status, out = command("verify")
    assert status == 1
    assert "not a cache entry of this version" in out
    assert command("rm")[0] == 2
    assert command("rm", "Net_")[1] == f"removed {key}\n"
    assert not path_of(cached).exists()


def test_arguments_are_bound_as_python_does() -> None:
    def function(a, b=2, /, c=3, *rest, d, e=5, **more):  # type: ignore[no-untyped-def]
        pass

    bound = compiled_method.binder(function)(1, 7, 8, 9, d=4, f=6)
    assert bound == {"a": 1, "b": 7, "c": 8, "rest": (9,), "d": 4, "e": 5, "more": {"f": 6}}
    with pytest.raises(TypeError):
        compiled_method.binder(function)(1)

    def plain(self, x, *, y=1):  # type: ignore[no-untyped-def]
        pass

    assert compiled_method.binder(plain)(1, 2) == {"self": 1, "x": 2, "y": 1}


def test_code_is_the_same_wherever_it_stands() -> None:
    text = "def f(x):\n    return x in {1, 'a', 2.5}\n"
    first, second = dict[str, Any](), dict[str, Any]()
    exec(text, first)
    exec("\n\n" + text, second)
    digest = python_objects.code_digest
    assert digest(first["f"].__code__) == digest(second["f"].__code__)
    exec(text.replace("2.5", "3.5"), second)
    assert digest(first["f"].__code__) != digest(second["f"].__code__)


def test_names_in_guards_are_not_called() -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return os.system, ("false",)

    with pytest.raises(ValueError, match="must not call"):
        frames._loads(pickle.dumps(Evil()))
