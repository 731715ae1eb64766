"""Schedules over tokens as they come: whole tokens to threads, or all threads on the parts of one token.

``tokens_task`` is the plain statement of the contract and the byte reference of the other schedules.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernelmap_providers.experts import words as at
from kernelmap_providers.experts.steps import (
    align64,
    expert_of,
    gate_up,
    merge,
    multiply,
    name_rows,
    quantize_hidden,
    quantize_inner,
    refuse,
    refused,
    set_factor,
    token_is_fine,
)
from kernelmap_providers.experts.words import word
from kernelmap_providers.jit.compile import entry, jit
from kernelmap_providers.pool.control import barrier
from kernelmap_providers.simd import ops

ZERO_INDEX = np.int32(0)
PART_ROWS = 64
"""Rows of gate and up, and columns of the output, in one unit of work of `parts_task`: whole packed vectors, and enough
units for many threads at an intermediate size of 512."""


@jit
def single_index(mine: int) -> int:
    """Address of the int32 0, for dots of one row."""
    ops.store(mine + at.LEG_BYTES - 64, ZERO_INDEX)
    return mine + at.LEG_BYTES - 64


@jit
def token_row(call: int, mine: int, token: int) -> bool:
    """One token, slots in order. False if it is refused."""
    size, width = word(call + at.SIZE), word(call + at.WIDTH)
    outer_blocks, outer_stride = word(call + at.OUTER_BLOCKS), word(call + at.OUTER_STRIDE)
    inner_blocks, inner_stride = word(call + at.INNER_BLOCKS), word(call + at.INNER_STRIDE)
    outer = mine + at.LEG_BYTES
    g = outer + align64(outer_stride)
    u = g + align64(4 * width)
    inner = u + align64(4 * width)
    y = inner + align64(inner_stride)
    zero = single_index(mine)
    if not token_is_fine(call, token) or not quantize_hidden(call, mine, token, outer, 0, outer_blocks):
        return False
    set_factor(call, mine, token)
    for slot in range(word(call + at.SLOTS)):
        if slot and word(call + at.REQUANTIZE):
            quantize_hidden(call, mine, token, outer, 0, outer_blocks)
        expert = expert_of(call, token, slot)
        name_rows(mine, outer, zero, outer_stride, zero, 1)
        gate_up(call, mine, expert, 0, width, 1, g, u, g, 0)
        if quantize_inner(call, mine, g, 0, inner, 0, inner_blocks) != at.NO_ROW:
            return False
        name_rows(mine, inner, zero, inner_stride, zero, 1)
        multiply(call, mine, at.DOWN, at.DOWN_DOTS, expert, 0, size, y, 0)
        merge(call, mine, token, slot, expert, 0, size, y)
    return True


@entry
def tokens_task(_: Any, call: int, index: int, count: int, control: int) -> int:
    """Thread ``index`` owns a range of tokens and ends with its first refused one."""
    tokens = word(call + at.TOKENS)
    mine = word(call + at.WORKERS) + index * word(call + at.WORKER_BYTES)
    for token in range(tokens * index // count, tokens * (index + 1) // count):
        if not token_row(call, mine, token):
            refuse(call, token)
            break
    return 0


@entry
def parts_task(_: Any, call: int, index: int, count: int, control: int) -> int:
    """One token at a time: threads share its experts (cut into runs of rows), then its intermediate blocks, then the
    columns of its output, slots in order in each.
    """
    mine = word(call + at.WORKERS) + index * word(call + at.WORKER_BYTES)
    for token in range(word(call + at.TOKENS)):
        if not first_half(call, mine, token, index, count, control):
            return 0
        if not second_half(call, mine, token, index, count, control):
            return 0
        columns(call, mine, token, index, count)
        barrier(control, count)
    return 0


@jit
def first_half(call: int, mine: int, token: int, index: int, count: int, control: int) -> bool:
    """Hidden row quantized, gate and up of every slot into the common rows ``h``. False if the token is refused.

    All threads ask between the same two barriers: after the second one a faster thread may already refuse again.
    """
    slots, width = word(call + at.SLOTS), word(call + at.WIDTH)
    outer, blocks = word(call + at.COMMON), word(call + at.OUTER_BLOCKS)
    fine = index > 0 or token_is_fine(call, token)
    first, last = blocks * index // count, blocks * (index + 1) // count
    if not (quantize_hidden(call, mine, token, outer, first, last) and fine):
        refuse(call, token)
    barrier(control, count)
    if refused(call):
        return False
    h = outer + align64(word(call + at.OUTER_STRIDE))
    u = mine + at.LEG_BYTES
    zero = single_index(mine)
    name_rows(mine, outer, zero, word(call + at.OUTER_STRIDE), zero, 1)
    parts = (width + PART_ROWS - 1) // PART_ROWS
    for unit in range(slots * parts * index // count, slots * parts * (index + 1) // count):
        slot, row = unit // parts, unit % parts * PART_ROWS
        out = h + slot * align64(4 * width) + 4 * row
        rows = min(PART_ROWS, width - row)
        gate_up(call, mine, expert_of(call, token, slot), row, rows, 1, out, u, out, 0)
    barrier(control, count)
    return True


@jit
def second_half(call: int, mine: int, token: int, index: int, count: int, control: int) -> bool:
    """The intermediate rows of all slots quantized. False if the token is refused."""
    slots, stride = word(call + at.SLOTS), align64(4 * word(call + at.WIDTH))
    h = word(call + at.COMMON) + align64(word(call + at.OUTER_STRIDE))
    inner, blocks = h + slots * stride, slots * word(call + at.INNER_BLOCKS)
    first, last = blocks * index // count, blocks * (index + 1) // count
    if quantize_inner(call, mine, h, stride, inner, first, last) != at.NO_ROW:
        refuse(call, token)
    barrier(control, count)
    return not refused(call)


@jit
def columns(call: int, mine: int, token: int, index: int, count: int) -> None:
    """The thread's columns of the output row."""
    slots, size, stride = word(call + at.SLOTS), word(call + at.SIZE), word(call + at.INNER_STRIDE)
    h = word(call + at.COMMON) + align64(word(call + at.OUTER_STRIDE))
    inner = h + slots * align64(4 * word(call + at.WIDTH))
    y = mine + at.LEG_BYTES
    zero = single_index(mine)
    set_factor(call, mine, token)
    parts = (size + PART_ROWS - 1) // PART_ROWS
    for part in range(parts * index // count, parts * (index + 1) // count):
        first = part * PART_ROWS
        rows = min(PART_ROWS, size - first)
        for slot in range(slots):
            expert = expert_of(call, token, slot)
            name_rows(mine, inner + slot * stride, zero, stride, zero, 1)
            multiply(call, mine, at.DOWN, at.DOWN_DOTS, expert, first, rows, y, 0)
            merge(call, mine, token, slot, expert, first, rows, y)
