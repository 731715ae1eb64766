"""The bucketed schedule: hidden rows quantized once, (token, slot) pairs sorted by expert, one run of tokens an expert.

Gate and up go over the sorted pairs. Down goes column by column: a thread keeps the down rows of all pairs for a few
columns and merges them in slot order, so that every weight is read once whatever the slots. Passing slot by slot
instead leaves about two rows an expert at 512 tokens; keeping whole rows would take 268 MB at 4096 tokens, 8 slots and
2048 values.
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
    token_is_fine,
)
from kernelmap_providers.experts.words import put, word
from kernelmap_providers.jit.compile import entry, jit
from kernelmap_providers.pool.control import barrier
from kernelmap_providers.simd import ops

SEGMENT_TOKENS = 64
"""Most tokens in one call of a leg: their gate and up rows lie in the worker's scratch."""
COLUMNS = 64
"""Columns of a down pass; its rows are 256 bytes a pair."""
Index = np.int32


@jit
def offsets(call: int) -> Any:
    """Addresses of (hidden acts, inner acts, places int32, tokens int32, ends int64) in the common scratch.

    ``tokens[p]`` is the token at sorted place p, ``places[pair]`` the place of pair ``token * K + slot``, ``ends[e]``
    the place behind expert e's last.
    """
    tokens = word(call + at.TOKENS)
    pairs = tokens * word(call + at.SLOTS)
    outer = word(call + at.COMMON)
    inner = outer + align64(tokens * word(call + at.OUTER_STRIDE))
    places = inner + align64(pairs * word(call + at.INNER_STRIDE))
    order = places + align64(4 * pairs)
    return outer, inner, places, order, order + align64(4 * pairs)


@entry
def bucketed_task(_: Any, call: int, index: int, count: int, control: int) -> int:
    """All passes of one call; all threads meet between them."""
    mine = word(call + at.WORKERS) + index * word(call + at.WORKER_BYTES)
    identity = mine + at.LEG_BYTES
    for place in range(SEGMENT_TOKENS):
        ops.store(identity + 4 * place, Index(place))
    quantize_tokens(call, mine, index, count)
    barrier(control, count)
    tokens = min(word(call + at.TOKENS), word(call + at.BAD_ROW))
    if index == 0:
        count_sort(call, tokens)
    barrier(control, count)
    gate_up_pass(call, mine, tokens, index, count)
    barrier(control, count)
    if not refused(call):
        down_pass(call, mine, index, count)
    return 0


@jit
def quantize_tokens(call: int, mine: int, index: int, count: int) -> None:
    """Check and quantize the thread's tokens, up to its first refused one."""
    outer = offsets(call)[0]
    tokens, blocks, stride = word(call + at.TOKENS), word(call + at.OUTER_BLOCKS), word(call + at.OUTER_STRIDE)
    for token in range(tokens * index // count, tokens * (index + 1) // count):
        fine = token_is_fine(call, token)
        if not (quantize_hidden(call, mine, token, outer + token * stride, 0, blocks) and fine):
            refuse(call, token)
            return


@jit
def count_sort(call: int, tokens: int) -> None:
    """Places of all pairs of the first ``tokens`` tokens by expert, equal ones ascending."""
    _, _, places, order, ends = offsets(call)
    slots, experts = word(call + at.SLOTS), word(call + at.EXPERTS)
    for expert in range(experts + 1):
        put(ends + 8 * expert, 0)
    for token in range(tokens):
        for slot in range(slots):
            at_expert = ends + 8 * (expert_of(call, token, slot) + 1)
            put(at_expert, word(at_expert) + 1)
    for expert in range(experts):
        put(ends + 8 * (expert + 1), word(ends + 8 * (expert + 1)) + word(ends + 8 * expert))
    for token in range(tokens):
        for slot in range(slots):
            at_expert = ends + 8 * expert_of(call, token, slot)
            place = word(at_expert)
            ops.store(places + 4 * (token * slots + slot), Index(place))
            ops.store(order + 4 * place, Index(token))
            put(at_expert, place + 1)


@jit
def expert_at(ends: int, experts: int, place: int) -> int:
    """The expert whose pairs include sorted place ``place``."""
    low, high = 0, experts - 1
    while low < high:
        middle = (low + high) // 2
        if word(ends + 8 * middle) > place:
            high = middle
        else:
            low = middle + 1
    return low


@jit
def gate_up_pass(call: int, mine: int, tokens: int, index: int, count: int) -> None:
    """The intermediate of the thread's range of sorted pairs, quantized."""
    outer, inner, _, order, ends = offsets(call)
    width, blocks, stride = word(call + at.WIDTH), word(call + at.INNER_BLOCKS), word(call + at.INNER_STRIDE)
    identity = mine + at.LEG_BYTES
    row_bytes = align64(4 * width)
    g = identity + 4 * SEGMENT_TOKENS
    u = g + SEGMENT_TOKENS * row_bytes
    pairs = tokens * word(call + at.SLOTS)
    place, last = pairs * index // count, pairs * (index + 1) // count
    expert = expert_at(ends, word(call + at.EXPERTS), place)
    while place < last:
        while word(ends + 8 * expert) <= place:
            expert += 1
        here = min(SEGMENT_TOKENS, min(last, word(ends + 8 * expert)) - place)
        name_rows(mine, outer, order + 4 * place, word(call + at.OUTER_STRIDE), identity, here)
        gate_up(call, mine, expert, 0, width, here, g, u, g, row_bytes)
        bad = quantize_inner(call, mine, g, row_bytes, inner + place * stride, 0, here * blocks)
        if bad != at.NO_ROW:
            refuse(call, ops.load_i32(order + 4 * (place + bad)))
        place += here


@jit
def down_pass(call: int, mine: int, index: int, count: int) -> None:
    """The thread's columns: down rows of all pairs, then the merge of each token in slot order."""
    _, inner, places, _, ends = offsets(call)
    tokens, slots, size = word(call + at.TOKENS), word(call + at.SLOTS), word(call + at.SIZE)
    stride, identity = word(call + at.INNER_STRIDE), mine + at.LEG_BYTES
    y = identity + 4 * SEGMENT_TOKENS + 2 * SEGMENT_TOKENS * align64(4 * word(call + at.WIDTH))
    parts = (size + COLUMNS - 1) // COLUMNS
    for part in range(parts * index // count, parts * (index + 1) // count):
        first = part * COLUMNS
        rows = min(COLUMNS, size - first)
        place = 0
        for expert in range(word(call + at.EXPERTS)):
            while place < word(ends + 8 * expert):
                here = min(SEGMENT_TOKENS, word(ends + 8 * expert) - place)
                name_rows(mine, inner + place * stride, identity, stride, identity, here)
                multiply(call, mine, at.DOWN, at.DOWN_DOTS, expert, first, rows, y + 256 * place, 256)
                place += here
        for token in range(tokens):
            for slot in range(slots):
                here = y + 256 * ops.load_i32(places + 4 * (token * slots + slot))
                merge(call, mine, token, slot, expert_of(call, token, slot), first, rows, here)
