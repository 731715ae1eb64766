"""fp32 rows to q8_k: 256 values, one fp32 scale, codes within +-127 (NUMERICS: activation quantization)."""

from __future__ import annotations

import numpy as np

from kernelmap_providers.jit.compile import jit
from kernelmap_providers.quantize.layouts import Q8_K_SUMS16, Q8_K_SUMS32
from kernelmap_providers.simd import ops
from kernelmap_providers.simd.vectors import F32X8, I8X8, I32X8

MAGNITUDE = np.int32(0x7FFFFFFF)
INFINITY = np.int32(0x7F800000)
SMALLEST = np.float32(127.0) / np.finfo(np.float32).max
"""Magnitudes up to here have no finite ``127 / max``: the block counts as zero."""


@jit
def largest_bits(x: int) -> int:
    """Bits of the largest magnitude of 256 fp32 values at address ``x``; NaN orders above infinity."""
    mask = ops.fill(I32X8, MAGNITUDE)
    best = ops.bit_and(ops.load(I32X8, x), mask)
    for part in range(1, 32):
        best = ops.maximum(best, ops.bit_and(ops.load(I32X8, x + 32 * part), mask))
    return ops.reduce_max(best)


@jit
def signed_extreme(x: int, bits: int) -> float:
    """The first of 256 values at ``x`` whose magnitude has these bits."""
    for part in range(256):
        value = ops.load_i32(x + 4 * part)
        if value & MAGNITUDE == bits:
            return ops.load_f32(x + 4 * part)
    return np.float32(0.0)


@jit
def zero_block(out: int) -> None:
    """A q8_k block of zeros."""
    for part in range(10):
        ops.store(out + 32 * part, ops.fill(I32X8, np.int32(0)))


@jit
def quantize_block(x: int, out: int) -> bool:
    """One block of 256 values at ``x`` into the layout at ``out``; False where a value is NaN or infinite."""
    bits = largest_bits(x)
    if bits >= INFINITY:
        zero_block(out)
        return False
    extreme = signed_extreme(x, bits)
    scale = np.float32(-127.0) / extreme if bits != 0 else np.float32(np.inf)
    if not np.isfinite(scale):
        zero_block(out)
        return True
    factor = ops.fill(F32X8, scale)
    top = ops.fill(I32X8, np.int32(127))
    for stage in range(8):
        total = np.int32(0)
        for half in range(2):
            place = 32 * stage + 16 * half
            first = ops.mul(ops.load(F32X8, x + 4 * place), factor)
            second = ops.mul(ops.load(F32X8, x + 4 * place + 32), factor)
            low = ops.minimum(ops.convert(I32X8, ops.rint(first)), top)
            high = ops.minimum(ops.convert(I32X8, ops.rint(second)), top)
            ops.store(out + place, ops.convert(I8X8, low))
            ops.store(out + place + 8, ops.convert(I8X8, high))
            part = ops.reduce_add(ops.add(low, high))
            ops.store(out + Q8_K_SUMS16 + 4 * stage + 2 * half, np.int16(part))
            total += part
        ops.store(out + Q8_K_SUMS32 + 2 * stage, np.int16(total))
    ops.store(out + 304, np.float32(1.0) / scale)
    ops.store(out + 308, np.int32(0))
    ops.store(out + 312, np.int64(0))
    return True
