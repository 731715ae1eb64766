"""The micro-kernel over weights as stored: T token rows x 8 weight rows, lanes are values until a block's end.

A block's integer dot of one row and token gathers in the lanes of a vector; eight rows' vectors then fold into one
whose lanes are the rows (integer sums, so the order is free). From there on it is the packed tile's chain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from llvmlite import ir

from kernelmap_providers.simd.block import GROUP_ROWS, ActLayout
from kernelmap_providers.simd.emit import F32, I8, I16, I32, I64, PTR, VOID, Emitter, Value, constant, vector
from kernelmap_providers.simd.fold import Fold, add_neighbours
from kernelmap_providers.simd.target import FORMS, Form

ARGUMENTS = ("weights", "row_stride", "rows", "blocks", "acts", "act_stride", "out", "out_stride")
"""Arguments, all int64. ``rows`` is how many of the eight rows exist (1..8): the last one stands in for the others,
whose results are stored nevertheless, so ``out`` takes eight values a token."""


@dataclass(frozen=True, slots=True)
class Piece:
    """32 codes of one row and what scales them."""

    offset: int
    """Of the first value in the activation block."""
    codes: Value
    scale: Value | None
    """int32 lanes, one for every four values; None for no scale."""


class StoredFormat(Protocol):
    """A storage format as the generator sees it. Vectors have 8 lanes of 4 bytes."""

    name: str
    act: ActLayout
    block_bytes: int
    code_max: int
    signed: bool
    sums_at: int
    """Offset of the activation sums that ``minima`` multiply."""

    def pieces(self, e: Emitter, block: Value) -> Sequence[Piece]:
        """The codes of one block in order; lazily, so that few are live at once."""

    def surplus(self, e: Emitter, block: Value) -> Value | None:
        """int16 factors of the 16 sums of 16, for what the codes have too much; None if nothing."""

    def minima(self, e: Emitter, block: Value) -> Value | None:
        """int16 factors of the 8 sums of 32; None if none."""

    def floats(self, e: Emitter, blocks: Sequence[Value]) -> Sequence[Value]:
        """fp32 scales, a vector each with a lane for every one of the eight blocks."""

    def float_step(self, e: Emitter, acc: Value, sums: tuple[Value, Value | None], weight: Sequence[Value],
                   act: Sequence[Value]) -> Value:  # fmt: skip
        """The contract's fp32 step."""


def row_form(form: Form) -> Form:
    """The form for vectors of 8 lanes on the same machine."""
    return FORMS["avxvnni"] if form.lanes > GROUP_ROWS else form


def rows_function(module: ir.Module, fmt: StoredFormat, form: Form, tokens: int) -> ir.Function:
    """The kernel's LLVM function in ``module``, emitted on first use."""
    name = f"rows_{fmt.name}_{form.name}_{tokens}"
    function = module.globals.get(name)
    if function is None:
        function = ir.Function(module, ir.FunctionType(VOID, [I64] * len(ARGUMENTS)), name)
        function.linkage = "internal"
        function.attributes.add("noinline")
        function.attributes.add("nounwind")
        _emit(function, fmt, form, tokens)
    return function


def _emit(function: ir.Function, fmt: StoredFormat, form: Form, tokens: int) -> None:
    args = dict(zip(ARGUMENTS, function.args, strict=True))
    entry, loop, leave = (function.append_basic_block(name) for name in ("entry", "block", "leave"))
    e = Emitter(ir.IRBuilder(entry), form)
    rows = [e.at(e.b.inttoptr(args["weights"], PTR), _row_offset(e, args, row)) for row in range(GROUP_ROWS)]
    base = e.b.inttoptr(args["acts"], PTR)
    acts = [e.at(base, e.b.mul(args["act_stride"], I64(t))) for t in range(tokens)]
    e.b.branch(loop)

    e = Emitter(ir.IRBuilder(loop), form)
    zero = constant(vector(F32, e.lanes), 0.0)
    index = e.b.phi(I64)
    index.add_incoming(I64(0), entry)
    acc = [e.b.phi(zero.type) for _ in range(tokens)]
    blocks = [e.at(row, e.b.mul(index, I64(fmt.block_bytes))) for row in rows]
    here = [e.at(act, e.b.mul(index, I64(fmt.act.bytes))) for act in acts]
    sums, minima = _sums(e, fmt, blocks, here), _minima(e, fmt, blocks, here)
    weight = fmt.floats(e, blocks)
    result = []
    for t, act in enumerate(here):
        scalars = [e.splat(e.load(act, offset, F32), e.lanes) for offset in fmt.act.floats]
        result.append(fmt.float_step(e, acc[t], (sums[t], minima[t]), weight, scalars))
    following = e.b.add(index, I64(1))
    index.add_incoming(following, loop)
    for t in range(tokens):
        acc[t].add_incoming(zero, entry)
        acc[t].add_incoming(result[t], loop)
    e.b.cbranch(e.b.icmp_signed("<", following, args["blocks"]), loop, leave)

    e = Emitter(ir.IRBuilder(leave), form)
    out = e.b.inttoptr(args["out"], PTR)
    for t in range(tokens):
        e.store(result[t], e.at(out, e.b.mul(args["out_stride"], I64(t))))
    e.b.ret_void()


def _row_offset(e: Emitter, args: dict[str, Value], row: int) -> Value:
    last = e.b.sub(args["rows"], I64(1))
    exists = e.b.icmp_signed("<", I64(row), args["rows"])
    return e.b.mul(e.b.select(exists, I64(row), last), args["row_stride"])


def _sums(e: Emitter, fmt: StoredFormat, blocks: list[Value], acts: list[Value]) -> list[Value]:
    """For every token the block's integer dots, a lane a row."""
    folds = [Fold(e) for _ in acts]
    for block in blocks:
        partial = [constant(vector(I32, e.lanes), 0) for _ in acts]
        for piece in fmt.pieces(e, block):
            for t, act in enumerate(acts):
                values = e.load(act, piece.offset, vector(I8, 4 * e.lanes))
                partial[t] = _dot(e, fmt, partial[t], piece, values)
        factors = fmt.surplus(e, block)
        for t, act in enumerate(acts):
            if factors is not None:
                act_sums = e.load(act, fmt.sums_at, vector(I16, 2 * e.lanes))
                partial[t] = e.dot2(partial[t], factors, act_sums)
            folds[t].push(partial[t])
    sums = [fold.lanes() for fold in folds]
    if not (fmt.signed and e.form.bias):
        return sums
    biases = [e.broadcast32(act, fmt.act.bias, total.type) for act, total in zip(acts, sums, strict=True)]
    return [e.b.add(total, bias) for total, bias in zip(sums, biases, strict=True)]


def _dot(e: Emitter, fmt: StoredFormat, total: Value, piece: Piece, values: Value) -> Value:
    """``total`` plus the scaled products of a piece; lanes hold partial sums."""
    if e.form.wide_dot:
        if piece.scale is None:
            return e.dot4(total, piece.codes, values)
        dot = e.dot4(constant(total.type, 0), piece.codes, values)
        return e.b.add(total, e.b.mul(dot, piece.scale))
    codes = piece.codes
    if fmt.signed:
        codes, values = e.abs8(codes), e.sign8(values, codes)
    products = e.multiply_add_pairs8(codes, values)
    if piece.scale is None:
        return e.dot2(total, products, constant(products.type, 1))
    low = e.b.and_(piece.scale, constant(piece.scale.type, 0xFFFF))
    both = e.b.or_(low, e.b.shl(piece.scale, constant(piece.scale.type, 16)))
    return e.dot2(total, products, e.b.bitcast(both, products.type))


def _minima(e: Emitter, fmt: StoredFormat, blocks: list[Value], acts: list[Value]) -> list[Any]:
    """For every token the products of minima and activation sums, a lane a row."""
    factors = [fmt.minima(e, block) for block in blocks]
    if factors[0] is None:
        return [constant(vector(I32, e.lanes), 0) for _ in acts]
    # Two rows side by side: after two foldings lanes 0-3 are the even rows, lanes 4-7 the odd ones.
    pairs = [e.concat([factors[row], factors[row + 1]]) for row in range(0, GROUP_ROWS, 2)]
    result = []
    for act in acts:
        sums = e.load(act, fmt.sums_at, vector(I16, e.lanes))
        both = e.concat([sums, sums])
        dots = [e.dot2(constant(vector(I32, e.lanes), 0), pair, both) for pair in pairs]
        halves = [add_neighbours(e, dots[0], dots[1]), add_neighbours(e, dots[2], dots[3])]
        result.append(e.shuffle(add_neighbours(e, *halves), None, (0, 4, 1, 5, 2, 6, 3, 7)))
    return result
