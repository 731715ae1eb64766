"""fp32 rows to q8_0 and q8_1: 32 values, one scale that is rounded to fp16 (NUMERICS: activation quantization)."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernelmap_providers.jit.compile import jit
from kernelmap_providers.simd import ops
from kernelmap_providers.simd.vectors import F32X8, I8X8, I32X8

MAGNITUDE = np.int32(0x7FFFFFFF)
INFINITY = np.int32(0x7F800000)


@jit
def _largest_bits(x: int) -> Any:
    """Bits of the largest magnitude of 32 values; NaN orders above infinity."""
    mask = ops.fill(I32X8, MAGNITUDE)
    best = ops.bit_and(ops.load(I32X8, x), mask)
    for part in range(1, 4):
        best = ops.maximum(best, ops.bit_and(ops.load(I32X8, x + 32 * part), mask))
    return ops.reduce_max(best)


@jit
def _finish(out: int, scale: float, scaled_sum: float, total: int) -> Any:
    """Write the numbers behind the codes; False where one is not finite."""
    ops.store(out + 32, scale)
    ops.store(out + 36, scaled_sum)
    ops.store(out + 40, np.int32(-128 * total))
    ops.store(out + 44, np.int32(0))
    return np.isfinite(scale) and np.isfinite(scaled_sum)


@jit
def _zero(out: int) -> None:
    for part in range(6):
        ops.store(out + 8 * part, np.int64(0))


@jit
def _codes(x: int, out: int, bits: int) -> Any:
    """Quantize 32 values; returns the unrounded scale, the sum of the codes, and whether the block counts as zero."""
    largest = ops.float_of_bits(np.int32(bits))
    inverse = np.float32(127.0) / largest if bits != 0 else np.float32(np.inf)
    if not np.isfinite(inverse):
        _zero(out)
        return np.float32(0.0), np.int32(0), True
    factor = ops.fill(F32X8, inverse)
    total = ops.fill(I32X8, np.int32(0))
    for part in range(4):
        scaled = ops.rint(ops.mul(ops.load(F32X8, x + 32 * part), factor))
        code = ops.convert(I32X8, scaled)
        ops.store(out + 8 * part, ops.convert(I8X8, code))
        total = ops.add(total, code)
    return largest / np.float32(127.0), ops.reduce_add(total), False


@jit
def quantize_q8_0_block(x: int, out: int) -> Any:
    """32 values at ``x`` into the layout at ``out``; False on NaN, infinity or a scale beyond fp16."""
    bits = _largest_bits(x)
    if bits >= INFINITY:
        _zero(out)
        return False
    scale, total, zero = _codes(x, out, bits)
    if zero:
        return True
    return _finish(out, ops.round_to_half(scale), np.float32(0.0), total)


@jit
def quantize_q8_1_block(x: int, out: int) -> Any:
    """As q8_0, with ``s = fp16(d_fp32 * sum of codes)``; False also where s is beyond fp16."""
    bits = _largest_bits(x)
    if bits >= INFINITY:
        _zero(out)
        return False
    scale, total, zero = _codes(x, out, bits)
    if zero:
        return True
    scaled_sum = ops.round_to_half(scale * np.float32(total))
    return _finish(out, ops.round_to_half(scale), scaled_sum, total)
