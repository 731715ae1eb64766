"""mxfp4_x8: eight ggml mxfp4 rows side by side, as many bytes as mxfp4. Planar, as q8_0_x8.

heads   e      u8[8 rows]                    E8M0, 8 bytes a block
bodies  codes  u8[4][8 rows][4]              128 bytes a block; byte (g, r, i): low nibble is the E2M1 code of value
                                             4 g + i of row r, high nibble that of value 16 + 4 g + i
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kernelmap_providers.jit.compile import jit
from kernelmap_providers.packed.base import SmallBlockFormat, high_nibbles, low_nibbles
from kernelmap_providers.simd.block import Code, Rows
from kernelmap_providers.simd.emit import F32, I8, I32, Emitter, Value, constant, vector

DOUBLED_E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
"""Twice the E2M1 value by code: integers, and the block's scale is halved (NUMERICS: dot products)."""


def halved_e8m0(e: Emitter, stored: Value) -> Value:
    """``2 ** (s - 128)`` of E8M0 bytes as fp32 (0 and 1 give subnormals), NaN for 255."""
    kind = vector(I32, stored.type.count)
    s = e.b.zext(stored, kind)
    normal = e.b.shl(e.b.sub(s, constant(kind, 1)), constant(kind, 23))
    subnormal = e.b.shl(constant(kind, 0x00200000), s)
    bits = e.b.select(e.b.icmp_unsigned("<", s, constant(kind, 2)), subnormal, normal)
    bits = e.b.select(e.b.icmp_unsigned("==", s, constant(kind, 255)), constant(kind, 0x7FC00000), bits)
    return e.b.bitcast(bits, vector(F32, stored.type.count))


@dataclass(frozen=True, kw_only=True)
class MXFP4X8(SmallBlockFormat):
    """See the module's diagram."""

    def codes(self, e: Emitter, body: Rows, chunk: int) -> Sequence[Code]:
        """Two code vectors by table look-up: the doubled values, plus 128 for forms that take biased weights."""
        both = body.codes(e, 32 * chunk)
        table = [value + e.form.bias for value in DOUBLED_E2M1]
        low, high = (e.table16(table, nibbles) for nibbles in (low_nibbles(e, both), high_nibbles(e, both)))
        return Code(chunk, low), Code(chunk + 4, high)

    def floats(self, e: Emitter, head: Rows) -> Sequence[Value]:
        """The halved scale."""
        return (halved_e8m0(e, head.load(e, 0, I8, 1)),)


MXFP4_X8 = MXFP4X8(
    name="mxfp4_x8", source="mxfp4", version=1, source_bytes=17, head_bytes=8, body_bytes=128, code_max=12, planar=True,
    signed=True,
)  # fmt: skip


@jit
def pack(source: Any, out: Any) -> None:
    """Pack ``source`` uint8 ``[rows, row_bytes]`` into the zeroed ``out`` uint8 ``[groups, group_bytes]``."""
    blocks = source.shape[1] // 17
    bodies = (8 * blocks + 63) // 64 * 64
    for row in range(source.shape[0]):
        group, lane = out[row // 8], row % 8
        for block in range(blocks):
            raw = source[row, 17 * block : 17 * block + 17]
            group[8 * block + lane] = raw[0]
            packed = group[bodies + 128 * block : bodies + 128 * block + 128]
            pack_low_and_high(raw[1:], packed, lane)


@jit
def pack_low_and_high(raw: Any, out: Any, row: int) -> None:
    """Write 16 bytes, value ``l`` in the low and ``16 + l`` in the high nibble of byte ``l``, of one row."""
    for step in range(4):
        for i in range(4):
            out[32 * step + 4 * row + i] = raw[4 * step + i]
