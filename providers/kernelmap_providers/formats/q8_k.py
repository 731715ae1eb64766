"""q8_k: 256 values in 292 bytes, the activation partner of the k-quants.

    0    d     fp32       value = d * code
    4    codes int8[256]
    260  sums  int16[16]  of 16 codes each

Source: ggml-common.h, block_q8_K; ggml-quants.c, quantize_row_q8_K_ref.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernelmap_providers.formats.bits import Bytes, Flags, Floats, as_bytes, blocks_of, join, numbers

VALUES, BYTES = 256, 292
SCALES = ((0, "f4"),)
Signed = np.ndarray[Any, np.dtype[np.int8]]
Sums = np.ndarray[Any, np.dtype[np.int16]]


def fields(rows: Bytes) -> tuple[Floats, Signed, Sums]:
    """Of rows ``[..., row_bytes]``: d ``[..., B]``, int8 codes ``[..., B, 256]``, int16 sums ``[..., B, 16]``."""
    block = blocks_of(rows, BYTES)
    return numbers(block, 0, 4, "f4")[..., 0], numbers(block, 4, 260, "i1"), numbers(block, 260, 292, "i2")


def decode(rows: Bytes) -> Floats:
    """fp32 values ``[..., K]`` of rows ``uint8 [..., row_bytes]``."""
    d, codes, _ = fields(rows)
    values: Floats = d[..., None] * codes.astype(np.float32)
    return values.reshape(*rows.shape[:-1], -1)


def quantize_rows(x: Floats) -> tuple[Bytes, Flags]:
    """(bytes ``[R, row_bytes]``, refused ``[R]``) of fp32 rows ``[R, K]``. Refused: a NaN or an infinity in the row."""
    block = x.reshape(len(x), -1, VALUES)
    refused: Any = ~np.isfinite(x).all(axis=1)
    block = np.where(refused[:, None, None], np.float32(0), block)
    first = np.abs(block).argmax(axis=-1)
    extreme = np.take_along_axis(block, first[..., None], axis=-1)[..., 0]
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.float32(-127) / extreme
        zero = ~np.isfinite(inverse)
        d = np.where(zero, np.float32(0), np.float32(1) / inverse)
    inverse = np.where(zero, np.float32(0), inverse)
    codes = np.minimum(np.rint(inverse[..., None] * block), 127).astype(np.int8)
    sums = codes.reshape(*codes.shape[:-1], 16, 16).astype(np.int16).sum(axis=-1, dtype=np.int16)
    rows = join(as_bytes(d[..., None], "f4"), as_bytes(codes, "i1"), as_bytes(sums, "i2"))
    return rows.reshape(len(x), -1), refused


def random_blocks(rng: np.random.Generator, blocks: tuple[int, ...]) -> Bytes:
    """Valid random blocks ``[*blocks, 292]``: quantized random values."""
    count = int(np.prod(blocks))
    rows, _ = quantize_rows(rng.standard_normal((count, VALUES)).astype(np.float32))
    return rows.reshape(*blocks, BYTES)
