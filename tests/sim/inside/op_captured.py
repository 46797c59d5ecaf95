"""One sample of torch's table of operators, captured in a graph, and replayed on other values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from tests.sim.inside.op_pair import SEED, Call, Differs, check, check_same, copied, sampled, seed_all
from tests.support.memory import Seen, is_strided

REFUSED = "not permitted when stream is capturing"
TABLE_SEED = 42  # what rows of the table set themselves, where their operator draws


@dataclass(frozen=True)
class Captured:
    """An operator on a device, in a graph and out of it."""

    op: Any
    device: torch.device

    def samples(self, dtype: torch.dtype) -> tuple[Any, Any] | None:
        """The first sample with tensors of the device, and the same with other values."""
        pairs = zip(
            sampled(self.op, str(self.device), dtype, 2),
            sampled(self.op, str(self.device), dtype, 2, seed=SEED + 1),
            strict=False,
        )
        return next((pair for pair in pairs if _tensors(copied(pair[0], self.device))), None)

    def refused(self, first: Any, second: Any) -> bool:
        """Capture, change the arguments, replay, compare. Say whether the capture was refused, in words."""
        static, graph = copied(first, self.device), torch.npu.NPUGraph()
        seed_all(TABLE_SEED)
        try:
            with torch.npu.graph(graph):
                results = self.op(*static.args, **static.kwargs)
        except RuntimeError as error:
            if REFUSED not in str(error):
                raise Differs(f"the capture says {error!r}") from error
            self._is_usable()
            return True
        check_same(_tensors(static), _tensors(copied(first, self.device)), "arguments before a replay")
        for sample in (first, second):
            self._check_replay(graph, results, static, sample)
        return False

    def _check_replay(self, graph: Any, results: Any, static: Call, sample: Any) -> None:
        fresh = copied(sample, self.device)
        if not _overwrite(static, fresh):
            return
        seed_all(TABLE_SEED)
        want = self.op(*fresh.args, **fresh.kwargs)
        seed_all(TABLE_SEED)
        graph.replay()
        check(Seen(results, static.trees), Seen(want, fresh.trees), on_device=True)

    def _is_usable(self) -> None:
        """A refused capture leaves the device as it was."""
        if torch.ones(2, device=self.device).add_(1).tolist() != [2.0, 2.0]:
            raise Differs("a refused capture left the device broken")


def _tensors(call: Call) -> list[torch.Tensor]:
    found = [each for each in tree_leaves(call.trees) if is_strided(each)]
    return [each for each in found if each.device == call.device]


def _overwrite(static: Call, fresh: Call) -> bool:
    """Put other values where the arguments of a graph lie, if they are of the same kind."""
    old, new = tree_leaves(static.trees), tree_leaves(fresh.trees)
    if list(map(_kind, old)) != list(map(_kind, new)):
        return False
    for given, other in zip(old, new, strict=True):
        if is_strided(given):
            _all_bytes(given).copy_(_all_bytes(other))
    return True


def _kind(value: Any) -> Any:
    if not is_strided(value):
        return value if isinstance(value, (bool, int, float, complex, str)) else type(value)
    values = value.tolist() if value.device.type == "cpu" else ()  # read when the graph was captured
    return value.dtype, value.shape, value.stride(), value.untyped_storage().nbytes(), values


def _all_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
