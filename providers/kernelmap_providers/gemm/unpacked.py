"""GEMM and GEMV over weights as stored: nothing is prepared, rows are unpacked where they are used.

One form unpacks eight rows in registers and dots one token row, another four at a time. The repacking one, for many
tokens, packs up to 32 rows into the thread's scratch, as preparation would, and runs the packed tiles on them: rows are
unpacked once for all tokens, and K-quants take more time to unpack than to multiply.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import types

from kernelmap.spec import BuildSpec
from kernelmap_providers.gemm import arguments as args
from kernelmap_providers.gemm.packed import edge
from kernelmap_providers.gemm.panels import panel, panel_shape
from kernelmap_providers.gemm.stored import STORED_FORMATS
from kernelmap_providers.jit.compile import entry, native_address, sealed
from kernelmap_providers.jit.generic import generic
from kernelmap_providers.packed.layouts import group_stride, pack_groups
from kernelmap_providers.pool.control import barrier
from kernelmap_providers.pool.workers import POOL
from kernelmap_providers.quantize.rows import quantize_blocks
from kernelmap_providers.simd import kernel, native, ops
from kernelmap_providers.simd.block import GROUP_ROWS
from kernelmap_providers.simd.rows import row_form
from kernelmap_providers.simd.static import Static, StaticType
from kernelmap_providers.simd.target import FORMS, Form, host_form

Run = Callable[..., int]
TOKENS_TOGETHER = 4
REPACK_FROM = 5
"""Tokens from which packing pays. K 2048, N 512, one thread of Zen 5, packing against four rows at a time: q4_k 38 and
48 us at 4 tokens, 45 and 65 at 5; q5_k 76 and 55, 83 and 88; q6_k 101 and 69, 108 and 111."""
REPACKED_GROUPS = 4
"""Groups of eight rows that a thread packs at once: two vectors of 16 lanes. The maps' scratch counts them."""


@entry
def rows_task(leg: Any, params: int, index: int, count: int, control: int) -> int:
    """Thread ``index``'s share; ``leg`` is ``Static(format, form, "m4" or "m1", form of repacked rows or "")``."""
    tokens, blocks = native.load_word(params + args.TOKENS), native.load_word(params + args.BLOCKS)
    x, x_stride = native.load_word(params + args.X), native.load_word(params + args.X_STRIDE)
    acts = native.load_word(params + args.ACTS)
    total = tokens * blocks
    bad = quantize_acts(leg, x, x_stride, blocks, acts, total * index // count, total * (index + 1) // count)
    if bad != args.NO_ROW:
        native.atomic_min(params + args.BAD_ROW, bad)
    barrier(control, count)
    multiply_groups(leg, params, index, count)
    return 0


def quantize_acts(leg: Any, x: int, x_stride: int, blocks: int, out: int, first: int, last: int) -> int:
    """``quantize_blocks`` in the leg's activation format. Jitted code only."""
    raise NotImplementedError("called from jitted code only")


@generic(quantize_acts)
def _quantize_acts(leg: Any, x: Any, x_stride: Any, blocks: Any, out: Any, first: Any, last: Any) -> Any:
    act = Static(STORED_FORMATS[str(leg.parts[0])].act.name)
    return lambda leg, x, x_stride, blocks, out, first, last: quantize_blocks(
        act, x, x_stride, blocks, out, first, last
    )


def multiply_groups(leg: Any, params: int, index: int, count: int) -> None:
    """`multiply_repacked` where the leg has a form for it and there are tokens enough, else `multiply_rows`."""
    raise NotImplementedError("called from jitted code only")


@generic(multiply_groups)
def _multiply_groups(leg: Any, params: Any, index: Any, count: Any) -> Any:
    if not leg.parts[3]:
        return lambda leg, params, index, count: multiply_rows(leg, params, index, count)

    def run(leg: Any, params: int, index: int, count: int) -> None:
        if native.load_word(params + args.TOKENS) >= REPACK_FROM:
            multiply_repacked(leg, params, index, count)
        else:
            multiply_rows(leg, params, index, count)

    return run


def multiply_repacked(leg: Any, params: int, index: int, count: int) -> None:
    """As `multiply_rows`: packs some groups into the thread's scratch, which lies behind the activations, and runs the
    packed tiles on them. Jitted code only."""
    raise NotImplementedError("called from jitted code only")


@generic(multiply_repacked)
def _multiply_repacked(leg: Any, params: Any, index: Any, count: Any) -> Any:
    fmt, form = STORED_FORMATS[str(leg.parts[0])].packed, FORMS[str(leg.parts[3])]
    layout, packed_leg = Static(fmt.name), Static(fmt.name, form.name, "")
    vectors, lanes, act_bytes = panel_shape(form).vectors, form.lanes, fmt.act.bytes
    many, one, joined = Static(vectors), Static(1), form.lanes // GROUP_ROWS

    def run(leg: Any, params: int, index: int, count: int) -> None:
        tokens, rows = native.load_word(params + args.TOKENS), native.load_word(params + args.ROWS)
        blocks, acts = native.load_word(params + args.BLOCKS), native.load_word(params + args.ACTS)
        weights, stride = native.load_word(params + args.WEIGHTS), native.load_word(params + args.WEIGHT_STRIDE)
        y, y_stride = native.load_word(params + args.Y), native.load_word(params + args.Y_STRIDE)
        act_stride, group = blocks * act_bytes, group_stride(layout, blocks)
        mine = acts + (tokens * act_stride + 63) // 64 * 64 + index * REPACKED_GROUPS * group
        groups = (rows + GROUP_ROWS - 1) // GROUP_ROWS
        last = min(rows, groups * (index + 1) // count * GROUP_ROWS)
        first = groups * index // count * GROUP_ROWS
        while first < last:
            here = min(vectors * lanes, last - first)
            pack_groups(layout, weights + first * stride, stride, here, blocks, mine, group)
            out = y + 4 * first
            if here == vectors * lanes:
                panel(packed_leg, many, mine, group, blocks, acts, 0, act_stride, out, 0, y_stride, 0, tokens)
            else:
                for row in range(0, here, lanes):
                    w = mine + row // lanes * joined * group
                    if here - row >= lanes:
                        panel(packed_leg, one, w, group, blocks, acts, 0, act_stride, out + 4 * row, 0, y_stride,
                              0, tokens)  # fmt: skip
                    else:
                        edge(packed_leg, one, w, group, blocks, acts, act_stride, out + 4 * row, y_stride,
                             tokens, here - row, lanes)  # fmt: skip
            first += here

    return run


def multiply_rows(leg: Any, params: int, index: int, count: int) -> None:
    """Dots of all tokens with thread ``index``'s groups of eight weight rows. Jitted code only."""
    raise NotImplementedError("called from jitted code only")


@generic(multiply_rows)
def _multiply_rows(leg: Any, params: Any, index: Any, count: Any) -> Any:
    fmt, form = STORED_FORMATS[str(leg.parts[0])], FORMS[str(leg.parts[1])]
    together = TOKENS_TOGETHER if leg.parts[2] == "m4" else 1
    one, many, act_bytes = kernel.rows(fmt, form, 1), kernel.rows(fmt, form, together), fmt.act.bytes

    def run(leg: Any, params: int, index: int, count: int) -> None:
        tokens, rows = native.load_word(params + args.TOKENS), native.load_word(params + args.ROWS)
        blocks, acts = native.load_word(params + args.BLOCKS), native.load_word(params + args.ACTS)
        weights, stride = native.load_word(params + args.WEIGHTS), native.load_word(params + args.WEIGHT_STRIDE)
        y, y_stride = native.load_word(params + args.Y), native.load_word(params + args.Y_STRIDE)
        act_stride = blocks * act_bytes
        groups = (rows + GROUP_ROWS - 1) // GROUP_ROWS
        buffer = np.empty((together, GROUP_ROWS), np.float32)
        for group in range(groups * index // count, groups * (index + 1) // count):
            first = GROUP_ROWS * group
            here = min(GROUP_ROWS, rows - first)
            whole = here == GROUP_ROWS
            w = weights + first * stride
            token = 0
            while token < tokens:
                size = together if tokens - token >= together else 1
                out, out_stride = y + token * y_stride + 4 * first, y_stride
                if not whole:
                    out, out_stride = buffer.ctypes.data, 4 * GROUP_ROWS
                a = acts + token * act_stride
                if size == together:
                    many(w, stride, here, blocks, a, act_stride, out, out_stride)
                else:
                    one(w, stride, here, blocks, a, act_stride, out, out_stride)
                if not whole:
                    for t in range(size):
                        for row in range(here):
                            ops.store(y + (token + t) * y_stride + 4 * (first + row), buffer[t, row])
                token += size

    return run


def build(spec: BuildSpec) -> Run:
    """Builder for many tokens: ``run(x, weight, y, workspace, threads)``, four token rows at a time.

    ``x`` fp32 ``[R, K]``, ``weight`` uint8 ``[N, row_bytes]`` as stored, ``y`` fp32 ``[R, N]``, ``workspace`` uint8 for
    the quantized activations (see ``gemm.packed.workspace_bytes``).
    """
    return unpacked_gemm(spec.dtypes["weight"], host_form(spec.isa), spec.dims["N"], spec.dims["K"])


def build_repacking(spec: BuildSpec) -> Run:
    """Builder for many tokens: as ``build``, with `REPACKED_GROUPS` packed groups a thread behind the
    activations in ``workspace``, at a multiple of 64 bytes. Few tokens go through the four-row form.
    """
    return unpacked_gemm(spec.dtypes["weight"], host_form(spec.isa), spec.dims["N"], spec.dims["K"], repack=True)


def build_per_row(spec: BuildSpec) -> Run:
    """Builder of the per-row form (decode): as ``build``, one token row at a time."""
    return unpacked_gemm(spec.dtypes["weight"], host_form(spec.isa), spec.dims["N"], spec.dims["K"], together=False)


def unpacked_gemm(name: str, form: Form, rows: int, values: int, together: bool = True, repack: bool = False) -> Run:
    """``build`` for a given format and sizes."""
    fmt = STORED_FORMATS[name]
    leg = StaticType((name, row_form(form).name, "m4" if together else "m1", form.name if repack else ""))
    task = native_address(rows_task, leg, *[types.int64] * 4)
    call = sealed(args.gemm_entry, *args.ENTRY_ARGUMENTS)
    blocks = values // fmt.packed.values

    def run(x: npt.NDArray[np.float32], weight: npt.NDArray[np.uint8], y: npt.NDArray[np.float32],
            workspace: npt.NDArray[np.uint8], threads: int) -> int:  # fmt: skip
        x = args.contiguous_rows(x)
        return args.outcome(call(x, weight, y, workspace, rows, blocks, task, POOL.control(threads), threads), y)

    return run
