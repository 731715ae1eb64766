"""The steps that schedules are made of: checks, quantizing, dots, activation, merge; on words, no format in sight."""

from __future__ import annotations

from typing import Any

from kernelmap_providers import lanes
from kernelmap_providers.elementary import ZERO, sigmoid32
from kernelmap_providers.experts import words as at
from kernelmap_providers.experts.legs import dot_at
from kernelmap_providers.jit.compile import jit
from kernelmap_providers.memory import put, word
from kernelmap_providers.simd import native, ops
from kernelmap_providers.simd.vectors import F32X8


@jit
def align64(size: int) -> int:
    """``size`` rounded up to a multiple of 64."""
    return (size + 63) // 64 * 64


@jit
def finite_run(address: int, values: int) -> bool:
    """Whether ``values`` fp32 values at ``address`` are all finite."""
    fine = True
    for i in range(values):
        value = ops.load_f32(address + 4 * i)
        fine &= value - value == ZERO
    return fine


@jit
def token_is_fine(call: int, token: int) -> Any:
    """Whether a token's indices, routing weights and routed row are what the contract takes."""
    slots, size, fine = word(call + at.SLOTS), word(call + at.SIZE), True
    indices, routing, routed = word(call + at.INDICES), word(call + at.ROUTING), word(call + at.ROUTED)
    if indices:
        for slot in range(slots):
            expert = ops.load_i32(indices + 4 * (token * slots + slot))
            fine &= 0 <= expert < word(call + at.EXPERTS)
    if routing:
        fine &= finite_run(routing + 4 * token * slots, slots)
    if routed:
        fine &= finite_run(routed + 4 * token * size, size)
    return fine


@jit
def expert_of(call: int, token: int, slot: int) -> int:
    """The expert of a pair; a block without indices has expert 0 only."""
    indices = word(call + at.INDICES)
    if indices:
        return int(ops.load_i32(indices + 4 * (token * word(call + at.SLOTS) + slot)))
    return 0


@jit
def quantize_hidden(call: int, mine: int, token: int, out: int, first: int, last: int) -> Any:
    """Quantize blocks ``first`` to ``last - 1`` of a hidden row; counted when the first block is among them."""
    put(mine + at.LEG_X, word(call + at.HIDDEN) + 4 * token * word(call + at.SIZE))
    put(mine + at.LEG_X_STRIDE, 0)
    put(mine + at.LEG_BLOCKS, word(call + at.OUTER_BLOCKS))
    put(mine + at.LEG_OUT, out)
    if first == 0 and last > 0:
        native.atomic_add(call + at.QUANTIZED, 1)
    return native.call_task(word(call + at.QUANTIZE_HIDDEN), mine, first, last, 0) == at.NO_ROW


@jit
def quantize_inner(call: int, mine: int, x: int, x_stride: int, out: int, first: int, last: int) -> Any:
    """Quantize blocks of intermediate rows at ``x``; the least refused row, or NO_ROW."""
    put(mine + at.LEG_X, x)
    put(mine + at.LEG_X_STRIDE, x_stride)
    put(mine + at.LEG_BLOCKS, word(call + at.INNER_BLOCKS))
    put(mine + at.LEG_OUT, out)
    return native.call_task(word(call + at.QUANTIZE_INNER), mine, first, last, 0)


@jit
def name_rows(mine: int, acts: int, act_index: int, act_stride: int, out_index: int, tokens: int) -> None:
    """Which activation rows the next dots take, and which rows of their output they fill."""
    put(mine + at.LEG_ACTS, acts)
    put(mine + at.LEG_ACT_INDEX, act_index)
    put(mine + at.LEG_ACT_STRIDE, act_stride)
    put(mine + at.LEG_OUT_INDEX, out_index)
    put(mine + at.LEG_TOKENS, tokens)


@jit
def multiply(
    call: int, mine: int, matrix: int, leg: int, expert: int, first: int, rows: int, out: int, stride: int
) -> None:
    """Dots of the named rows with ``rows`` weight rows of an expert; ``matrix`` and ``leg`` are offsets of words."""
    put(mine + at.LEG_WEIGHTS, word(call + matrix) + expert * word(call + matrix + 8))
    put(mine + at.LEG_WEIGHT_STRIDE, word(call + matrix + 16))
    put(mine + at.LEG_FIRST, first)
    put(mine + at.LEG_ROWS, rows)
    put(mine + at.LEG_OUT, out)
    put(mine + at.LEG_OUT_STRIDE, stride)
    native.call_task(word(call + leg), mine, 0, 0, 0)


@jit
def bias_row(call: int, bias: int, expert: int, rows: int, first: int) -> int:
    """Address of an expert's biases from row ``first`` on; 0 if the contract has none."""
    found = word(call + bias)
    return found + 4 * (expert * rows + first) if found else 0


@jit
def gate_up(call: int, mine: int, expert: int, first: int, rows: int, tokens: int, g: int, u: int, h: int,
            stride: int) -> None:  # fmt: skip
    """Rows ``first`` to ``first + rows - 1`` of the intermediate of the named tokens: ``h`` from gate and up dots.

    ``g``, ``u`` and ``h`` are rows of ``stride`` bytes, token by token; ``h`` may be ``g``.
    """
    if word(call + at.GATE):
        multiply(call, mine, at.GATE, at.GATE_DOTS, expert, first, rows, g, stride)
    multiply(call, mine, at.UP, at.UP_DOTS, expert, first, rows, u, stride)
    width = word(call + at.WIDTH)
    put(mine + at.LEG_GATE_BIAS, bias_row(call, at.GATE_BIAS, expert, width, first))
    put(mine + at.LEG_UP_BIAS, bias_row(call, at.UP_BIAS, expert, width, first))
    put(mine + at.LEG_PARAMETERS, call + at.PARAMETERS)
    for token in range(tokens):
        put(mine + at.LEG_GATE, g + token * stride if word(call + at.GATE) else 0)
        put(mine + at.LEG_UP, u + token * stride)
        put(mine + at.LEG_OUT, h + token * stride)
        native.call_task(word(call + at.ACTIVATE), mine, 0, rows, 0)


@jit
def set_factor(call: int, mine: int, token: int) -> None:
    """The scalar gate of a token, where the contract has one: sigmoid(hidden . gate_input)."""
    if word(call + at.MERGE) == at.GATED:
        size = word(call + at.SIZE)
        dot = dot_at(word(call + at.GATE_INPUT), word(call + at.HIDDEN) + 4 * token * size, size)
        ops.store(mine + at.FACTOR, sigmoid32(dot))


@jit
def merge(call: int, mine: int, token: int, slot: int, expert: int, first: int, columns: int, y: int) -> None:
    """Columns ``first`` to ``first + columns - 1`` of a down row ``y`` join the token's output row."""
    size, kind, tail = word(call + at.SIZE), word(call + at.MERGE), mine + at.TAIL
    out = word(call + at.OUTPUT) + 4 * (token * size + first)
    if kind == at.GATED:
        factor, routed = ops.load_f32(mine + at.FACTOR), word(call + at.ROUTED) + 4 * (token * size + first)
        merge_gated(y, factor, routed, out, columns, tail)
        return
    if kind == at.PLAIN:
        merge_plain(y, out, columns, tail)
        return
    weight = ops.load_f32(word(call + at.ROUTING) + 4 * (token * word(call + at.SLOTS) + slot))
    merge_weighted(y, weight, bias_row(call, at.DOWN_BIAS, expert, size, first), slot, out, columns, tail)


@jit
def merge_plain(y: int, out: int, columns: int, tail: int) -> None:
    """``out = y``."""
    for c in range(0, columns, 8):
        lanes.store_within(out, c, columns, tail, lanes.load_within(y, c, columns, tail))


@jit
def merge_gated(y: int, factor: Any, routed: int, out: int, columns: int, tail: int) -> None:
    """``out = factor * y``, rounded, ``+ routed``."""
    gate = ops.fill(F32X8, factor)
    for c in range(0, columns, 8):
        gated = ops.mul(gate, lanes.load_within(y, c, columns, tail))
        lanes.store_within(out, c, columns, tail, ops.add(gated, lanes.load_within(routed, c, columns, tail)))


@jit
def merge_weighted(y: int, weight: Any, bias: int, slot: int, out: int, columns: int, tail: int) -> None:
    """``out = out + weight * (y + bias)``, each rounded; ``bias`` 0: there is none; slot 0 begins at 0."""
    factor = ops.fill(F32X8, weight)
    for c in range(0, columns, 8):
        value = lanes.load_within(y, c, columns, tail)
        if bias:
            value = ops.add(value, lanes.load_within(bias, c, columns, tail))
        total = lanes.load_within(out, c, columns, tail) if slot else ops.fill(F32X8, ZERO)
        lanes.store_within(out, c, columns, tail, ops.add(total, ops.mul(factor, value)))


@jit
def refuse(call: int, token: Any) -> None:
    """Note a refused token; the least stays."""
    native.atomic_min(call + at.BAD_ROW, token)


@jit
def refused(call: int) -> Any:
    """Whether a token was refused. The same answer for all threads between two barriers without `refuse`."""
    return native.atomic_load(call + at.BAD_ROW) != at.NO_ROW
