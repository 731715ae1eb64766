"""GEMM and GEMV over packed x8 weights: ``y = x W^T``, activations quantized inside, any number of threads.

One task runs on every thread: quantize a share of the activation blocks, meet, then own a range of weight rows. Every
output element is one scalar chain, so the bytes depend neither on the threads nor on the tiles.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import types

from kernelmap.spec import BuildSpec
from kernelmap_providers.gemm import arguments as args
from kernelmap_providers.gemm.panels import SHORT_VALUES, panel, panel_shape, single, stream_shapes
from kernelmap_providers.jit.compile import entry, jit, native_address, sealed
from kernelmap_providers.jit.generic import generic
from kernelmap_providers.packed.base import PackedFormat
from kernelmap_providers.packed.layouts import PACKED_FORMATS
from kernelmap_providers.packed.weight import PackedWeight
from kernelmap_providers.pool.control import barrier
from kernelmap_providers.pool.workers import POOL
from kernelmap_providers.quantize.layouts import act_row_bytes
from kernelmap_providers.quantize.rows import quantize_blocks
from kernelmap_providers.simd import native, ops
from kernelmap_providers.simd.block import GROUP_ROWS
from kernelmap_providers.simd.static import Static, StaticType
from kernelmap_providers.simd.target import FORMS, Form, host_form

Run = Callable[..., int]

TOKEN_BLOCK_BYTES = 192 * 1024
"""Activations that one pass over the weights serves: they and a tile's weights stay in the second-level cache."""
EDGE_TOKENS = 8
"""Tokens at once where the last vector hangs over the matrix and its dots go through a small buffer."""


@entry
def gemm_task(leg: Any, params: int, index: int, count: int, control: int) -> int:
    """Thread ``index``'s share of a packed GEMM; ``leg`` is ``Static(layout, form, flags)``."""
    tokens, blocks = native.load_word(params + args.TOKENS), native.load_word(params + args.BLOCKS)
    x, x_stride = native.load_word(params + args.X), native.load_word(params + args.X_STRIDE)
    acts = native.load_word(params + args.ACTS)
    act_blocks = tokens * blocks
    bad = quantize_acts(leg, x, x_stride, blocks, acts, act_blocks * index // count, act_blocks * (index + 1) // count)
    if bad != args.NO_ROW:
        native.atomic_min(params + args.BAD_ROW, bad)
    barrier(control, count)
    multiply(leg, params, index, count)
    return 0


def quantize_acts(leg: Any, x: Any, x_stride: Any, blocks: Any, out: Any, first: Any, last: Any) -> Any:
    """``quantize_blocks`` in the leg's activation format. Jitted code only."""
    raise NotImplementedError("called from jitted code only")


def multiply(leg: Any, params: Any, index: Any, count: Any) -> Any:
    """Dots of all tokens with thread ``index``'s weight rows. Jitted code only."""
    raise NotImplementedError("called from jitted code only")


@generic(quantize_acts)
def _quantize_acts(leg: Any, x: Any, x_stride: Any, blocks: Any, out: Any, first: Any, last: Any) -> Any:
    if not isinstance(leg, StaticType):
        return None
    act = Static(PACKED_FORMATS[str(leg.parts[0])].act.name)
    return lambda leg, x, x_stride, blocks, out, first, last: quantize_blocks(
        act, x, x_stride, blocks, out, first, last
    )


@generic(multiply)
def _multiply(leg: Any, params: Any, index: Any, count: Any) -> Any:
    if not isinstance(leg, StaticType):
        return None
    form, act = FORMS[str(leg.parts[1])], PACKED_FORMATS[str(leg.parts[0])].act
    many_vectors = panel_shape(form).vectors
    many, one = Static(many_vectors), Static(1)
    joined, lanes, act_bytes = form.lanes // GROUP_ROWS, form.lanes, act.bytes

    def run(leg: Any, params: Any, index: Any, count: Any) -> Any:
        tokens, rows = native.load_word(params + args.TOKENS), native.load_word(params + args.ROWS)
        blocks, acts = native.load_word(params + args.BLOCKS), native.load_word(params + args.ACTS)
        weights, stride = native.load_word(params + args.WEIGHTS), native.load_word(params + args.WEIGHT_STRIDE)
        y, y_stride = native.load_word(params + args.Y), native.load_word(params + args.Y_STRIDE)
        act_stride = blocks * act_bytes
        whole = rows // lanes
        vectors = (rows + lanes - 1) // lanes
        first, last = vectors * index // count, vectors * (index + 1) // count
        last_whole = min(last, whole)
        token_block = max(24, TOKEN_BLOCK_BYTES // act_stride // 24 * 24)
        for start in range(0, tokens, token_block):
            here = min(token_block, tokens - start)
            a, o = acts + start * act_stride, y + start * y_stride
            v = first
            if here == 1:
                v = stream(leg, weights, stride, blocks, a, o, v, last_whole)
            while v + many_vectors <= last_whole:
                panel(leg, many, weights + v * joined * stride, stride, blocks, a, 0, act_stride,
                      o + 4 * lanes * v, 0, y_stride, 0, here)  # fmt: skip
                v += many_vectors
            while v < last_whole:
                panel(leg, one, weights + v * joined * stride, stride, blocks, a, 0, act_stride, o + 4 * lanes * v, 0,
                      y_stride, 0, here)  # fmt: skip
                v += 1
            if v < last:
                edge(leg, one, weights + v * joined * stride, stride, blocks, a, act_stride, o + 4 * lanes * v,
                     y_stride, here, rows - v * lanes, lanes)  # fmt: skip

    return run


def stream(leg: Any, weights: Any, stride: Any, blocks: Any, acts: Any, out: Any, first: Any, last: Any) -> Any:
    """One token's dots with vectors ``first`` to ``last - 1`` by the tiles for it, as far as they fit; the first vector
    that is left. Jitted code only."""
    raise NotImplementedError("called from jitted code only")


@generic(stream)
def _stream(leg: Any, weights: Any, stride: Any, blocks: Any, acts: Any, out: Any, first: Any, last: Any) -> Any:
    if not isinstance(leg, StaticType):
        return None
    fmt, form = PACKED_FORMATS[str(leg.parts[0])], FORMS[str(leg.parts[1])]
    short, long = stream_shapes(fmt, form)
    short_tile, short_vectors = Static(short.vectors, short.lines), short.vectors
    long_tile, long_vectors = Static(long.vectors, long.lines), long.vectors
    joined, lanes, short_blocks = form.lanes // GROUP_ROWS, form.lanes, SHORT_VALUES // fmt.values

    def run(leg: Any, weights: Any, stride: Any, blocks: Any, acts: Any, out: Any, first: Any, last: Any) -> Any:
        v, vector_bytes = first, joined * stride
        if blocks <= short_blocks:
            while v + short_vectors <= last:
                w = weights + v * vector_bytes
                single(leg, short_tile, w, stride, blocks, acts, out + 4 * lanes * v, w + short_vectors * vector_bytes)
                v += short_vectors
        while v + long_vectors <= last:
            w = weights + v * vector_bytes
            single(leg, long_tile, w, stride, blocks, acts, out + 4 * lanes * v, w + long_vectors * vector_bytes)
            v += long_vectors
        return v

    return run


@jit
def edge(leg: Any, one: Any, weights: int, stride: int, blocks: int, acts: int, act_stride: int, out: int,
         out_stride: int, tokens: int, rows: int, lanes: int) -> None:  # fmt: skip
    """The last vector, of which only ``rows`` rows exist: through a buffer, so that nothing is written beside ``y``.

    Where the vector joins two groups and the second does not exist, the first stands in for it.
    """
    buffer = np.empty((EDGE_TOKENS, lanes), np.float32)
    joined_stride = stride if rows > GROUP_ROWS else 0
    for start in range(0, tokens, EDGE_TOKENS):
        here = min(EDGE_TOKENS, tokens - start)
        panel(leg, one, weights, joined_stride, blocks, acts + start * act_stride, 0, act_stride, buffer.ctypes.data, 0,
              4 * lanes, 0, here)  # fmt: skip
        for token in range(here):
            for row in range(rows):
                ops.store(out + (start + token) * out_stride + 4 * row, buffer[token, row])


def build(spec: BuildSpec) -> Run:
    """Builder of every packed GEMM and GEMV: ``run(x, weight, y, workspace, threads)``.

    ``x`` fp32 ``[M, K]``, ``weight`` a ``PackedWeight`` ``[N, K]``, ``y`` fp32 ``[M, N]`` with rows of adjacent values,
    ``workspace`` uint8 of ``M * K / 256 * 320`` bytes (q8_k) or ``M * K / 32 * 48`` (q8_0, q8_1).
    """
    fmt = PACKED_FORMATS[spec.prepared["weight"]]
    return packed_gemm(fmt, host_form(spec.isa), spec.dims["N"], spec.dims["K"])


def packed_gemm(fmt: PackedFormat, form: Form, rows: int, values: int) -> Run:
    """``build`` for given formats and sizes."""
    leg = StaticType((fmt.name, form.name, ""))
    task = native_address(gemm_task, leg, *[types.int64] * 4)
    call = sealed(args.gemm_entry, *args.ENTRY_ARGUMENTS)
    blocks = values // fmt.values

    def run(x: npt.NDArray[np.float32], weight: PackedWeight, y: npt.NDArray[np.float32],
            workspace: npt.NDArray[np.uint8], threads: int) -> int:  # fmt: skip
        data = weight.checked(fmt, rows, values)
        x = args.contiguous_rows(x)
        return args.outcome(call(x, data[0], y, workspace, rows, blocks, task, POOL.control(threads), threads), y)

    return run


def workspace_bytes(fmt: PackedFormat, tokens: int, values: int) -> int:
    """Scratch for ``tokens`` rows of quantized activations."""
    return tokens * act_row_bytes(fmt.act, values)
