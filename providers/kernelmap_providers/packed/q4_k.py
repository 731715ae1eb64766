"""q4_k_x8: eight q4_k rows side by side, 1184 bytes for 8 x 256 values (2.8 % more than q4_k).

  0  d      fp16[8 rows]
 16  dmin   fp16[8 rows]
 32  scales u8[8 stages][8 rows]
 96  minima u8[4 pairs][8 rows][2]           stage s is pair s / 2, place s % 2
160  codes  u8[8 stages][4][8 rows][4]       byte (s, g, r, i): low nibble is value 32 s + 4 g + i of row r,
                                             high nibble value 32 s + 16 + 4 g + i
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernelmap_providers.jit.compile import jit
from kernelmap_providers.packed.base import ScaledMinFormat, high_nibbles, low_nibbles
from kernelmap_providers.simd.block import Code, Rows
from kernelmap_providers.simd.emit import Emitter


@dataclass(frozen=True, kw_only=True)
class Q4KX8(ScaledMinFormat):
    """See the module's diagram."""

    def codes(self, e: Emitter, body: Rows, chunk: int) -> Sequence[Code]:
        """Two code vectors from one load."""
        both = body.codes(e, 32 * chunk)
        return Code(chunk, low_nibbles(e, both)), Code(chunk + 4, high_nibbles(e, both))


Q4_K_X8 = Q4KX8(
    name="q4_k_x8", source="q4_k", version=1, source_bytes=144, body_bytes=1024, code_max=15, stage_bytes=128
)


@jit
def scale_and_min(block: Any, stage: int) -> tuple[int, int]:
    """The 6-bit scale and minimum of a stage from a q4_k or q5_k block's bytes 4..15 (ggml's ``get_scale_min_k4``)."""
    s = block[4:16]
    if stage < 4:
        return s[stage] & 63, s[stage + 4] & 63
    low, high = s[stage + 4], s[stage - 4]
    return (low & 15) | ((high >> 6) << 4), (low >> 4) | ((s[stage] >> 6) << 4)


@jit
def pack_scales_and_minima(block: Any, out: Any, row: int) -> None:
    """Write one row's d, dmin, scales and minima into a packed head (q4_k and q5_k alike)."""
    for byte in range(2):
        out[2 * row + byte] = block[byte]
        out[16 + 2 * row + byte] = block[2 + byte]
    for stage in range(8):
        scale, minimum = scale_and_min(block, stage)
        out[32 + 8 * stage + row] = scale
        out[96 + 16 * (stage // 2) + 2 * row + stage % 2] = minimum


@jit
def pack_stage_nibbles(source: Any, plane: int, out: Any, row: int) -> None:
    """Write 32 nibbles (low ones for plane 0, high ones for plane 1 of 32 bytes) of one row into a stage."""
    shift = np.uint8(4 * plane)
    for step in range(4):
        for i in range(4):
            low = (source[4 * step + i] >> shift) & np.uint8(15)
            high = (source[16 + 4 * step + i] >> shift) & np.uint8(15)
            out[32 * step + 4 * row + i] = low | (high << np.uint8(4))


@jit
def pack(source: Any, out: Any) -> None:
    """Pack ``source`` uint8 ``[rows, row_bytes]`` into the zeroed ``out`` uint8 ``[groups, group_bytes]``."""
    for row in range(source.shape[0]):
        group = out[row // 8]
        for block in range(source.shape[1] // 144):
            raw = source[row, 144 * block : 144 * block + 144]
            packed = group[1184 * block : 1184 * block + 1184]
            pack_scales_and_minima(raw, packed, row % 8)
            for stage in range(8):
                nibbles = raw[16 + 32 * (stage // 2) : 48 + 32 * (stage // 2)]
                pack_stage_nibbles(nibbles, stage % 2, packed[160 + 128 * stage :], row % 8)
