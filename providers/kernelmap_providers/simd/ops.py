"""Vector operations inside jitted Python. Each is one row of a table: how it is typed, what it emits.

``load``, ``fill`` and the conversions take a kind (``vectors.F32X8`` ...); operations whose instruction depends on the
host take the form as a ``Static`` (``Static("avx2")``) first, so that one process can hold every form.
Addresses are int64; memory operations are unaligned.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types

from kernelmap_providers.simd.emit import F16, F32, I1, I8, I32, I64, PTR, Emitter, Value, constant
from kernelmap_providers.simd.fold import Fold
from kernelmap_providers.simd.static import StaticType, intrinsic
from kernelmap_providers.simd.target import FORMS, Form
from kernelmap_providers.simd.vectors import VectorType, kind_of

Typing = Callable[..., Any]
Emission = Callable[..., Any]


def operation(typing: Typing, emission: Emission, doc: str) -> Any:
    """An intrinsic from its two halves.

    ``typing`` maps argument types to the result type (None: no result); ``emission`` gets the emitter, the argument
    types and the argument values.
    """
    arity = typing.__code__.co_argcount

    def resolve(*given: types.Type) -> tuple[Any, Any]:
        result = typing(*given)
        signature = (types.void if result is None else result)(*given)

        def codegen(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> Any:
            value = emission(Emitter(builder, _form(sig.args)), sig.args, *args)
            return context.get_dummy_value() if result is None else value

        return signature, codegen

    made = _BY_ARITY[arity](resolve)
    made.__doc__ = doc
    return made


_BY_ARITY: dict[int, Callable[[Any], Any]] = {
    0: lambda f: intrinsic(lambda context: f()),
    1: lambda f: intrinsic(lambda context, a: f(a)),
    2: lambda f: intrinsic(lambda context, a, b: f(a, b)),
    3: lambda f: intrinsic(lambda context, a, b, c: f(a, b, c)),
    4: lambda f: intrinsic(lambda context, a, b, c, d: f(a, b, c, d)),
    8: lambda f: intrinsic(lambda context, a, b, c, d, e, g, h, i: f(a, b, c, d, e, g, h, i)),
}
"""Numba reads an intrinsic's arity from its signature, so each needs its own."""


def _form(args: tuple[types.Type, ...]) -> Form:
    """The form that a leading static names; the portable one where the operation does not depend on it."""
    first = args[0] if args else None
    if isinstance(first, StaticType) and first.parts[0] in FORMS:
        return FORMS[str(first.parts[0])]
    return FORMS["portable"]


def _same(a: Any, _b: Any) -> Any:
    return a


def _arith(integer: str, floating: str) -> Emission:
    def emit(e: Emitter, kinds: Any, a: Value, b: Value) -> Value:
        return getattr(e.b, floating if kinds[0].floating else integer)(a, b)

    return emit


def _shift(name: str) -> Emission:
    def emit(e: Emitter, kinds: Any, a: Value, b: Value) -> Value:
        lane = e.b.trunc(b, kinds[0].llvm_type.element) if kinds[0].element != "i64" else b
        return getattr(e.b, name)(a, e.splat(lane, kinds[0].count))

    return emit


def _unary(name: str) -> Emission:
    def emit(e: Emitter, kinds: Any, a: Value) -> Value:
        suffix = f"v{kinds[0].count}{kinds[0].element}"
        return e._call(f"llvm.{name}.{suffix}", a.type, [a])

    return emit


def _mask(kind: VectorType) -> VectorType:
    return VectorType({"f32": "i32"}.get(kind.element, kind.element), kind.count)


def _compare(predicate: str) -> Emission:
    def emit(e: Emitter, kinds: Any, a: Value, b: Value) -> Value:
        compare = e.b.fcmp_ordered if kinds[0].floating else e.b.icmp_signed
        return e.b.sext(compare(predicate, a, b), _mask(kinds[0]).llvm_type)

    return emit


def _extreme(predicate: str) -> Emission:
    def emit(e: Emitter, kinds: Any, a: Value, b: Value) -> Value:
        compare = e.b.fcmp_ordered if kinds[0].floating else e.b.icmp_signed
        return e.b.select(compare(predicate, a, b), a, b)

    return emit


def _select(e: Emitter, kinds: Any, mask: Value, a: Value, b: Value) -> Value:
    return e.b.select(e.b.icmp_signed("<", mask, constant(mask.type, 0)), a, b)


def _reduce(name: str) -> Emission:
    def emit(e: Emitter, kinds: Any, a: Value) -> Value:
        suffix = f"v{kinds[0].count}{kinds[0].element}"
        return e._call(f"llvm.vector.reduce.{name}.{suffix}", a.type.element, [a])

    return emit


def _integers(kind: VectorType) -> types.Type:
    if kind.floating:
        raise TypeError("a floating-point reduction has an order; write it as the contract does")
    return kind.scalar


def _address(e: Emitter, value: Value) -> Value:
    return e.b.inttoptr(value, PTR)


def _load(e: Emitter, kinds: Any, _kind: Value, address: Value) -> Value:
    return e.load(_address(e, address), 0, kind_of(kinds[0]).llvm_type)


def _store(e: Emitter, _kinds: Any, address: Value, value: Value) -> None:
    e.store(value, _address(e, address))


def _convert(e: Emitter, kinds: Any, _kind: Value, value: Value) -> Value:
    target, source = kind_of(kinds[0]), kinds[1]
    if target.floating:
        return e.widen_half(value) if source.floating else e.b.sitofp(value, target.llvm_type)
    if source.floating:
        return e.b.fptosi(value, target.llvm_type)
    wider = target.llvm_type.element.width > source.llvm_type.element.width
    return (e.b.sext if wider else e.b.trunc)(value, target.llvm_type)


def _rint(e: Emitter, kinds: Any, a: Value) -> Value:
    return e._call(f"llvm.rint.v{kinds[0].count}f32", a.type, [a])


def _fold8(e: Emitter, _kinds: Any, *vectors: Value) -> Value:
    fold = Fold(e)
    for value in vectors:
        fold.push(value)
    return fold.lanes()


def _to_kind(kind: StaticType, _value: types.Type) -> types.Type:
    return kind_of(kind)


load = operation(_to_kind, _load, "``load(kind, address)``: a vector from memory.")
store = operation(lambda address, value: None, _store, "``store(address, vector)``, also of a scalar.")
fill = operation(
    _to_kind,
    lambda e, kinds, _kind, value: e.splat(value, kind_of(kinds[0]).count),
    "``fill(kind, scalar)``: the scalar, of the lane's type, in every lane.",
)
add = operation(_same, _arith("add", "fadd"), "Lane sums; integers wrap.")
sub = operation(_same, _arith("sub", "fsub"), "Lane differences; integers wrap.")
mul = operation(_same, _arith("mul", "fmul"), "Lane products; integers wrap.")
div = operation(_same, lambda e, kinds, a, b: e.b.fdiv(a, b), "Lane quotients of floats.")
bit_and = operation(_same, lambda e, kinds, a, b: e.b.and_(a, b), "Bitwise and of integer lanes.")
bit_or = operation(_same, lambda e, kinds, a, b: e.b.or_(a, b), "Bitwise or of integer lanes.")
bit_xor = operation(_same, lambda e, kinds, a, b: e.b.xor(a, b), "Bitwise exclusive or of integer lanes.")
shift_left = operation(_same, _shift("shl"), "``shift_left(vector, bits)``, bits an int64 below the lane width.")
shift_right = operation(_same, _shift("lshr"), "Logical shift to the right.")
shift_right_signed = operation(_same, _shift("ashr"), "Arithmetic shift to the right.")
equal = operation(lambda a, b: _mask(a), _compare("=="), "Mask lanes: -1 where equal, else 0; NaN equals nothing.")
less = operation(lambda a, b: _mask(a), _compare("<"), "Mask lanes: -1 where a < b (signed, or ordered floats).")
select = operation(lambda mask, a, b: a, _select, "``a`` where the mask lane is negative, else ``b``.")
minimum = operation(_same, _extreme("<"), "``a if a < b else b`` lanewise: ``b`` where either is NaN.")
maximum = operation(_same, _extreme(">"), "``a if a > b else b`` lanewise: ``b`` where either is NaN.")
rint = operation(lambda a: a, _rint, "fp32 lanes rounded to integers, ties to even.")
convert = operation(
    _to_kind,
    _convert,
    "``convert(kind, vector)``: sign extension, truncation, int32 to fp32 (ties to even), fp32 to int32 (towards zero;"
    " out of range undefined), fp16 to fp32 (exact).",
)
widen_unsigned = operation(
    _to_kind, lambda e, kinds, _kind, a: e.b.zext(a, kind_of(kinds[0]).llvm_type), "Zero extension."
)
reinterpret = operation(
    _to_kind, lambda e, kinds, _kind, a: e.b.bitcast(a, kind_of(kinds[0]).llvm_type), "The same bits as another kind."
)
reduce_add = operation(_integers, _reduce("add"), "Sum of integer lanes, wrapping. Floats are refused: order matters.")
reduce_max = operation(_integers, _reduce("smax"), "Largest signed integer lane.")
reduce_or = operation(_integers, _reduce("or"), "Bitwise or of all integer lanes.")
mask_bits = operation(
    lambda mask: types.int64,
    lambda e, kinds, mask: e.b.zext(
        e.b.bitcast(e.b.icmp_signed("<", mask, constant(mask.type, 0)), ir.IntType(kinds[0].count)), I64
    ),
    "Bit i of the result is 1 where mask lane i is negative; fewer than 64 lanes.",
)
trailing_zeros = operation(
    lambda value: types.int64,
    lambda e, kinds, value: e._call("llvm.cttz.i64", I64, [value, I1(0)]),
    "Number of zero bits below the lowest set bit of an int64; 64 if there is none.",
)
lane = operation(
    lambda a, index: a.scalar,
    lambda e, kinds, a, index: e.b.extract_element(a, index),
    "``lane(vector, index)``: one lane as a scalar.",
)
low_half = operation(
    lambda a: VectorType(a.element, a.count // 2), lambda e, kinds, a: e.halves(a)[0], "Lower half of the lanes."
)
high_half = operation(
    lambda a: VectorType(a.element, a.count // 2), lambda e, kinds, a: e.halves(a)[1], "Upper half of the lanes."
)
join = operation(
    lambda a, b: VectorType(a.element, 2 * a.count), lambda e, kinds, a, b: e.concat([a, b]), "``a`` then ``b``."
)
shuffle = operation(
    lambda a, order: VectorType(a.element, len(order.parts)),
    lambda e, kinds, a, _order: e.shuffle(a, None, kinds[1].parts),
    "``shuffle(vector, Static(lane, ...))``: lanes in a constant order.",
)
dot4 = operation(
    lambda form, acc, weights, acts: acc,
    lambda e, kinds, _form_value, acc, weights, acts: e.dot4(acc, weights, acts),
    "``dot4(form, acc, weights, acts)``: four byte products more in each int32 lane, see ``Emitter.dot4``.",
)
dot2 = operation(
    lambda form, acc, left, right: acc,
    lambda e, kinds, _form_value, acc, left, right: e.dot2(acc, left, right),
    "``dot2(form, acc, left, right)``: two int16 products more in each int32 lane, exact.",
)
multiply_add_pairs8 = operation(
    lambda form, a, b: VectorType("i16", a.count // 2),
    lambda e, kinds, _form_value, a, b: e.multiply_add_pairs8(a, b),
    "``multiply_add_pairs8(form, unsigned, signed)``: see the emitter; form ``avx2`` only.",
)
table16 = operation(
    lambda form, table, index: index,
    lambda e, kinds, _form_value, _table, index: e.table16(kinds[1].parts, index),
    "``table16(form, Static(16 bytes), index)``: bytewise table look-up, indices below 16.",
)
widen_half = operation(
    lambda form, a: VectorType("f32", a.count),
    lambda e, kinds, _form_value, a: e.widen_half(a),
    "``widen_half(form, f16 vector)``: exact fp32.",
)
load_f32 = operation(
    lambda address: types.float32,
    lambda e, kinds, address: e.load(_address(e, address), 0, F32),
    "One fp32 from memory.",
)
load_i32 = operation(
    lambda address: types.int32,
    lambda e, kinds, address: e.load(_address(e, address), 0, I32),
    "One int32 from memory.",
)
load_i64 = operation(
    lambda address: types.int64,
    lambda e, kinds, address: e.load(_address(e, address), 0, I64),
    "One int64 from memory.",
)
float_of_bits = operation(
    lambda bits: types.float32,
    lambda e, kinds, bits: e.b.bitcast(e.b.trunc(bits, I32) if bits.type.width > 32 else bits, F32),
    "The fp32 number with these bits, an int32 or the low half of an int64 (to which Numba widens int32 arithmetic).",
)
round_to_half = operation(
    lambda value: types.float32,
    lambda e, kinds, value: e.b.fpext(e.b.fptrunc(value, F16), F32),
    "A scalar fp32 rounded to fp16 (ties to even) and widened again; infinite where it is out of range.",
)
fold8 = operation(
    lambda a, b, c, d, e, f, g, h: a,
    _fold8,
    "Eight i32x8 vectors to one: lane i is the sum of vector i's lanes, wrapping.",
)
load_u8 = operation(
    lambda address: types.uint8,
    lambda e, kinds, address: e.load(_address(e, address), 0, I8),
    "One byte from memory.",
)
