"""How numbers of one stored row move to the row's lane of a packed block, and back. Jitted code on addresses.

Packing works on vectors and words, for it also runs inside the GEMM of weights as stored; unpacking is for tests and
debugging, and plain.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernelmap_providers.jit.compile import jit
from kernelmap_providers.simd import ops
from kernelmap_providers.simd.static import Static
from kernelmap_providers.simd.vectors import I8X16, I32X8

I32X4 = Static("i32", 4)
NIBBLE, FLIP = np.int8(15), np.int32(-0x7F7F7F80)
LOW6, LOW4, LOW2, LOW1 = 0x3F3F3F3F, 0x0F0F0F0F, 0x03030303, 0x01010101


@jit
def copy(source: int, target: int, count: int) -> None:
    """``count`` bytes."""
    for byte in range(count):
        ops.store(target + byte, ops.load_u8(source + byte))


@jit
def _put_four(words: Any, out: int, lane: int) -> None:
    for step in range(4):
        ops.store(out + 32 * step + 4 * lane, ops.lane(words, step))


@jit
def put_stage_nibbles(raw: int, plane: int, out: int, lane: int) -> None:
    """32 nibbles (low ones for plane 0, high ones for plane 1 of 32 bytes) of one row to a stage: value ``v`` to the
    low, ``16 + v`` to the high nibbles."""
    mask = ops.fill(I8X16, NIBBLE)
    low = ops.bit_and(ops.shift_right(ops.load(I8X16, raw), 4 * plane), mask)
    high = ops.bit_and(ops.shift_right(ops.load(I8X16, raw + 16), 4 * plane), mask)
    _put_four(ops.reinterpret(I32X4, ops.bit_or(low, ops.shift_left(high, 4))), out, lane)


@jit
def get_stage_nibbles(stage: int, lane: int, plane: int, raw: int) -> None:
    """As `put_stage_nibbles`, back; ors into ``raw``."""
    for v in range(16):
        both = ops.load_u8(stage + 32 * (v // 4) + 4 * lane + v % 4)
        for half in range(2):
            place = raw + v + 16 * half
            nibble = (both >> np.uint8(4 * half)) & np.uint8(15)
            ops.store(place, np.uint8(ops.load_u8(place) | (nibble << np.uint8(4 * plane))))


@jit
def put_nibbles(raw: int, out: int, lane: int) -> None:
    """16 bytes, whose low nibbles are values 0 to 15 and high ones values 16 to 31, of one row."""
    _put_four(ops.load(I32X4, raw), out, lane)


@jit
def get_nibbles(body: int, lane: int, raw: int) -> None:
    """As `put_nibbles`, back."""
    for step in range(4):
        copy(body + 32 * step + 4 * lane, raw + 4 * step, 4)


@jit
def put_flipped(raw: int, out: int, lane: int) -> None:
    """32 signed bytes plus 128, four values a word."""
    words = ops.bit_xor(ops.load(I32X8, raw), ops.fill(I32X8, FLIP))
    for step in range(8):
        ops.store(out + 32 * step + 4 * lane, ops.lane(words, step))


@jit
def put_scales_and_minima(raw: int, head: int, lane: int) -> None:
    """d, dmin, scales and minima of a q4_k or q5_k block to a packed head (ggml's ``get_scale_min_k4``)."""
    copy(raw, head + 2 * lane, 2)
    copy(raw + 2, head + 16 + 2 * lane, 2)
    a, b, c = np.int64(ops.load_i32(raw + 4)), np.int64(ops.load_i32(raw + 8)), np.int64(ops.load_i32(raw + 12))
    scales = (a & LOW6, (c & LOW4) | (((a >> 6) & LOW2) << 4))
    minima = (b & LOW6, ((c >> 4) & LOW4) | (((b >> 6) & LOW2) << 4))
    for half in range(2):
        scale, minimum = scales[half], minima[half]
        for stage in range(4):
            ops.store(head + 32 + 8 * (4 * half + stage) + lane, np.uint8(scale >> (8 * stage)))
        for pair in range(2):
            ops.store(head + 96 + 16 * (2 * half + pair) + 2 * lane, np.int16(minimum >> (16 * pair)))


@jit
def get_scales_and_minima(head: int, lane: int, raw: int) -> None:
    """As `put_scales_and_minima`, back."""
    copy(head + 2 * lane, raw, 2)
    copy(head + 16 + 2 * lane, raw + 2, 2)
    for stage in range(4):
        scale, later = ops.load_u8(head + 32 + 8 * stage + lane), ops.load_u8(head + 64 + 8 * stage + lane)
        least = ops.load_u8(head + 96 + 16 * (stage // 2) + 2 * lane + stage % 2)
        later_least = ops.load_u8(head + 96 + 16 * (2 + stage // 2) + 2 * lane + stage % 2)
        six, four, low = np.uint8(6), np.uint8(4), np.uint8(15)
        ops.store(raw + 4 + stage, np.uint8(scale | ((later >> four) << six)))
        ops.store(raw + 8 + stage, np.uint8(least | ((later_least >> four) << six)))
        ops.store(raw + 12 + stage, np.uint8((later & low) | ((later_least & low) << four)))


@jit
def put_fifth_bits(raw: int, plane: int, out: int, lane: int) -> None:
    """Bit ``plane`` of 32 bytes to the row's four bytes of a stage: of value 4 g + i to bit g of byte i."""
    gathered = np.int64(0)
    for pair in range(4):
        bits = (ops.load_i64(raw + 8 * pair) >> plane) & (LOW1 << 32 | LOW1)
        gathered |= ((bits | (bits >> 31)) & LOW2) << (2 * pair)
    ops.store(out + 4 * lane, np.int32(gathered))


@jit
def get_fifth_bits(stage: int, lane: int, plane: int, raw: int) -> None:
    """As `put_fifth_bits`, back; ors into ``raw``."""
    for v in range(32):
        bit = (ops.load_u8(stage + 4 * lane + v % 4) >> np.uint8(v // 4)) & np.uint8(1)
        ops.store(raw + v, np.uint8(ops.load_u8(raw + v) | (bit << np.uint8(plane))))
