"""The bucketed schedule: quantize every token once, sort (token, slot) pairs by expert, then take items in turn.

A gate-and-up item is a segment of one expert's pairs times 256 columns of the intermediate: dots, SwiGLU, quantized
blocks. A down item is a few output columns of all tokens: the down rows of every pair, then the merge in slot order.
Threads take the next item from a counter, so that a slow core or a heavy expert holds nobody up; what an item computes
depends on the item alone.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from kernelmap_providers.elementary import sigmoid32
from kernelmap_providers.experts import words as at
from kernelmap_providers.experts.legs import dot_at
from kernelmap_providers.experts.merging import merge_token
from kernelmap_providers.experts.sizes import (
    DOWN_COLUMNS,
    FEW_PAIRS_BYTES,
    PART_BYTES,
    PART_COLUMNS,
    SEGMENT_BYTES,
    SEGMENT_TOKENS,
)
from kernelmap_providers.experts.steps import (
    align64,
    bias_row,
    expert_of,
    multiply,
    name_rows,
    quantize_hidden,
    refuse,
    refused,
    token_is_fine,
)
from kernelmap_providers.jit.compile import entry, jit
from kernelmap_providers.memory import put, word
from kernelmap_providers.pool.control import barrier
from kernelmap_providers.simd import native, ops

ITEMS_A_THREAD: Final = 4
"""Down items are narrow enough that every thread gets about so many."""
Index = np.int32


@jit
def places_of(call: int) -> Any:
    """Addresses of (hidden acts, inner acts, places int32, order int32, ends int64, segments, factors fp32).

    ``order[p]`` is the token at sorted place p, ``places[pair]`` the place of pair ``token * K + slot``, ``ends[e]``
    the place behind expert e's last. The sizes are ``sizes.common_sizes``.
    """
    tokens, experts = word(call + at.TOKENS), word(call + at.EXPERTS)
    pairs = tokens * word(call + at.SLOTS)
    outer = word(call + at.COMMON)
    inner = outer + align64(tokens * word(call + at.OUTER_STRIDE))
    places = inner + align64(pairs * word(call + at.INNER_STRIDE))
    order = places + align64(4 * pairs)
    ends = order + align64(4 * pairs)
    segments = ends + align64(8 * (experts + 1))
    return outer, inner, places, order, ends, segments, segments + align64(
        SEGMENT_BYTES * (experts + pairs // SEGMENT_TOKENS)
    )  # fmt: skip


@entry
def bucketed_task(_: Any, call: int, index: int, count: int, control: int) -> int:
    """All passes of one call; all threads meet between them."""
    mine = word(call + at.WORKERS) + index * word(call + at.WORKER_BYTES)
    room = word(call + at.PACK_BYTES)
    put(mine + at.LEG_PACKED, mine + word(call + at.WORKER_BYTES) - room if room else 0)
    for place in range(SEGMENT_TOKENS):
        ops.store(mine + at.LEG_BYTES + 4 * place, Index(place))
    quantize_tokens(call, mine, index, count)
    barrier(control, count)
    if index == 0:
        sort_pairs(call, min(word(call + at.TOKENS), word(call + at.BAD_ROW)))
    barrier(control, count)
    parts = (word(call + at.WIDTH) + PART_COLUMNS - 1) // PART_COLUMNS
    items = word(call + at.SEGMENTS) * parts
    item = native.atomic_add(call + at.NEXT_GATE_UP, 1)
    while item < items:
        gate_up_item(call, mine, item // parts, item % parts)
        item = native.atomic_add(call + at.NEXT_GATE_UP, 1)
    barrier(control, count)
    if not refused(call):
        columns = down_columns(call, count)
        item = native.atomic_add(call + at.NEXT_DOWN, 1)
        while item * columns < word(call + at.SIZE):
            down_item(call, mine, item * columns, columns)
            item = native.atomic_add(call + at.NEXT_DOWN, 1)
    return 0


@jit
def quantize_tokens(call: int, mine: int, index: int, count: int) -> None:
    """Check and quantize the thread's tokens, up to its first refused one; their scalar gates where there are such."""
    outer, factors = places_of(call)[0], places_of(call)[6]
    tokens, blocks, stride = word(call + at.TOKENS), word(call + at.OUTER_BLOCKS), word(call + at.OUTER_STRIDE)
    gated, size = word(call + at.MERGE) == at.GATED, word(call + at.SIZE)
    for token in range(tokens * index // count, tokens * (index + 1) // count):
        fine = token_is_fine(call, token)
        if not (quantize_hidden(call, mine, token, outer + token * stride, 0, blocks) and fine):
            refuse(call, token)
            return
        if gated:
            dot = dot_at(word(call + at.GATE_INPUT), word(call + at.HIDDEN) + 4 * token * size, size)
            ops.store(factors + 4 * token, sigmoid32(dot))


@jit
def sort_pairs(call: int, tokens: int) -> None:
    """Places of all pairs of the first ``tokens`` tokens by expert, equal ones ascending; then the segments."""
    _, _, places, order, ends, _, _ = places_of(call)
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
    cut_segments(call)


@jit
def cut_segments(call: int) -> None:
    """Every expert's pairs in the least number of segments, these of nearly equal size."""
    _, _, _, _, ends, segments, _ = places_of(call)
    first, made = 0, 0
    for expert in range(word(call + at.EXPERTS)):
        pairs = word(ends + 8 * expert) - first
        cuts = (pairs + SEGMENT_TOKENS - 1) // SEGMENT_TOKENS
        for cut in range(cuts):
            start = pairs * cut // cuts
            here = segments + SEGMENT_BYTES * made
            ops.store(here, Index(expert))
            ops.store(here + 4, Index(first + start))
            ops.store(here + 8, Index(pairs * (cut + 1) // cuts - start))
            made += 1
        first += pairs
    put(call + at.SEGMENTS, made)


@jit
def segment_at(segments: int, index: int) -> Any:
    """(expert, first sorted place, pairs)."""
    here = segments + SEGMENT_BYTES * index
    return np.int64(ops.load_i32(here)), np.int64(ops.load_i32(here + 4)), np.int64(ops.load_i32(here + 8))


@jit
def gate_up_item(call: int, mine: int, index: int, part: int) -> None:
    """One part of the intermediate of a segment's pairs, quantized."""
    outer, inner, _, order, _, segments, _ = places_of(call)
    expert, place, pairs = segment_at(segments, index)
    width, stride = word(call + at.WIDTH), word(call + at.INNER_STRIDE)
    first = part * PART_COLUMNS
    columns = min(PART_COLUMNS, width - first)
    block_values, block_bytes = width // word(call + at.INNER_BLOCKS), stride // word(call + at.INNER_BLOCKS)
    identity = mine + at.LEG_BYTES
    gate = identity + 4 * SEGMENT_TOKENS
    up = gate + SEGMENT_TOKENS * PART_BYTES
    name_rows(mine, outer, order + 4 * place, word(call + at.OUTER_STRIDE), identity, pairs)
    gated = word(call + at.GATE)
    if gated:
        multiply(call, mine, at.GATE, at.GATE_DOTS, expert, first, columns, gate, PART_BYTES)
    multiply(call, mine, at.UP, at.UP_DOTS, expert, first, columns, up, PART_BYTES)
    put(mine + at.LEG_GATE_BIAS, bias_row(call, at.GATE_BIAS, expert, width, first))
    put(mine + at.LEG_UP_BIAS, bias_row(call, at.UP_BIAS, expert, width, first))
    put(mine + at.LEG_PARAMETERS, call + at.PARAMETERS)
    put(mine + at.LEG_BLOCKS, columns // block_values)
    put(mine + at.LEG_X_STRIDE, 0)
    target = inner + place * stride + first // block_values * block_bytes
    for pair in range(pairs):
        put(mine + at.LEG_GATE, gate + pair * PART_BYTES if gated else 0)
        put(mine + at.LEG_UP, up + pair * PART_BYTES)
        put(mine + at.LEG_OUT, gate + pair * PART_BYTES)
        native.call_task(word(call + at.ACTIVATE), mine, 0, columns, 0)
        put(mine + at.LEG_X, gate + pair * PART_BYTES)
        put(mine + at.LEG_OUT, target + pair * stride)
        if native.call_task(word(call + at.QUANTIZE_INNER), mine, 0, columns // block_values, 0) != at.NO_ROW:
            refuse(call, ops.load_i32(order + 4 * (place + pair)))


@jit
def down_columns(call: int, count: int) -> int:
    """Columns of a down item: as many as a worker's scratch holds, but enough items for all threads."""
    pairs = word(call + at.TOKENS) * word(call + at.SLOTS)
    room = (align64(4 * DOWN_COLUMNS * pairs) + FEW_PAIRS_BYTES) // (4 * pairs)
    fair = word(call + at.SIZE) // (ITEMS_A_THREAD * count)
    return int(max(DOWN_COLUMNS, min(room, fair) // DOWN_COLUMNS * DOWN_COLUMNS))


@jit
def down_item(call: int, mine: int, first: int, most: int) -> None:
    """At most ``most`` output columns of all tokens from ``first`` on."""
    _, inner, places, _, _, segments, factors = places_of(call)
    stride, identity = word(call + at.INNER_STRIDE), mine + at.LEG_BYTES
    y, y_stride = identity + 4 * SEGMENT_TOKENS + 2 * SEGMENT_TOKENS * PART_BYTES, 4 * most
    columns = min(most, word(call + at.SIZE) - first)
    for index in range(word(call + at.SEGMENTS)):
        expert, place, pairs = segment_at(segments, index)
        name_rows(mine, inner + place * stride, identity, stride, identity, pairs)
        multiply(call, mine, at.DOWN, at.DOWN_DOTS, expert, first, columns, y + place * y_stride, y_stride)
    for token in range(word(call + at.TOKENS)):
        merge_token(call, mine, y, y_stride, places, factors, token, first, columns)
