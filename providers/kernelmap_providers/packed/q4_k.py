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

from kernelmap_providers.jit.compile import jit
from kernelmap_providers.packed.base import ScaledMinFormat, high_nibbles, low_nibbles
from kernelmap_providers.packed.moving import (
    get_scales_and_minima,
    get_stage_nibbles,
    put_scales_and_minima,
    put_stage_nibbles,
)
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
def pack_block(raw: int, head: int, body: int, lane: int) -> None:
    """One row of a stored block at ``raw`` to ``lane`` of the packed block; addresses."""
    put_scales_and_minima(raw, head, lane)
    for stage in range(8):
        put_stage_nibbles(raw + 16 + 32 * (stage // 2), stage % 2, body + 128 * stage, lane)


@jit
def unpack_block(head: int, body: int, lane: int, raw: int) -> None:
    """As `pack_block`, back, into zeroed ``raw``."""
    get_scales_and_minima(head, lane, raw)
    for stage in range(8):
        get_stage_nibbles(body + 128 * stage, lane, stage % 2, raw + 16 + 32 * (stage // 2))
