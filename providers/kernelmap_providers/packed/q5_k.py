"""q5_k_x8: eight q5_k rows side by side, 1440 bytes for 8 x 256 values (2.3 % more than q5_k).

  0  d, dmin, scales, minima                 160 bytes, as in q4_k_x8
160  per stage of 32 values, 160 bytes:
       0  low    u8[4][8 rows][4]            nibbles as in q4_k_x8
     128  fifth  u8[8 rows][4]               bit g of byte (r, i): bit 4 of value 4 g + i of row r
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernelmap_providers.jit.compile import jit
from kernelmap_providers.packed.base import ScaledMinFormat, high_nibbles, low_nibbles, masked_shift
from kernelmap_providers.packed.moving import (
    get_fifth_bits,
    get_scales_and_minima,
    get_stage_nibbles,
    put_fifth_bits,
    put_scales_and_minima,
    put_stage_nibbles,
)
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
def pack_block(raw: int, head: int, body: int, lane: int) -> None:
    """One row of a stored block at ``raw`` to ``lane`` of the packed block; addresses."""
    put_scales_and_minima(raw, head, lane)
    for stage in range(8):
        place = body + 160 * stage
        put_stage_nibbles(raw + 48 + 32 * (stage // 2), stage % 2, place, lane)
        put_fifth_bits(raw + 16, stage, place + 128, lane)


@jit
def unpack_block(head: int, body: int, lane: int, raw: int) -> None:
    """As `pack_block`, back, into zeroed ``raw``."""
    get_scales_and_minima(head, lane, raw)
    for stage in range(8):
        place = body + 160 * stage
        get_stage_nibbles(place, lane, stage % 2, raw + 48 + 32 * (stage // 2))
        get_fifth_bits(place + 128, lane, stage, raw + 16)
