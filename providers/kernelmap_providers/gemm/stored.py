"""The weight formats as stored, described for the row kernel. Diagrams: the modules of ``formats``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kernelmap_providers.packed.base import PackedFormat, high_nibbles, low_nibbles, masked_shift
from kernelmap_providers.packed.layouts import PACKED_OF
from kernelmap_providers.packed.mxfp4 import DOUBLED_E2M1, halved_e8m0
from kernelmap_providers.quantize.layouts import Q8_K_SUMS16, Q8_K_SUMS32
from kernelmap_providers.simd.block import ActLayout
from kernelmap_providers.simd.emit import F16, I8, I16, I32, I64, Emitter, Value, constant, vector
from kernelmap_providers.simd.rows import Piece

BYTES32, BYTES16 = vector(I8, 32), vector(I8, 16)


@dataclass(frozen=True)
class Stored:
    """What all formats share; the fp32 step is the packed layout's."""

    packed: PackedFormat
    sums_at: int = -1

    @property
    def name(self) -> str:
        """The storage format."""
        return self.packed.source

    @property
    def act(self) -> ActLayout:
        """The activations of its dots."""
        return self.packed.act

    @property
    def block_bytes(self) -> int:
        """Bytes of a stored block."""
        return self.packed.source_bytes

    @property
    def code_max(self) -> int:
        """Largest magnitude of a code."""
        return self.packed.code_max

    @property
    def signed(self) -> bool:
        """Whether codes are signed."""
        return self.packed.signed

    def surplus(self, e: Emitter, block: Value) -> Value | None:
        """None, unless a format says otherwise."""
        return None

    def minima(self, e: Emitter, block: Value) -> Value | None:
        """None, unless a format says otherwise."""
        return None

    def float_step(self, e: Emitter, acc: Value, sums: tuple[Value, Value | None], weight: Sequence[Value],
                   act: Sequence[Value]) -> Value:  # fmt: skip
        """See the packed layout."""
        return self.packed.float_step(e, acc, sums, weight, act)


def halves_at(e: Emitter, blocks: Sequence[Value], offset: int) -> Value:
    """The fp16 number at ``offset`` of every block, widened."""
    kind = vector(I16, len(blocks))
    bits = constant(kind, 0)
    for lane, block in enumerate(blocks):
        bits = e.b.insert_element(bits, e.load(block, offset, I16), I32(lane))
    return e.widen_half(e.b.bitcast(bits, vector(F16, len(blocks))))


def six_bit_factors(e: Emitter, block: Value) -> tuple[Value, Value]:
    """Scales and minima of a q4_k or q5_k block, a byte each in two int64 (ggml's ``get_scale_min_k4``)."""
    words = [e.load(block, 4 + 4 * word, I32) for word in range(3)]
    b, low6, low4, low2 = e.b, I32(0x3F3F3F3F), I32(0x0F0F0F0F), I32(0x03030303)

    def top(word: Value) -> Value:
        return b.shl(b.and_(b.lshr(word, I32(6)), low2), I32(4))

    def join(first: Value, second: Value) -> Value:
        return b.or_(b.zext(first, I64), b.shl(b.zext(second, I64), I64(32)))

    scales = join(b.and_(words[0], low6), b.or_(b.and_(words[2], low4), top(words[0])))
    minima = join(b.and_(words[1], low6), b.or_(b.and_(b.lshr(words[2], I32(4)), low4), top(words[1])))
    return scales, minima


@dataclass(frozen=True)
class ScaledMin(Stored):
    """q4_k and q5_k."""

    sums_at: int = Q8_K_SUMS32
    nibbles_at: int = 16
    fifth_at: int = -1
    """Offset of the fifth bits, one plane a stage; -1 for none."""

    def pieces(self, e: Emitter, block: Value) -> Iterator[Piece]:
        """Each 32 bytes of nibbles hold two stages."""
        scales, _ = six_bit_factors(e, block)
        fifth = e.load(block, self.fifth_at, BYTES32) if self.fifth_at >= 0 else None
        for stage in range(8):
            both = e.load(block, self.nibbles_at + 32 * (stage // 2), BYTES32)
            codes = (high_nibbles if stage % 2 else low_nibbles)(e, both)
            if fifth is not None:
                codes = e.b.or_(codes, masked_shift(e, fifth, stage, 4, 0x10))
            scale = e.b.trunc(e.b.and_(e.b.lshr(scales, I64(8 * stage)), I64(255)), I32)
            yield Piece(32 * stage, codes, e.splat(scale, e.lanes))

    def minima(self, e: Emitter, block: Value) -> Value:
        """Eight minima."""
        _, minima = six_bit_factors(e, block)
        return e.b.zext(e.b.bitcast(minima, vector(I8, 8)), vector(I16, 8))

    def floats(self, e: Emitter, blocks: Sequence[Value]) -> Sequence[Value]:
        """d and dmin."""
        return halves_at(e, blocks, 0), halves_at(e, blocks, 2)


@dataclass(frozen=True)
class SixBit(Stored):
    """q6_k, codes unsigned; the 32 that each has too much is taken away at the block's end."""

    sums_at: int = Q8_K_SUMS16

    def pieces(self, e: Emitter, block: Value) -> Iterator[Piece]:
        """Stage ``4 h + q``: quarter q of half h."""
        for stage in range(8):
            half, quarter = divmod(stage, 4)
            low = e.load(block, 64 * half + 32 * (quarter % 2), BYTES32)
            high = e.load(block, 128 + 32 * half, BYTES32)
            nibbles = (high_nibbles if quarter >= 2 else low_nibbles)(e, low)
            codes = e.b.or_(nibbles, masked_shift(e, high, 2 * quarter, 4, 0x30))
            pair = [e.b.sext(e.load(block, 192 + 2 * stage + part, I8), I32) for part in range(2)]
            yield Piece(32 * stage, codes, e.concat([e.splat(scale, e.lanes // 2) for scale in pair]))

    def surplus(self, e: Emitter, block: Value) -> Value:
        """-32 times the scales: at least -32 * 127 and at most 32 * 128, well within int16."""
        scales = e.b.sext(e.load(block, 192, BYTES16), vector(I16, 16))
        return e.b.mul(scales, constant(scales.type, -32))

    def floats(self, e: Emitter, blocks: Sequence[Value]) -> Sequence[Value]:
        """d."""
        return (halves_at(e, blocks, 208),)


@dataclass(frozen=True)
class EightBit(Stored):
    """q8_0."""

    def pieces(self, e: Emitter, block: Value) -> Iterator[Piece]:
        """One vector of codes, plus 128 for forms that take biased weights."""
        codes = e.load(block, 2, BYTES32)
        yield Piece(0, e.b.xor(codes, constant(codes.type, 128)) if e.form.bias else codes, None)

    def floats(self, e: Emitter, blocks: Sequence[Value]) -> Sequence[Value]:
        """d."""
        return (halves_at(e, blocks, 0),)


@dataclass(frozen=True)
class FiveBit(Stored):
    """q5_1."""

    def pieces(self, e: Emitter, block: Value) -> Iterator[Piece]:
        """One vector of codes: nibbles, and bit v of the word at 4 as bit 4 of value v."""
        packed = e.load(block, 8, BYTES16)
        nibbles = e.concat([low_nibbles(e, packed), high_nibbles(e, packed)])
        word = e.splat(e.load(block, 4, I32), e.lanes)
        spread = e.shuffle(e.b.bitcast(word, BYTES32), None, [value // 8 for value in range(32)])
        bit = constant(BYTES32, [1 << value % 8 for value in range(32)])
        missing = e.b.icmp_unsigned("==", e.b.and_(spread, bit), constant(BYTES32, 0))
        fifth = e.b.select(missing, constant(BYTES32, 0), constant(BYTES32, 0x10))
        yield Piece(0, e.b.or_(nibbles, fifth), None)

    def floats(self, e: Emitter, blocks: Sequence[Value]) -> Sequence[Value]:
        """d and m."""
        return halves_at(e, blocks, 0), halves_at(e, blocks, 2)


@dataclass(frozen=True)
class FourBitFloat(Stored):
    """mxfp4."""

    def pieces(self, e: Emitter, block: Value) -> Iterator[Piece]:
        """One vector of doubled values, plus 128 for forms that take biased weights."""
        packed = e.load(block, 1, BYTES16)
        nibbles = e.concat([low_nibbles(e, packed), high_nibbles(e, packed)])
        yield Piece(0, e.table16([value + e.form.bias for value in DOUBLED_E2M1], nibbles), None)

    def floats(self, e: Emitter, blocks: Sequence[Value]) -> Sequence[Value]:
        """The halved scale."""
        stored = constant(vector(I8, len(blocks)), 0)
        for lane, block in enumerate(blocks):
            stored = e.b.insert_element(stored, e.load(block, 0, I8), I32(lane))
        return (halved_e8m0(e, stored),)


STORED_FORMATS = {
    fmt.name: fmt
    for fmt in (
        ScaledMin(PACKED_OF["q4_k"]),
        ScaledMin(PACKED_OF["q5_k"], nibbles_at=48, fifth_at=16),
        SixBit(PACKED_OF["q6_k"]),
        EightBit(PACKED_OF["q8_0"]),
        FiveBit(PACKED_OF["q5_1"]),
        FourBitFloat(PACKED_OF["mxfp4"]),
    )
}
"""Every format that the row kernel reads, by name."""
