"""Graph files with ops that no converter here emits: read, run, or refused with the op and the cause."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import torchair
from torchair import ge
from torchair.core.errors import UnsupportedOp
from torchair.ge.builder import build
from torchair.ge.graph import Desc, Graph
from torchair.ge.proto.write import to_bytes

INT64 = ge.DataType.DT_INT64


def written(make: Callable[..., Any], path: Path, *shapes: tuple[int, ...]) -> Any:
    """The model of a file with the ops of `make`, whose inputs are FLOAT of these shapes."""
    graph = Graph("other")
    with graph:
        inputs = [build.build("Data", index=index) for index in range(len(shapes))]
        for data, shape in zip(inputs, shapes, strict=True):
            data.desc = Desc("y", dtype=ge.DataType.DT_FLOAT, shape=shape)
        build.add_op("NetOutput", {"input0": make(*inputs)}, {}, [])
    path.write_bytes(to_bytes(graph, normalised=True))
    config = torchair.CompilerConfig()
    config.engine_config.codegen = "eager"
    return torchair.load_air(path, config=config)


def test_pads_and_modes_are_numbers(tmp_path: Path) -> None:
    def make(x: Any) -> Any:
        padded = ge.MirrorPad(x, torch.tensor([[0, 0], [2, 1]]), mode="REFLECT")
        mode = ge.Const([2], dtype=ge.DataType.DT_INT8)
        return ge.ForeachRoundOffNumber([padded], mode, outputs=1)[0]

    model = written(make, tmp_path / "other.air", (-1, 5))
    for rows in (3, 4):
        x = torch.randn(rows, 5)
        torch.testing.assert_close(model(x), (F.pad(x, (2, 1), "reflect").floor(),))


def test_a_slice_without_end_is_written(tmp_path: Path) -> None:
    """`x[1::2] = src` as places from 1 to the smaller one of the size and the largest integer."""

    def make(x: Any, src: Any) -> Any:
        size = ge.Gather(ge.Shape(x, dtype=INT64), ge.Const(0, dtype=INT64))
        end = ge.Minimum(ge.Const(sys.maxsize, dtype=INT64), size)
        places = ge.Range(ge.Const(1, dtype=INT64), end, ge.Const(2, dtype=INT64))
        places = ge.Expand(ge.ExpandDims(places, 1), ge.Shape(src, dtype=INT64))
        return ge.ScatterElements(x, places, src, axis=0)

    model = written(make, tmp_path / "other.air", (-1, 3), (-1, 3))
    for rows in (5, 8):
        x, src = torch.randn(rows, 3), torch.randn(rows // 2, 3)
        expected = x.clone()
        expected[1::2] = src
        torch.testing.assert_close(model(x, src), (expected,))


def test_a_parameter_at_an_address_is_refused(tmp_path: Path) -> None:
    def make(x: Any) -> Any:
        frozen = ge.ConstPlaceHolder(
            origin_shape=[3], origin_format=2, storage_shape=[3], storage_format=2, expand_dim_rules="",
            dtype=0, addr=1 << 40, size=12, node_name="ConstPlaceHolder_1",
        )  # fmt: skip
        return ge.Add(x, frozen)

    with pytest.raises(UnsupportedOp, match="without a kernel: ConstPlaceHolder") as caught:
        written(make, tmp_path / "other.air", (2, 3))
    assert "ConstPlaceHolder_1" in str(caught.value)
    assert "address in the process that created the graph" in str(caught.value)
