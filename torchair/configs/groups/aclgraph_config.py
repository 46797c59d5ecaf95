"""Options under `aclgraph_config`."""

from __future__ import annotations

from torchair.configs.kinds import Raw
from torchair.configs.option import Group
from torchair.configs.option_kinds import capture


class AclGraphConfig(Group, open=True):
    """Memory of recordings."""

    use_custom_pool = capture(
        None,
        "Memory pool shared by all recordings made with these options: a pair of ints, one of them 0.",
        Raw(),
        flat="use_graph_pool",
        effect="tests/integration/test_capture_acceptance.py::test_09_a_users_pool_is_shared",
    )
