"""Define `torchair::delta_rule`: the gated delta rule, token by token."""

from __future__ import annotations

import torch


@torch.library.custom_op("torchair::delta_rule", mutates_args=())
def delta_rule(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    beta: torch.Tensor,
    decay: torch.Tensor,
    state: torch.Tensor,
    first: torch.Tensor,
    source: torch.Tensor,
    target: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (outputs [T, N, Dv], states [slots, N, Dv, Dk]) of tokens in order.

    query and key are [T, N, Dk], value [T, N, Dv], beta [T, N, 1], decay [T, N, 1, 1 or Dk]. If `first` is
    set, a sequence begins with the state of slot `source`; after token t the state is stored in slot
    `target`. No step reads data on the host.
    """
    states, out = state.clone(), torch.empty_like(value)
    current = torch.zeros_like(state[0])
    for t in range(query.shape[0]):
        current = torch.where(first[t], state[source[t]], current) * decay[t]
        predicted = torch.einsum("nvk,nk->nv", current, key[t])
        change = (value[t] - predicted) * beta[t]
        current = current + change.unsqueeze(-1) * key[t].unsqueeze(-2)
        out[t] = torch.einsum("nvk,nk->nv", current, query[t])
        states.index_copy_(0, target[t : t + 1], current.unsqueeze(0))
    return out, states


@delta_rule.register_fake
def _(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    beta: torch.Tensor,
    decay: torch.Tensor,
    state: torch.Tensor,
    first: torch.Tensor,
    source: torch.Tensor,
    target: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(value), torch.empty_like(state)
