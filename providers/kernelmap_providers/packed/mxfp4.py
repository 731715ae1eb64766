"""mxfp4_x8: eight ggml mxfp4 rows side by side, as many bytes as mxfp4. Planar, as q8_0_x8.

heads   e      u8[8 rows]                    E8M0, 8 bytes a block
bodies  codes  u8[4][8 rows][4]              128 bytes a block; byte (g, r, i): low nibble is the E2M1 code of value
                                             4 g + i of row r, high nibble that of value 16 + 4 g + i
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernelmap_providers.jit.compile import jit
from kernelmap_providers.packed.base import SmallBlockFormat, high_nibbles, low_nibbles
from kernelmap_providers.packed.moving import copy, get_nibbles, put_nibbles
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
def pack_block(raw: int, head: int, body: int, lane: int) -> None:
    """One row of a stored block at ``raw`` to ``lane`` of the packed block; addresses."""
    copy(raw, head + lane, 1)
    put_nibbles(raw + 1, body, lane)


@jit
def unpack_block(head: int, body: int, lane: int, raw: int) -> None:
    """As `pack_block`, back, into zeroed ``raw``."""
    copy(head + lane, raw, 1)
    get_nibbles(body, lane, raw + 1)
