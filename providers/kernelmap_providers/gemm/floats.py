"""GEMM and GEMV over fp32, fp16 and bf16 weights by the 8-lane rule (NUMERICS: dot products), byte-exact.

Lane j sums the products of values j, j + 8, ... in order, each product and sum rounded; a row's tail goes on lane by
lane; the lanes add up as ((0+4)+(2+6))+((1+5)+(3+7)). A tile is four token rows by two weight rows: eight independent
chains hide the latency of the additions, and fit the 16 registers of AVX2 with their operands.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import types

from kernelmap.spec import BuildSpec
from kernelmap_providers.gemm import arguments as args
from kernelmap_providers.jit.compile import entry, inlined, jit, native_address, sealed
from kernelmap_providers.jit.generic import generic
from kernelmap_providers.pool.control import barrier
from kernelmap_providers.pool.workers import POOL
from kernelmap_providers.simd import native, ops
from kernelmap_providers.simd.static import Static, StaticType
from kernelmap_providers.simd.target import Form, host_form
from kernelmap_providers.simd.vectors import F16X8, F32X8, I16X8, I32X8

Run = Callable[..., int]
VALUE_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}
LANES = 8


def eight(leg: Any, address: Any) -> Any:
    """Eight weights at ``address`` as fp32; ``leg`` is ``Static(format, form)``. Jitted code only."""
    raise NotImplementedError("called from jitted code only")


@generic(eight)
def _eight(leg: Any, address: Any) -> Any:
    form = Static(str(leg.parts[1]))
    if leg.parts[0] == "fp32":
        return lambda leg, address: ops.load(F32X8, address)
    if leg.parts[0] == "fp16":
        return lambda leg, address: ops.widen_half(form, ops.load(F16X8, address))
    return lambda leg, address: ops.reinterpret(
        F32X8, ops.shift_left(ops.widen_unsigned(I32X8, ops.load(I16X8, address)), 16)
    )


@inlined
def mac(acc: Any, weight: Any, x: int) -> Any:
    """Product, then sum: two roundings."""
    return ops.add(acc, ops.mul(weight, ops.load(F32X8, x)))


@jit
def finish(lanes: Any, leg: Any, weight: int, x: int, values: int, size: int, spare: Any) -> Any:
    """One dot from its eight lanes after the whole steps: the tail, then the lanes' sum."""
    done = values // LANES * LANES
    if done < values:
        spare[:] = 0
        for byte in range((values - done) * size):
            spare[byte] = ops.load_u8(weight + done * size + byte)
        tail = eight(leg, spare.ctypes.data)
        for lane in range(values - done):
            lanes[lane] += ops.lane(tail, lane) * ops.load_f32(x + 4 * (done + lane))
    left = (lanes[0] + lanes[4]) + (lanes[2] + lanes[6])
    return left + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]))


@jit
def tile(leg: Any, w: int, w_stride: int, x: int, x_stride: int, values: int, size: int, lanes: Any) -> None:
    """Lanes of 4 token rows by 2 weight rows into ``lanes`` fp32 ``[4, 2, 8]``. A stride of 0 repeats a row."""
    zero = ops.fill(F32X8, np.float32(0.0))
    a0, a1, b0, b1, c0, c1, d0, d1 = zero, zero, zero, zero, zero, zero, zero, zero
    x1 = x + x_stride
    x2 = x1 + x_stride
    x3 = x2 + x_stride
    for step in range(values // LANES):
        first, second = eight(leg, w + step * LANES * size), eight(leg, w + w_stride + step * LANES * size)
        at = 4 * LANES * step
        a0, a1 = mac(a0, first, x + at), mac(a1, second, x + at)
        b0, b1 = mac(b0, first, x1 + at), mac(b1, second, x1 + at)
        c0, c1 = mac(c0, first, x2 + at), mac(c1, second, x2 + at)
        d0, d1 = mac(d0, first, x3 + at), mac(d1, second, x3 + at)
    out = lanes.ctypes.data
    ops.store(out, a0)
    ops.store(out + 32, a1)
    ops.store(out + 64, b0)
    ops.store(out + 96, b1)
    ops.store(out + 128, c0)
    ops.store(out + 160, c1)
    ops.store(out + 192, d0)
    ops.store(out + 224, d1)


@jit
def stream(leg: Any, w: int, w_stride: int, x: int, values: int, size: int, lanes: Any) -> None:
    """Lanes of one token row by 4 weight rows into the first of ``lanes``."""
    zero = ops.fill(F32X8, np.float32(0.0))
    a, b, c, d = zero, zero, zero, zero
    w1 = w + w_stride
    w2 = w1 + w_stride
    w3 = w2 + w_stride
    for step in range(values // LANES):
        at, here = LANES * size * step, x + 4 * LANES * step
        a, b = mac(a, eight(leg, w + at), here), mac(b, eight(leg, w1 + at), here)
        c, d = mac(c, eight(leg, w2 + at), here), mac(d, eight(leg, w3 + at), here)
    out = lanes.ctypes.data
    ops.store(out, a)
    ops.store(out + 32, b)
    ops.store(out + 64, c)
    ops.store(out + 96, d)


@jit
def first_bad(x: int, x_stride: int, values: int, first: int, last: int) -> Any:
    """The first of rows ``first..last`` with a NaN or an infinity, or ``NO_ROW``."""
    for row in range(first, last):
        worst = np.int32(0)
        for k in range(values):
            worst = max(worst, ops.load_i32(x + row * x_stride + 4 * k) & np.int32(0x7FFFFFFF))
        if worst >= np.int32(0x7F800000):
            return row
    return args.NO_ROW


@entry
def floats_task(leg: Any, params: int, index: int, count: int, control: int) -> int:
    """Thread ``index``'s share: a check of some token rows, then a range of weight rows; BLOCKS counts values."""
    tokens, rows = native.load_word(params + args.TOKENS), native.load_word(params + args.ROWS)
    x, x_stride = native.load_word(params + args.X), native.load_word(params + args.X_STRIDE)
    values = native.load_word(params + args.BLOCKS)
    bad = first_bad(x, x_stride, values, tokens * index // count, tokens * (index + 1) // count)
    if bad != args.NO_ROW:
        native.atomic_min(params + args.BAD_ROW, bad)
    barrier(control, count)
    multiply_floats(leg, params, rows * index // count, rows * (index + 1) // count)
    return 0


def multiply_floats(leg: Any, params: int, first: int, last: int) -> None:
    """Dots of all tokens with weight rows ``first..last``. Jitted code only."""
    raise NotImplementedError("called from jitted code only")


@generic(multiply_floats)
def _multiply_floats(leg: Any, params: Any, first: Any, last: Any) -> Any:
    size = VALUE_BYTES[str(leg.parts[0])]

    def run(leg: Any, params: int, first: int, last: int) -> None:
        tokens, values = native.load_word(params + args.TOKENS), native.load_word(params + args.BLOCKS)
        x, x_stride = native.load_word(params + args.X), native.load_word(params + args.X_STRIDE)
        weights, stride = native.load_word(params + args.WEIGHTS), native.load_word(params + args.WEIGHT_STRIDE)
        y, y_stride = native.load_word(params + args.Y), native.load_word(params + args.Y_STRIDE)
        lanes, spare = np.empty((4, 2, LANES), np.float32), np.empty(4 * LANES, np.uint8)
        token = 0
        while token < tokens:
            # Four tokens by two rows, or a single token by four rows: eight or four lanes' worth of chains.
            deep, wide = (4, 2) if tokens - token >= 4 else (1, 4)
            row = first
            while row < last:
                here = min(wide, last - row)
                step = stride if here == wide else 0
                w, a = weights + row * stride, x + token * x_stride
                if deep == 4:
                    tile(leg, w, step, a, x_stride, values, size, lanes)
                else:
                    stream(leg, w, step, a, values, size, lanes)
                made = here if here == wide else 1
                for t in range(deep):
                    for r in range(made):
                        cell = lanes[t, r] if deep == 4 else lanes[r // 2, r % 2]
                        value = finish(cell, leg, w + r * stride, a + t * x_stride, values, size, spare)
                        ops.store(y + (token + t) * y_stride + 4 * (row + r), value)
                row += made
            token += deep

    return run


def build(spec: BuildSpec) -> Run:
    """Builder of the fp32, fp16 and bf16 forms: ``run(x, weight, y, threads)``.

    ``x`` fp32 ``[R, K]``, ``weight`` float32, float16 or uint16 (bf16 bits) ``[N, K]``, ``y`` fp32 ``[R, N]``.
    """
    return float_gemm(spec.dtypes["weight"], host_form(spec.isa), spec.dims["N"], spec.dims["K"])


def float_gemm(name: str, form: Form, rows: int, values: int) -> Run:
    """``build`` for a given weight type and sizes."""
    leg = StaticType((name, form.name))
    task = native_address(floats_task, leg, *[types.int64] * 4)
    call = sealed(args.gemm_entry, *args.ENTRY_ARGUMENTS)
    nothing = np.zeros(0, np.uint8)

    def run(x: npt.NDArray[np.float32], weight: npt.NDArray[Any], y: npt.NDArray[np.float32], threads: int) -> int:
        stored = weight if weight.strides[1] == weight.itemsize else np.ascontiguousarray(weight)
        x, stored = args.contiguous_rows(x), stored.view(np.uint8)
        return args.outcome(call(x, stored, y, nothing, rows, values, task, POOL.control(threads), threads), y)

    return run
