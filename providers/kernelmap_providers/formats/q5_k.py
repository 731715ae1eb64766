"""q5_k: 256 values in 176 bytes: q4_k with a fifth bit.

    0    d     fp16          value = d * scale[s] * code - dmin * min[s], s = sub-block
    2    dmin  fp16
    4    scales and minima   12 bytes, see k_scales
    16   qh    32 bytes      bit s of byte l: bit 4 of the code of value 32 s + l
    48   codes 128 bytes     low four bits, as in q4_k

Source: ggml-common.h, block_q5_K; ggml-quants.c, dequantize_row_q5_K.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernelmap_providers.formats import k_scales
from kernelmap_providers.formats.bits import Bytes, Floats, blocks_of, half, join, random_bytes, random_halves
from kernelmap_providers.formats.q4_k import nibbles

VALUES, BYTES = 256, 176
SCALES = ((0, "f2"), (2, "f2"))


def fields(rows: Bytes) -> tuple[Floats, Floats, Bytes, Bytes, Bytes]:
    """Of rows ``[..., row_bytes]``: d, dmin ``[..., B]``, scales, minima ``[..., B, 8]``, codes ``[..., B, 8, 32]``."""
    block = blocks_of(rows, BYTES)
    scales, minima = k_scales.unpack(block[..., 4:16])
    fifth: Any = (block[..., None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None]) & 1
    codes: Any = nibbles(block[..., 48:176]) | (fifth << 4)
    return half(block, 0), half(block, 2), scales, minima, codes


def decode(rows: Bytes) -> Floats:
    """fp32 values ``[..., K]`` of rows ``uint8 [..., row_bytes]``."""
    d, dmin, scales, minima, codes = fields(rows)
    scale = d[..., None] * scales.astype(np.float32)
    offset = dmin[..., None] * minima.astype(np.float32)
    values: Floats = scale[..., None] * codes.astype(np.float32) - offset[..., None]
    return values.reshape(*rows.shape[:-1], -1)


def random_blocks(rng: np.random.Generator, blocks: tuple[int, ...]) -> Bytes:
    """Valid random blocks ``[*blocks, 176]``."""
    d, dmin = random_halves(rng, blocks, -18, -13), random_halves(rng, blocks, -15, -10)
    return join(d, dmin, random_bytes(rng, blocks, 172))
