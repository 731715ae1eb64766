"""q4_k_x8 and q5_k_x8: eight weight rows side by side, block by block of 256 values. Lanes of a kernel are rows.

0     d      fp16[8 rows]
16    dmin   fp16[8 rows]
32    scales u8[8 sub-blocks][8 rows]
96    minima u8[4][8 rows][2]         sub-block s: pair s // 2, place s % 2
160   codes  u8[8][4][8 rows][4]      byte (s, g, r, i), low nibble: bits 0-3 of value 32 s + 4 g + i of row r,
                                      high nibble: of value 32 s + 16 + 4 g + i
1184  fifth  u8[8][8 rows][4]         q5_k_x8 only: bit l of the little-endian word (s, r): bit 4 of value 32 s + l
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernelmap_providers.formats import q4_k, q5_k
from kernelmap_providers.formats.bits import Bytes, as_bytes, join

GROUP_ROWS = 8
BLOCK_BYTES = {"q4_k_x8": 1184, "q5_k_x8": 1440}
"""Bytes of 8 rows x 256 values, by layout id."""
SOURCES = {"q4_k_x8": q4_k, "q5_k_x8": q5_k}


def pack(layout: str, rows: Bytes) -> Bytes:
    """Packed groups ``uint8 [N / 8, row blocks * BLOCK_BYTES]`` of stored rows ``uint8 [N, row_bytes]``.

    Raises ValueError unless N is a multiple of 8.
    """
    if len(rows) % GROUP_ROWS:
        raise ValueError(f"{layout} packs rows in groups of {GROUP_ROWS}; {len(rows)} rows are no whole number of them")
    d, dmin, scales, minima, codes = SOURCES[layout].fields(rows)
    parts = [
        _by_group(as_bytes(d[..., None], "f2")),
        _by_group(as_bytes(dmin[..., None], "f2")),
        _by_group(scales[..., None], 2),
        _by_group(minima.reshape(*minima.shape[:-1], 4, 2), 2),
        _by_group(_nibbles(codes), 2, 3),
    ]
    if layout == "q5_k_x8":
        fifth = np.packbits(codes >> 4, axis=-1, bitorder="little")
        parts.append(_by_group(fifth, 2))
    return join(*parts).reshape(len(rows) // GROUP_ROWS, -1)


def _nibbles(codes: Bytes) -> Bytes:
    """Codes ``[N, B, 8, 32]`` as bytes ``[N, B, 8, 4, 4]``: value l beside value 16 + l."""
    low = codes & 15
    paired: Any = low[..., :16] | (low[..., 16:] << 4)
    nibbles: Bytes = paired.reshape(*codes.shape[:-1], 4, 4)
    return nibbles


def _by_group(values: Bytes, *outer: int) -> Bytes:
    """``[N, B, ...]`` as ``[N / 8, B, bytes]``, the axes ``outer`` before the rows of a group, the rest behind."""
    grouped = values.reshape(-1, GROUP_ROWS, *values.shape[1:])
    front = (0, 2, *(axis + 1 for axis in outer), 1)
    axes = (*front, *(axis for axis in range(grouped.ndim) if axis not in front))
    return grouped.transpose(axes).reshape(grouped.shape[0], grouped.shape[2], -1)
