"""Legs: quantizing rows and dotting weight rows with them, one compiled function a format, called by address.

Every leg is ``leg(static, words, a, b, _) -> int`` on the words of ``words``. Schedules know no format; legs know no
schedule. Weights come as stored (any strides), packed x8, or as plain fp32.
"""

from __future__ import annotations

from typing import Any

from numba import types

from kernelmap.vocabulary import FORMATS
from kernelmap_providers.elementary import ZERO, merge_lanes
from kernelmap_providers.experts import words as at
from kernelmap_providers.experts.words import word
from kernelmap_providers.gemm.panels import panel, panel_shape, single
from kernelmap_providers.gemm.stored import STORED_FORMATS
from kernelmap_providers.jit.compile import entry, inlined, native_address
from kernelmap_providers.jit.generic import generic
from kernelmap_providers.packed.layouts import PACKED_FORMATS
from kernelmap_providers.quantize.layouts import ACT_LAYOUTS
from kernelmap_providers.quantize.rows import quantize_blocks
from kernelmap_providers.simd import kernel, ops
from kernelmap_providers.simd.block import GROUP_ROWS
from kernelmap_providers.simd.rows import row_form
from kernelmap_providers.simd.static import Static, StaticType
from kernelmap_providers.simd.target import FORMS, Form
from kernelmap_providers.simd.vectors import F32X8

LEG_ARGUMENTS = (types.int64,) * 4


def act_of(weight: str) -> tuple[int, int]:
    """(values, bytes) of a block of the activation format that ``weight`` takes. Raises ValueError if it has no leg."""
    act = FORMATS[weight].act
    if act == "fp32":
        return 1, 4
    if act not in ACT_LAYOUTS:
        raise ValueError(f"no leg dots {weight} weights: their partner is {act}")
    return ACT_LAYOUTS[act].values, ACT_LAYOUTS[act].bytes


def quantize_leg(weight: str) -> int:
    """Address of the leg that makes activation rows for ``weight``: ``(words, first block, last block) -> bad row``."""
    return native_address(quantize_entry, StaticType((str(FORMATS[weight].act),)), *LEG_ARGUMENTS)


def stored_leg(weight: str, form: Form) -> int:
    """Address of the dots with rows as stored. Raises ValueError for a format without a leg."""
    if weight == "fp32":
        return native_address(dots_entry, StaticType(("rows", "fp32", form.name)), *LEG_ARGUMENTS)
    if weight not in STORED_FORMATS:
        raise ValueError(f"no leg dots {weight} weights as stored")
    return native_address(dots_entry, StaticType(("rows", weight, row_form(form).name)), *LEG_ARGUMENTS)


def packed_leg(layout: str, form: Form) -> int:
    """Address of the dots with rows packed as ``layout``."""
    return native_address(dots_entry, StaticType(("packed", layout, form.name)), *LEG_ARGUMENTS)


@entry
def quantize_entry(act: Any, words: int, first: int, last: int, _: int) -> int:
    """Quantize blocks ``first`` to ``last - 1``, counted row by row. The least refused row, or NO_ROW."""
    x, stride = word(words + at.LEG_X), word(words + at.LEG_X_STRIDE)
    return quantize(act, x, stride, word(words + at.LEG_BLOCKS), word(words + at.LEG_OUT), first, last)


def quantize(act: Any, x: Any, stride: Any, blocks: Any, out: Any, first: Any, last: Any) -> int:
    """`quantize_blocks` in the activation format ``act``, or a checked copy for fp32."""
    raise NotImplementedError


@generic(quantize)
def _quantize(act: Any, x: Any, stride: Any, blocks: Any, out: Any, first: Any, last: Any) -> Any:
    if act.parts[0] == "fp32":
        return lambda act, x, stride, blocks, out, first, last: copy_finite(x, stride, blocks, out, first, last)
    return lambda act, x, stride, blocks, out, first, last: quantize_blocks(act, x, stride, blocks, out, first, last)


@inlined
def copy_finite(x: int, stride: int, values: int, out: int, first: int, last: int) -> Any:
    """fp32 stays as it is: values ``first`` to ``last - 1`` copied; the least row with a NaN or an infinity."""
    bad = at.NO_ROW
    for index in range(first, last):
        row = index // values
        value = ops.load_f32(x + row * stride + 4 * (index - row * values))
        ops.store(out + 4 * index, value)
        if value - value != ZERO and row < bad:
            bad = row
    return bad


@entry
def dots_entry(leg: Any, words: int, _first: int, _last: int, _: int) -> int:
    """Dots of all named tokens with a run of weight rows; an output row may be written up to a multiple of 16."""
    dots(leg, words)
    return 0


def dots(leg: Any, words: Any) -> None:
    """The dots of one leg; ``leg`` is ``Static("rows" or "packed", format or layout, form)``."""
    raise NotImplementedError


@generic(dots)
def _dots(leg: Any, words: Any) -> Any:
    kind, name, form = (str(part) for part in leg.parts)
    if kind == "packed":
        return _packed(name, form)
    return _floats() if name == "fp32" else _stored(name, form)


def _stored(name: str, form: str) -> Any:
    eight = kernel.rows(STORED_FORMATS[name], FORMS[form], 1)
    block = STORED_FORMATS[name].act.bytes

    def run(leg: Any, words: Any) -> None:
        stride, rows = word(words + at.LEG_WEIGHT_STRIDE), word(words + at.LEG_ROWS)
        weights = word(words + at.LEG_WEIGHTS) + word(words + at.LEG_FIRST) * stride
        act_stride = word(words + at.LEG_ACT_STRIDE)
        for token in range(word(words + at.LEG_TOKENS)):
            act = word(words + at.LEG_ACTS) + ops.load_i32(word(words + at.LEG_ACT_INDEX) + 4 * token) * act_stride
            place = ops.load_i32(word(words + at.LEG_OUT_INDEX) + 4 * token)
            out = word(words + at.LEG_OUT) + place * word(words + at.LEG_OUT_STRIDE)
            for row in range(0, rows, 8):
                w = weights + row * stride
                eight(w, stride, min(8, rows - row), act_stride // block, act, act_stride, out + 4 * row, 0)

    return run


def _floats() -> Any:
    def run(leg: Any, words: Any) -> None:
        stride, rows = word(words + at.LEG_WEIGHT_STRIDE), word(words + at.LEG_ROWS)
        weights = word(words + at.LEG_WEIGHTS) + word(words + at.LEG_FIRST) * stride
        act_stride = word(words + at.LEG_ACT_STRIDE)
        for token in range(word(words + at.LEG_TOKENS)):
            act = word(words + at.LEG_ACTS) + ops.load_i32(word(words + at.LEG_ACT_INDEX) + 4 * token) * act_stride
            place = ops.load_i32(word(words + at.LEG_OUT_INDEX) + 4 * token)
            out = word(words + at.LEG_OUT) + place * word(words + at.LEG_OUT_STRIDE)
            for row in range(rows):
                ops.store(out + 4 * row, dot_at(weights + row * stride, act, act_stride // 4))

    return run


@inlined
def dot_at(w: int, x: int, values: int) -> Any:
    """Dot of two fp32 rows at addresses by the 8-lane rule (``elementary.dot_lanes``)."""
    acc = ops.fill(F32X8, ZERO)
    whole = values // 8 * 8
    for k in range(0, whole, 8):
        acc = ops.add(acc, ops.mul(ops.load(F32X8, w + 4 * k), ops.load(F32X8, x + 4 * k)))
    a0, a1, a2, a3 = ops.lane(acc, 0), ops.lane(acc, 1), ops.lane(acc, 2), ops.lane(acc, 3)
    a4, a5, a6, a7 = ops.lane(acc, 4), ops.lane(acc, 5), ops.lane(acc, 6), ops.lane(acc, 7)
    rest = values - whole
    w += 4 * whole
    x += 4 * whole
    a0 = a0 + ops.load_f32(w) * ops.load_f32(x) if rest > 0 else a0
    a1 = a1 + ops.load_f32(w + 4) * ops.load_f32(x + 4) if rest > 1 else a1
    a2 = a2 + ops.load_f32(w + 8) * ops.load_f32(x + 8) if rest > 2 else a2
    a3 = a3 + ops.load_f32(w + 12) * ops.load_f32(x + 12) if rest > 3 else a3
    a4 = a4 + ops.load_f32(w + 16) * ops.load_f32(x + 16) if rest > 4 else a4
    a5 = a5 + ops.load_f32(w + 20) * ops.load_f32(x + 20) if rest > 5 else a5
    a6 = a6 + ops.load_f32(w + 24) * ops.load_f32(x + 24) if rest > 6 else a6
    return merge_lanes(a0, a1, a2, a3, a4, a5, a6, a7)


def _packed(layout: str, form_name: str) -> Any:
    form, act = FORMS[form_name], PACKED_FORMATS[layout].act
    shape = panel_shape(form)
    tiles, many, one, streams = Static(layout, form_name, "i"), Static(shape.vectors), Static(1), Static(shape.streams)
    many_vectors, stream_vectors = shape.vectors, shape.streams
    lanes, joined, block = form.lanes, form.lanes // GROUP_ROWS, act.bytes

    def run(leg: Any, words: Any) -> None:
        stride, tokens = word(words + at.LEG_WEIGHT_STRIDE), word(words + at.LEG_TOKENS)
        w = word(words + at.LEG_WEIGHTS) + word(words + at.LEG_FIRST) // 8 * stride
        a, a_index = word(words + at.LEG_ACTS), word(words + at.LEG_ACT_INDEX)
        a_stride = word(words + at.LEG_ACT_STRIDE)
        o, o_index, o_stride = word(words + at.LEG_OUT), word(words + at.LEG_OUT_INDEX), word(words + at.LEG_OUT_STRIDE)
        blocks = a_stride // block
        groups = (word(words + at.LEG_ROWS) + 7) // 8
        whole = groups // joined
        v = 0
        while tokens == 1 and v + stream_vectors <= whole:
            single(tiles, streams, w + v * joined * stride, stride, blocks, a, a_index, a_stride, o + 4 * lanes * v,
                   o_index, o_stride, 0)  # fmt: skip
            v += stream_vectors
        while v + many_vectors <= whole:
            panel(tiles, many, w + v * joined * stride, stride, blocks, a, a_index, a_stride, o + 4 * lanes * v,
                  o_index, o_stride, 0, tokens)  # fmt: skip
            v += many_vectors
        while v * joined < groups:
            # Where a vector joins two groups and only one is left, that one stands in for the second.
            here = stride if (v + 1) * joined <= groups else 0
            panel(tiles, one, w + v * joined * stride, here, blocks, a, a_index, a_stride, o + 4 * lanes * v, o_index,
                  o_stride, 0, tokens)  # fmt: skip
            v += 1

    return run
