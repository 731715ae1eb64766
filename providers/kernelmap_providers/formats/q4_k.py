"""q4_k: 256 values in 144 bytes, eight sub-blocks of 32 with a 6-bit scale and minimum each.

    0    d     fp16          value = d * scale[s] * code - dmin * min[s], s = sub-block
    2    dmin  fp16
    4    scales and minima   12 bytes, see k_scales
    16   codes 128 bytes     byte 32 g + l: low nibble is value 64 g + l, high nibble value 64 g + 32 + l

Source: ggml-common.h, block_q4_K; ggml-quants.c, dequantize_row_q4_K.
"""

from __future__ import annotations

import numpy as np

from kernelmap_providers.formats import k_scales
from kernelmap_providers.formats.bits import Bytes, Floats, blocks_of, half, join, random_bytes, random_halves

VALUES, BYTES = 256, 144
SCALES = ((0, "f2"), (2, "f2"))


def fields(rows: Bytes) -> tuple[Floats, Floats, Bytes, Bytes, Bytes]:
    """Of rows ``[..., row_bytes]``: d, dmin ``[..., B]``, scales, minima ``[..., B, 8]``, codes ``[..., B, 8, 32]``."""
    block = blocks_of(rows, BYTES)
    scales, minima = k_scales.unpack(block[..., 4:16])
    return half(block, 0), half(block, 2), scales, minima, nibbles(block[..., 16:144])


def nibbles(packed: Bytes) -> Bytes:
    """The 128 code bytes ``[..., 128]`` as nibbles ``[..., 8, 32]`` by sub-block."""
    groups = packed.reshape(*packed.shape[:-1], 4, 1, 32)
    return np.concatenate([groups & 15, groups >> 4], axis=-2).reshape(*packed.shape[:-1], 8, 32)


def decode(rows: Bytes) -> Floats:
    """fp32 values ``[..., K]`` of rows ``uint8 [..., row_bytes]``."""
    d, dmin, scales, minima, codes = fields(rows)
    scale = d[..., None] * scales.astype(np.float32)
    offset = dmin[..., None] * minima.astype(np.float32)
    values: Floats = scale[..., None] * codes.astype(np.float32) - offset[..., None]
    return values.reshape(*rows.shape[:-1], -1)


def random_blocks(rng: np.random.Generator, blocks: tuple[int, ...]) -> Bytes:
    """Valid random blocks ``[*blocks, 144]``."""
    d, dmin = random_halves(rng, blocks, -17, -12), random_halves(rng, blocks, -15, -10)
    return join(d, dmin, random_bytes(rng, blocks, 140))
