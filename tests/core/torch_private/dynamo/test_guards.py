"""Guards as data, in the words of every torch that is supported."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from torch._dynamo.source import AttrSource, LocalSource

from torchair.core.torch_private.dynamo.guards import GuardRecord, Values


def values(**local: object) -> Values:
    state = SimpleNamespace(input_source_to_sizes_strides={}, guard_on_key_order=())
    return Values(local, {}, (), state)


@pytest.mark.parametrize("is_there", [True, False])
def test_an_attribute_that_the_source_names(is_there: bool) -> None:
    """As torch 2.11 guards `hasattr`; the attribute itself need not be there."""
    with_it, without = SimpleNamespace(extra=3), SimpleNamespace()
    here, other = (with_it, without) if is_there else (without, with_it)
    guard = SimpleNamespace(
        originating_source=AttrSource(LocalSource("self"), "extra"),
        name="L['self'].extra",
        create_fn=lambda: None,
        create_fn_name=lambda: "HASATTR",
    )
    seen = GuardRecord.of(guard, values(self=here))
    assert seen.fact == (is_there,)
    assert seen.why_other(values(self=here)) is None
    assert seen.why_other(values(self=other)) is not None
    assert seen.held(values(self=here)) is None
