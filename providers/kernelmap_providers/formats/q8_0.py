"""q8_0: 32 values in 34 bytes. A weight format, and the activation partner of q8_0 and mxfp4.

    0   d     fp16      value = d * code
    2   codes int8[32]

Source: ggml-common.h, block_q8_0; the activation quantizer is ggml's AVX2 form (ties to even).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernelmap_providers.formats.bits import (
    Bytes,
    Flags,
    Floats,
    as_bytes,
    blocks_of,
    half,
    join,
    numbers,
    random_bytes,
    random_halves,
)

VALUES, BYTES = 32, 34
SCALES = ((0, "f2"),)
Signed = np.ndarray[Any, np.dtype[np.int8]]


def fields(rows: Bytes) -> tuple[Floats, Signed]:
    """Of rows ``[..., row_bytes]``: d ``[..., B]`` and int8 codes ``[..., B, 32]``."""
    block = blocks_of(rows, BYTES)
    return half(block, 0), numbers(block, 2, 34, "i1")


def decode(rows: Bytes) -> Floats:
    """fp32 values ``[..., K]`` of rows ``uint8 [..., row_bytes]``."""
    d, codes = fields(rows)
    values: Floats = d[..., None] * codes.astype(np.float32)
    return values.reshape(*rows.shape[:-1], -1)


def quantize_rows(x: Floats) -> tuple[Bytes, Flags]:
    """(bytes ``[R, row_bytes]``, refused ``[R]``) of fp32 rows ``[R, K]``.

    Refused is a row with a NaN, an infinity, or a d beyond fp16; its bytes are then ggml's where that has a value.
    """
    d, codes, refused = quantize_blocks(x)
    rows = join(as_bytes(d[..., None], "f2"), as_bytes(codes, "i1"))
    return rows.reshape(len(x), -1), refused


def quantize_blocks(x: Floats) -> tuple[Floats, Signed, Flags]:
    """d ``[R, B]`` before narrowing, codes ``[R, B, 32]``, refused ``[R]``: what q8_0 and q8_1 share."""
    block = x.reshape(len(x), -1, VALUES)
    refused: Any = ~np.isfinite(x).all(axis=1)
    block = np.where(refused[:, None, None], np.float32(0), block)
    amax = np.abs(block).max(axis=-1)
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.float32(127) / amax
        zero = ~np.isfinite(inverse)
        d = np.where(zero, np.float32(0), amax / np.float32(127))
        inverse = np.where(zero, np.float32(0), inverse)
        refused = refused | ~np.isfinite(d.astype(np.float16)).all(axis=-1)
    codes = np.rint(block * inverse[..., None]).astype(np.int8)
    return d, codes, refused


def random_blocks(rng: np.random.Generator, blocks: tuple[int, ...]) -> Bytes:
    """Valid random blocks ``[*blocks, 34]``."""
    return join(random_halves(rng, blocks, -14, -9), random_bytes(rng, blocks, 32))
