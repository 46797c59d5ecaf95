"""QR as LAPACK stores it: R above, and below the diagonal the vectors of Householder reflectors 1 - tau v
v^H.

The IR's Qr returns only products of them, so the columns are reduced one by one, in torch calls that convert.
For many columns LAPACK's call becomes an opaque op: it works on blocks of columns, and is far faster.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchair.convert.base.registry import register_decomposition

aten = torch.ops.aten

UNROLLED = 16


def reduced(step: int, packed: Tensor, tau: Tensor, rows: Tensor, columns: Tensor) -> tuple[Tensor, ...]:
    """Apply the reflector that clears one column below the diagonal to the following columns."""
    column = packed[..., step : step + 1]
    alpha = column[..., step : step + 1, :]
    below = torch.where(rows > step, column, 0)
    length = below.abs().square().sum(-2, keepdim=True).sqrt()
    rest = length if not alpha.is_complex() else torch.hypot(length, alpha.imag)
    is_done = rest == 0
    size = torch.hypot(alpha.abs(), length)
    beta = torch.where((alpha.real if alpha.is_complex() else alpha) < 0, size, -size)
    beta = torch.where(is_done, alpha, beta)
    weight = torch.where(is_done, 0, (beta - alpha) / beta)
    tail = torch.where(is_done, 0, below / (alpha - beta))
    v = torch.where(rows == step, 1, tail)
    turned = packed - weight.conj() * v * (v.conj() * packed).sum(-2, keepdim=True)
    result = torch.where(rows < step, column, torch.where(rows == step, beta, tail))
    packed = torch.where(columns > step, turned, torch.where(columns == step, result, packed))
    return packed, torch.where(columns[: tau.shape[-1]] == step, weight.squeeze(-1), tau)


@register_decomposition(aten.geqrf.default)
def geqrf(self: Tensor) -> tuple[Tensor, Tensor]:
    """Return R with the vectors of the reflectors below, and their weights."""
    m, n = self.shape[-2:]
    count = torch.sym_min(m, n)
    if not isinstance(count, int) or count > UNROLLED:
        raise NotImplementedError(f"it is unrolled for up to {UNROLLED} columns, but has {count}")
    rows = torch.arange(m, device=self.device).unsqueeze(-1)
    columns = torch.arange(n, device=self.device)
    packed, tau = self.clone(), self.new_zeros([*self.shape[:-2], count])
    for step in range(count):
        packed, tau = reduced(step, packed, tau, rows, columns)
    return packed, tau
