"""The packed micro-kernel: T token rows x R vectors of weight rows, lanes are weight rows.

Each lane runs the contract's own scalar chain over the blocks, so no result depends on tile, form or thread.
Generated straight as LLVM IR: composed from one-instruction intrinsics in jitted Python the same loop needs tuples of
vectors, which Numba keeps in memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from llvmlite import ir

from kernelmap_providers.simd.block import GROUP_ROWS, STAGE_VALUES, BlockFormat, Rows
from kernelmap_providers.simd.emit import F32, I8, I16, I32, I64, PTR, VOID, Emitter, Value, constant, vector
from kernelmap_providers.simd.target import Form

INT16_MAX = 32767
ACT_MAX = 127
"""Largest magnitude of an activation code in every activation format."""

ARGUMENTS = ("weights", "group_stride", "blocks", "acts", "act_index", "act_stride", "out", "out_index", "out_stride",
             "factors")  # fmt: skip
"""Arguments of a tile, all int64. Indices are addresses of int32 row numbers; an unindexed tile ignores them and takes
rows one after the other. ``factors`` is the address of one fp32 a token (``scaled_add``), or where prefetching begins
(``lines``)."""


@dataclass(frozen=True, slots=True)
class TileShape:
    """Compile-time choices of one tile."""

    tokens: int
    vectors: int
    indexed: bool = False
    scaled_add: bool = False
    """``out += factor * result`` (rounded after each operation) instead of ``out = result``."""
    lines: int = 0
    """Cache lines that are prefetched a block, from the address in ``factors`` on: what a later tile will read."""

    @property
    def suffix(self) -> str:
        """A name part that is unique to the choices."""
        flags = ("i" if self.indexed else "") + ("a" if self.scaled_add else "")
        hints = f"l{self.lines}" if self.lines else ""
        return f"{self.tokens}x{self.vectors}{flags}{hints}"


Grid = list[list[Any]]
"""One value for every (token, vector) of a tile."""


@dataclass(slots=True)
class _Tile:
    """State of one emission."""

    fmt: BlockFormat
    form: Form
    shape: TileShape
    function: ir.Function
    args: dict[str, Value] = field(init=False)

    def __post_init__(self) -> None:
        self.args = dict(zip(ARGUMENTS, self.function.args, strict=True))

    def grid(self, make: Any) -> Grid:
        return [[make(t, r) for r in range(self.shape.vectors)] for t in range(self.shape.tokens)]


def tile_function(module: ir.Module, fmt: BlockFormat, form: Form, shape: TileShape) -> ir.Function:
    """The tile's LLVM function in ``module``, emitted on first use.

    It is never inlined: one body serves all call sites, and the register allocator sees nothing but the tile.
    """
    name = f"tile_{fmt.name}_{form.name}_{shape.suffix}"
    function = module.globals.get(name)
    if function is None:
        function = ir.Function(module, ir.FunctionType(VOID, [I64] * len(ARGUMENTS)), name)
        function.linkage = "internal"
        function.attributes.add("noinline")
        function.attributes.add("nounwind")
        _emit(_Tile(fmt, form, shape, function))
    return function


def _emit(tile: _Tile) -> None:
    entry = tile.function.append_basic_block("entry")
    loop = tile.function.append_basic_block("block")
    leave = tile.function.append_basic_block("leave")
    e = Emitter(ir.IRBuilder(entry), tile.form)
    groups = _group_pointers(e, tile)
    base = e.b.inttoptr(tile.args["acts"], PTR)
    acts = [e.at(base, _row_offset(e, tile, "act", t)) for t in range(tile.shape.tokens)]
    bodies_at = _bodies_at(e, tile)
    start = e.b.icmp_signed(">", tile.args["blocks"], I64(0))
    e.b.cbranch(start, loop, leave)

    e = Emitter(ir.IRBuilder(loop), tile.form)
    index = e.b.phi(I64)
    index.add_incoming(I64(0), entry)
    zero = constant(vector(F32, e.lanes), 0.0)
    acc = tile.grid(lambda _t, _r: e.b.phi(zero.type))
    heads, bodies = _block_rows(e, tile, groups, bodies_at, index)
    _prefetch(e, tile, index)
    tokens = [e.at(pointer, e.b.mul(index, I64(tile.fmt.act.bytes))) for pointer in acts]
    e, sums = _integer_sums(e, tile, heads, bodies, tokens)
    result = _float_steps(e, tile, acc, sums, heads, tokens)
    following = e.b.add(index, I64(1))
    index.add_incoming(following, e.b.block)
    done = e.b.icmp_signed("<", following, tile.args["blocks"])
    end = e.b.block
    e.b.cbranch(done, loop, leave)

    e = Emitter(ir.IRBuilder(leave), tile.form)
    finals = tile.grid(lambda _t, _r: e.b.phi(zero.type))
    for t, r in _cells(tile):
        acc[t][r].add_incoming(zero, entry)
        acc[t][r].add_incoming(result[t][r], end)
        finals[t][r].add_incoming(zero, entry)
        finals[t][r].add_incoming(result[t][r], end)
    _write(e, tile, finals)
    e.b.ret_void()


def _cells(tile: _Tile) -> list[tuple[int, int]]:
    return [(t, r) for t in range(tile.shape.tokens) for r in range(tile.shape.vectors)]


def _row_offset(e: Emitter, tile: _Tile, kind: str, token: int) -> Value:
    """Byte offset of a token's row, through the index where the tile has one."""
    stride = tile.args[f"{kind}_stride"]
    if not tile.shape.indexed:
        return e.b.mul(stride, I64(token))
    row = e.load(e.b.inttoptr(tile.args[f"{kind}_index"], PTR), 4 * token, I32)
    return e.b.mul(e.b.sext(row, I64), stride)


def _group_pointers(e: Emitter, tile: _Tile) -> list[Rows]:
    """For each vector of the tile, the starts of the packed groups that it joins."""
    joined = tile.form.lanes // GROUP_ROWS
    base = e.b.inttoptr(tile.args["weights"], PTR)
    starts = [e.at(base, e.b.mul(tile.args["group_stride"], I64(g))) for g in range(joined * tile.shape.vectors)]
    return [Rows(tuple(starts[joined * r : joined * (r + 1)])) for r in range(tile.shape.vectors)]


def _bodies_at(e: Emitter, tile: _Tile) -> Value:
    """Offset of the first body in a row group."""
    if not tile.fmt.planar:
        return I64(tile.fmt.head_bytes)
    heads = e.b.mul(tile.args["blocks"], I64(tile.fmt.head_bytes))
    return e.b.and_(e.b.add(heads, I64(63)), I64(-64))


def _block_rows(e: Emitter, tile: _Tile, groups: list[Rows], bodies_at: Value, index: Value) -> tuple[
    list[Rows], list[Rows]]:  # fmt: skip
    """Head and body of the current block in every vector's groups."""
    fmt = tile.fmt
    if fmt.planar:
        head, body = e.b.mul(index, I64(fmt.head_bytes)), e.b.mul(index, I64(fmt.body_bytes))
    else:
        head = body = e.b.mul(index, I64(fmt.head_bytes + fmt.body_bytes))
    body = e.b.add(body, bodies_at)
    return [rows.at(e, head) for rows in groups], [rows.at(e, body) for rows in groups]


def _prefetch(e: Emitter, tile: _Tile, index: Value) -> None:
    """Hints of what the following tile reads; past the end of memory they do nothing."""
    lines = tile.shape.lines
    if lines:
        start = e.at(e.b.inttoptr(tile.args["factors"], PTR), e.b.mul(index, I64(64 * lines)))
        for line in range(lines):
            e.prefetch(start, 64 * line)


def _integer_sums(e: Emitter, tile: _Tile, heads: list[Rows], bodies: list[Rows], tokens: list[Value]) -> tuple[
    Emitter, Grid]:  # fmt: skip
    """The exact int32 dot of the block, in every cell; a loop over its stages where it has several."""
    zero = constant(vector(I32, e.lanes), 0)
    stages = tile.fmt.values // STAGE_VALUES
    if stages == 1:
        return e, _stage(e, tile, heads, bodies, tokens, I64(0), _start(e, tile, tokens, zero))
    before = e.b.block
    loop = tile.function.append_basic_block("stage")
    after = tile.function.append_basic_block("after")
    e.b.branch(loop)
    inner = Emitter(ir.IRBuilder(loop), tile.form)
    index = inner.b.phi(I64)
    index.add_incoming(I64(0), before)
    sums = tile.grid(lambda _t, _r: inner.b.phi(zero.type))
    places = [rows.at(inner, inner.b.mul(index, I64(tile.fmt.stage_bytes))) for rows in bodies]
    acts = [inner.at(pointer, inner.b.mul(index, I64(STAGE_VALUES))) for pointer in tokens]
    result = _stage(inner, tile, heads, places, acts, index, sums)
    following = inner.b.add(index, I64(1))
    for t, r in _cells(tile):
        sums[t][r].add_incoming(zero, before)
        sums[t][r].add_incoming(result[t][r], inner.b.block)
    index.add_incoming(following, inner.b.block)
    inner.b.cbranch(inner.b.icmp_signed("<", following, I64(stages)), loop, after)
    return Emitter(ir.IRBuilder(after), tile.form), result


def _start(e: Emitter, tile: _Tile, tokens: list[Value], zero: Value) -> Grid:
    """What an integer sum starts from: zero, or what biased weights add too much, taken away."""
    if not (tile.fmt.signed and tile.form.bias):
        return tile.grid(lambda _t, _r: zero)
    starts = [e.broadcast32(pointer, tile.fmt.act.bias, zero.type) for pointer in tokens]
    return tile.grid(lambda t, _r: starts[t])


def _stage(e: Emitter, tile: _Tile, heads: list[Rows], bodies: list[Rows], acts: list[Value], index: Value,
           sums: Grid) -> Grid:  # fmt: skip
    """Add 32 values of every row to the integer sums."""
    fmt = tile.fmt
    scales = [fmt.scales(e, rows, index) for rows in heads] if fmt.parts else None
    dots = _Dots(e, tile, sums, scales)
    for chunk in range(fmt.chunks):
        codes = [fmt.codes(e, rows, chunk) for rows in bodies]
        for place, first in enumerate(codes[0]):
            weights = [dots.prepare(row[place].vector) for row in codes]
            for t, pointer in enumerate(acts):
                act = e.broadcast32(pointer, 4 * first.step, vector(I8, 4 * e.lanes))
                for r, weight in enumerate(weights):
                    dots.step(t, r, weight, act)
            dots.stepped()
    return dots.finish()


class _Dots:
    """Running dot sums of a stage in the form's way: int32 steps, or int16 steps widened before they can overflow."""

    def __init__(self, e: Emitter, tile: _Tile, sums: Grid, scales: list[Any] | None) -> None:
        self.e, self.tile, self.scales = e, tile, scales
        self.sums = [list(row) for row in sums]
        self.part = 0
        self.taken = self.waiting = 0
        self.limit = INT16_MAX // (2 * ACT_MAX * tile.fmt.code_max)
        self.part_steps = STAGE_VALUES // 4 // max(tile.fmt.parts, 1)
        self.open = tile.grid(lambda _t, _r: None)

    def prepare(self, weight: Value) -> tuple[Value, Value]:
        """The weight as a step takes it, computed once for all tokens: (unsigned operand, sign source)."""
        if not self.tile.form.wide_dot and self.tile.fmt.signed:
            return self.e.abs8(weight), weight
        return weight, weight

    def step(self, t: int, r: int, weight: tuple[Value, Value], act: Value) -> None:
        """Four products more in every lane of a cell."""
        e, current = self.e, self.open[t][r]
        if self.tile.form.wide_dot:
            if current is None:
                current = constant(vector(I32, e.lanes), 0) if self.scales else self.sums[t][r]
            self.open[t][r] = e.dot4(current, weight[0], act)
            return
        signed = e.sign8(act, weight[1]) if self.tile.fmt.signed else act
        products = e.multiply_add_pairs8(weight[0], signed)
        self.open[t][r] = products if current is None else e.b.add(current, products)

    def stepped(self) -> None:
        """Close the sums when a part ends or int16 is full. Codes come in the order of their parts."""
        self.taken += 1
        self.waiting += 1
        full = not self.tile.form.wide_dot and self.waiting == self.limit
        if full or self.taken == self.part_steps:
            self._close()
        if self.taken == self.part_steps:
            self.part, self.taken = self.part + 1, 0

    def finish(self) -> Grid:
        """The sums after the stage."""
        return self.sums

    def _close(self) -> None:
        for t, r in _cells(self.tile):
            if self.open[t][r] is not None:
                self.sums[t][r] = self._folded(t, r)
                self.open[t][r] = None
        self.waiting = 0

    def _folded(self, t: int, r: int) -> Value:
        e, total, dot = self.e, self.sums[t][r], self.open[t][r]
        if self.tile.form.wide_dot:
            return e.b.add(total, e.b.mul(dot, self.scales[r][self.part])) if self.scales else dot
        if self.scales is None:
            return e.dot2(total, dot, constant(dot.type, 1))
        return e.dot2(total, dot, self._scale16(r))

    def _scale16(self, r: int) -> Value:
        """The scale in both int16 halves of its lane."""
        e = self.e
        scale = self.scales[r][self.part]  # type: ignore[index]
        low = e.b.and_(scale, constant(scale.type, 0xFFFF))
        return e.b.bitcast(e.b.or_(low, e.b.shl(scale, constant(scale.type, 16))), vector(I16, 2 * e.lanes))


def _float_steps(e: Emitter, tile: _Tile, acc: Grid, sums: Grid, heads: list[Rows], tokens: list[Value]) -> Grid:
    """The block's fp32 step in every cell."""
    fmt = tile.fmt
    minima: Grid = tile.grid(lambda _t, _r: constant(vector(I32, e.lanes), 0) if fmt.min_pairs else None)
    for pair in range(fmt.min_pairs):
        factors = [fmt.min_pair(e, rows, pair) for rows in heads]
        for t, pointer in enumerate(tokens):
            pair_sums = e.broadcast32(pointer, fmt.sums_at + 4 * pair, vector(I16, 2 * e.lanes))
            for r, factor in enumerate(factors):
                minima[t][r] = e.dot2(minima[t][r], factor, pair_sums)
    weights = [fmt.floats(e, rows) for rows in heads]
    result = tile.grid(lambda _t, _r: None)
    for t, pointer in enumerate(tokens):
        scalars = [e.splat(e.load(pointer, offset, F32), e.lanes) for offset in fmt.act.floats]
        for r, weight in enumerate(weights):
            result[t][r] = fmt.float_step(e, acc[t][r], (sums[t][r], minima[t][r]), weight, scalars)
    return result


def _write(e: Emitter, tile: _Tile, finals: Grid) -> None:
    """Store the results, or add them times the token's factor."""
    base = e.b.inttoptr(tile.args["out"], PTR)
    for t, row in enumerate(finals):
        pointer = e.at(base, _row_offset(e, tile, "out", t))
        factor = None
        if tile.shape.scaled_add:
            factor = e.splat(e.load(e.b.inttoptr(tile.args["factors"], PTR), 4 * t, F32), e.lanes)
        for r, value in enumerate(row):
            offset = 4 * e.lanes * r
            if factor is not None:
                value = e.b.fadd(e.load(pointer, offset, value.type), e.b.fmul(factor, value))
            e.store(value, pointer, offset)
