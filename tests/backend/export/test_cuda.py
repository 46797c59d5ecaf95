"""Graph files on a GPU: written on a CPU or there, replayed in one launch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import torchair
from tests.backend.export.test_round_trip import Cache, Counter, exported
from tests.models.launches import launches
from tests.models.sweep import TOLERANCE
from tests.models.zoo import ROWS, Row, leaves

pytestmark = [pytest.mark.cuda, pytest.mark.filterwarnings("ignore")]
DEVICES = ("cpu", "cuda")


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_exported_family_replays_in_one_launch(row: Row, dynamic: bool, tmp_path: Path) -> None:
    """Written where there need be no GPU, and replayed there."""
    model = row.model().eval()
    exported(model, tmp_path, dynamic=dynamic, **row.feed(row.shapes[0]))
    loaded = torchair.load_air(tmp_path / "net.air", device="cuda")
    model.cuda()
    with torch.no_grad():
        for shape in row.shapes[: 2 if dynamic else 1]:
            feed = row.feed(shape, "cuda")
            for _ in range(4):
                got = leaves(loaded(**feed))
                assert {leaf.device.type for leaf in got} == {"cuda"}
                torch.testing.assert_close(got, leaves(model(**feed)), **TOLERANCE["cuda"])
        seen = launches(lambda: loaded(**feed))
    assert (seen.replays, seen.share >= 0.95) == (1, True), seen


@pytest.mark.parametrize("device", DEVICES)
def test_what_the_model_writes_is_written(device: str, tmp_path: Path) -> None:
    given = torch.zeros(6, 4, device=device), torch.randn(2, 4, device=device)
    place = torch.tensor([1, 4], device=device)
    exported(Cache(), tmp_path, *given, place)
    loaded = torchair.load_air(tmp_path / "net.air", device="cuda")
    mine, theirs = torch.zeros(6, 4, device="cuda"), torch.zeros(6, 4, device="cuda")
    at = mine.data_ptr()
    for _ in range(4):
        x = torch.randn(2, 4, device="cuda")
        torch.testing.assert_close(loaded(mine, x, place.cuda()), Cache()(theirs, x, place.cuda()))
        torch.testing.assert_close(mine, theirs)
    assert mine.data_ptr() == at
    assert launches(lambda: loaded(mine, x, place.cuda())).replays == 1


@pytest.mark.parametrize("device", DEVICES)
def test_states_live_on_the_device(device: str, tmp_path: Path) -> None:
    model = Counter().to(device)
    exported(model, tmp_path, torch.randn(3, 4, device=device), dynamic=True)
    loaded = torchair.load_air(tmp_path / "net.air", device="cuda")
    model.cuda()
    for rows in (3, 5, 5, 5):
        x = torch.randn(rows, 4, device="cuda")
        torch.testing.assert_close(loaded(x), model(x))


def test_inputs_of_a_cpu_are_taken_there(tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 3)
    x = torch.randn(2, 4)
    exported(model, tmp_path, x)
    got = torchair.load_air(tmp_path / "net.air", device="cuda")(x)
    torch.testing.assert_close(got.cpu(), model(x), **TOLERANCE["cuda"])
