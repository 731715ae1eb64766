"""q6_k_x8: eight q6_k rows side by side, 1696 bytes for 8 x 256 values (1.0 % more than q6_k).

    0  d       fp16[8 rows]
   16  scales  i8[8 stages][8 rows][2]         of values 32 s .. 32 s + 15 and 32 s + 16 .. 32 s + 31
  144  unused  16 bytes (keeps the codes at multiples of 32)
  160  per stage of 32 values, 192 bytes:
         0  low    u8[4][8 rows][4]            byte (c, r, i): low nibble is bits 0-3 of value 8 c + i of row r,
                                               high nibble of value 8 c + 4 + i
       128  high   u8[2][8 rows][4]            bits 2 g and 2 g + 1 of byte (h, r, i): bits 4-5 of value 16 h + 4 g + i

Codes stay unsigned (0..63); the 32 that each has too much is taken away through the sums of 16 activations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kernelmap_providers.jit.compile import jit
from kernelmap_providers.packed.base import PackedFormat, high_nibbles, low_nibbles, masked_shift
from kernelmap_providers.packed.moving import copy
from kernelmap_providers.quantize.layouts import Q8_K, Q8_K_SUMS16
from kernelmap_providers.simd import ops
from kernelmap_providers.simd.block import ActLayout, Code, Rows
from kernelmap_providers.simd.emit import I8, I16, I32, I64, Emitter, Value, constant, vector

NIBBLES, PAIRS = 0x0F0F0F0F0F0F0F0F, 0x0303030303030303


@dataclass(frozen=True, kw_only=True)
class Q6KX8(PackedFormat):
    """See the module's diagram."""

    act: ActLayout = Q8_K
    values: int = 256
    parts: int = 2
    min_pairs: int = 8
    sums_at: int = Q8_K_SUMS16

    def codes(self, e: Emitter, body: Rows, chunk: int) -> Sequence[Code]:
        """Two neighbouring groups of four, so that the stage's two scales come one after the other."""
        both, high = body.codes(e, 32 * chunk), body.codes(e, 128 + 32 * (chunk // 2))
        group = 2 * (chunk % 2)
        first = e.b.or_(low_nibbles(e, both), masked_shift(e, high, 2 * group, 4, 0x30))
        second = e.b.or_(high_nibbles(e, both), masked_shift(e, high, 2 * group + 2, 4, 0x30))
        return Code(2 * chunk, first), Code(2 * chunk + 1, second)

    def scales(self, e: Emitter, head: Rows, stage: Value) -> Sequence[Value]:
        """Both int8 scales of the stage, as int32 lanes."""
        kind = vector(I32, e.lanes)
        pairs = e.b.bitcast(self._pair(e, head.at(e, e.b.mul(stage, I64(16))), 16), kind)
        sixteen = constant(kind, 16)
        return e.b.ashr(e.b.shl(pairs, sixteen), sixteen), e.b.ashr(pairs, sixteen)

    def min_pair(self, e: Emitter, head: Rows, pair: int) -> Value:
        """The scales again: they multiply the sums of 16 activations."""
        return self._pair(e, head, 16 + 16 * pair)

    def _pair(self, e: Emitter, head: Rows, offset: int) -> Value:
        return e.b.sext(head.load(e, offset, I8, 2), vector(I16, 2 * e.lanes))

    def floats(self, e: Emitter, head: Rows) -> Sequence[Value]:
        """d."""
        return (head.halves(e, 0),)

    def float_step(self, e: Emitter, acc: Value, sums: tuple[Value, Value | None], weight: Sequence[Value],
                   act: Sequence[Value]) -> Value:  # fmt: skip
        """``acc + d_x * (d * float(I - 32 J))``, each operation rounded."""
        surplus = e.b.shl(sums[1], constant(sums[0].type, 5))
        dot = e.int_to_float(e.b.sub(sums[0], surplus))
        return e.b.fadd(acc, e.b.fmul(act[0], e.b.fmul(weight[0], dot)))


Q6_K_X8 = Q6KX8(
    name="q6_k_x8", source="q6_k", version=1, source_bytes=210, head_bytes=160, body_bytes=1536, code_max=63,
    stage_bytes=192,
)  # fmt: skip


@jit
def _pack_stage(raw: int, stage: int, out: int, lane: int) -> None:
    """Stage ``4 h + q`` is quarter q of half h (see ``formats.q6_k``); eight values a word."""
    half, quarter = stage // 4, stage % 4
    low_at, high_at = raw + 64 * half + 32 * (quarter % 2), raw + 128 + 32 * half
    for pair in range(4):
        low = (ops.load_i64(low_at + 8 * pair) >> (4 * (quarter // 2))) & NIBBLES
        ops.store(out + 32 * pair + 4 * lane, np.int32(low | (low >> 28)))
    for part in range(2):
        first = (ops.load_i64(high_at + 16 * part) >> (2 * quarter)) & PAIRS
        second = (ops.load_i64(high_at + 16 * part + 8) >> (2 * quarter)) & PAIRS
        both = (first | (first >> 30)) & NIBBLES | ((second | (second >> 30)) & NIBBLES) << 4
        ops.store(out + 128 + 32 * part + 4 * lane, np.int32(both))


@jit
def _unpack_stage(place: int, lane: int, stage: int, raw: int) -> None:
    half, quarter = stage // 4, stage % 4
    for v in range(32):
        step, at = v // 4, 4 * lane + v % 4
        nibble = (ops.load_u8(place + 32 * (step // 2) + at) >> np.uint8(4 * (step % 2))) & np.uint8(15)
        pair = (ops.load_u8(place + 128 + 32 * (step // 4) + at) >> np.uint8(2 * (step % 4))) & np.uint8(3)
        low, high = raw + 64 * half + 32 * (quarter % 2) + v, raw + 128 + 32 * half + v
        ops.store(low, np.uint8(ops.load_u8(low) | (nibble << np.uint8(4 * (quarter // 2)))))
        ops.store(high, np.uint8(ops.load_u8(high) | (pair << np.uint8(2 * quarter))))


@jit
def pack_block(raw: int, head: int, body: int, lane: int) -> None:
    """One row of a stored block at ``raw`` to ``lane`` of the packed block; addresses."""
    copy(raw + 208, head + 2 * lane, 2)
    for stage in range(8):
        copy(raw + 192 + 2 * stage, head + 16 + 16 * stage + 2 * lane, 2)
        _pack_stage(raw, stage, body + 192 * stage, lane)


@jit
def unpack_block(head: int, body: int, lane: int, raw: int) -> None:
    """As `pack_block`, back, into zeroed ``raw``."""
    copy(head + 2 * lane, raw + 208, 2)
    for stage in range(8):
        copy(head + 16 + 16 * stage + 2 * lane, raw + 192 + 2 * stage, 2)
        _unpack_stage(body + 192 * stage, lane, stage, raw)
