"""The schedule over tokens as they come, whole tokens to threads: the plain statement of the contract.

It is the byte reference of the bucketed schedule.
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
    set_factor,
    token_is_fine,
)
from kernelmap_providers.jit.compile import entry, jit
from kernelmap_providers.memory import put, word
from kernelmap_providers.simd import ops

ZERO_INDEX = np.int32(0)


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
    put(mine + at.LEG_PACKED, 0)
    for token in range(tokens * index // count, tokens * (index + 1) // count):
        if not token_row(call, mine, token):
            refuse(call, token)
            break
    return 0
