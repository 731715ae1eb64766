"""What the packed formats share: their sizes and the two families of fp32 steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llvmlite import ir

from kernelmap_providers.quantize.layouts import Q8_0, Q8_K, Q8_K_SUMS32
from kernelmap_providers.simd.block import GROUP_ROWS, ActLayout, Rows
from kernelmap_providers.simd.emit import I8, I16, I32, Emitter, Value, constant, vector


@dataclass(frozen=True, kw_only=True)
class PackedFormat:
    """Sizes of a packed layout and the facts that the tile generator asks for (see ``simd.block.BlockFormat``)."""

    name: str
    source: str
    """Storage format that is packed."""
    version: int
    """Raised whenever the bytes change; part of every cache key."""
    act: ActLayout
    values: int
    source_bytes: int
    """Bytes of one block of the storage format."""
    head_bytes: int
    body_bytes: int
    code_max: int
    planar: bool = False
    signed: bool = False
    chunks: int = 4
    stage_bytes: int = 0
    parts: int = 0
    min_pairs: int = 0
    sums_at: int = -1

    def group_bytes(self, values: int) -> int:
        """Bytes of eight packed rows of ``values`` values, a multiple of 32."""
        blocks = values // self.values
        heads = blocks * self.head_bytes
        whole = (-(-heads // 64) * 64 if self.planar else heads) + blocks * self.body_bytes
        return -(-whole // 32) * 32

    def packed_bytes(self, rows: int, values: int) -> int:
        """Bytes of a packed matrix; the last group of eight rows is padded with zero rows."""
        return -(-rows // GROUP_ROWS) * self.group_bytes(values)

    def scales(self, e: Emitter, head: Rows, stage: Value) -> Sequence[Value]:
        """None, unless a family says otherwise."""
        return ()

    def floats(self, e: Emitter, head: Rows) -> Sequence[Value]:
        """Each layout has its own."""
        raise NotImplementedError(self.name)

    def float_step(self, e: Emitter, acc: Value, sums: tuple[Value, Value | None], weight: Sequence[Value],
                   act: Sequence[Value]) -> Value:  # fmt: skip
        """Each family has its own."""
        raise NotImplementedError(self.name)

    def min_pair(self, e: Emitter, head: Rows, pair: int) -> Value:
        """Only called where ``min_pairs`` is not 0."""
        raise NotImplementedError(self.name)


@dataclass(frozen=True, kw_only=True)
class ScaledMinFormat(PackedFormat):
    """q4_k and q5_k: eight 6-bit scales and minima in a block of 256.

    Head: d fp16 x 8 rows, dmin fp16 x 8 rows, scales u8[8 stages][8 rows], minima u8[4 pairs][8 rows][2].
    """

    act: ActLayout = Q8_K
    values: int = 256
    head_bytes: int = 160
    parts: int = 1
    min_pairs: int = 4
    sums_at: int = Q8_K_SUMS32

    def scales(self, e: Emitter, head: Rows, stage: Value) -> Sequence[Value]:
        """The stage's scale, zero-extended."""
        rows = head.at(e, e.b.mul(stage, ir.IntType(64)(8)))
        return (e.b.zext(rows.load(e, 32, I8, 1), vector(I32, e.lanes)),)

    def min_pair(self, e: Emitter, head: Rows, pair: int) -> Value:
        """Minima of stages ``2 * pair`` and ``2 * pair + 1``."""
        return e.b.zext(head.load(e, 96 + 16 * pair, I8, 2), vector(I16, 2 * e.lanes))

    def floats(self, e: Emitter, head: Rows) -> Sequence[Value]:
        """d and dmin."""
        return head.halves(e, 0), head.halves(e, 16)

    def float_step(self, e: Emitter, acc: Value, sums: tuple[Value, Value | None], weight: Sequence[Value],
                   act: Sequence[Value]) -> Value:  # fmt: skip
        """``acc + d_x * (d * float(I) - dmin * float(J))``, each operation rounded."""
        dot, minima = (e.int_to_float(value) for value in sums if value is not None)
        term = e.b.fsub(e.b.fmul(weight[0], dot), e.b.fmul(weight[1], minima))
        return e.b.fadd(acc, e.b.fmul(act[0], term))


@dataclass(frozen=True, kw_only=True)
class SmallBlockFormat(PackedFormat):
    """q8_0, mxfp4 and q5_1: blocks of 32 values without integer scales, an fp32 step each."""

    act: ActLayout = Q8_0
    values: int = 32

    def float_step(self, e: Emitter, acc: Value, sums: tuple[Value, Value | None], weight: Sequence[Value],
                   act: Sequence[Value]) -> Value:  # fmt: skip
        """``acc + (d * d_x) * float(I)``, each operation rounded."""
        return e.b.fadd(acc, self.product(e, sums[0], weight[0], act[0]))

    def product(self, e: Emitter, dot: Value, weight: Value, act: Value) -> Value:
        """``(d * d_x) * float(I)``."""
        return e.b.fmul(e.b.fmul(weight, act), e.int_to_float(dot))


def low_nibbles(e: Emitter, codes: Value) -> Value:
    """The lower four bits of every byte."""
    return e.b.and_(codes, constant(codes.type, 15))


def high_nibbles(e: Emitter, codes: Value) -> Value:
    """The upper four bits of every byte, shifted down."""
    return masked_shift(e, codes, 4, 0, 15)


def masked_shift(e: Emitter, codes: Value, source: int, target: int, mask: int) -> Value:
    """Bytes with bit ``source`` moved to bit ``target``, then ``mask`` applied.

    The shift is one of 16-bit lanes, since x86 has none of bytes: the mask must lie within what stays in its byte.
    """
    kind = vector(I16, codes.type.count // 2)
    wide = e.b.bitcast(codes, kind)
    if source > target:
        wide = e.b.lshr(wide, constant(kind, source - target))
    elif source < target:
        wide = e.b.shl(wide, constant(kind, target - source))
    return e.b.and_(e.b.bitcast(wide, codes.type), constant(codes.type, mask))
