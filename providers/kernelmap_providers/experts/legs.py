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
from kernelmap_providers.experts.streaming import STREAM_TOKENS, stream
from kernelmap_providers.gemm.panels import panel, panel_shape
from kernelmap_providers.gemm.stored import STORED_FORMATS
from kernelmap_providers.gemm.unpacked import REPACK_FROM, REPACKED_GROUPS
from kernelmap_providers.jit.compile import entry, inlined, native_address
from kernelmap_providers.jit.generic import generic
from kernelmap_providers.memory import word
from kernelmap_providers.packed.layouts import PACKED_FORMATS, PACKED_OF, group_stride, pack_groups
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
    """Address of the dots with rows as stored. Raises ValueError for a format without a leg.

    Many tokens meet rows that are packed as they come, where the schedule gives room for them (`pack_room`).
    """
    if weight != "fp32" and weight not in STORED_FORMATS:
        raise ValueError(f"no leg dots {weight} weights as stored")
    return native_address(dots_entry, StaticType(("rows", weight, form.name)), *LEG_ARGUMENTS)


def pack_room(weight: str, values: int) -> int:
    """Bytes that the leg of rows as stored packs at once: `REPACKED_GROUPS` groups of rows of so many values."""
    if weight == "fp32":
        return 0
    return REPACKED_GROUPS * PACKED_OF[weight].group_bytes(values)


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
    raise NotImplementedError("called from jitted code only")


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
    raise NotImplementedError("called from jitted code only")


@generic(dots)
def _dots(leg: Any, words: Any) -> Any:
    kind, name, form = (str(part) for part in leg.parts)
    if kind == "packed":
        return _packed(name, form)
    return _floats() if name == "fp32" else _stored(name, FORMS[form])


def _stored(name: str, form: Form) -> Any:
    eight = kernel.rows(STORED_FORMATS[name], row_form(form), 1)
    block, layout = STORED_FORMATS[name].act.bytes, Static(PACKED_OF[name].name)
    tiles, together = Static(PACKED_OF[name].name, form.name, "i"), panel_shape(form).vectors * form.lanes

    def run(leg: Any, words: Any) -> None:
        stride, rows = word(words + at.LEG_WEIGHT_STRIDE), word(words + at.LEG_ROWS)
        weights = word(words + at.LEG_WEIGHTS) + word(words + at.LEG_FIRST) * stride
        act_stride = word(words + at.LEG_ACT_STRIDE)
        packed = word(words + at.LEG_PACKED)
        if packed and word(words + at.LEG_TOKENS) >= REPACK_FROM:
            blocks = act_stride // block
            group = group_stride(layout, blocks)
            for row in range(0, rows, together):
                here = min(together, rows - row)
                pack_groups(layout, weights + row * stride, stride, here, blocks, packed, group)
                panels(tiles, words, packed, group, (here + 7) // 8, 4 * row)
            return
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
    """Dot of two fp32 rows at addresses by the 8-lane rule (``reference.elementary.dot_lanes``)."""
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
    tiles, block = Static(layout, form_name, "i"), PACKED_FORMATS[layout].act.bytes

    def run(leg: Any, words: Any) -> None:
        stride, tokens = word(words + at.LEG_WEIGHT_STRIDE), word(words + at.LEG_TOKENS)
        w = word(words + at.LEG_WEIGHTS) + word(words + at.LEG_FIRST) // 8 * stride
        groups = (word(words + at.LEG_ROWS) + 7) // 8
        if tokens > STREAM_TOKENS:
            panels(tiles, words, w, stride, groups, 0)
            return
        a, a_index = word(words + at.LEG_ACTS), word(words + at.LEG_ACT_INDEX)
        a_stride = word(words + at.LEG_ACT_STRIDE)
        o, o_index, o_stride = word(words + at.LEG_OUT), word(words + at.LEG_OUT_INDEX), word(words + at.LEG_OUT_STRIDE)
        for group in range(groups):
            stream(tiles, w + group * stride, stride, a_stride // block, a, a_index, a_stride,
                   o + 4 * GROUP_ROWS * group, o_index, o_stride, tokens)  # fmt: skip

    return run


def panels(tiles: Any, words: Any, weights: Any, stride: Any, groups: Any, offset: Any) -> None:
    """Dots of the named tokens with packed groups, to the output rows from byte ``offset`` on. Jitted code only."""
    raise NotImplementedError("called from jitted code only")


@generic(panels)
def _panels(tiles: Any, words: Any, weights: Any, stride: Any, groups: Any, offset: Any) -> Any:
    form, block = FORMS[str(tiles.parts[1])], PACKED_FORMATS[str(tiles.parts[0])].act.bytes
    many, one = Static(panel_shape(form).vectors), Static(1)
    many_vectors, lanes, joined = panel_shape(form).vectors, form.lanes, form.lanes // GROUP_ROWS

    def run(tiles: Any, words: Any, weights: Any, stride: Any, groups: Any, offset: Any) -> None:
        a, a_index = word(words + at.LEG_ACTS), word(words + at.LEG_ACT_INDEX)
        a_stride, tokens = word(words + at.LEG_ACT_STRIDE), word(words + at.LEG_TOKENS)
        o_index, o_stride = word(words + at.LEG_OUT_INDEX), word(words + at.LEG_OUT_STRIDE)
        o, blocks = word(words + at.LEG_OUT) + offset, a_stride // block
        v = 0
        while v + many_vectors <= groups // joined:
            panel(tiles, many, weights + v * joined * stride, stride, blocks, a, a_index, a_stride, o + 4 * lanes * v,
                  o_index, o_stride, 0, tokens)  # fmt: skip
            v += many_vectors
        while v * joined < groups:
            # Where a vector joins two groups and only one is left, that one stands in for the second.
            here = stride if (v + 1) * joined <= groups else 0
            panel(tiles, one, weights + v * joined * stride, here, blocks, a, a_index, a_stride, o + 4 * lanes * v,
                  o_index, o_stride, 0, tokens)  # fmt: skip
            v += 1

    return run
