"""The jitted half of the MXFP4 expert linear: ranges of output columns, and the pool tasks that run them.

A task finds its arguments as one tuple in the caller's stack frame; `ARGUMENTS` has their types.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numba import types

from kernelmap_providers.arguments import BYTES_1, tuple_of
from kernelmap_providers.experts.mxfp4_rows import decode_row, dot_row, dots_4x2, dots_4x4
from kernelmap_providers.jit.compile import compiled, entry, jit, native_address
from kernelmap_providers.jit.generic import generic
from kernelmap_providers.pool.control import dispatch
from kernelmap_providers.simd import native
from kernelmap_providers.simd.static import Static, StaticType, intrinsic

TILE_ROWS = 16
"""Decoded rows of a tile: 184 KB at 2,880 features, in a core's second-level cache. 8 read the weights in shorter runs
(10 % slower at ten tokens), 32 leave that cache (30 % slower). The map's scratch counts them."""
STORED = tuple_of(BYTES_1, types.int64, types.int64)
"""(bytes, bytes from expert to expert, bytes from row to row)."""
INTS_1 = types.Array(types.int32, 1, "C")
INDICES = types.Array(types.int32, 2, "C")
BF16_OUT = types.Array(types.uint16, 2, "C")


def _arguments(wide: Any) -> dict[str, Any]:
    floats, tile = types.Array(wide, 2, "C"), types.Array(wide, 3, "C")
    return {
        "fused": tuple_of(floats, floats, floats, INDICES, STORED, STORED, tile),
        "tiles": tuple_of(floats, floats, floats, INTS_1, INTS_1, STORED, STORED, tile),
        "narrow": tuple_of(floats, BF16_OUT),
    }


ARGUMENTS: Final = {"fp32": _arguments(types.float32), "fp64": _arguments(types.float64)}
"""Arguments of every task by the width of its sums: ``total``, ``x``, ``mixture``, then the task's own."""


@jit
def fused_range(
    begin: int, end: int, worker: int, form: Any, total: Any, x: Any, mixture: Any, selected: Any, packed: Any,
    scales: Any, tile: Any,
) -> int:  # fmt: skip
    """Columns ``begin`` to ``end - 1`` of ``total``: one encoded row's dot a token and slot."""
    buffer = tile[worker, 0]
    for n in range(begin, end):
        for t in range(selected.shape[0]):
            for s in range(selected.shape[1]):
                e = selected[t, s]
                at, scale_at = e * packed[1] + n * packed[2], e * scales[1] + n * scales[2]
                total[t, n] += mixture[t, s] * dot_row(form, packed[0], at, scales[0], scale_at, x[t], buffer)
    return 0


@jit
def add_dots(total: Any, n: int, rows: int, mixture: Any, order: Any, first: int, count: int, dots: Any) -> None:
    """Add up to ``count`` pairs' dots with ``rows`` (at most four) rows from column ``n``."""
    slots = mixture.shape[1]
    for i in range(count):
        pair = order[first + i]
        t = pair // slots
        for r in range(rows):
            total[t, n + r] += mixture[t, pair % slots] * dots[4 * i + r]


@jit
def add_tile(total: Any, n: int, rows: int, x: Any, mixture: Any, order: Any, first: int, last: int, w: Any) -> None:
    """Decoded rows ``w`` of columns ``n`` on, times the tokens of pairs ``first`` to ``last - 1``. At a tail the last
    token is computed again, and rows that hold nothing: a form for each size would only be more to compile."""
    slots = mixture.shape[1]
    while first < last:
        left = last - first
        h, i = order[first] // slots, order[min(first + 1, last - 1)] // slots
        if left < 3:
            for r in range(0, rows, 4):
                dots = dots_4x2(w[r:], x, h, i)
                add_dots(total, n + r, min(4, rows - r), mixture, order, first, min(2, left), dots)
            first += 2
        else:
            j, m = order[first + 2] // slots, order[min(first + 3, last - 1)] // slots
            for r in range(0, rows, 4):
                tall = dots_4x4(w[r:], x, h, i, j, m)
                add_dots(total, n + r, min(4, rows - r), mixture, order, first, min(4, left), tall)
            first += 4


@jit
def tiles_range(
    begin: int, end: int, worker: int, form: Any, total: Any, x: Any, mixture: Any, order: Any, starts: Any,
    packed: Any, scales: Any, tile: Any,
) -> int:  # fmt: skip
    """Tiles ``begin`` to ``end - 1`` of columns: every expert that has tokens decoded once a tile, for all of them."""
    columns, slots = total.shape[1], mixture.shape[1]
    w = tile[worker]
    for index in range(begin, end):
        n = index * TILE_ROWS
        rows = min(TILE_ROWS, columns - n)
        for e in range(len(starts) - 2):
            first, last = starts[e], starts[e + 1]
            if first == last:
                continue
            at, scale_at = e * packed[1] + n * packed[2], e * scales[1] + n * scales[2]
            if last - first == 1:
                t, s = order[first] // slots, order[first] % slots
                for r in range(rows):
                    place, scale = at + r * packed[2], scale_at + r * scales[2]
                    total[t, n + r] += mixture[t, s] * dot_row(form, packed[0], place, scales[0], scale, x[t], w[0])
                continue
            for r in range(rows):
                decode_row(form, packed[0], at + r * packed[2], scales[0], scale_at + r * scales[2], w[r])
            add_tile(total, n, rows, x, mixture, order, first, last, w)
    return 0


@entry
def bucket(selected: Any, starts: Any, order: Any) -> None:
    """Counting sort: ``order[starts[e]:starts[e + 1]]`` are the pairs (token * slots + slot) of expert e, ascending.

    ``starts`` has two entries more than there are experts: the last is working space.
    """
    slots = selected.shape[1]
    starts[:] = 0
    for pair in range(selected.size):
        starts[selected[pair // slots, pair % slots] + 2] += 1
    for e in range(2, len(starts)):
        starts[e] += starts[e - 1]
    for pair in range(selected.size):
        e = selected[pair // slots, pair % slots]
        order[starts[e + 1]] = pair
        starts[e + 1] += 1


@jit
def narrow_range(begin: int, end: int, _worker: int, total: Any, output: Any) -> int:
    """Rows of fp32 sums as bf16 bits, ties to even; a NaN stays one."""
    for t in range(begin, end):
        bits, out = total[t].view(np.uint32), output[t]
        for n in range(len(bits)):
            b = bits[n]
            odd = np.uint32(b >> np.uint32(16)) & np.uint32(1)
            rounded = np.uint32(np.uint32(b + np.uint32(0x7FFF)) + odd)
            nan = np.uint32(b & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
            out[n] = np.uint16(0x7FC0) if nan else np.uint16(rounded >> np.uint32(16))
    return 0


@intrinsic
def arguments_at(typing_context: Any, leg: Any, address: Any) -> Any:
    """The task's tuple of arguments at ``address``; ``leg`` is ``Static(form, "fp32" or "fp64", task)``."""
    kind = ARGUMENTS[leg.parts[1]][leg.parts[2]]

    def codegen(context: Any, builder: Any, _sig: Any, given: Any) -> Any:
        return native.load_value(context, builder, kind, given[1])

    return kind(leg, address), codegen


@entry
def columns_task(leg: Any, params: int, index: int, count: int, control: int) -> int:
    """Thread ``index``'s share of a task: a range of columns, tiles or rows, which no other thread writes."""
    run_share(leg, params, index, count)
    return 0


def run_share(leg: Any, params: int, index: int, count: int) -> None:
    """Share ``index`` of ``count``. Jitted code only."""
    raise NotImplementedError("called from jitted code only")


@generic(run_share)
def _run_share(leg: Any, params: Any, index: Any, count: Any) -> Any:
    form = Static(str(leg.parts[0]))
    if leg.parts[2] == "narrow":

        def narrow(leg: Any, params: int, index: int, count: int) -> None:
            total, output = arguments_at(leg, params)
            rows = len(total)
            narrow_range(rows * index // count, rows * (index + 1) // count, index, total, output)

        return narrow
    if leg.parts[2] == "fused":

        def fused(leg: Any, params: int, index: int, count: int) -> None:
            total, x, mixture, selected, packed, scales, tile = arguments_at(leg, params)
            columns = total.shape[1]
            first, last = columns * index // count, columns * (index + 1) // count
            fused_range(first, last, index, form, total, x, mixture, selected, packed, scales, tile)

        return fused

    def tiles(leg: Any, params: int, index: int, count: int) -> None:
        total, x, mixture, order, starts, packed, scales, tile = arguments_at(leg, params)
        whole = (total.shape[1] + TILE_ROWS - 1) // TILE_ROWS
        first, last = whole * index // count, whole * (index + 1) // count
        tiles_range(first, last, index, form, total, x, mixture, order, starts, packed, scales, tile)

    return tiles


@entry
def columns_entry(arguments: Any, task: int, control: int, threads: int) -> int:
    """Run a task on ``threads`` threads of the pool; ``arguments`` is its tuple."""
    dispatch(control, task, native.address_of(arguments), threads)
    return 0


def task_address(form: str, wide: str, task: str) -> int:
    """Compiles a task and its entry for sums of ``wide`` (``fp32`` or ``fp64``); the address that the entry takes."""
    compiled(columns_entry, ARGUMENTS[wide][task], *[types.int64] * 3)
    return native_address(columns_task, StaticType((form, wide, task)), *[types.int64] * 4)
