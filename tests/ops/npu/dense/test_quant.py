"""Quantisation ops of the npu library."""

from __future__ import annotations

import pytest
import torch

from tests.ops.compiled import MODES, agrees, compiles, ints, rand
from tests.support.slow import slow

npu = torch.ops.npu
i8, i32, e4m3, e5m2 = torch.int8, torch.int32, torch.float8_e4m3fn, torch.float8_e5m2
X = rand(6, 16)
FP8 = {291: (e5m2, 57344.0), 292: (e4m3, 448.0)}


def nibbles(packed):
    """int4 values of int32 words, lowest first, by plain Python."""
    words = packed.flatten().tolist()
    values = [[((word >> (4 * i)) & 15) for i in range(8)] for word in words]
    signed = [value - 16 if value > 7 else value for row in values for value in row]
    return torch.tensor(signed, dtype=torch.float32).view(*packed.shape[:-1], -1)


def saturated(x):
    return x.round().clamp(-128, 127).to(i8)


def per_row(y, most=127):
    scale = y.abs().amax(-1) / most
    return (y / scale.unsqueeze(-1)).round().to(i8), scale


def lopsided(x):
    scale = (x.amax(-1, keepdim=True) - x.amin(-1, keepdim=True)) / 255
    offset = 127 - x.amax(-1, keepdim=True) / scale
    return saturated(x / scale + offset), scale.squeeze(-1), offset.squeeze(-1)


def by_group(x, scale, offset):
    """Groups of 2, 0 and 3 rows, by slicing."""
    return torch.cat((saturated(x[:2] * scale[0] + offset), saturated(x[2:] * scale[2] + offset)))


ROWS = {
    "quantize": (
        lambda x, s, z: npu.npu_quantize(x, s, z, 12, 1),
        (X * 30, rand(16).abs() + 0.1, rand(16)),
        lambda x, s, z: saturated(x / s + z),
    ),
    "quantize_rows": (
        lambda x, s: npu.npu_quantize(x, s, None, 13, 0),
        (X * 30, rand(6).abs() + 0.1),
        lambda x, s: (x / s[:, None]).round().clamp(0, 255).to(torch.uint8),
    ),
    "quantize_multiply": (
        lambda x, s, z: npu.npu_quantize(x, s, z, 1, -1, False),
        (X * 30, rand(16), rand(16)),
        lambda x, s, z: saturated(x * s + z),
    ),
    "dynamic": (lambda x: npu.npu_dynamic_quant(x), (rand(2, 3, 16),), per_row),
    "dynamic_smooth": (
        lambda x, s: npu.npu_dynamic_quant(x, smooth_scales=s),
        (X, rand(16)),
        lambda x, s: per_row(x * s),
    ),
    "dynamic_groups": (
        lambda x, s, g: npu.npu_dynamic_quant(x, smooth_scales=s, group_index=g),
        (X, rand(2, 16), torch.tensor([2, 6], dtype=i32)),
        lambda x, s, g: per_row(torch.cat((x[:2] * s[0], x[2:] * s[1]))),
    ),
    "dynamic_tensor": (
        lambda x: npu.npu_dynamic_quant(x, quant_mode="pertensor"),
        (X,),
        lambda x: (saturated(x / (x.abs().max() / 127)), (x.abs().max() / 127).view(1)),
    ),
    "dynamic_channel": (
        lambda x: npu.npu_dynamic_quant(x, quant_mode="perchannel"),
        (X,),
        lambda x: (saturated(x / (x.abs().amax(0) / 127)), x.abs().amax(0) / 127),
    ),
    "dynamic_max": (
        lambda x: npu.npu_dynamic_quant(x, dst_type_max=50.0),
        (X,),
        lambda x: per_row(x, 50),
    ),
    "asymmetric": (lambda x: npu.npu_dynamic_quant_asymmetric(x), (X,), lopsided),
    "group": (
        lambda x, s, g, o: npu.npu_group_quant(x, s, g, offset=o),
        (X[:5] * 40, rand(3, 16), torch.tensor([2, 2, 5], dtype=i32), torch.tensor([1.5])),
        lambda x, s, g, o: by_group(x, s, o),
    ),
    "anti": (
        lambda x, s, o: npu.npu_anti_quant(x, s, offset=o),
        (ints(-128, 128, 6, 16, dtype=i8), rand(16), rand(16)),
        lambda x, s, o: ((x + o) * s).half(),
    ),
    "anti_int4": (
        lambda x, s: npu.npu_anti_quant(x, s, dst_dtype=15),
        (ints(-(2**31), 2**31, 6, 2, dtype=i32), rand(16)),
        lambda x, s: (nibbles(x) * s).bfloat16(),
    ),
    "dequant_bias": (
        lambda x, w, a, b: npu.npu_dequant_bias(x, w, a, b),
        (ints(-99, 99, 6, 16, dtype=i32), rand(16), rand(6), ints(-9, 9, 16, dtype=i32)),
        lambda x, w, a, b: ((x + b) * w * a[:, None]).half(),
    ),
    "dequant_float_bias": (
        lambda x, w, b: npu.npu_dequant_bias(x, w, None, b, output_dtype=torch.bfloat16),
        (ints(-99, 99, 6, 16, dtype=i32), rand(16), rand(16)),
        lambda x, w, b: (x * w + b).bfloat16(),
    ),
    "quant_max": (
        lambda x, s: npu.npu_quant_max(x, s, dst_dtype=292),
        (X, torch.tensor([0.5])),
        lambda x, s: ((x / s).to(e4m3), x.abs().max().view(1)),
    ),
    "quant_max_groups": (
        lambda x, s, g: npu.npu_quant_max(x, s, dst_dtype=291, group_list=g),
        (X, rand(3).abs() + 0.1, torch.tensor([2, 2, 6])),
        lambda x, s, g: (
            torch.cat((x[:2] / s[0], x[2:] / s[2])).to(e5m2),
            torch.stack((x[:2].abs().max(), torch.tensor(0.0), x[2:].abs().max())),
        ),
    ),
    "rotate": (
        lambda x, r: npu.npu_rotate_quant(x, r),
        (X, rand(8, 8)),
        lambda x, r: per_row(torch.cat((x[:, :8] @ r, x[:, 8:] @ r), 1)),
    ),
    "rotate_clipped": (
        lambda x, r, a: npu.npu_rotate_quant(x, r, alpha=a)[1],
        (X, rand(16, 16), torch.tensor([0.5])),
        lambda x, r, a: (x @ r).abs().amax(-1) * 0.5 / 127,
    ),
    "block": (
        lambda x: npu.npu_dynamic_block_quant(x, row_block_size=2, col_block_size=8),
        (X,),
        lambda x: (
            torch.stack([saturated(t / (t.abs().max() / 127)) for r in x.split(2) for t in r.split(8, 1)])
            .view(3, 2, 2, 8)
            .transpose(1, 2)
            .reshape(6, 16),
            torch.stack([t.abs().max() / 127 for r in x.split(2) for t in r.split(8, 1)]).view(3, 2),
        ),
    ),
    "plain_cast": (lambda x: npu._npu_dtype_cast(x, torch.float16), (X,), lambda x: x.half()),
    "coded_cast": (lambda x: npu.npu_dtype_cast(x, 15), (X,), lambda x: x.bfloat16()),
    "cast_backward": (
        lambda x: npu.npu_dtype_cast_backward(x, torch.float32),
        (X.half(),),
        lambda x: x.float(),
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_against_a_formula(name):
    agrees(*ROWS[name])


@pytest.mark.parametrize("code", FP8)
def test_rows_in_small_floats(code):
    dtype, most = FP8[code]
    agrees(
        lambda x: npu.npu_dynamic_quant(x, dst_type=code),
        (X,),
        lambda x: ((x / (x.abs().amax(-1, keepdim=True) / most)).to(dtype), x.abs().amax(-1) / most),
    )


def test_a_row_of_zeros():
    y, scale = npu.npu_dynamic_quant(torch.zeros(2, 8))
    assert not y.any()
    assert not scale.any()


@pytest.mark.parametrize("op", [npu.npu_dynamic_quant, npu.npu_dynamic_quant_asymmetric])
def test_int4_is_packed_eight_in_a_word(op):
    y, scale, *offset = op(X, dst_type=285)
    assert y.dtype == i32
    assert y.shape == (6, 2)
    back = (nibbles(y) - (offset[0].unsqueeze(-1) if offset else 0)) * scale.unsqueeze(-1)
    assert ((back - X).abs() <= scale.unsqueeze(-1) * 0.5001 + 1e-6).all()
    agrees(lambda x: op(x, dst_type=285), (X,), lambda x: (y, scale, *offset))


def test_kronecker_quant_equals_formula():
    x, p1, p2 = rand(2, 4, 8), rand(4, 4), rand(8, 8)
    y, scale = npu.npu_kronecker_quant(x, p1, p2, 0.9)
    z = p1 @ x @ p2
    torch.testing.assert_close(scale, z.abs().amax((1, 2)) / 7 / 0.9)
    assert torch.equal(nibbles(y), (z / scale.view(2, 1, 1)).round().clamp(-8, 7))
    agrees(lambda *args: npu.npu_kronecker_quant(*args, 0.9), (x, p1, p2), lambda *args: (y, scale))
    y4, mxscale = npu.npu_kronecker_quant(x, p1, p2, None, 296)
    assert y4.shape == (2, 16)
    assert mxscale.shape == (2, 1, 2)


# Microscaling: one power of two per 32 values.


def power(code, block):
    """The shared exponent of one block, by Python's own numbers."""
    top = {291: 15, 292: 8, 296: 2, 297: 0}[code]
    peak = block.abs().max().item()
    if peak == 0:
        return 0
    return torch.frexp(torch.tensor(peak)).exponent.item() - 1 - top + 127


@pytest.mark.parametrize("code", [291, 292, 296, 297])
@pytest.mark.parametrize("axis", [slow(0), 1])
def test_microscaled_quant_equals_formula(code, axis):
    x = rand(70, 96)
    y, scale = npu.npu_dynamic_mx_quant(x, axis=axis, dst_type=code)
    assert scale.shape == ((2, 96, 2) if axis == 0 else (70, 2, 2))
    moved, scales = x.movedim(axis, 1), scale.movedim(axis, 1).flatten(1, 2)
    for row in (0, 5, 69):
        for number, block in enumerate(moved[row].split(32)):
            assert scales[row, number] == power(code, block)
    back = npu.npu_anti_mx_quant(y, scale, axis=axis, dst_type=6, src_type=code)
    step = {291: 2**-3, 292: 2**-4, 296: 2**-2, 297: 2**-2}[code]
    peaks = torch.stack([block.abs().amax(1) for block in moved.split(32, 1)], 1)
    allowed = (peaks * 2 * step).repeat_interleave(32, 1)[:, : moved.shape[1]].movedim(1, axis)
    assert ((back - x).abs() <= allowed).all()
    agrees(lambda x: npu.npu_dynamic_mx_quant(x, axis=axis, dst_type=code), (x,), lambda x: (y, scale))


def test_rounded_up_scales_hold_the_largest_value():
    x = torch.full((1, 32), 449.0)
    floor, up = (npu.npu_dynamic_mx_quant(x, dst_type=292, scale_alg=alg) for alg in (0, 1))
    assert floor[1][0, 0, 0] == 127
    assert up[1][0, 0, 0] == 128
    assert floor[0].float().max() == 448
    assert up[0].float().max() == 224


def test_a_block_of_zeros_has_scale_zero():
    y, scale = npu.npu_dynamic_mx_quant(torch.zeros(1, 64), dst_type=292)
    assert not y.float().any()
    assert not scale.any()


def test_both_axes_are_the_two_single_ones():
    x = rand(64, 64)
    y1, s1, y2, s2 = npu.npu_dynamic_mx_quant_with_dual_axis(x, dst_type=292)
    for axis, (y, s) in {-1: (y1, s1), -2: (y2, s2)}.items():
        alone = npu.npu_dynamic_mx_quant(x, axis=axis, dst_type=292)
        assert torch.equal(y.float(), alone[0].float())
        assert torch.equal(s, alone[1])
    agrees(
        lambda x: npu.npu_dynamic_mx_quant_with_dual_axis(x, dst_type=292), (x,), lambda x: (y1, s1, y2, s2)
    )


@pytest.mark.full
def test_tiles_share_one_power():
    x = rand(64, 96)
    y, by_row, by_column = npu.npu_dynamic_block_mx_quant(x, dst_type=292)
    assert by_row.shape == (64, 2, 2)
    assert by_column.shape == (1, 96, 2)
    for r in range(2):
        for c in range(3):
            expected = power(292, x[32 * r : 32 * r + 32, 32 * c : 32 * c + 32])
            assert (by_row[32 * r : 32 * r + 32, c // 2, c % 2] == expected).all()
            assert (by_column[0, 32 * c : 32 * c + 32, r] == expected).all()
    back = npu.npu_anti_mx_quant(y, by_row, dst_type=6, src_type=292)
    assert (back - x).abs().max() <= 2**-3 * x.abs().max()
    agrees(lambda x: npu.npu_dynamic_block_mx_quant(x, dst_type=292), (x,), lambda x: (y, by_row, by_column))


@pytest.mark.full
def test_two_level_quant_equals_formula():
    x = rand(3, 1024) * torch.linspace(0.01, 100, 1024)
    y, level0, level1 = npu.npu_dynamic_dual_level_mx_quant(x)
    assert y.shape == (3, 512)
    assert level0.shape == (3, 2)
    assert level1.shape == (3, 16, 2)
    torch.testing.assert_close(level0, x.view(3, 2, 512).abs().amax(-1) / 6)
    back = npu.npu_anti_mx_quant(y, level1, dst_type=6, src_type=296) * level0.repeat_interleave(512, 1)
    peak = x.view(3, 32, 32).abs().amax(-1).repeat_interleave(32, 1)
    assert ((back - x).abs() <= peak / 2).all()
    agrees(npu.npu_dynamic_dual_level_mx_quant, (x,), lambda x: (y, level0, level1))


@pytest.mark.full
def test_grouped_blocks_are_those_of_each_group():
    x, ends = rand(70, 16), torch.tensor([40, 70])
    y, scale = npu.npu_grouped_dynamic_mx_quant(x, ends)
    parts = [npu.npu_dynamic_mx_quant(part, axis=0, dst_type=23) for part in x.split([40, 30])]
    assert torch.equal(y.float(), torch.cat([part[0] for part in parts]).float())
    assert scale.shape == (3, 16, 2)
    assert torch.equal(scale[0], parts[0][1][0])
    assert torch.equal(scale[1], parts[1][1][0])
    tiles, scales = npu.npu_grouped_dynamic_block_quant(x, ends, row_block_size=16, col_block_size=8)
    alone = [
        npu.npu_dynamic_block_quant(part, row_block_size=16, col_block_size=8, dst_type=291)
        for part in x.split([40, 30])
    ]
    assert torch.equal(tiles.float(), torch.cat([part[0] for part in alone]).float())
    assert torch.equal(scales[:3], alone[0][1])
    assert torch.equal(scales[40 // 16 + 1 : 40 // 16 + 3], alone[1][1])
    agrees(npu.npu_grouped_dynamic_mx_quant, (x, ends), lambda *_: (y, scale))
    agrees(
        lambda x, g: npu.npu_grouped_dynamic_block_quant(x, g, row_block_size=16, col_block_size=8),
        (x, ends.int()),
        lambda *_: (tiles, scales),
    )


def test_packed_dequantisation_parameters():
    scale, offset = torch.tensor([1.5, 0.3]), torch.tensor([-3.0, 300.0])
    packed = npu.npu_trans_quant_param(scale, offset)
    for word, number, shift in zip(packed.tolist(), scale, (-3, 255), strict=True):
        bits = number.view(i32).item() & 0xFFFFE000
        assert word & 0xFFFFFFFF == bits
        assert word >> 46 == 1
        assert (word >> 37) & 0x1FF == shift & 0x1FF
    agrees(npu.npu_trans_quant_param, (scale, offset), lambda *_: packed)


@pytest.mark.parametrize("code", [290, 296, 297, 285])
def test_casts_to_types_torch_lacks_and_back(code):
    exact = torch.tensor([[0.0, 0.5, 1.0, -1.5, -0.5, 1.0, 1.5, 0.0]])
    exact = exact * 2 if code == 285 else exact
    stored = npu.npu_dtype_cast(exact, code)
    assert torch.equal(npu.npu_dtype_cast(stored, 6, code), exact)


def test_hifloat8_rounds_to_its_neighbours():
    x = rand(500) * 3
    stored = npu.npu_dtype_cast(x, 290)
    back = npu.npu_anti_quant(stored, torch.ones(1), dst_dtype=6, src_dtype=290)
    assert stored.dtype == torch.uint8
    # Three bits behind the point near 1, two and one farther away.
    near, far = (x.abs() >= 0.125) & (x.abs() < 16), (x.abs() < 0.125)
    assert near.any()
    assert far.any()
    assert ((back - x).abs() <= x.abs() * torch.where(near, 1 / 16, 1 / 4)).all()


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_quant_ops_compile_in_both_modes(mode, dynamic):
    def block(x):
        y, scale = npu.npu_dynamic_quant(x)
        return npu.npu_anti_quant(y, scale.mean().view(1), dst_dtype=6), npu.npu_dynamic_mx_quant(
            x, dst_type=292
        )

    compiles(block, (X,), mode, dynamic)
