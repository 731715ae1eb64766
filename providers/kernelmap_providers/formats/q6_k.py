"""q6_k: 256 values in 210 bytes, sixteen sub-blocks of 16 with an int8 scale each.

    0    ql     128 bytes    low four bits, in two halves of 64 bytes (128 values h = 0, 1)
    128  qh     64 bytes     high two bits, in two halves of 32 bytes
    192  scales int8[16]     value = d * scale[v // 16] * (code - 32)
    208  d      fp16

    In half h, l < 32:  value 128 h +  0 + l: low nibble of ql[64 h + l],       bits 0-1 of qh[32 h + l]
                        value 128 h + 32 + l: low nibble of ql[64 h + 32 + l],  bits 2-3
                        value 128 h + 64 + l: high nibble of ql[64 h + l],      bits 4-5
                        value 128 h + 96 + l: high nibble of ql[64 h + 32 + l], bits 6-7

Source: ggml-common.h, block_q6_K; ggml-quants.c, dequantize_row_q6_K.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernelmap_providers.formats.bits import Bytes, Floats, blocks_of, half, join, numbers, random_bytes, random_halves

VALUES, BYTES = 256, 210
SCALES = ((208, "f2"),)
Signed = np.ndarray[Any, np.dtype[np.int8]]


def fields(rows: Bytes) -> tuple[Floats, Signed, Signed]:
    """Of rows ``[..., row_bytes]``: d ``[..., B]``, int8 scales ``[..., B, 16]``, codes - 32 ``[..., B, 16, 16]``."""
    block = blocks_of(rows, BYTES)
    lead = block.shape[:-1]
    low = block[..., 0:128].reshape(*lead, 2, 1, 64)
    low = np.concatenate([low & 15, low >> 4], axis=-2).reshape(*lead, 2, 4, 32)
    shifts = np.array([0, 2, 4, 6], np.uint8)[:, None]
    high = (block[..., 128:192].reshape(*lead, 2, 1, 32) >> shifts) & 3
    codes = (low | (high << 4)).astype(np.int8) - np.int8(32)
    return half(block, 208), numbers(block, 192, 208, "i1"), codes.reshape(*lead, 16, 16)


def decode(rows: Bytes) -> Floats:
    """fp32 values ``[..., K]`` of rows ``uint8 [..., row_bytes]``."""
    d, scales, codes = fields(rows)
    scale = d[..., None] * scales.astype(np.float32)
    values: Floats = scale[..., None] * codes.astype(np.float32)
    return values.reshape(*rows.shape[:-1], -1)


def random_blocks(rng: np.random.Generator, blocks: tuple[int, ...]) -> Bytes:
    """Valid random blocks ``[*blocks, 210]``."""
    return join(random_bytes(rng, blocks, 208), random_halves(rng, blocks, -20, -15))
