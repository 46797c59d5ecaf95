"""Map experts to ranks, for layers with experts spread over the ranks of a group.

The first ranks may hold shared experts, which receive every token. Several ranks may hold the same shared
expert; rank r sends to the copy r mod copies. The other ranks hold equal parts of the remaining experts, in
order.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from torchair.core.errors import BadGroup, UnsupportedOp
from torchair.ops.npu.common.ranks import all_gather, check_group


class ExpertRanks(NamedTuple):
    """The ranks of a group and their experts, from the view of one rank."""

    group: str
    ranks: int
    rank: int
    experts: int
    shared: int
    shared_ranks: int

    @property
    def local(self) -> int:
        """The number of experts of a rank without a shared expert."""
        return self.experts // (self.ranks - self.shared_ranks)

    @property
    def copies(self) -> int:
        """The number of ranks that hold the same shared expert."""
        return self.shared_ranks // self.shared if self.shared else 1

    @property
    def is_shared(self) -> bool:
        """Whether this rank holds a shared expert."""
        return self.rank < self.shared_ranks

    @property
    def first(self) -> int:
        """The number of the first expert of this rank; shared experts are counted separately."""
        if self.is_shared:
            return self.rank // self.copies
        return (self.rank - self.shared_ranks) * self.local

    @property
    def here(self) -> int:
        """The number of experts of this rank."""
        return 1 if self.is_shared else self.local

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        """Return the tensors of all ranks, concatenated along the first dim."""
        return all_gather(x, self.group, self.ranks)

    def rows(self, tokens: Any, slots: int) -> Any:
        """Return the maximum number of rows that this rank receives, for `tokens` tokens per rank."""
        return self._rows(tokens, slots, self.is_shared)

    def most_rows(self, tokens: Any, slots: int) -> Any:
        """Return the maximum number of rows that any rank receives."""
        made = self._rows(tokens, slots, False)
        return torch.sym_max(made, self._rows(tokens, slots, True)) if self.shared else made

    def _rows(self, tokens: Any, slots: int, is_shared: bool) -> Any:
        everyone = self.ranks * tokens
        return everyone // self.copies if is_shared else everyone * min(self.local, slots)


def expert_ranks(
    group: str, ranks: int, rank: int, experts: int, tp_ranks: int, shared: int, shared_ranks: int,
    shard_type: int, elastic_info: Any = None,
) -> ExpertRanks:  # fmt: skip
    """Return the mapping of experts to ranks, or raise if it is not defined."""
    shared = shared if shared_ranks > 0 else 0
    if tp_ranks > 1 or elastic_info is not None or (shared and shard_type != 0):
        raise UnsupportedOp(
            "experts in two groups at the same time, in groups that change, or with shared experts on "
            "other ranks than the first",
            got=f"tp_world_size {tp_ranks}   expert_shard_type {shard_type}",
            near="tp_world_size 0 or 1, no elastic_info, expert_shard_type 0",
        )
    fits = shared_ranks < ranks and experts % (ranks - shared_ranks) == 0
    if shared_ranks > 0:
        fits = fits and shared > 0 and shared_ranks % shared == 0 and ranks % (shared_ranks // shared) == 0
    if not fits:
        raise BadGroup(
            "these experts cannot be spread over these ranks",
            got=f"{experts} experts and {shared} shared ones   {ranks} ranks, {shared_ranks} for shared ones",
            next="use equal parts for the ranks of each kind, and equally many ranks per copy of a shared "
            "expert",
        )
    check_group(group, ranks, rank)
    return ExpertRanks(group, ranks, rank, experts, shared, shared_ranks)
