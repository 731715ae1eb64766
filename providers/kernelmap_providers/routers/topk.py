"""The K largest of a row of keys in order, equal ones by the lower id.

A key is a score as an int32 of the same order. The maxima of 16 (or 32) interleaved parts of the row are distinct
values of it, so the K-th largest of them is at most the K-th largest key: only keys from there on can be chosen, about
as many as K. Their ranks come from comparing all with all, without branches. Rows with many equal keys, and a large K,
are picked one by one.

A worker's memory for this: candidate ids int32[128], then int64[128] of ranked keys, of ranks, int32[128] ids in order.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from kernelmap_providers.jit.compile import inlined, jit
from kernelmap_providers.memory import word
from kernelmap_providers.routers.words import UNIT
from kernelmap_providers.simd import ops
from kernelmap_providers.simd.vectors import F32X16, I32X16, I64X8

CANDIDATES: Final = 64
"""Most keys that are ranked; more are picked one by one."""
RANKED, RANKS, ORDER, MAXIMA = 512, 1536, 2560, 3072
LANES: Final = 16
FEW, SOME = 8, 16
"""K up to which 16 or 32 maxima give a useful bound."""
LOWEST: Final = np.int32(-0x80000000)
MAGNITUDE: Final = np.int32(0x7FFFFFFF)
BELOW_ALL: Final = np.int64(-0x8000000000000000)
LOW_WORD: Final = 0xFFFFFFFF


@inlined
def key_of(score: Any) -> Any:
    """Int32 lanes in the order of fp32 lanes, both zeros the same."""
    bits = ops.reinterpret(I32X16, ops.add(score, ops.fill(F32X16, np.float32(0.0))))
    return ops.bit_xor(bits, ops.bit_and(ops.shift_right_signed(bits, 31), ops.fill(I32X16, MAGNITUDE)))


@inlined
def score_of(key: Any) -> Any:
    """The fp32 number of an int32 key."""
    return ops.float_of_bits(np.int32(key if key >= 0 else key ^ MAGNITUDE))


@inlined
def ranks_among(values: Any, maxima: int, total: int) -> Any:
    """How many of ``total`` int32 values in memory are larger than each lane of ``values``."""
    count = ops.fill(I32X16, np.int32(0))
    for i in range(total):
        count = ops.sub(count, ops.less(values, ops.fill(I32X16, ops.load_i32(maxima + 4 * i))))
    return count


@inlined
def least_ranked(values: Any, ranks: Any, count: int) -> Any:
    """The least lane of ``values`` with a rank below ``count``; the largest int32 if there is none."""
    kept = ops.less(ranks, ops.fill(I32X16, np.int32(count)))
    flipped = ops.bit_xor(values, ops.fill(I32X16, np.int32(-1)))
    return ops.reduce_max(ops.select(kept, flipped, ops.fill(I32X16, LOWEST))) ^ np.int32(-1)


@inlined
def bound(even: Any, odd: Any, count: int, work: int) -> Any:
    """The ``count``-th largest of the maxima of the row's even and odd vectors: at most the ``count``-th key."""
    maxima = work + MAXIMA
    if count <= FEW:
        both = ops.maximum(even, odd)
        ops.store(maxima, both)
        return least_ranked(both, ranks_among(both, maxima, LANES), count)
    ops.store(maxima, even)
    ops.store(maxima + 4 * LANES, odd)
    first = least_ranked(even, ranks_among(even, maxima, 2 * LANES), count)
    return min(first, least_ranked(odd, ranks_among(odd, maxima, 2 * LANES), count))


@jit
def collect(keys: int, size: int, threshold: Any, work: int) -> int:
    """Ids of keys that are at least ``threshold`` to ``work``, ascending. How many; more than CANDIDATES: not all."""
    found, limit = 0, ops.fill(I32X16, np.int32(threshold))
    for first in range(0, size, UNIT):
        here = keys + 4 * first
        low = ops.mask_bits(ops.less(ops.load(I32X16, here), limit))
        low |= ops.mask_bits(ops.less(ops.load(I32X16, here + 64), limit)) << 16
        low |= ops.mask_bits(ops.less(ops.load(I32X16, here + 128), limit)) << 32
        low |= ops.mask_bits(ops.less(ops.load(I32X16, here + 192), limit)) << 48
        left = ~low
        while left != 0:
            ops.store(work + 4 * found, np.int32(first + ops.trailing_zeros(left)))
            found += 1
            left &= left - 1
        if found > CANDIDATES:
            break
    return found


@jit
def rank(work: int, found: int, count: int, out: int) -> None:
    """The first ``count`` of ``found`` candidate ids, by their distinct 64-bit keys descending, to int32 ``out``."""
    ranked, ranks, order = work + RANKED, work + RANKS, work + ORDER
    for place in range(found, (found + SOME - 1) // SOME * SOME):
        ops.store(ranked + 8 * place, BELOW_ALL)
    for first in range(0, found, SOME):
        low, high = ops.load(I64X8, ranked + 8 * first), ops.load(I64X8, ranked + 8 * first + 64)
        above_low = above_high = ops.fill(I64X8, np.int64(0))
        for others in range(0, found, SOME):
            # A constant number of turns: their end is not mispredicted as that of ``found`` turns is.
            for other in range(SOME):
                key = ops.fill(I64X8, word(ranked + 8 * others + 8 * other))
                above_low = ops.sub(above_low, ops.less(low, key))
                above_high = ops.sub(above_high, ops.less(high, key))
        ops.store(ranks + 8 * first, above_low)
        ops.store(ranks + 8 * first + 64, above_high)
    for place in range(found):
        ops.store(order + 4 * word(ranks + 8 * place), ops.load_i32(work + 4 * place))
    for slot in range(count):
        ops.store(out + 4 * slot, ops.load_i32(order + 4 * slot))


@inlined
def put_ranked(work: int, place: int, key: Any, expert: Any) -> None:
    """Candidate ``place``'s 64-bit key: by ``key``, then by the lower id."""
    ops.store(work + RANKED + 8 * place, (np.int64(key) << 32) | (LOW_WORD - np.int64(expert)))


@jit
def largest(keys: int, size: int, count: int, work: int, out: int) -> None:
    """Ids of the ``count`` largest of ``size`` keys (whole units) to int32 ``out``. May overwrite the keys."""
    if count <= SOME:
        even = odd = ops.fill(I32X16, LOWEST)
        for first in range(0, size, 2 * LANES):
            even = ops.maximum(even, ops.load(I32X16, keys + 4 * first))
            odd = ops.maximum(odd, ops.load(I32X16, keys + 4 * first + 4 * LANES))
        found = collect(keys, size, bound(even, odd, count, work), work)
        if found <= CANDIDATES:
            for place in range(found):
                expert = ops.load_i32(work + 4 * place)
                put_ranked(work, place, ops.load_i32(keys + 4 * expert), expert)
            rank(work, found, count, out)
            return
    for slot in range(count):
        ops.store(out + 4 * slot, take_first_largest(keys, size))


@jit
def take_first_largest(keys: int, size: int) -> Any:
    """The lowest id of the largest key, which is then the lowest possible one."""
    most = ops.fill(I32X16, LOWEST)
    for first in range(0, size, LANES):
        most = ops.maximum(most, ops.load(I32X16, keys + 4 * first))
    value = ops.fill(I32X16, np.int32(ops.reduce_max(most)))
    for first in range(0, size, LANES):
        same = ops.mask_bits(ops.equal(value, ops.load(I32X16, keys + 4 * first)))
        if same != 0:
            expert = np.int32(first + ops.trailing_zeros(same))
            ops.store(keys + 4 * expert, LOWEST)
            return expert
    return np.int32(0)
