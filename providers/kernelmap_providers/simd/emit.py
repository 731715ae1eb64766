"""Vector operations as LLVM IR, each in the instruction form of the target, each with the same result bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from llvmlite import ir

from kernelmap_providers.simd.target import Form

Value: TypeAlias = Any
"""An LLVM value; llvmlite is untyped."""
Offset: TypeAlias = Any
"""An int, or an int64 LLVM value."""

I1, I8, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
F16, F32 = ir.HalfType(), ir.FloatType()
PTR = ir.PointerType()
VOID = ir.VoidType()


def vector(element: ir.Type, count: int) -> ir.VectorType:
    """The LLVM type ``<count x element>``."""
    return ir.VectorType(element, count)


def constant(kind: ir.Type, value: Any) -> ir.Constant:
    """A constant; one number fills every lane of a vector type, a sequence gives lane by lane."""
    if not isinstance(kind, ir.VectorType):
        return ir.Constant(kind, value)
    lanes = list(value) if isinstance(value, Sequence) else [value] * kind.count
    return ir.Constant(kind, lanes)


class Emitter:
    """Emits operations at the position of an IR builder, in one instruction form.

    Names follow the instruction sets' common ground: ``dot4`` is VNNI's step, ``dot2`` is pmaddwd. Vectors are LLVM
    values; integer signedness lies in the operation, as in LLVM.
    """

    def __init__(self, builder: ir.IRBuilder, form: Form) -> None:
        self.b = builder
        self.form = form
        self.lanes = form.lanes

    # ---- memory -----------------------------------------------------------------------------------------------------
    def at(self, pointer: Value, offset: Offset) -> Value:
        """``pointer + offset`` bytes."""
        if isinstance(offset, int):
            if offset == 0:
                return pointer
            offset = I64(offset)
        return self.b.gep(pointer, [offset], source_etype=I8)

    def load(self, pointer: Value, offset: Offset, kind: ir.Type) -> Value:
        """Unaligned load of ``kind`` at ``pointer + offset``."""
        value = self.b.load(self.at(pointer, offset), typ=kind)
        value.align = 1
        return value

    def store(self, value: Value, pointer: Value, offset: Offset = 0) -> None:
        """Unaligned store."""
        self.b.store(value, self.at(pointer, offset), align=1)

    def prefetch(self, pointer: Value, offset: Offset) -> None:
        """A hint that the cache line at ``pointer + offset`` will be read."""
        arguments = [self.at(pointer, offset), I32(0), I32(3), I32(1)]
        self._call("llvm.prefetch.p0", VOID, arguments)

    # ---- lanes ------------------------------------------------------------------------------------------------------
    def splat(self, scalar: Value, count: int) -> Value:
        """``scalar`` in each of ``count`` lanes."""
        kind = vector(scalar.type, count)
        undefined = ir.Constant(kind, ir.Undefined)
        single = self.b.insert_element(undefined, scalar, I32(0))
        return self.b.shuffle_vector(single, undefined, constant(vector(I32, count), 0))

    def broadcast32(self, pointer: Value, offset: Offset, kind: ir.VectorType) -> Value:
        """The four bytes at ``pointer + offset`` repeated through a vector, seen as ``kind``."""
        return self.b.bitcast(self.splat(self.load(pointer, offset, I32), self.lanes), kind)

    def shuffle(self, first: Value, second: Value | None, lanes: Sequence[int]) -> Value:
        """Lanes of ``first`` (0..n-1) and ``second`` (n..) in the constant order ``lanes``."""
        other = ir.Constant(first.type, ir.Undefined) if second is None else second
        return self.b.shuffle_vector(first, other, constant(vector(I32, len(lanes)), list(lanes)))

    def concat(self, parts: Sequence[Value]) -> Value:
        """Vectors end to end; the number of parts is a power of two."""
        items = list(parts)
        while len(items) > 1:
            count = items[0].type.count
            items = [self.shuffle(a, b, range(2 * count)) for a, b in zip(items[::2], items[1::2], strict=True)]
        return items[0]

    def halves(self, value: Value) -> tuple[Value, Value]:
        """Lower and upper half of a vector."""
        half = value.type.count // 2
        return self.shuffle(value, None, range(half)), self.shuffle(value, None, range(half, 2 * half))

    def table16(self, table: Sequence[int], index: Value) -> Value:
        """``table[index]`` bytewise; ``table`` has 16 entries, ``index`` is a vector of bytes below 16."""
        count = index.type.count
        entries = [value & 255 for value in table]
        if self.form.name in ("avx2", "avxvnni", "avx512vnni"):
            name = {16: "llvm.x86.ssse3.pshuf.b.128", 32: "llvm.x86.avx2.pshuf.b", 64: "llvm.x86.avx512.pshuf.b.512"}
            return self._call(name[count], index.type, [constant(index.type, entries * (count // 16)), index])
        if self.form.name == "neon_dotprod":
            if count > 16:
                return self.concat([self.table16(table, half) for half in self.halves(index)])
            return self._call("llvm.aarch64.neon.tbl1.v16i8", index.type, [constant(index.type, entries), index])
        result = constant(index.type, entries[0])
        for code, value in enumerate(entries[1:], 1):
            hit = self.b.icmp_unsigned("==", index, constant(index.type, code))
            result = self.b.select(hit, constant(index.type, value), result)
        return result

    # ---- integer dot steps ------------------------------------------------------------------------------------------
    def dot4(self, acc: Value, weights: Value, acts: Value) -> Value:
        """``acc[i] + sum of weights[4i+j] * acts[4i+j], j < 4``, exact in int32; wide forms only.

        ``weights`` are unsigned bytes where ``form.bias`` is 128; elsewhere bytes that are the same number signed and
        unsigned (below 128), or signed. ``acts`` are signed bytes.
        """
        if self.form.name == "neon_dotprod":
            return self._neon_dot4(acc, weights, acts)
        if self.form.bias:
            return self._vnni("vpdpbusd", acc, weights, acts)
        wide = vector(I16, weights.type.count)
        products = self.b.mul(self.b.sext(weights, wide), self.b.sext(acts, wide))
        pairs = self._add_pairs16(products)
        count = acc.type.count
        even = self.shuffle(pairs, None, range(0, 2 * count, 2))
        odd = self.shuffle(pairs, None, range(1, 2 * count, 2))
        return self.b.add(acc, self.b.add(even, odd))

    def _vnni(self, name: str, acc: Value, left: Value, right: Value) -> Value:
        # The int32 signature is the one that every LLVM takes: newer ones upgrade it to byte or word operands.
        kind = acc.type
        operands = [acc, self.b.bitcast(left, kind), self.b.bitcast(right, kind)]
        return self._call(f"llvm.x86.avx512.{name}.{32 * kind.count}", kind, operands)

    def _neon_dot4(self, acc: Value, weights: Value, acts: Value) -> Value:
        if acc.type.count > 4:
            parts = zip(self.halves(acc), self.halves(weights), self.halves(acts), strict=True)
            return self.concat([self._neon_dot4(*part) for part in parts])
        return self._call("llvm.aarch64.neon.sdot.v4i32.v16i8", acc.type, [acc, weights, acts])

    def _add_pairs16(self, value: Value) -> Value:
        """int16 lanes added in adjacent pairs, as int32 lanes."""
        kind = vector(I32, value.type.count // 2)
        pairs = self.b.bitcast(value, kind)
        sixteen = constant(kind, 16)
        return self.b.add(self.b.ashr(self.b.shl(pairs, sixteen), sixteen), self.b.ashr(pairs, sixteen))

    def multiply_add_pairs8(self, unsigned: Value, signed: Value) -> Value:
        """pmaddubsw: adjacent products ``unsigned * signed`` added in pairs as int16. The caller keeps the pair sums
        within int16, so that the instruction's saturation never acts. Form ``avx2`` only."""
        kind = vector(I16, unsigned.type.count // 2)
        return self._call("llvm.x86.avx2.pmadd.ub.sw", kind, [unsigned, signed])

    def sign8(self, value: Value, sign: Value) -> Value:
        """psignb: ``value`` negated, zeroed or kept by the sign of ``sign``. Form ``avx2`` only."""
        return self._call("llvm.x86.avx2.psign.b", value.type, [value, sign])

    def abs8(self, value: Value) -> Value:
        """Absolute values of signed bytes; -128 becomes the unsigned byte 128."""
        kind = value.type
        return self._call(f"llvm.abs.v{kind.count}i8", kind, [value, I1(0)])

    def dot2(self, acc: Value, left: Value, right: Value) -> Value:
        """``acc[i] + left[2i] * right[2i] + left[2i+1] * right[2i+1]`` over int16 lanes, exact in int32."""
        kind = acc.type
        if self.form.bias:
            return self._vnni("vpdpwssd", acc, left, right)
        if self.form.name == "avx2":
            return self.b.add(acc, self._call("llvm.x86.avx2.pmadd.wd", kind, [left, right]))
        wide = vector(I32, left.type.count)
        products = self.b.mul(self.b.sext(left, wide), self.b.sext(right, wide))
        even = self.shuffle(products, None, range(0, wide.count, 2))
        odd = self.shuffle(products, None, range(1, wide.count, 2))
        return self.b.add(acc, self.b.add(even, odd))

    # ---- numbers ----------------------------------------------------------------------------------------------------
    def widen_half(self, half: Value) -> Value:
        """fp16 to fp32, exact; infinities and NaN stay such."""
        kind = vector(F32, half.type.count)
        if self.form.name != "portable":
            return self.b.fpext(half, kind)
        # LLVM lowers fpext to a library call on machines without the instruction, so the portable form shifts the bits
        # into place and lets an exact multiplication by 2**112 move the exponent (subnormals included).
        bits_kind = vector(I32, half.type.count)
        bits = self.b.zext(self.b.bitcast(half, vector(I16, half.type.count)), bits_kind)
        magnitude = self.b.shl(self.b.and_(bits, constant(bits_kind, 0x7FFF)), constant(bits_kind, 13))
        scaled = self.b.fmul(self.b.bitcast(magnitude, kind), constant(kind, 2.0**112))
        special = self.b.icmp_unsigned(">=", magnitude, constant(bits_kind, 0x7C00 << 13))
        exponent = self.b.select(special, constant(bits_kind, 0x7F800000), constant(bits_kind, 0))
        sign = self.b.shl(self.b.and_(bits, constant(bits_kind, 0x8000)), constant(bits_kind, 16))
        whole = self.b.or_(self.b.or_(self.b.bitcast(scaled, bits_kind), exponent), sign)
        return self.b.bitcast(whole, kind)

    def int_to_float(self, value: Value) -> Value:
        """int32 lanes to fp32, ties to even."""
        return self.b.sitofp(value, vector(F32, value.type.count))

    def _call(self, name: str, result: ir.Type, args: Sequence[Value]) -> Value:
        """Call a declared LLVM intrinsic, declaring it on first use."""
        module = self.b.module
        function = module.globals.get(name)
        if function is None:
            function = ir.Function(module, ir.FunctionType(result, [value.type for value in args]), name)
        return self.b.call(function, list(args))
