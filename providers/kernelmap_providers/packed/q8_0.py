"""q8_0_x8: eight q8_0 rows side by side, as many bytes as q8_0. Planar: a row group holds all its scales, then, at a
multiple of 64 bytes, all its codes, so that codes never straddle cache lines.

  heads   d      fp16[8 rows]                  16 bytes a block
  bodies  codes  u8[8][8 rows][4]              256 bytes a block; byte (g, r, i) is 128 + value 4 g + i of row r
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernelmap_providers.jit.compile import jit
from kernelmap_providers.packed.base import SmallBlockFormat
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
def pack(source: Any, out: Any) -> None:
    """Pack ``source`` uint8 ``[rows, row_bytes]`` into the zeroed ``out`` uint8 ``[groups, group_bytes]``."""
    blocks = source.shape[1] // 34
    bodies = (16 * blocks + 63) // 64 * 64
    for row in range(source.shape[0]):
        group, lane = out[row // 8], row % 8
        for block in range(blocks):
            raw = source[row, 34 * block : 34 * block + 34]
            for byte in range(2):
                group[16 * block + 2 * lane + byte] = raw[byte]
            packed = group[bodies + 256 * block : bodies + 256 * block + 256]
            for step in range(8):
                for i in range(4):
                    packed[32 * step + 4 * lane + i] = raw[2 + 4 * step + i] ^ np.uint8(128)
