"""Legs: a segment of tokens against groups of eight packed weight rows.

A block of a group is unpacked once and meets every token of the segment. Each (row, token) runs the same scalar chain
as `dots` does, so the bytes are the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernelmap_providers.elementary import F32, I32, ZERO
from kernelmap_providers.experts.dots import half, int_dot
from kernelmap_providers.jit.compile import jit
from kernelmap_providers.jit.generic import generic

SEGMENT_TOKENS = 16
"""Tokens that share one unpacking: more cost scratch, and few experts see more in a pass over one slot."""


@jit
def unpack_codes(w: Any, at: int, out: Any) -> None:
    """``scale * (low four bits)`` of 8 rows x 256 values of the packed block at ``at``, as int16 row by row."""
    block = w[at : at + 1184]
    for s in range(8):
        for r in range(8):
            scale = np.int16(block[32 + 8 * s + r])
            values = out[256 * r + 32 * s : 256 * r + 32 * s + 32]
            for g in range(4):
                packed = block[160 + 128 * s + 32 * g + 4 * r : 164 + 128 * s + 32 * g + 4 * r]
                for i in range(4):
                    values[4 * g + i] = scale * np.int16(packed[i] & 15)
                    values[16 + 4 * g + i] = scale * np.int16(packed[i] >> 4)


@jit
def unpack_q4_k_x8(w: Any, at: int, out: Any) -> int:
    """Unpacks a q4_k_x8 block; its bytes."""
    unpack_codes(w, at, out)
    return 1184


@jit
def unpack_q5_k_x8(w: Any, at: int, out: Any) -> int:
    """Unpacks a q5_k_x8 block; its bytes."""
    unpack_codes(w, at, out)
    block = w[at : at + 1440]
    for s in range(8):
        for r in range(8):
            step = np.int16(16 * np.int16(block[32 + 8 * s + r]))
            fifth = block[1184 + 32 * s + 4 * r : 1188 + 32 * s + 4 * r]
            values = out[256 * r + 32 * s : 256 * r + 32 * s + 32]
            for j in range(4):
                for i in range(8):
                    values[8 * j + i] += step * np.int16((fifth[j] >> i) & 1)
    return 1440


UNPACK = {"q4_k": unpack_q4_k_x8, "q5_k": unpack_q5_k_x8}


def unpack_block(weight: Any, w: Any, at: int, out: Any) -> int:
    """Unpack the block at ``at`` of the x8 layout of format ``weight`` as scaled int16; returns the block's bytes."""
    raise NotImplementedError


@generic(unpack_block)
def _unpack_block(weight: Any, w: Any, at: Any, out: Any) -> Any:
    leg = UNPACK[weight.parts[0]]
    return lambda weight, w, at, out: leg(w, at, out)


@jit
def minima_of_row(w: Any, at: int, r: int, sums: Any) -> Any:
    """Exact sum over sub-blocks of row r's minimum times its sum of activation codes, from 16 ``sums``."""
    minima = w[at + 96 : at + 160]
    total = I32(0)
    for s in range(8):
        total = I32(total + I32(minima[16 * (s // 2) + 2 * r + s % 2]) * (sums[2 * s] + sums[2 * s + 1]))
    return total


@jit
def dot_group(weight: Any, w: Any, at: int, acts: Any, rows: Any, count: int, unpacked: Any, acc: Any) -> None:
    """``acc[8 t + r]`` = dot of packed row r of the group at ``at`` with activation row ``rows[t]``, t < count.

    ``acts`` holds codes int8 ``[T, K]``, d fp32 ``[T, K / 256]`` and sums int16 ``[T, K / 16]``.
    """
    codes, d, sums = acts
    for i in range(8 * count):
        acc[i] = ZERO
    for b in range(d.shape[1]):
        block_bytes = unpack_block(weight, w, at, unpacked)
        for r in range(8):
            scale, offset = half(w, at + 2 * r), half(w, at + 16 + 2 * r)
            mine = unpacked[256 * r : 256 * r + 256]
            for t in range(count):
                token = rows[t]
                total = int_dot(mine, codes[token, 256 * b : 256 * b + 256])
                low = minima_of_row(w, at, r, sums[token, 16 * b : 16 * b + 16])
                acc[8 * t + r] = acc[8 * t + r] + d[token, b] * (scale * F32(total) - offset * F32(low))
        at += block_bytes
