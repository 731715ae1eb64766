"""What routers do with a row: its logits padded, its largest, the rows of a thread, the selected weights."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from kernelmap_providers.jit.compile import inlined, jit
from kernelmap_providers.memory import word
from kernelmap_providers.routers import words as at
from kernelmap_providers.routers.topk import LANES, LOWEST, MAGNITUDE, key_of, score_of
from kernelmap_providers.routers.words import UNIT, padded
from kernelmap_providers.simd import ops
from kernelmap_providers.simd.vectors import F32X16, I32X16

CLAMP: Final = np.float32(6.103515625e-5)
"""2**-14, the least sum that llama.cpp divides by: the smallest normal fp16."""
EPS: Final = np.float32(1e-20)
INFINITY: Final = np.int32(0x7F800000)
MINUS_INFINITY: Final = np.float32(-np.inf)
RAW, CLAMPED, EPSILON, PLAIN = 0, 1, 2, 3
"""Weights as they are; divided by their sum, at least 2**-14; by their sum + 1e-20; by their plain sum."""


@inlined
def padded_row(values: int, experts: int, copy: int, fill: Any) -> int:
    """Address of a row of whole units with the values at ``values``: these, or a copy that ends with ``fill``."""
    if experts % UNIT == 0:
        return values
    whole = experts // LANES * LANES
    for i in range(0, whole, LANES):
        ops.store(copy + 4 * i, ops.load(F32X16, values + 4 * i))
    for i in range(whole, padded(experts), LANES):
        ops.store(copy + 4 * i, ops.fill(F32X16, fill))
    for i in range(whole, experts):
        ops.store(copy + 4 * i, ops.load_f32(values + 4 * i))
    return copy


@jit
def largest_or_nan(values: int, size: int) -> Any:
    """The largest of ``size`` values (whole units), or NaN if there is one."""
    most = other = ops.fill(F32X16, MINUS_INFINITY)
    worst = ops.fill(I32X16, np.int32(0))
    magnitude = ops.fill(I32X16, MAGNITUDE)
    for i in range(0, size, 2 * LANES):
        first, second = ops.load(F32X16, values + 4 * i), ops.load(F32X16, values + 4 * i + 4 * LANES)
        most, other = ops.maximum(first, most), ops.maximum(second, other)
        worst = ops.maximum(worst, ops.bit_and(ops.reinterpret(I32X16, first), magnitude))
        worst = ops.maximum(worst, ops.bit_and(ops.reinterpret(I32X16, second), magnitude))
    if ops.reduce_max(worst) > INFINITY:
        return np.float32(np.nan)
    return score_of(ops.reduce_max(ops.maximum(key_of(most), key_of(other))))


@inlined
def is_finite(value: Any) -> Any:
    """Whether an fp32 number is neither NaN nor infinite."""
    return value - value == np.float32(0.0)


@jit
def hide_padding(keys: int, experts: int) -> None:
    """The lowest key for padding."""
    for i in range(experts, padded(experts)):
        ops.store(keys + 4 * i, LOWEST)


@inlined
def gather(values: int, ids: int, count: int, out: int) -> None:
    """``out[slot] = values[ids[slot]]`` of 32 bits."""
    for slot in range(count):
        ops.store(out + 4 * slot, ops.load_f32(values + 4 * ops.load_i32(ids + 4 * slot)))


@inlined
def chain_sum(values: int, count: int) -> Any:
    """Sum of fp32 values in memory, from the first on."""
    total = np.float32(0.0)
    for slot in range(count):
        total = total + ops.load_f32(values + 4 * slot)
    return total


@jit
def renormalize(picked: int, count: int, rule: int, scale: Any, out: int) -> None:
    """Weights from the selected scores ``picked`` (readable to a multiple of 16): divided as ``rule`` says, scaled."""
    total = np.float32(1.0)
    if rule != RAW:
        total = chain_sum(picked, count)
    if rule == CLAMPED:
        total = max(total, CLAMP)
    elif rule == EPSILON:
        total = total + EPS
    divisor, factor = ops.fill(F32X16, total), ops.fill(F32X16, scale)
    for first in range(0, count, LANES):
        value = ops.load(F32X16, picked + 4 * first)
        if rule != RAW:
            value = ops.div(value, divisor)
        ops.store(picked + 4 * first, ops.mul(value, factor))
    for slot in range(count):
        ops.store(out + 4 * slot, ops.load_f32(picked + 4 * slot))


@inlined
def row_of(call: int, row: int) -> Any:
    """(logits, indices, weights): addresses of a row."""
    slots = word(call + at.SLOTS)
    return (
        word(call + at.LOGITS) + row * word(call + at.LOGITS_STRIDE),
        word(call + at.INDICES) + 4 * row * slots,
        word(call + at.WEIGHTS) + 4 * row * slots,
    )


@inlined
def part_of(call: int, index: int) -> Any:
    """Address of a thread's scratch."""
    units = padded(word(call + at.EXPERTS)) // UNIT
    return word(call + at.WORKERS) + index * (at.WORKER_BYTES + at.UNIT_BYTES * units)
