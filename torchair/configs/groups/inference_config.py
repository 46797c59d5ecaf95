"""Options under `inference_config`."""

from __future__ import annotations

from torchair.configs.kinds import Choice
from torchair.configs.option import REDUCE, Group
from torchair.configs.option_kinds import graph


class InferenceConfig(Group):
    """Gears: a few fixed sizes instead of a dynamic dimension."""

    dynamic_gears_merge_policy = graph(
        "zip",
        "How the gears of several dimensions combine: pairwise (`zip`) or all combinations (`product`).",
        Choice("zip", "product"),
        idle=REDUCE,
        effect="tests/backend/specialize/test_size_buckets.py::test_gears_of_two_inputs",
    )
