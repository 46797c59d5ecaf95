"""Models written as graph files, read again, and called like the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchair
from tests.backend.export import wire
from tests.models.zoo import ROWS, Row, leaves
from tests.support.process import python
from tests.support.slow import slow
from torchair.backend.export import loader as loaded_models
from torchair.core.errors import BadCall
from torchair.ge.files import air_file
from torchair.ge.files.verify import verify, verify_emitted

QUICK = ("llama", "lstm")


class Net(nn.Module):
    """Arguments by place and by name, numbers among them, nested results."""

    shift: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 4)
        self.register_buffer("shift", torch.randn(4))

    def forward(self, x: torch.Tensor, scale: float = 2.0, *, y: torch.Tensor, extra: Any = None) -> Any:
        z = self.b(self.a(x).relu()) * scale + self.shift
        return {"z": z, "pair": (x + y, [z.sum()]), "n": 3, "same": y}


def exported(model: nn.Module, folder: Path, *args: Any, dynamic: bool = False, **kwargs: Any) -> Any:
    torchair.dynamo_export(
        *args, model=model, export_path=str(folder), export_name="net", dynamic=dynamic, **kwargs
    )
    wire.read(folder / "net.air")  # others read every file
    return torchair.load_air(folder / "net.air")


@pytest.fixture
def net() -> Net:
    return Net().eval()


def check(loaded: Any, model: nn.Module, *args: Any, **kwargs: Any) -> None:
    with torch.no_grad():
        want = model(*args, **kwargs)
    torch.testing.assert_close(loaded(*args, **kwargs), want)


def test_called_like_the_model(net: Net, tmp_path: Path) -> None:
    x, y = torch.randn(3, 8), torch.randn(3, 8)
    loaded = exported(net, tmp_path, x, y=y)
    check(loaded, net, x, y=y)
    check(loaded, net, x=torch.randn(3, 8), y=torch.randn(3, 8), scale=2.0)
    check(loaded, net, torch.randn(8, 3).T, y=y)  # other strides
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dynamo.pbtxt", "net.air", "net.air.sha256"]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda run, x: run(x), "missing a required.*'y'"),
        (lambda run, x: run(x, y=x[:2]), "argument y has other sizes"),
        (lambda run, x: run(x.double(), y=x), "argument x must be torch.float32"),
        (lambda run, x: run(x, 3.0, y=x), "argument scale was 2.0 when the graph was made"),
        (lambda run, x: run(x, y=x, extra=x), "argument extra was not given when the graph was made"),
        (lambda run, x: run(3, y=x), "argument x must be a tensor"),
    ],
)
def test_other_calls_are_refused(net: Net, tmp_path: Path, call: Any, text: str) -> None:
    x = torch.randn(3, 8)
    loaded = exported(net, tmp_path, x, y=x.clone())
    with pytest.raises(BadCall, match=text):
        call(loaded, x)


def test_one_graph_for_all_sizes(net: Net, tmp_path: Path) -> None:
    loaded = exported(net, tmp_path, torch.randn(3, 8), y=torch.randn(3, 8), dynamic=True)
    for rows in (3, 7, 40, 5):
        check(loaded, net, torch.randn(rows, 8), y=torch.randn(rows, 8))
    assert len(loaded.compiled) == 1
    for rows in (1, 0):
        check(loaded, net, torch.randn(rows, 8), y=torch.randn(rows, 8))
    with pytest.raises(BadCall, match="argument y has a size of 4"):
        loaded(torch.randn(3, 8), y=torch.randn(4, 8))


def test_sizes_without_end_keep_memory_bounded(
    net: Net, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loaded_models, "MANY_SIZES", 3)
    loaded = exported(net, tmp_path, torch.randn(3, 8), y=torch.randn(3, 8), dynamic=True)
    for rows in (1, 0, 4, 5, 6, 7, 1):
        check(loaded, net, torch.randn(rows, 8), y=torch.randn(rows, 8))
    assert len(loaded.compiled) <= 3


class Cache(nn.Module):
    """Writes one of its arguments."""

    def forward(self, cache: torch.Tensor, x: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        cache.index_copy_(0, place, x)
        return cache.sum(0)


@pytest.mark.parametrize("is_dense", [True, False])
def test_what_the_model_writes_is_written(tmp_path: Path, is_dense: bool) -> None:
    cache, x, place = torch.zeros(6, 4), torch.randn(2, 4), torch.tensor([1, 4])
    loaded = exported(Cache(), tmp_path, cache, x, place)
    assert not cache.any(), "tracing writes nothing"
    mine = torch.zeros(6, 4) if is_dense else torch.zeros(4, 6).T
    theirs = torch.zeros(6, 4)
    for _ in range(2):
        x = torch.randn(2, 4)
        torch.testing.assert_close(loaded(mine, x, place), Cache()(theirs, x, place))
        torch.testing.assert_close(mine, theirs)
    assert [op.type for op in loaded.graph.inputs].count("RefData") == 1


class Writer(nn.Module):
    """Writes its arguments as it is told to."""

    def __init__(self, write: Any) -> None:
        super().__init__()
        self.write = write

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        return self.write(x, y)


def _used_elsewhere(x: torch.Tensor, y: torch.Tensor) -> Any:
    new = x * y
    x.copy_(new)
    return new.relu(), new


@pytest.mark.parametrize(
    ("write", "count"),
    [
        (lambda x, y: x.add_(1).sum() + y.mul_(2).sum(), 2),
        (lambda x, y: (x.mul_(y), y + 1), 1),
        (_used_elsewhere, 1),
    ],
    ids=["two", "returned", "used elsewhere"],
)
def test_in_a_file_assigns_write_reference_inputs(tmp_path: Path, write: Any, count: int) -> None:
    """Nothing else in the file says that an argument is written: an Assign to a reference input is no output
    of the graph instead, as one to plain Data may be. Control edges keep it.
    """
    exported(Writer(write), tmp_path, torch.randn(2, 3), torch.randn(2, 3))
    config = torchair.CompilerConfig()
    config.engine_config.codegen = "eager"
    loaded = torchair.load_air(tmp_path / "net.air", config=config)
    graph = air_file.read_air(tmp_path / "net.air")
    verify(graph)
    verify_emitted(graph)
    assigns = [op for op in graph.ops if op.type == "Assign"]
    assert [op.inputs[0].op.type for op in assigns] == ["RefData"] * count
    assert graph.output is not None
    assert set(assigns) <= set(graph.output.after)
    mine = [torch.randn(2, 3), torch.randn(2, 3)]
    theirs = [tensor.clone() for tensor in mine]
    for _ in range(2):
        torch.testing.assert_close(loaded(*mine), write(*theirs))
        torch.testing.assert_close(mine, theirs)


class Counter(nn.Module):
    """Writes a buffer of its own, and returns a size."""

    seen: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> Any:
        self.seen.add_(x.sum(0))
        return self.seen * 1, x.shape[0]


def test_states_of_a_model(tmp_path: Path) -> None:
    model = Counter()
    loaded = exported(model, tmp_path, torch.randn(3, 4), dynamic=True)
    assert not model.seen.any()
    for rows in (3, 5):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(loaded(x), model(x))


def test_weights_in_files(net: Net, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(air_file, "EXTERNAL_FROM", 100)
    x, y = torch.randn(3, 8), torch.randn(3, 8)
    loaded = exported(net, tmp_path, x, y=y)
    assert "saving weights: 100 %" in capsys.readouterr().out
    files = {path.name for path in tmp_path.iterdir()}
    assert {"a_weight", "a_bias", "b_weight", "b_bias", "shift"} <= files
    assert (tmp_path / "shift").read_bytes() == net.shift.numpy().tobytes()
    check(loaded, net, x, y=y)
    (tmp_path / "moved").mkdir()
    for name in files:
        (tmp_path / name).rename(tmp_path / "moved" / name)
    check(torchair.load_air(tmp_path / "moved" / "net.air"), net, x, y=y)


def test_loaded_graph_draws_new_numbers_each_call(tmp_path: Path) -> None:
    class Noise(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.rand_like(x)

    x = torch.zeros(1000)
    loaded = exported(Noise(), tmp_path, x)
    first, second = loaded(x), loaded(x)
    assert 0 <= first.min() < first.max() <= 1
    assert not torch.equal(first, second)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize(
    "row", [row if row.name in QUICK else slow(row) for row in ROWS], ids=lambda row: row.name
)
def test_loaded_family_equals_eager(row: Row, dynamic: bool, tmp_path: Path) -> None:
    model = row.model().eval()
    exported(model, tmp_path, dynamic=dynamic, **row.feed(row.shapes[0]))
    config = torchair.CompilerConfig()
    config.engine_config.codegen = "eager"
    loaded = torchair.load_air(tmp_path / "net.air", config=config)
    for shape in row.shapes[: 2 if dynamic else 1]:
        feed = row.feed(shape)
        with torch.no_grad():
            torch.testing.assert_close(leaves(loaded(**feed)), leaves(model(**feed)))


def test_in_another_process(net: Net, tmp_path: Path) -> None:
    x, y = torch.randn(3, 8), torch.randn(3, 8)
    torchair.CompiledModel.save_graph(net, (x,), save_path=tmp_path / "saved", y=y)
    assert (tmp_path / "saved" / "compiled_graph.air").is_file()
    torch.save((x, y), tmp_path / "given.pt")
    script = tmp_path / "script.py"
    script.write_text(
        "import torch, torchair\n"
        "x, y = torch.load('given.pt')\n"
        "torch.save(torchair.CompiledModel.load_graph('saved')(x, y=y), 'got.pt')\n"
    )
    done = python([str(script)], tmp_path)
    assert done.returncode == 0, done.stderr
    with torch.no_grad():
        torch.testing.assert_close(torch.load(tmp_path / "got.pt"), net(x, y=y))


class Buffered(nn.Module):
    """A buffer that a reference op updates."""

    cache: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(4, 3))

    def forward(self, index: torch.Tensor, update: torch.Tensor) -> torch.Tensor:
        self.cache.copy_(torch.ops.npu.npu_scatter_nd_update(self.cache, index, update))
        return self.cache.sum(0)


def test_reference_ops_write_states(tmp_path: Path) -> None:
    """In the file the op writes the state itself, as on a device; loaded, the state is written too."""
    model = Buffered().eval()
    index, update = torch.tensor([[1], [3]]), torch.randn(2, 3)
    loaded = exported(model, tmp_path, index, update)
    (scatter,) = [op for op in air_file.read_air(tmp_path / "net.air").ops if op.type == "ScatterNdUpdate"]
    assert scatter.inputs[0].op.type == "RefData"
    check(loaded, model, index, update)
    check(loaded, model, torch.tensor([[0], [1]]), update)
    check(loaded, model, torch.tensor([[2], [2]]), update * 0)
