"""ATen ops that put numbers into bins or segments: histograms, counts, segment reductions; and hashes."""

from __future__ import annotations

import functools

import torch

from torchair import ge
from torchair.convert.aten.index import along, counted, product
from torchair.convert.aten.shape import END
from torchair.convert.base.operands import (
    INT64,
    cast,
    dims_of,
    like,
    pack,
    shape_of,
    size_of,
    sizes,
    static_sizes,
    torch_dtype,
)
from torchair.convert.base.registry import converter

aten = torch.ops.aten


@converter(aten.histogram.bin_ct)
def histogram(self, bins=100, *, range=None, weight=None, density=False):
    """Return (counts or weights in equal bins, the bin edges); the default range is that of the data."""
    line = ge.Reshape(self, [-1])
    edges = _even_edges(line, bins, range)
    return _into_bins([line], [edges], weight, density), edges


@converter(aten.histogram.bins_tensor)
def histogram_of_bins(self, bins, *, weight=None, density=False):
    """Return (counts or weights between the edges, the edges)."""
    return _into_bins([ge.Reshape(self, [-1])], [bins], weight, density), ge.Identity(bins)


@converter(aten._histogramdd_bin_edges.default)
def histogramdd_edges(self, bins, *, range=None, weight=None, density=False):
    """Return the edges of equal bins of each column."""
    pairs = [None] * len(bins) if range is None else [range[i : i + 2] for i in _evens(bins)]
    return [_even_edges(*row) for row in zip(_columns(self, len(bins)), bins, pairs, strict=True)]


def _evens(bins):
    return [2 * place for place in range(len(bins))]


@converter(aten._histogramdd_from_bin_cts.default)
def histogramdd(self, bins, *, range=None, weight=None, density=False):
    """Return counts or weights in equal bins of each column."""
    edges = histogramdd_edges(self, bins, range=range)
    return _into_bins(_columns(self, len(bins)), edges, weight, density)


@converter(aten._histogramdd_from_bin_tensors.default)
def histogramdd_of_bins(self, bins, *, weight=None, density=False):
    """Return counts or weights between the edges of each column."""
    return _into_bins(_columns(self, len(bins)), bins, weight, density)


def _columns(x, count):
    """Return the coordinates of points: all leading dims are one line."""
    return ge.Unpack(ge.Reshape(x, [-1, count]), num=count, axis=1, outputs=count)


def _even_edges(line, bins, ends):
    """Return `bins` + 1 edges from end to end; equal ends are moved apart by one."""
    if ends is not None:
        low, high = ends if ends[0] != ends[1] else (ends[0] - 0.5, ends[1] + 0.5)
        return ge.LinSpace(like(low, line), like(high, line), cast(bins + 1, INT64))
    if 0 in sizes(line):
        return ge.LinSpace(like(0.0, line), like(1.0, line), cast(bins + 1, INT64))
    low, high = ge.ReduceMin(line, [0]), ge.ReduceMax(line, [0])
    is_point = ge.Equal(low, high)
    half = ge.SelectV2(is_point, like(0.5, line), like(0.0, line))
    low, high = ge.Sub(low, half), ge.Add(high, half)
    # Computed as in linspace: the first half from the low end, the second from the high end.
    places = counted(bins + 1)
    step = ge.Div(ge.Sub(high, low), like(bins, line))
    up = ge.Add(low, ge.Mul(step, cast(places, line.dtype)))
    down = ge.Sub(high, ge.Mul(step, cast(ge.Sub(cast(bins, INT64), places), line.dtype)))
    return ge.SelectV2(ge.Less(places, cast((bins + 1) // 2, INT64)), up, down)


def _into_bins(columns, edges, weight, density):
    """Count the values between the edges of every column; the last bin includes both its edges."""
    first = columns[0]
    weights = ge.OnesLike(first) if weight is None else ge.Reshape(cast(weight, first.dtype), [-1])
    place, shape = cast(0, INT64), []
    for column, walls in zip(columns, edges, strict=True):
        walls = cast(walls, first.dtype)
        count = size_of(walls, 0)
        count = count - 1 if isinstance(count, int) else ge.Sub(count, cast(1, INT64))
        low, high = (ge.GatherV2(walls, cast(end, INT64), [0]) for end in (0, count))
        inside = ge.LogicalAnd(ge.GreaterEqual(column, low), ge.LessEqual(column, high))
        weights = ge.SelectV2(inside, weights, like(0, weights))
        found = ge.Sub(ge.SearchSorted(walls, column, None, dtype=INT64, right=True), cast(1, INT64))
        last = ge.Sub(cast(count, INT64), cast(1, INT64))
        found = ge.Maximum(ge.Minimum(found, last), cast(0, INT64))
        place = ge.Add(ge.Mul(place, cast(count, INT64)), found)
        shape.append(count)
    start = ge.Fill(pack([functools.reduce(product, shape, 1)]), like(0, first))
    bins = ge.Reshape(ge.ScatterElements(start, place, weights, axis=0, reduction="add"), pack(shape))
    return _density(bins, edges) if density else bins


def _density(bins, edges):
    """Return shares of the total, divided by the size of the bin."""
    bins = ge.Div(bins, ge.ReduceSum(bins, list(range(bins.rank))))
    for dim, walls in enumerate(edges):
        widths = _differences(cast(walls, bins.dtype), 0)
        bins = ge.Div(bins, along(widths, dim, bins.rank))
    return bins


def _differences(x, dim):
    """Return each entry of a dim minus the previous one."""
    ahead, after = (ge.StridedSliceV2(x, [a], [b], [dim], [1]) for a, b in ((1, END), (0, -1)))
    return ge.Sub(ahead, after)


@converter(aten.bincount.default)
def bincount(self, weights=None, minlength=0, *, meta_outputs):
    """Return the count, or the weight, of every number from 0 on."""
    size = cast(minlength, INT64)
    if 0 not in sizes(self):
        most = ge.Add(cast(ge.ReduceMax(self, [0]), INT64), cast(1, INT64))
        size = ge.Maximum(most, size)
    weights = ge.Fill(shape_of(self), cast(1, INT64)) if weights is None else weights
    return ge.DenseBincount(cast(self, INT64), size, cast(weights, meta_outputs.dtype))


_SEGMENTS = {
    "sum": ge.UnsortedSegmentSum,
    "mean": ge.UnsortedSegmentSum,
    "prod": ge.UnsortedSegmentProd,
    "max": ge.UnsortedSegmentMax,
    "min": ge.UnsortedSegmentMin,
}
_COMBINE = {"sum": ge.Add, "mean": ge.Add, "prod": ge.Mul, "max": ge.Maximum, "min": ge.Minimum}
# Result of an empty segment.
_EMPTY = {"sum": 0.0, "mean": torch.nan, "prod": 1.0, "max": -torch.inf, "min": torch.inf}


@converter(aten.segment_reduce.default)
def segment_reduce(
    data, reduce, *, lengths=None, indices=None, offsets=None, axis=0, unsafe=False, initial=None
):
    """Reduce runs of entries along a dim; `lengths` has the dims before that dim, then the runs."""
    lengths = cast(lengths if lengths is not None else _differences(offsets, axis), INT64)
    runs, total = _runs(data, lengths, axis)
    count, batch = size_of(lengths, axis), [size_of(data, dim) for dim in range(axis)]
    rest = [size_of(data, dim) for dim in range(axis + 1, data.rank)]
    result = _SEGMENTS[reduce](ge.Reshape(data, pack([-1, *rest])), runs, cast(total, INT64))
    result = ge.Reshape(result, pack([*batch, _more(count), *rest]))
    result = ge.StridedSliceV2(result, [0], [-1], [axis], [1])
    result = ge.Reshape(result, pack([-1, *rest]))
    counts = along(ge.Reshape(lengths, [-1]), 0, result.rank)
    if initial is not None:
        result = _COMBINE[reduce](result, like(initial, result))
    if reduce == "mean":
        result = ge.Div(result, cast(ge.Maximum(counts, cast(1, INT64)), result.dtype))
    empty = _EMPTY[reduce] if initial is None else initial
    result = ge.SelectV2(ge.Equal(counts, cast(0, INT64)), like(empty, result), result)
    return ge.Reshape(result, pack([*batch, count, *rest]))


def _more(count):
    """Return count + 1."""
    return count + 1 if isinstance(count, int) else ge.Add(count, cast(1, INT64))


def _runs(data, lengths, axis):
    """Return the run of every entry along a dim, flattened, and the number of runs.

    Runs are numbered across the dims before it. Entries after the last run are a separate run.
    """
    count, batch = _more(size_of(lengths, axis)), [size_of(data, dim) for dim in range(axis)]
    places = counted(size_of(data, axis))
    if axis:
        places = ge.BroadcastTo(places, pack([*batch, size_of(data, axis)]))
    # A position belongs to the first run that ends after it.
    runs = ge.SearchSorted(ge.Cumsum(lengths, axis), places, None, dtype=INT64, right=True)
    for dim in range(axis):
        after = functools.reduce(product, batch[dim + 1 :], count)
        runs = ge.Add(runs, ge.Mul(along(counted(batch[dim]), dim, axis + 1), cast(after, INT64)))
    return ge.Reshape(runs, [-1]), functools.reduce(product, batch, count)


def _of_runs(x, axis, runs):
    """Return the value of its run for every entry; nothing for entries after the last run."""
    pads = [int(place == 2 * axis + 1) for place in range(2 * x.rank)]
    more = ge.PadV3(x, pads, like(0, x), mode="constant")
    rest = [size_of(x, dim) for dim in range(axis + 1, x.rank)]
    return ge.GatherV2(ge.Reshape(more, pack([-1, *rest])), runs, [0])


@converter(aten._segment_reduce_backward.default)
def segment_reduce_backward(grad, output, data, reduce, *, lengths=None, offsets=None, axis=0, initial=None):
    """Pass the gradient of a run to all its entries, or to those that are its result."""
    if reduce == "prod":
        raise NotImplementedError("the gradient of a product with a zero is not supported")
    lengths = cast(lengths if lengths is not None else _differences(offsets, axis), INT64)
    runs, total = _runs(data, lengths, axis)
    rest = [size_of(data, dim) for dim in range(axis + 1, data.rank)]
    line, result = ge.Reshape(data, pack([-1, *rest])), _of_runs(grad, axis, runs)
    if reduce == "mean":
        counts = ge.Maximum(along(_of_runs(lengths, axis, runs), 0, result.rank), cast(1, INT64))
        result = ge.Div(result, cast(counts, result.dtype))
    if reduce in ("max", "min"):
        own = _of_runs(output, axis, runs)
        is_result = ge.LogicalOr(ge.Equal(line, own), ge.LogicalAnd(ge.IsNan(line), ge.IsNan(own)))
        shares = cast(is_result, result.dtype)
        counts = ge.GatherV2(ge.UnsortedSegmentSum(shares, runs, cast(total, INT64)), runs, [0])
        result = ge.SelectV2(is_result, ge.Div(result, counts), like(0, result))
    return ge.Reshape(result, shape_of(data))


# hash_tensor works on words of 64 bits.
_BITS = 64


@converter("aten.hash_tensor.default")
def hash_tensor(self, dim=(), *, keepdim=False, mode=0):
    """Return the exclusive or of all words: each bit is set if it is set in an odd number of them."""
    is_float = torch_dtype(self).is_floating_point
    words = ge.Bitcast(cast(self, torch.float64), type=INT64) if is_float else cast(self, INT64)
    if 0 in (static_sizes(self) or []):
        raise NotImplementedError("the tensor has no elements")
    dims = dims_of(dim, self.rank) if self.rank else []
    places = counted(_BITS)
    bits = ge.BitwiseAnd(ge.RightShift(ge.Unsqueeze(words, axes=[self.rank]), places), cast(1, INT64))
    odd = ge.BitwiseAnd(ge.ReduceSum(bits, dims, keep_dims=keepdim) if dims else bits, cast(1, INT64))
    # No two words share a bit, so their sum is their union; the last bit is the sign.
    result = ge.ReduceSum(ge.LeftShift(odd, places), [-1])
    return ge.Bitcast(result, type=ge.DataType.DT_UINT64)
