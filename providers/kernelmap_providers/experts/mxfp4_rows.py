"""Rows of interleaved MXFP4 inside jitted code: decoding them, and their dots with activations.

Activations and decoded rows lie in the nibbles' order: of each 32 values first the 16 even ones, then the 16 odd ones.
The group's contract is one of tolerance, so sums may be reassociated (never the steps of decoding); how they are is
fixed by the shape alone. In the machine's order instead, a row's dot took ten times as long.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types

from kernelmap_providers.formats.e2m1 import CODES
from kernelmap_providers.jit.compile import jit
from kernelmap_providers.jit.generic import generic
from kernelmap_providers.packed.mxfp4 import DOUBLED_E2M1
from kernelmap_providers.simd.ops import (
    add,
    bit_and,
    convert,
    fill,
    high_half,
    lane,
    load,
    low_half,
    mul,
    shift_right,
    store,
    table16,
)
from kernelmap_providers.simd.static import Static
from kernelmap_providers.simd.vectors import F32X16, I8X16, I32X16

DOUBLED = Static(*DOUBLED_E2M1)
POWERS = np.append(np.ldexp(1.0, np.arange(255) - 127), np.nan)
"""2**(s - 127) by scale byte, NaN for 255: exact in fp32 as well."""
HALVES = (POWERS / 2).astype(np.float32)
"""For doubled values: 2**-128 is an fp32 subnormal, and every product is the rounded (or infinite) value itself."""
WIDE_CODES = CODES.astype(np.float64)
ZERO = np.float32(0)
NIBBLE = np.int8(15)

contracted: Any = njit(nogil=True, error_model="numpy", fastmath={"contract"})
"""As ``jit``, with fused multiply-adds."""
reassociated: Any = njit(nogil=True, error_model="numpy", fastmath={"contract", "reassoc"})
"""As ``contracted``, and sums in any order, so that LLVM makes vector loops of them. NaN and infinities are kept."""


@jit
def _decode32(form: Any, packed: Any, at: int, scales: Any, scale_at: int, out: Any) -> None:
    source, target = packed.ctypes.data + at, out.ctypes.data
    low = fill(I8X16, NIBBLE)
    for g in range(len(out) // 32):
        pairs = load(I8X16, source + 16 * g)
        half = fill(F32X16, HALVES[scales[scale_at + g]])
        even = table16(form, DOUBLED, bit_and(pairs, low))
        odd = table16(form, DOUBLED, bit_and(shift_right(pairs, 4), low))
        store(target + 128 * g, mul(convert(F32X16, convert(I32X16, even)), half))
        store(target + 128 * g + 64, mul(convert(F32X16, convert(I32X16, odd)), half))


@jit
def _decode64(form: Any, packed: Any, at: int, scales: Any, scale_at: int, out: Any) -> None:
    for g in range(len(out) // 32):
        power = POWERS[scales[scale_at + g]]
        for j in range(16):
            pair = packed[at + 16 * g + j]
            out[32 * g + j] = WIDE_CODES[pair & 15] * power
            out[32 * g + 16 + j] = WIDE_CODES[pair >> 4] * power


@contracted
def _fused32(form: Any, packed: Any, at: int, scales: Any, scale_at: int, x: Any, buffer: Any) -> Any:
    source, act = packed.ctypes.data + at, x.ctypes.data
    low = fill(I8X16, NIBBLE)
    even_sum, odd_sum = fill(F32X16, ZERO), fill(F32X16, ZERO)
    for g in range(len(x) // 32):
        pairs = load(I8X16, source + 16 * g)
        half = fill(F32X16, HALVES[scales[scale_at + g]])
        even = convert(F32X16, convert(I32X16, table16(form, DOUBLED, bit_and(pairs, low))))
        odd = convert(F32X16, convert(I32X16, table16(form, DOUBLED, bit_and(shift_right(pairs, 4), low))))
        even_sum = add(even_sum, mul(mul(even, half), load(F32X16, act + 128 * g)))
        odd_sum = add(odd_sum, mul(mul(odd, half), load(F32X16, act + 128 * g + 64)))
    lanes = add(even_sum, odd_sum)
    eight = add(low_half(lanes), high_half(lanes))
    four = add(low_half(eight), high_half(eight))
    return (lane(four, np.int32(0)) + lane(four, np.int32(2))) + (lane(four, np.int32(1)) + lane(four, np.int32(3)))


@reassociated
def dot(w: Any, x: Any) -> Any:
    """Dot of two rows of one type."""
    total = w[0] * x[0]
    for k in range(1, len(w)):
        total += w[k] * x[k]
    return total


@jit
def _decode_then_dot64(form: Any, packed: Any, at: int, scales: Any, scale_at: int, x: Any, buffer: Any) -> Any:
    _decode64(form, packed, at, scales, scale_at, buffer)
    return dot(buffer, x)


@reassociated
def dots_4x2(w: Any, x: Any, i: int, j: int) -> Any:
    """Dots of the four rows of ``w`` with rows i and j of ``x``: a tuple, row i's four first."""
    w0, w1, w2, w3 = w[0], w[1], w[2], w[3]
    xi, xj = x[i], x[j]
    i0 = i1 = i2 = i3 = j0 = j1 = j2 = j3 = w0.dtype.type(0)
    for k in range(len(w0)):
        i0 += w0[k] * xi[k]
        i1 += w1[k] * xi[k]
        i2 += w2[k] * xi[k]
        i3 += w3[k] * xi[k]
        j0 += w0[k] * xj[k]
        j1 += w1[k] * xj[k]
        j2 += w2[k] * xj[k]
        j3 += w3[k] * xj[k]
    return i0, i1, i2, i3, j0, j1, j2, j3


@reassociated
def dots_4x4(w: Any, x: Any, h: int, i: int, j: int, m: int) -> Any:
    """Dots of the four rows of ``w`` with rows h, i, j and m of ``x``: a tuple, row h's four first."""
    w0, w1, w2, w3 = w[0], w[1], w[2], w[3]
    xh, xi, xj, xm = x[h], x[i], x[j], x[m]
    h0 = h1 = h2 = h3 = i0 = i1 = i2 = i3 = w0.dtype.type(0)
    j0 = j1 = j2 = j3 = m0 = m1 = m2 = m3 = w0.dtype.type(0)
    for k in range(len(w0)):
        h0 += w0[k] * xh[k]
        h1 += w1[k] * xh[k]
        h2 += w2[k] * xh[k]
        h3 += w3[k] * xh[k]
        i0 += w0[k] * xi[k]
        i1 += w1[k] * xi[k]
        i2 += w2[k] * xi[k]
        i3 += w3[k] * xi[k]
        j0 += w0[k] * xj[k]
        j1 += w1[k] * xj[k]
        j2 += w2[k] * xj[k]
        j3 += w3[k] * xj[k]
        m0 += w0[k] * xm[k]
        m1 += w1[k] * xm[k]
        m2 += w2[k] * xm[k]
        m3 += w3[k] * xm[k]
    return h0, h1, h2, h3, i0, i1, i2, i3, j0, j1, j2, j3, m0, m1, m2, m3


def decode_row(form: Any, packed: Any, at: Any, scales: Any, scale_at: Any, out: Any) -> None:
    """Decode the row at byte ``at`` of ``packed``, scales at ``scale_at``, into ``out`` ``[32 G]`` (fp32 or fp64)."""
    raise NotImplementedError("called from jitted code only")


@generic(decode_row)
def _decode_row(form: Any, packed: Any, at: Any, scales: Any, scale_at: Any, out: Any) -> Any:
    leg = _decode64 if out.dtype == types.float64 else _decode32
    return lambda form, packed, at, scales, scale_at, out: leg(form, packed, at, scales, scale_at, out)


def dot_row(form: Any, packed: Any, at: Any, scales: Any, scale_at: Any, x: Any, buffer: Any) -> Any:
    """Dot of an encoded row with ``x``; fp32 decodes in registers, fp64 through ``buffer``, both ``[32 G]``."""
    raise NotImplementedError("called from jitted code only")


@generic(dot_row)
def _dot_row(form: Any, packed: Any, at: Any, scales: Any, scale_at: Any, x: Any, buffer: Any) -> Any:
    leg = _decode_then_dot64 if x.dtype == types.float64 else _fused32
    return lambda form, packed, at, scales, scale_at, x, buffer: leg(form, packed, at, scales, scale_at, x, buffer)
