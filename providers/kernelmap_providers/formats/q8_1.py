"""q8_1: 32 values in 36 bytes, the activation partner of q5_1 (and q4_1).

    0   d     fp16      value = d * code
    2   s     fp16      d * sum of the codes, from d before it was narrowed
    4   codes int8[32]

Source: ggml-common.h, block_q8_1; the quantizer is ggml's AVX2 form (ties to even).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernelmap_providers.formats import q8_0
from kernelmap_providers.formats.bits import Bytes, Flags, Floats, as_bytes, blocks_of, half, join, numbers

VALUES, BYTES = 32, 36
SCALES = ((0, "f2"), (2, "f2"))
Signed = np.ndarray[Any, np.dtype[np.int8]]


def fields(rows: Bytes) -> tuple[Floats, Floats, Signed]:
    """Of rows ``[..., row_bytes]``: d and s ``[..., B]``, int8 codes ``[..., B, 32]``."""
    block = blocks_of(rows, BYTES)
    return half(block, 0), half(block, 2), numbers(block, 4, 36, "i1")


def decode(rows: Bytes) -> Floats:
    """fp32 values ``[..., K]`` of rows ``uint8 [..., row_bytes]``."""
    d, _, codes = fields(rows)
    values: Floats = d[..., None] * codes.astype(np.float32)
    return values.reshape(*rows.shape[:-1], -1)


def quantize_rows(x: Floats) -> tuple[Bytes, Flags]:
    """(bytes ``[R, row_bytes]``, refused ``[R]``) of fp32 rows ``[R, K]``.

    Refused is a row with a NaN, an infinity, or a d or s beyond fp16 (rows near 1e4 are).
    """
    d, codes, refused = q8_0.quantize_blocks(x)
    s = d * codes.astype(np.int32).sum(axis=-1).astype(np.float32)
    with np.errstate(over="ignore"):
        refused = refused | ~np.isfinite(s.astype(np.float16)).all(axis=-1)
    rows = join(as_bytes(d[..., None], "f2"), as_bytes(s[..., None], "f2"), as_bytes(codes, "i1"))
    return rows.reshape(len(x), -1), refused


def random_blocks(rng: np.random.Generator, blocks: tuple[int, ...]) -> Bytes:
    """Valid random blocks ``[*blocks, 36]``: quantized random values."""
    count = int(np.prod(blocks))
    rows, _ = quantize_rows(rng.standard_normal((count, VALUES)).astype(np.float32))
    return rows.reshape(*blocks, BYTES)
