"""Dumped tensors: which files, with which values, and results that stay equal to eager."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import torchair
from tests.debug.seen import Seen
from torchair.core.errors import BadOption, BadOptionType, DegradedWarning
from torchair.debug.dumps.tensor_dump import array_of

FOLDER = "worldsize1_global_rank0"


def work(cache: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    cache.add_(x)
    return torch.relu(cache * 2) + x


def call_and_compare(folder: Path, calls: int, **options: Any) -> list[torch.Tensor]:
    """Call with dumping on; results are compared with eager, and returned."""
    compiled = torch.compile(
        work,
        backend="npugraph_ex",
        options={"dump_tensor_data": True, "data_dump_dir": str(folder), **options},
    )
    mine, theirs, results = torch.zeros(3), torch.zeros(3), []
    with torch.no_grad():
        for number in range(calls):
            x = torch.arange(3.0) - number
            results.append(compiled(mine, x))
            torch.testing.assert_close(results[-1], work(theirs, x))
            torch.testing.assert_close(mine, theirs)
    return results


@pytest.mark.parametrize("stage", ["optimized", "original"])
def test_every_tensor_of_every_call(tmp_path: Path, stage: str) -> None:
    results = call_and_compare(tmp_path, 2, data_dump_stage=stage)
    files = {path.name for path in (tmp_path / FOLDER).iterdir()}
    assert {"relu_0.pt", "relu_1.pt", "arg1_1_0.pt", "arg1_1_1.pt"} <= files
    # A pass lets `add` write the cache itself.
    assert ("copy__0.pt" in files) == (stage == "original")
    stored = [torch.load(tmp_path / FOLDER / f"add_1_{call}.pt") for call in range(2)]
    torch.testing.assert_close(stored, results)


def test_arrays_of_the_untouched_graph(tmp_path: Path) -> None:
    results = call_and_compare(tmp_path, 2, force_eager=True)
    (graph,) = (tmp_path / FOLDER).iterdir()
    assert graph.name.startswith("graph_")
    assert sorted(path.name for path in graph.iterdir()) == ["0", "1"]
    for call, result in enumerate(results):
        (path,) = (graph / str(call)).glob("add_1-aten.add.Tensor.OUTPUT.0.*.npy")
        np.testing.assert_allclose(np.load(path), result.numpy())
        assert list((graph / str(call)).glob("relu-aten.relu.default.INPUT.0.*.npy"))


def test_bfloat16_is_widened(tmp_path: Path) -> None:
    compiled = torch.compile(
        lambda x: x * 2,
        backend="npugraph_ex",
        options={"dump_tensor_data": True, "force_eager": True, "data_dump_dir": str(tmp_path)},
    )
    compiled(torch.ones(2, dtype=torch.bfloat16))
    (path,) = tmp_path.rglob("*.OUTPUT.0.*.npy")
    assert np.load(path).dtype == np.float32


# debug.data_dump, in both modes


def mixed(x: torch.Tensor, parts: list[torch.Tensor]) -> torch.Tensor:
    y = torch.cat(parts, 1).bfloat16()
    return (x @ y.float()).clamp(min=0).sum(-1)


def data_dump(folder: Path, mode: str = "max-autotune", choose: Any = None) -> Seen:
    config = torchair.CompilerConfig()
    config.mode = mode
    config.debug.data_dump.type = "npy"
    config.debug.data_dump.path = str(folder)
    config.debug.data_dump.filter = choose
    return Seen(config)


def arrays(folder: Path, graph: str, step: int) -> dict[str, np.ndarray]:
    """By name without the time; all files of one node have the same time."""
    found, stamps = {}, {}
    for path in (folder / FOLDER / graph / str(step)).iterdir():
        match = re.fullmatch(r"(([\w-]+?)-[\w.]+\.(?:INPUT|OUTPUT)\.\d+(?:\.\d+)?)\.(\d{20})\.npy", path.name)
        assert match, path.name
        assert stamps.setdefault(match[2], match[3]) == match[3]
        assert path.stat().st_mode & 0o777 == 0o640
        found[match[1]] = np.load(path)
    return found


@pytest.mark.parametrize("mode", ["max-autotune", "npugraph_ex"])
def test_inputs_and_outputs_of_every_op(tmp_path: Path, mode: str) -> None:
    backend = data_dump(tmp_path, mode)
    run = torch.compile(mixed, backend=backend, dynamic=False)
    with torch.no_grad():
        for step in range(2):
            x, parts = torch.randn(3, 4), [torch.randn(4, 2), torch.randn(4, 5)]
            result = run(x, parts)
            torch.testing.assert_close(result, mixed(x, parts))
            found = arrays(tmp_path, backend.calls[0].graph, step)
            np.testing.assert_array_equal(found["cat-aten.cat.default.INPUT.0.1"], parts[1].numpy())
            assert found["cat-aten.cat.default.INPUT.1"] == 1
            wide = found["cat-aten.cat.default.OUTPUT.0"]
            np.testing.assert_array_equal(wide, torch.cat(parts, 1).numpy())
            narrow = [key for key in found if "_to_copy" in key and key.endswith("OUTPUT.0")]
            assert {found[key].dtype for key in narrow} == {np.dtype("float32")}  # numpy has no bfloat16
            np.testing.assert_array_equal(found["sum_1-aten.sum.dim_IntList.OUTPUT.0"], result.numpy())
            np.testing.assert_array_equal(found["sum_1-aten.sum.dim_IntList.INPUT.1"], [-1])


def test_what_an_op_writes_is_dumped_as_it_was(tmp_path: Path) -> None:
    def update(cache: torch.Tensor, x: torch.Tensor) -> None:
        cache.add_(x)

    cache = torch.ones(3)
    backend = data_dump(tmp_path)
    with torch.no_grad():
        torch.compile(update, backend=backend)(cache, torch.ones(3))
    torch.testing.assert_close(cache, torch.full((3,), 2.0))
    found = arrays(tmp_path, backend.calls[0].graph, 0)
    np.testing.assert_array_equal(found["copy_-aten.copy_.default.INPUT.0"], np.ones(3))
    np.testing.assert_array_equal(found["copy_-aten.copy_.default.OUTPUT.0"], np.full(3, 2.0))


def test_the_filter_chooses(tmp_path: Path) -> None:
    asked: list[str] = []

    def choose(node: torch.fx.Node) -> Any:
        asked.append(node.name)
        return node if "cat" in node.name else None

    backend = data_dump(tmp_path, choose=choose)
    torch.compile(mixed, backend=backend)(torch.randn(3, 4), [torch.randn(4, 2), torch.randn(4, 5)])
    assert {"cat", "mm", "clamp"} <= set(asked)
    assert {key.partition("-")[0] for key in arrays(tmp_path, backend.calls[0].graph, 0)} == {"cat"}


@pytest.mark.parametrize(
    ("choose", "kind", "text"),
    [
        ("cat", BadOptionType, "must be a function of a node.*\n.*'cat' \\(str\\)"),
        (lambda node: node.shape, BadOption, "filter raised AttributeError"),
    ],
    ids=["no function", "raises"],
)
def test_a_wrong_filter_is_the_users_error(tmp_path: Path, choose: Any, kind: type, text: str) -> None:
    run = torch.compile(lambda x: x + 1, backend=data_dump(tmp_path, choose=choose))
    with pytest.raises(Exception, match=text) as caught:
        run(torch.ones(2))
    assert isinstance(getattr(caught.value, "inner_exception", caught.value), kind)


def test_two_graphs_a_break_and_training(tmp_path: Path) -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        torch._dynamo.graph_break()
        return y.cos().sum()

    x = torch.randn(3, requires_grad=True)
    backend = data_dump(tmp_path)
    torch.compile(broken, backend=backend)(x).backward()
    expected = torch.autograd.grad(broken(x), x)[0]
    torch.testing.assert_close(x.grad, expected)
    graphs = [call.graph for call in backend.calls]
    assert len(set(graphs)) == 4
    assert sorted(path.name for path in (tmp_path / FOLDER).iterdir()) == sorted(set(graphs))


def test_a_dump_that_cannot_be_written_ends_nothing(tmp_path: Path) -> None:
    (tmp_path / FOLDER).write_text("in the way")
    run = torch.compile(lambda x: x + 1, backend=data_dump(tmp_path))
    with pytest.warns(DegradedWarning, match="cannot write a dumped array"):
        torch.testing.assert_close(run(torch.ones(2)), torch.full((2,), 2.0))


def test_data_dump_warns_of_ineffective_options(tmp_path: Path) -> None:
    backend = data_dump(tmp_path)
    backend.config.debug.graph_dump.type = "txt"
    backend.config.dump_config.enable_dump = True
    with pytest.warns(DegradedWarning) as said:
        torch.compile(lambda x: x + 1, backend=backend)(torch.ones(2))
    texts = " ".join(str(one.message) for one in said)
    assert "debug.graph_dump writes no file" in texts
    assert "dump_config has no effect beside debug.data_dump" in texts


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (torch.tensor([1.5], dtype=torch.bfloat16), np.array([1.5], np.float32)),
        (torch.tensor([2.0]).to(torch.float8_e4m3fn), np.array([2.0], np.float32)),
        (torch.tensor([1 + 2j]).conj(), np.array([1 - 2j], np.complex64)),
        (torch.ones(2).to_sparse(), np.ones(2, np.float32)),
        ([1, 2], np.array([1, 2])),
        (3.5, np.array(3.5)),
        (None, np.array("None")),
        (torch.float32, np.array("torch.float32")),
        ([None, 1], np.array("[None, 1]")),
    ],
    ids=str,
)
def test_as_numpy_has_it(value: Any, expected: np.ndarray) -> None:
    made = array_of(value)
    assert made.dtype == expected.dtype
    np.testing.assert_array_equal(made, expected)
