"""q8_0_x8: eight q8_0 rows side by side, as many bytes as q8_0. Planar: a row group holds all its scales, then, at a
multiple of 64 bytes, all its codes, so that codes never straddle cache lines.

  heads   d      fp16[8 rows]                  16 bytes a block
  bodies  codes  u8[8][8 rows][4]              256 bytes a block; byte (g, r, i) is 128 + value 4 g + i of row r
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kernelmap_providers.jit.compile import jit
from kernelmap_providers.packed.base import SmallBlockFormat
from kernelmap_providers.packed.moving import copy, put_flipped
from kernelmap_providers.simd import ops
from kernelmap_providers.simd.block import Code, Rows
from kernelmap_providers.simd.emit import Emitter, Value, constant


@dataclass(frozen=True, kw_only=True)
class Q80X8(SmallBlockFormat):
    """See the module's diagram."""

    def codes(self, e: Emitter, body: Rows, chunk: int) -> Sequence[Code]:
        """One code vector: as stored for forms that take biased weights, else signed."""
        stored = body.codes(e, 32 * chunk)
        flip = constant(stored.type, 128)
        return (Code(chunk, stored if e.form.bias else e.b.xor(stored, flip)),)

    def floats(self, e: Emitter, head: Rows) -> Sequence[Value]:
        """d."""
        return (head.halves(e, 0),)


Q8_0_X8 = Q80X8(
    name="q8_0_x8", source="q8_0", version=1, source_bytes=34, head_bytes=16, body_bytes=256, code_max=128, planar=True,
    signed=True, chunks=8,
)  # fmt: skip


@jit
def pack_block(raw: int, head: int, body: int, lane: int) -> None:
    """One row of a stored block at ``raw`` to ``lane`` of the packed block; addresses."""
    copy(raw, head + 2 * lane, 2)
    put_flipped(raw + 2, body, lane)


@jit
def unpack_block(head: int, body: int, lane: int, raw: int) -> None:
    """As `pack_block`, back, into zeroed ``raw``."""
    copy(head + 2 * lane, raw, 2)
    for v in range(32):
        stored = ops.load_u8(body + 32 * (v // 4) + 4 * lane + v % 4)
        ops.store(raw + 2 + v, np.uint8(stored ^ np.uint8(128)))
