"""Down rows into output rows: vector code, in slot order, each operation rounded (NUMERICS: routed and shared experts).

The steps are those of ``experts.steps.merge``, eight columns at once.
"""

from __future__ import annotations

from kernelmap_providers.elementary import ZERO
from kernelmap_providers.experts import words as at
from kernelmap_providers.experts.steps import bias_row, expert_of, merge_gated, merge_plain
from kernelmap_providers.jit.compile import jit
from kernelmap_providers.memory import word
from kernelmap_providers.simd import ops
from kernelmap_providers.simd.vectors import F32X8


@jit
def weighted_token(y: int, y_stride: int, places: int, factors: int, slots: int, out: int, columns: int) -> None:
    """``out = sum over slots in order of factor * row``, from 0; ``places`` are the slots' int32 rows of ``y``.

    ``columns`` is a multiple of 8.
    """
    c = 0
    while c + 32 <= columns:
        zero = ops.fill(F32X8, ZERO)
        a0, a1, a2, a3 = zero, zero, zero, zero
        for slot in range(slots):
            factor = ops.fill(F32X8, ops.load_f32(factors + 4 * slot))
            row = y + ops.load_i32(places + 4 * slot) * y_stride + 4 * c
            a0 = ops.add(a0, ops.mul(factor, ops.load(F32X8, row)))
            a1 = ops.add(a1, ops.mul(factor, ops.load(F32X8, row + 32)))
            a2 = ops.add(a2, ops.mul(factor, ops.load(F32X8, row + 64)))
            a3 = ops.add(a3, ops.mul(factor, ops.load(F32X8, row + 96)))
        ops.store(out + 4 * c, a0)
        ops.store(out + 4 * c + 32, a1)
        ops.store(out + 4 * c + 64, a2)
        ops.store(out + 4 * c + 96, a3)
        c += 32
    while c < columns:
        total = ops.fill(F32X8, ZERO)
        for slot in range(slots):
            factor = ops.fill(F32X8, ops.load_f32(factors + 4 * slot))
            row = y + ops.load_i32(places + 4 * slot) * y_stride + 4 * c
            total = ops.add(total, ops.mul(factor, ops.load(F32X8, row)))
        ops.store(out + 4 * c, total)
        c += 8


@jit
def biased_token(call: int, y: int, y_stride: int, places: int, token: int, first: int, columns: int) -> None:
    """As `weighted_token`, with the expert's bias added to a row before its factor."""
    size, slots = word(call + at.SIZE), word(call + at.SLOTS)
    out = word(call + at.OUTPUT) + 4 * (token * size + first)
    factors = word(call + at.ROUTING) + 4 * token * slots
    for c in range(0, columns, 8):
        total = ops.fill(F32X8, ZERO)
        for slot in range(slots):
            bias = bias_row(call, at.DOWN_BIAS, expert_of(call, token, slot), size, first + c)
            row = y + ops.load_i32(places + 4 * slot) * y_stride + 4 * c
            value = ops.add(ops.load(F32X8, row), ops.load(F32X8, bias))
            total = ops.add(total, ops.mul(ops.fill(F32X8, ops.load_f32(factors + 4 * slot)), value))
        ops.store(out + 4 * c, total)


@jit
def merge_token(call: int, mine: int, y: int, y_stride: int, places: int, factors: int, token: int, first: int,
                columns: int) -> None:  # fmt: skip
    """Columns ``first`` to ``first + columns - 1`` of a token's output row from its down rows in ``y``.

    ``places`` and ``factors`` are the addresses of all pairs' sorted places and of all tokens' scalar gates.
    """
    size, slots, kind = word(call + at.SIZE), word(call + at.SLOTS), word(call + at.MERGE)
    out = word(call + at.OUTPUT) + 4 * (token * size + first)
    here = places + 4 * token * slots
    if kind == at.WEIGHTED and word(call + at.DOWN_BIAS):
        biased_token(call, y, y_stride, here, token, first, columns)
        return
    if kind == at.WEIGHTED:
        weights = word(call + at.ROUTING) + 4 * token * slots
        weighted_token(y, y_stride, here, weights, slots, out, columns)
        return
    row = y + ops.load_i32(here) * y_stride
    if kind == at.GATED:
        routed = word(call + at.ROUTED) + 4 * (token * size + first)
        merge_gated(row, ops.load_f32(factors + 4 * token), routed, out, columns, mine + at.TAIL)
    else:
        merge_plain(row, out, columns, mine + at.TAIL)
