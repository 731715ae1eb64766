"""fp32 rows to q8_k: 256 values, one fp32 scale, codes within +-127 (NUMERICS: activation quantization)."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernelmap_providers.jit.compile import inlined, jit
from kernelmap_providers.quantize.layouts import Q8_K_SUMS16, Q8_K_SUMS32
from kernelmap_providers.simd import ops
from kernelmap_providers.simd.static import Static
from kernelmap_providers.simd.vectors import F32X8, I8X16, I16X4, I16X8, I32X8

MAGNITUDE = np.int32(0x7FFFFFFF)
SIGN = np.int32(-0x80000000)
INFINITY = np.int32(0x7F800000)
EVEN, ODD = Static(0, 2, 4, 6), Static(1, 3, 5, 7)


@inlined
def extremes(x: int) -> Any:
    """Bits of the largest positive and of the largest negative magnitude of 256 fp32 values at ``x``.

    As signed integers the bits of positive numbers order by magnitude above those of negative ones; with the sign bit
    flipped it is the other way round. NaN orders above infinity. A value below 0: there is no number of that sign.
    """
    sign = ops.fill(I32X8, SIGN)
    first, second = ops.load(I32X8, x), ops.load(I32X8, x + 32)
    up, up2 = first, second
    down, down2 = ops.bit_xor(first, sign), ops.bit_xor(second, sign)
    for part in range(2, 32, 2):
        first, second = ops.load(I32X8, x + 32 * part), ops.load(I32X8, x + 32 * part + 32)
        up, up2 = ops.maximum(up, first), ops.maximum(up2, second)
        down, down2 = ops.maximum(down, ops.bit_xor(first, sign)), ops.maximum(down2, ops.bit_xor(second, sign))
    return ops.reduce_max(ops.maximum(up, up2)), ops.reduce_max(ops.maximum(down, down2))


@jit
def first_of_two(x: int, bits: int) -> Any:
    """The first of 256 values at ``x`` whose magnitude has these bits: both signs occur."""
    for part in range(256):
        if ops.load_i32(x + 4 * part) & MAGNITUDE == bits:
            return ops.load_f32(x + 4 * part)
    return np.float32(0.0)


@jit
def zero_block(out: int) -> None:
    """A q8_k block of zeros."""
    for part in range(10):
        ops.store(out + 32 * part, ops.fill(I32X8, np.int32(0)))


@inlined
def quantize_sixteen(x: int, factor: Any, out: int) -> Any:
    """16 values at ``x`` times ``factor`` to codes at ``out``; returns eight partial sums of the codes."""
    top = ops.fill(I32X8, np.int32(127))
    low = ops.rint(ops.mul(ops.load(F32X8, x), factor))
    high = ops.rint(ops.mul(ops.load(F32X8, x + 32), factor))
    low, high = ops.minimum(ops.convert(I32X8, low), top), ops.minimum(ops.convert(I32X8, high), top)
    ops.store(out, ops.convert(I8X16, ops.join(low, high)))
    return ops.add(low, high)


@inlined
def quantize_half(x: int, factor: Any, out: int, sums16: int, sums32: int) -> None:
    """128 values to codes at ``out``, eight sums of 16 at ``sums16`` and four sums of 32 at ``sums32``."""
    groups = ops.fold8(
        quantize_sixteen(x, factor, out),
        quantize_sixteen(x + 64, factor, out + 16),
        quantize_sixteen(x + 128, factor, out + 32),
        quantize_sixteen(x + 192, factor, out + 48),
        quantize_sixteen(x + 256, factor, out + 64),
        quantize_sixteen(x + 320, factor, out + 80),
        quantize_sixteen(x + 384, factor, out + 96),
        quantize_sixteen(x + 448, factor, out + 112),
    )
    ops.store(sums16, ops.convert(I16X8, groups))
    pairs = ops.add(ops.shuffle(groups, EVEN), ops.shuffle(groups, ODD))
    ops.store(sums32, ops.convert(I16X4, pairs))


@jit
def quantize_block(x: int, out: int) -> Any:
    """One block of 256 values at ``x`` into the layout at ``out``; False where a value is NaN or infinite."""
    up, down = extremes(x)
    bits = max(up, down)
    if bits >= INFINITY:
        zero_block(out)
        return False
    # The sign goes in without a branch: half of the branches would be mispredicted.
    extreme = ops.float_of_bits(np.int32(bits) ^ (np.int32(down > up) << np.int32(31)))
    if up == down and up > 0:
        extreme = first_of_two(x, bits)
    scale = np.float32(-127.0) / extreme if bits > 0 else np.float32(np.inf)
    if not np.isfinite(scale):
        zero_block(out)
        return True
    factor = ops.fill(F32X8, scale)
    quantize_half(x, factor, out, out + Q8_K_SUMS16, out + Q8_K_SUMS32)
    quantize_half(x + 512, factor, out + 128, out + Q8_K_SUMS16 + 16, out + Q8_K_SUMS32 + 8)
    ops.store(out + 304, np.float32(1.0) / scale)
    ops.store(out + 308, np.int32(0))
    ops.store(out + 312, np.int64(0))
    return True
