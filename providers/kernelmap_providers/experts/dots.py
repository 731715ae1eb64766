"""Legs: the dot of one stored weight row with one quantized activation row.

Codes times scales are unpacked to int16 (63 * 31 fits), so that a block is one plain int16 x int8 loop. The fp32 steps
are those of ``reference.dots``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernelmap_providers.elementary import F32, I32, ZERO
from kernelmap_providers.jit.compile import jit
from kernelmap_providers.jit.generic import generic

U32 = np.uint32
TWO_112 = F32(2.0**112)


@jit
def half(w: Any, at: int) -> Any:
    """The fp16 number at byte ``at``, widened exactly; infinities and NaN stay such.

    Shifting the bits into place and multiplying by 2**112 moves the exponent, exactly, subnormals included.
    """
    bits = U32(w[at]) | U32(U32(w[at + 1]) << U32(8))
    magnitude = U32(U32(bits & U32(0x7FFF)) << U32(13))
    value = U32(magnitude).view(F32) * TWO_112
    if magnitude >= U32(0x7C00 << 13):
        value = U32(magnitude | U32(0x7F800000)).view(F32)
    return -value if bits & U32(0x8000) else value


@jit
def scale_at(w: Any, at: int, s: int) -> int:
    """The 6-bit scale of sub-block ``s`` in the 12 scale bytes at ``at`` (formats.k_scales)."""
    if s < 4:
        return int(w[at + s]) & 63
    return (int(w[at + s + 4]) & 15) | (int(w[at + s - 4]) >> 6 << 4)


@jit
def minimum_at(w: Any, at: int, s: int) -> int:
    """The 6-bit minimum of sub-block ``s`` in the 12 scale bytes at ``at``."""
    if s < 4:
        return int(w[at + s + 4]) & 63
    return (int(w[at + s + 4]) >> 4) | (int(w[at + s]) >> 6 << 4)


@jit
def unpack_nibbles(w: Any, scales: int, codes: int, out: Any) -> None:
    """``scale * (low four bits)`` of 256 values as int16."""
    for g in range(4):
        low, high = np.int16(scale_at(w, scales, 2 * g)), np.int16(scale_at(w, scales, 2 * g + 1))
        packed = w[codes + 32 * g : codes + 32 * g + 32]
        first, second = out[64 * g : 64 * g + 32], out[64 * g + 32 : 64 * g + 64]
        for j in range(len(packed)):
            first[j] = low * np.int16(packed[j] & 15)
            second[j] = high * np.int16(packed[j] >> 4)


@jit
def add_fifth_bits(w: Any, scales: int, bits: int, out: Any) -> None:
    """Add ``scale * 16`` where bit s of byte l is set, for value 32 s + l."""
    fifth = w[bits : bits + 32]
    for s in range(8):
        step = np.int16(16 * scale_at(w, scales, s))
        values = out[32 * s : 32 * s + 32]
        for j in range(len(fifth)):
            values[j] += step * np.int16((fifth[j] >> s) & 1)


@jit
def int_dot(unpacked: Any, codes: Any) -> Any:
    """Exact sum of int16 times int8 products. Slices, not offsets: a computed index keeps the loop scalar."""
    total = I32(0)
    for k in range(len(codes)):
        total = I32(total + I32(unpacked[k]) * I32(codes[k]))
    return total


@jit
def minima_dot(w: Any, scales: int, sums: Any, at: int) -> Any:
    """Exact sum over sub-blocks of minimum times sum of activation codes."""
    total = I32(0)
    for s in range(8):
        total = I32(total + minimum_at(w, scales, s) * (sums[at + 2 * s] + sums[at + 2 * s + 1]))
    return total


@jit
def scale_min_step(w: Any, at: int, b: int, act: Any, unpacked: Any, acc: Any) -> Any:
    """The fp32 step of q4_k and q5_k: ``acc + d_x * (d * I - dmin * J)``."""
    codes, d, sums = act
    total = int_dot(unpacked, codes[256 * b : 256 * b + 256])
    offset = minima_dot(w, at + 4, sums, 16 * b)
    return acc + d[b] * (half(w, at) * F32(total) - half(w, at + 2) * F32(offset))


@jit
def dot_q4_k(w: Any, at: int, act: Any, unpacked: Any) -> Any:
    """q4_k row at byte ``at`` with a q8_k row."""
    acc = ZERO
    for b in range(len(act[1])):
        block = at + 144 * b
        unpack_nibbles(w, block + 4, block + 16, unpacked)
        acc = scale_min_step(w, block, b, act, unpacked, acc)
    return acc


@jit
def dot_q5_k(w: Any, at: int, act: Any, unpacked: Any) -> Any:
    """q5_k row at byte ``at`` with a q8_k row."""
    acc = ZERO
    for b in range(len(act[1])):
        block = at + 176 * b
        unpack_nibbles(w, block + 4, block + 48, unpacked)
        add_fifth_bits(w, block + 4, block + 16, unpacked)
        acc = scale_min_step(w, block, b, act, unpacked, acc)
    return acc


@jit
def dot_q8_0(w: Any, at: int, act: Any, unpacked: Any) -> Any:
    """q8_0 row at byte ``at`` with a q8_0 row."""
    codes, d, _ = act
    acc = ZERO
    for b in range(len(d)):
        block = at + 34 * b
        total = int_dot(w[block + 2 : block + 34].view(np.int8), codes[32 * b : 32 * b + 32])
        acc = acc + (half(w, block) * d[b]) * F32(total)
    return acc


DOTS = {"q4_k": dot_q4_k, "q5_k": dot_q5_k, "q8_0": dot_q8_0}


def dot_row(weight: Any, w: Any, at: int, act: Any, unpacked: Any) -> Any:
    """Dot of the row of format ``weight`` at byte ``at`` of ``w`` with the quantized row ``act``."""
    raise NotImplementedError


@generic(dot_row)
def _dot_row(weight: Any, w: Any, at: Any, act: Any, unpacked: Any) -> Any:
    leg = DOTS[weight.parts[0]]
    return lambda weight, w, at, act, unpacked: leg(w, at, act, unpacked)
