"""q5_k_x8: eight q5_k rows side by side, 1440 bytes for 8 x 256 values (2.3 % more than q5_k).

  0  d, dmin, scales, minima                 160 bytes, as in q4_k_x8
160  per stage of 32 values, 160 bytes:
       0  low    u8[4][8 rows][4]            nibbles as in q4_k_x8
     128  fifth  u8[8 rows][4]               bit g of byte (r, i): bit 4 of value 4 g + i of row r
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernelmap_providers.jit.compile import jit
from kernelmap_providers.packed.base import ScaledMinFormat, high_nibbles, low_nibbles, masked_shift
from kernelmap_providers.packed.q4_k import pack_scales_and_minima, pack_stage_nibbles
from kernelmap_providers.simd.block import Code, Rows
from kernelmap_providers.simd.emit import Emitter, Value


def with_fifth_bits(e: Emitter, low: Value, bits: Value, step: int) -> Value:
    """Four-bit codes of group ``step`` with bit 4 taken from bit ``step`` of the bytes ``bits``."""
    return e.b.or_(low, masked_shift(e, bits, step, 4, 0x10))


@dataclass(frozen=True, kw_only=True)
class Q5KX8(ScaledMinFormat):
    """See the module's diagram."""

    def codes(self, e: Emitter, body: Rows, chunk: int) -> Sequence[Code]:
        """Two code vectors from one load of nibbles and the stage's fifth bits."""
        both, bits = body.codes(e, 32 * chunk), body.codes(e, 128)
        low = with_fifth_bits(e, low_nibbles(e, both), bits, chunk)
        high = with_fifth_bits(e, high_nibbles(e, both), bits, chunk + 4)
        return Code(chunk, low), Code(chunk + 4, high)


Q5_K_X8 = Q5KX8(
    name="q5_k_x8", source="q5_k", version=2, source_bytes=176, body_bytes=1280, code_max=31, stage_bytes=160
)


@jit
def pack_fifth_bits(raw: Any, plane: int, out: Any, row: int) -> None:
    """Gather bit ``plane`` of 32 bytes into the row's four bytes of a stage."""
    for i in range(4):
        byte = np.uint8(0)
        for step in range(8):
            byte |= ((raw[4 * step + i] >> np.uint8(plane)) & np.uint8(1)) << np.uint8(step)
        out[4 * row + i] = byte


@jit
def pack(source: Any, out: Any) -> None:
    """Pack ``source`` uint8 ``[rows, row_bytes]`` into the zeroed ``out`` uint8 ``[groups, group_bytes]``."""
    for row in range(source.shape[0]):
        group = out[row // 8]
        for block in range(source.shape[1] // 176):
            raw = source[row, 176 * block : 176 * block + 176]
            packed = group[1440 * block : 1440 * block + 1440]
            pack_scales_and_minima(raw, packed, row % 8)
            for stage in range(8):
                place = packed[160 + 160 * stage : 320 + 160 * stage]
                nibbles = raw[48 + 32 * (stage // 2) : 80 + 32 * (stage // 2)]
                pack_stage_nibbles(nibbles, stage % 2, place, row % 8)
                pack_fifth_bits(raw[16:48], stage, place[128:], row % 8)
