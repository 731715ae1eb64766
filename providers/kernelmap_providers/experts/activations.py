"""Legs: activation rows quantized to a weight format's partner, in place of their own.

A quantized row is a tuple ``(codes int8[K], d fp32[blocks], sums int16[K / 16])``; q8_0 has no sums. The scales are the
ones that the byte format stores, widened. Bytes are not interleaved as in ggml's blocks: that would only cost loads.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernelmap.vocabulary import FORMATS
from kernelmap_providers.elementary import F32, ONE, ZERO, all_finite, rint32
from kernelmap_providers.experts.workspace import align64, codes_at, floats_at, shorts_at
from kernelmap_providers.jit.compile import jit
from kernelmap_providers.jit.generic import generic

U32 = np.uint32
MAX_CODE = F32(127.0)
HALF, LEAST_NORMAL_HALF, BEYOND_HALF = F32(0.5), F32(2.0**-14), F32(65536.0)


@jit
def round_to_half(x: Any) -> Any:
    """The fp16 number nearest to a finite ``x >= 0``, ties to even, as fp32; 65536 or more where fp16 is infinite."""
    if x < LEAST_NORMAL_HALF:
        return (x + HALF) - HALF
    bits = F32(x).view(U32)
    even = U32(bits >> U32(13)) & U32(1)
    return U32(U32(bits + U32(0xFFF) + even) & U32(0xFFFFE000)).view(F32)


@jit
def zero_block(codes: Any) -> None:
    """All codes zero."""
    for k in range(len(codes)):
        codes[k] = 0


@jit
def extreme_of(x: Any) -> Any:
    """The value of largest magnitude, the first of equals."""
    extreme, largest = ZERO, ZERO
    for k in range(len(x)):
        magnitude = abs(x[k])
        if magnitude > largest:
            largest, extreme = magnitude, x[k]
    return extreme


@jit
def quantize_q8_k(x: Any, act: Any) -> Any:
    """fp32 row to q8_k. False, and a row of zeros, for a NaN or an infinity."""
    codes, d, sums = act
    fine = all_finite(x)
    for b in range(len(d)):
        block, out = x[256 * b : 256 * b + 256], codes[256 * b : 256 * b + 256]
        inverse = -MAX_CODE / extreme_of(block) if fine else F32(np.inf)
        if inverse - inverse == ZERO:
            d[b] = ONE / inverse
            for k in range(256):
                out[k] = np.int8(min(MAX_CODE, rint32(inverse * block[k])))
        else:
            d[b] = ZERO
            zero_block(out)
        for part in range(16):
            total = 0
            for k in range(16 * part, 16 * part + 16):
                total += out[k]
            sums[16 * b + part] = total
    return fine


@jit
def quantize_q8_0(x: Any, act: Any) -> Any:
    """fp32 row to q8_0. False for a NaN, an infinity, or a scale beyond fp16; the row is then of no use."""
    codes, d, _ = act
    fine = all_finite(x)
    for b in range(len(d)):
        block, out = x[32 * b : 32 * b + 32], codes[32 * b : 32 * b + 32]
        largest = abs(extreme_of(block))
        inverse = MAX_CODE / largest if fine else F32(np.inf)
        if inverse - inverse == ZERO:
            d[b] = round_to_half(largest / MAX_CODE)
            fine = fine and d[b] < BEYOND_HALF
            for k in range(32):
                out[k] = np.int8(rint32(block[k] * inverse))
        else:
            d[b] = ZERO
            zero_block(out)
    return fine


@jit
def act_q8_k(mine: Any, at: int, values: int) -> Any:
    """Views of a q8_k row in scratch, ``act_bytes`` from byte ``at`` on."""
    d_at = at + align64(values)
    sums_at = d_at + align64(values // 64)
    return codes_at(mine, at, values), floats_at(mine, d_at, values // 256), shorts_at(mine, sums_at, values // 16)


@jit
def act_q8_0(mine: Any, at: int, values: int) -> Any:
    """Views of a q8_0 row in scratch, ``act_bytes`` from byte ``at`` on."""
    d_at = at + align64(values)
    return codes_at(mine, at, values), floats_at(mine, d_at, values // 32), shorts_at(mine, at, 0)


@jit
def act_bytes_q8_k(values: int) -> Any:
    """Scratch bytes of a q8_k row."""
    return align64(values) + align64(values // 64) + align64(values // 8)


@jit
def act_bytes_q8_0(values: int) -> Any:
    """Scratch bytes of a q8_0 row."""
    return align64(values) + align64(values // 8)


LEGS = {"q8_k": (quantize_q8_k, act_q8_k, act_bytes_q8_k), "q8_0": (quantize_q8_0, act_q8_0, act_bytes_q8_0)}


def quantize_row(weight: Any, x: Any, act: Any) -> bool:
    """Quantize ``x`` to the partner of weight format ``weight``; whether the contract accepts it."""
    raise NotImplementedError


def act_views(weight: Any, mine: Any, at: int, values: int) -> Any:
    """The quantized row of ``values`` values at byte ``at`` of a worker's scratch."""
    raise NotImplementedError


def act_bytes(weight: Any, values: int) -> int:
    """Scratch bytes of a quantized row, a multiple of 64."""
    raise NotImplementedError


def _leg(weight: Any, index: int) -> Any:
    return LEGS[str(FORMATS[weight.parts[0]].act)][index]


@generic(quantize_row)
def _quantize_row(weight: Any, x: Any, act: Any) -> Any:
    leg = _leg(weight, 0)
    return lambda weight, x, act: leg(x, act)


@generic(act_views)
def _act_views(weight: Any, mine: Any, at: Any, values: Any) -> Any:
    leg = _leg(weight, 1)
    return lambda weight, mine, at, values: leg(mine, at, values)


@generic(act_bytes)
def _act_bytes(weight: Any, values: Any) -> Any:
    leg = _leg(weight, 2)
    return lambda weight, values: leg(values)
