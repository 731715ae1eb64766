"""q5_1: 32 values in 24 bytes.

    0   d     fp16      value = d * code + m
    2   m     fp16
    4   qh    4 bytes   bit v of the little-endian word: bit 4 of the code of value v
    8   codes 16 bytes  low nibble of byte j is value j, high nibble value 16 + j

Source: ggml-common.h, block_q5_1; ggml-quants.c, dequantize_row_q5_1.
"""

from __future__ import annotations

import numpy as np

from kernelmap_providers.formats.bits import Bytes, Floats, blocks_of, half, join, numbers, random_bytes, random_halves

VALUES, BYTES = 32, 24
SCALES = ((0, "f2"), (2, "f2"))


def fields(rows: Bytes) -> tuple[Floats, Floats, Bytes]:
    """Of rows ``[..., row_bytes]``: d and m ``[..., B]``, codes below 32 ``[..., B, 32]``."""
    block = blocks_of(rows, BYTES)
    word = numbers(block, 4, 8, "u4")
    fifth = ((word >> np.arange(32, dtype=np.uint32)) & 1).astype(np.uint8)
    low = np.concatenate([block[..., 8:24] & 15, block[..., 8:24] >> 4], axis=-1)
    return half(block, 0), half(block, 2), low | (fifth << 4)


def decode(rows: Bytes) -> Floats:
    """fp32 values ``[..., K]`` of rows ``uint8 [..., row_bytes]``."""
    d, m, codes = fields(rows)
    values: Floats = d[..., None] * codes.astype(np.float32) + m[..., None]
    return values.reshape(*rows.shape[:-1], -1)


def random_blocks(rng: np.random.Generator, blocks: tuple[int, ...]) -> Bytes:
    """Valid random blocks ``[*blocks, 24]``."""
    d, m = random_halves(rng, blocks, -12, -7), random_halves(rng, blocks, -8, -3)
    return join(d, m, random_bytes(rng, blocks, 20))
