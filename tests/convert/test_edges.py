"""Converters at the numbers where formulas break, against eager and float64: the rows of `edge_rows.py`."""

from __future__ import annotations

import pytest
import torch

from tests.convert import edges
from tests.convert.edge_rows import rows
from tests.convert.edges import Row, Seen, check, judge
from torchair.convert.base.emitted_ops import emitted_by_target
from torchair.convert.base.registry import candidates
from torchair.convert.base.results import target_name

ROWS = rows()
# One row of each kind of fault that was found, and one of each kind of call.
QUICK = (
    *(
        "lgamma",
        "digamma of positive numbers",
        "hypot",
        "fmax",
        "special.log_ndtr",
        "nn.functional.threshold",
    ),
    *("point logit gradient", "loss smooth_l1 gradient"),
)


def hold(row: Row, dtypes: tuple[torch.dtype, ...]) -> None:
    seen = Seen()
    for dtype in dtypes:
        check(row, dtype, seen)
    assert not seen.faults, "\n".join(seen.faults)


def test_where_formulas_break() -> None:
    for name in QUICK:
        hold(ROWS[name], (torch.float32,))


@pytest.mark.full
@pytest.mark.parametrize("name", ROWS)
def test_every_row(name: str) -> None:
    hold(ROWS[name], tuple(ROWS[name].dtypes))


# What only arranges elements: no arithmetic that could break.
ARRANGING = {
    *(
        "Cast",
        "Const",
        "Reshape",
        "Identity",
        "TensorMove",
        "Shape",
        "Gather",
        "Pack",
        "Unsqueeze",
        "Squeeze",
    ),
    *("Fill", "BroadcastTo", "Transpose", "ConcatV2", "StridedSliceV2", "GatherV2", "Unpack", "ZerosLike"),
    *("OnesLike", "Range", "ExpandDims", "Real", "Imag", "Complex"),
}
FAMILIES = ("pointwise", "compare", "activation", "special", "reduce", "norm", "loss", "distance", "complex")


def composites() -> set[str]:
    """The ATen ops of these families whose converters make more than one op."""
    found = set[str]()
    for target, emitted in emitted_by_target().items():
        modules = {row.fn.__module__.rpartition(".")[2] for row in candidates(target)}
        if len(set(emitted) - ARRANGING) > 1 and not modules.isdisjoint(FAMILIES):
            found.add(packet(target_name(target)))
    return found


def packet(name: str) -> str:
    """`aten.add` of `aten.add.Tensor`."""
    return ".".join(name.split(".")[:2])


@pytest.mark.full
def test_every_composite_converter_has_a_row() -> None:
    seen = Seen()
    for row in ROWS.values():
        check(row, row.dtypes[0], seen, ways=())
    missing = {name for name in composites() if name.startswith("aten.")} - set(map(packet, seen.targets))
    assert missing == set(WITHOUT), missing ^ set(WITHOUT)


_STATISTICS = "with running statistics or those of several processes: test_norm"
WITHOUT: dict[str, str] = {
    "aten._native_batch_norm_legit_functional": _STATISTICS,
    "aten.batch_norm_backward": _STATISTICS,
    "aten.batch_norm_backward_elemt": _STATISTICS,
    "aten.batch_norm_backward_reduce": _STATISTICS,
    "aten.batch_norm_elemt": _STATISTICS,
    "aten.batch_norm_stats": _STATISTICS,
    "aten._pdist_backward": "distances only: test_distance",
    "aten.multi_margin_loss_backward": "differences and comparisons only: test_opinfo_backward",
    "aten.multilabel_margin_loss_backward": "differences and comparisons only: test_opinfo_backward",
}


@pytest.mark.parametrize(
    ("got", "eager", "wide", "is_right"),
    [
        (1.0, 1.0, 1.0, True),
        (1.0, 1.5, 1.0, True),  # closer than eager
        (0.0, -0.0, -0.0, False),
        (float("nan"), float("inf"), float("inf"), False),
        (float("nan"), float("nan"), float("nan"), True),
        (1.00001, 1.0, 1.0, False),
        (float("inf"), 3e38, 3e38, False),
        (1e-3, 0.0, 1e-45, False),
    ],
)
def test_the_judge(got: float, eager: float, wide: float, is_right: bool) -> None:
    row = Row("x", torch.abs, edges.line)
    truth = torch.tensor([wide], dtype=torch.float64)
    assert judge(torch.tensor([got]), [torch.tensor([eager])], truth, row).item() != is_right
