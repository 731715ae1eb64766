"""q5_1_x8: eight q5_1 rows side by side, 192 bytes for 8 x 32 values, as many as q5_1.

  0  d      fp16[8 rows]
 16  m      fp16[8 rows]
 32  low    u8[4][8 rows][4]                 byte (g, r, i): low nibble is bits 0-3 of value 4 g + i of row r, high
                                             nibble of value 16 + 4 g + i
160  fifth  u8[8 rows][4]                    bit g of byte (r, i): bit 4 of value 4 g + i of row r
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kernelmap_providers.jit.compile import jit
from kernelmap_providers.packed.base import SmallBlockFormat, high_nibbles, low_nibbles
from kernelmap_providers.packed.moving import LOW1, copy, get_nibbles, put_nibbles
from kernelmap_providers.packed.q5_k import with_fifth_bits
from kernelmap_providers.quantize.layouts import Q8_1
from kernelmap_providers.simd import ops
from kernelmap_providers.simd.block import ActLayout, Code, Rows
from kernelmap_providers.simd.emit import Emitter, Value


@dataclass(frozen=True, kw_only=True)
class Q51X8(SmallBlockFormat):
    """See the module's diagram."""

    act: ActLayout = Q8_1

    def codes(self, e: Emitter, body: Rows, chunk: int) -> Sequence[Code]:
        """Two code vectors from one load of nibbles and the block's fifth bits."""
        both, bits = body.codes(e, 32 * chunk), body.codes(e, 128)
        low = with_fifth_bits(e, low_nibbles(e, both), bits, chunk)
        high = with_fifth_bits(e, high_nibbles(e, both), bits, chunk + 4)
        return Code(chunk, low), Code(chunk + 4, high)

    def floats(self, e: Emitter, head: Rows) -> Sequence[Value]:
        """d and m."""
        return head.halves(e, 0), head.halves(e, 16)

    def float_step(self, e: Emitter, acc: Value, sums: tuple[Value, Value | None], weight: Sequence[Value],
                   act: Sequence[Value]) -> Value:  # fmt: skip
        """``acc + ((d * d_x) * float(I) + m * s_x)``, each operation rounded."""
        product = self.product(e, sums[0], weight[0], act[0])
        return e.b.fadd(acc, e.b.fadd(product, e.b.fmul(weight[1], act[1])))


Q5_1_X8 = Q51X8(name="q5_1_x8", source="q5_1", version=1, source_bytes=24, head_bytes=32, body_bytes=160, code_max=31)


@jit
def pack_block(raw: int, head: int, body: int, lane: int) -> None:
    """One row of a stored block at ``raw`` to ``lane`` of the packed block; addresses."""
    copy(raw, head + 2 * lane, 2)
    copy(raw + 2, head + 16 + 2 * lane, 2)
    put_nibbles(raw + 8, body, lane)
    bits, gathered = np.int64(ops.load_i32(raw + 4)), np.int64(0)
    for step in range(8):
        # The product moves bit i of the nibble to bit 8 i.
        gathered |= ((((bits >> (4 * step)) & 15) * 0x204081) & LOW1) << step
    ops.store(body + 128 + 4 * lane, np.int32(gathered))


@jit
def unpack_block(head: int, body: int, lane: int, raw: int) -> None:
    """As `pack_block`, back, into zeroed ``raw``."""
    copy(head + 2 * lane, raw, 2)
    copy(head + 16 + 2 * lane, raw + 2, 2)
    get_nibbles(body, lane, raw + 8)
    for v in range(32):
        bit = (ops.load_u8(body + 128 + 4 * lane + v % 4) >> np.uint8(v // 4)) & np.uint8(1)
        place = raw + 4 + v // 8
        ops.store(place, np.uint8(ops.load_u8(place) | (bit << np.uint8(v % 8))))
