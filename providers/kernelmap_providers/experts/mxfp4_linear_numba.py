"""MXFP4 expert linear on a CPU: ``fused`` decodes each row where it is used, ``tiles`` decodes once an expert.

Threads own ranges of output columns; what a column gets depends on the shape and the routing alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types
from numpy.lib.stride_tricks import as_strided

from kernelmap.spec import BuildSpec
from kernelmap_providers.arguments import BYTES_1, RANGE, Array, given, tuple_of
from kernelmap_providers.experts.mxfp4_rows import decode_row, dot_row, dots_4x2, dots_4x4
from kernelmap_providers.jit.compile import compiled, entry, jit
from kernelmap_providers.simd.static import Static, StaticType
from kernelmap_providers.simd.target import host_form
from kernelmap_providers.threads import run_ranges

TILE_ROWS = 16
"""Decoded rows of a tile: 184 KB at 2,880 features, in a core's second-level cache. 8 read the weights in shorter runs
(10 % slower at ten tokens), 32 leave that cache (30 % slower). The map's scratch counts them."""
STORED = tuple_of(BYTES_1, types.int64, types.int64)
"""(bytes, bytes from expert to expert, bytes from row to row)."""
INTS_1 = types.Array(types.int32, 1, "C")
INDICES = types.Array(types.int32, 2, "C")
BF16_OUT = types.Array(types.uint16, 2, "C")
Flat = tuple[Array, int, int]
Weights = tuple[Flat, Flat, int]
"""Packed bytes, scales, and how many experts they hold."""


@entry
def fused_range(
    begin: int, end: int, worker: int, form: Any, total: Any, x: Any, mixture: Any, selected: Any, packed: Any,
    scales: Any, tile: Any,
) -> int:  # fmt: skip
    """Columns ``begin`` to ``end - 1`` of ``total``: one encoded row's dot a token and slot."""
    buffer = tile[worker, 0]
    for n in range(begin, end):
        for t in range(selected.shape[0]):
            for s in range(selected.shape[1]):
                e = selected[t, s]
                at, scale_at = e * packed[1] + n * packed[2], e * scales[1] + n * scales[2]
                total[t, n] += mixture[t, s] * dot_row(form, packed[0], at, scales[0], scale_at, x[t], buffer)
    return 0


@jit
def add_dots(total: Any, n: int, rows: int, mixture: Any, order: Any, first: int, count: int, dots: Any) -> None:
    """Add up to ``count`` pairs' dots with ``rows`` (at most four) rows from column ``n``."""
    slots = mixture.shape[1]
    for i in range(count):
        pair = order[first + i]
        t = pair // slots
        for r in range(rows):
            total[t, n + r] += mixture[t, pair % slots] * dots[4 * i + r]


@jit
def add_tile(total: Any, n: int, rows: int, x: Any, mixture: Any, order: Any, first: int, last: int, w: Any) -> None:
    """Decoded rows ``w`` of columns ``n`` on, times the tokens of pairs ``first`` to ``last - 1``. At a tail the last
    token is computed again, and rows that hold nothing: a form for each size would only be more to compile."""
    slots = mixture.shape[1]
    while first < last:
        left = last - first
        h, i = order[first] // slots, order[min(first + 1, last - 1)] // slots
        if left < 3:
            for r in range(0, rows, 4):
                dots = dots_4x2(w[r:], x, h, i)
                add_dots(total, n + r, min(4, rows - r), mixture, order, first, min(2, left), dots)
            first += 2
        else:
            j, m = order[first + 2] // slots, order[min(first + 3, last - 1)] // slots
            for r in range(0, rows, 4):
                tall = dots_4x4(w[r:], x, h, i, j, m)
                add_dots(total, n + r, min(4, rows - r), mixture, order, first, min(4, left), tall)
            first += 4


@entry
def tiles_range(
    begin: int, end: int, worker: int, form: Any, total: Any, x: Any, mixture: Any, order: Any, starts: Any,
    packed: Any, scales: Any, tile: Any,
) -> int:  # fmt: skip
    """Tiles ``begin`` to ``end - 1`` of columns: every expert that has tokens decoded once a tile, for all of them."""
    columns, slots = total.shape[1], mixture.shape[1]
    w = tile[worker]
    for index in range(begin, end):
        n = index * TILE_ROWS
        rows = min(TILE_ROWS, columns - n)
        for e in range(len(starts) - 2):
            first, last = starts[e], starts[e + 1]
            if first == last:
                continue
            at, scale_at = e * packed[1] + n * packed[2], e * scales[1] + n * scales[2]
            if last - first == 1:
                t, s = order[first] // slots, order[first] % slots
                for r in range(rows):
                    place, scale = at + r * packed[2], scale_at + r * scales[2]
                    total[t, n + r] += mixture[t, s] * dot_row(form, packed[0], place, scales[0], scale, x[t], w[0])
                continue
            for r in range(rows):
                decode_row(form, packed[0], at + r * packed[2], scales[0], scale_at + r * scales[2], w[r])
            add_tile(total, n, rows, x, mixture, order, first, last, w)
    return 0


@entry
def bucket(selected: Any, starts: Any, order: Any) -> None:
    """Counting sort: ``order[starts[e]:starts[e + 1]]`` are the pairs (token * slots + slot) of expert e, ascending.

    ``starts`` has two entries more than there are experts: the last is working space.
    """
    slots = selected.shape[1]
    starts[:] = 0
    for pair in range(selected.size):
        starts[selected[pair // slots, pair % slots] + 2] += 1
    for e in range(2, len(starts)):
        starts[e] += starts[e - 1]
    for pair in range(selected.size):
        e = selected[pair // slots, pair % slots]
        order[starts[e + 1]] = pair
        starts[e + 1] += 1


@entry
def narrow_range(begin: int, end: int, _worker: int, total: Any, output: Any) -> int:
    """Rows of fp32 sums as bf16 bits, ties to even; a NaN stays one."""
    for t in range(begin, end):
        bits, out = total[t].view(np.uint32), output[t]
        for n in range(len(bits)):
            b = bits[n]
            odd = np.uint32(b >> np.uint32(16)) & np.uint32(1)
            rounded = np.uint32(np.uint32(b + np.uint32(0x7FFF)) + odd)
            nan = np.uint32(b & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
            out[n] = np.uint16(0x7FC0) if nan else np.uint16(rounded >> np.uint32(16))
    return 0


def mxfp4_expert_linear_numba(spec: BuildSpec) -> Callable[..., int]:
    """Builds the map for the tokens' dtype; variants ``tiles`` and ``fused``.

    Returns 1 + the first token with an expert outside [0, E); the output is then all NaN.
    """
    form = Static(host_form(spec.isa).name)
    dtype, mixture_dtype = spec.dtypes["latent_tokens"], spec.dtypes["mixture_weights"]
    double = dtype == "fp64"
    wide = np.dtype(np.float64 if double else np.float32)
    tiles = spec.variant == "tiles"
    add_experts = _add_tiles if tiles else _add_fused
    _compile(tiles_range if tiles else fused_range, form, types.float64 if double else types.float32, dtype)
    experts = spec.dims["E"]

    def run(
        latent_tokens: Array, selected_experts: Array, mixture_weights: Array, shared_output: Array,
        packed_weights: Array, scale_bytes: Array, output: Array, workspace: Array, threads: int,
    ) -> int:  # fmt: skip
        if (bad := _first_bad(selected_experts, experts)) >= 0:
            output[...] = 0x7FC0 if dtype == "bf16" else np.nan
            return bad + 1
        carve = _Carver(workspace)
        total, x, mixture = (carve.take(a.shape, wide) for a in (shared_output, latent_tokens, mixture_weights))
        selected = carve.take(selected_experts.shape, np.dtype(np.int32))
        _widen(shared_output, dtype, total)
        if selected.size:
            groups = scale_bytes.shape[2]
            pairs = latent_tokens.reshape(-1, groups, 16, 2).swapaxes(2, 3)
            _widen(pairs, dtype, x.reshape(-1, groups, 2, 16))
            _widen(mixture_weights, mixture_dtype, mixture)
            np.copyto(selected, selected_experts, casting="same_kind")
            weights = _weights(packed_weights, scale_bytes, selected)
            add_experts(form, total, x, mixture, selected, weights, carve, threads)
        _narrow(total, dtype, output, threads)
        return 0

    return run


def _add_fused(
    form: Static, total: Array, x: Array, mixture: Array, selected: Array, weights: Weights, carve: _Carver,
    threads: int,
) -> None:  # fmt: skip
    tile = carve.take((threads, 1, x.shape[1]), x.dtype)
    columns = total.shape[1]
    run_ranges(fused_range, columns, threads, form, total, x, mixture, selected, weights[0], weights[1], tile)


def _add_tiles(
    form: Static, total: Array, x: Array, mixture: Array, selected: Array, weights: Weights, carve: _Carver,
    threads: int,
) -> None:  # fmt: skip
    order = carve.take((selected.size,), selected.dtype)
    starts = carve.take((weights[2] + 2,), selected.dtype)
    tile = carve.take((threads, TILE_ROWS, x.shape[1]), x.dtype)
    bucket(selected, starts, order)
    tiles = -(-total.shape[1] // TILE_ROWS)
    run_ranges(tiles_range, tiles, threads, form, total, x, mixture, order, starts, weights[0], weights[1], tile)


def _compile(kernel: Any, form: Static, wide: Any, dtype: str) -> None:
    """Compiles what `run` will call."""
    floats, tile = types.Array(wide, 2, "C"), types.Array(wide, 3, "C")
    common = (*RANGE, StaticType(form.parts), floats, floats, floats)
    if kernel is tiles_range:
        compiled(bucket, INDICES, INTS_1, INTS_1)
        compiled(kernel, *common, INTS_1, INTS_1, STORED, STORED, tile)
    else:
        compiled(kernel, *common, INDICES, STORED, STORED, tile)
    if dtype == "bf16":
        compiled(narrow_range, *RANGE, floats, BF16_OUT)


class _Carver:
    """Hands out aligned pieces of the scratch bytes, in the order of the map's size expression."""

    def __init__(self, workspace: Array) -> None:
        self.left = workspace

    def take(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """An uninitialized array; the next one begins at a multiple of 64 bytes."""
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        piece, self.left = self.left[:size], self.left[-(-size // 64) * 64 :]
        return piece.view(dtype).reshape(shape)


def _first_bad(selected: Array, experts: int) -> int:
    """First token with an expert outside [0, experts), or -1."""
    if not selected.size or (selected.min() >= 0 and selected.max() < experts):
        return -1
    return int(np.argmax(((selected < 0) | (selected >= experts)).any(axis=1)))


def _widen(values: Array, dtype: str, out: Array) -> None:
    """Numbers of ``dtype`` into fp32 or fp64 ``out``."""
    if dtype != "bf16":
        with np.errstate(over="ignore"):
            np.copyto(out, values, casting="same_kind")
    elif out.dtype == np.float32:
        bits = out.view(np.uint32)
        np.copyto(bits, values)
        np.left_shift(bits, 16, out=bits)
    else:  # few numbers: mixture weights of fp64 tokens
        np.copyto(out, (values.astype(np.uint32) << 16).view(np.float32))


def _narrow(total: Array, dtype: str, output: Array, threads: int) -> None:
    """fp32 or fp64 sums rounded once to ``dtype``."""
    if dtype == "bf16":
        run_ranges(narrow_range, len(total), threads, total, output)
        return
    with np.errstate(over="ignore"):
        np.copyto(output, total, casting="same_kind")


def _weights(packed: Array, scales: Array, selected: Array) -> Weights:
    """Both tensors for the kernels: as they are where each expert is contiguous, else copies of the selected experts,
    which are then renumbered in ``selected``. To copy a strided tensor whole would read every expert for those few."""
    if not all(array[0].flags.c_contiguous and array.strides[0] >= 0 for array in (packed, scales)):
        used, places = np.unique(selected, return_inverse=True)
        selected[...] = places.reshape(selected.shape)
        # Indexing keeps the order of axes in memory.
        packed, scales = np.ascontiguousarray(packed[used]), np.ascontiguousarray(scales[used])
    return _flat(packed), _flat(scales), len(packed)


def _flat(weight: Array) -> Flat:
    """A weight whose experts are contiguous, as one run of bytes and its strides."""
    experts, rows, row = weight.shape[0], weight.shape[1], int(np.prod(weight.shape[2:]))
    stride = weight.strides[0] if experts > 1 else rows * row
    return given(as_strided(weight, ((experts - 1) * stride + rows * row,), (1,), writeable=False)), stride, row
