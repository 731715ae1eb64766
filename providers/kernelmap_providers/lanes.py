"""``reference.elementary`` on whole vectors: the same operations in the same order, so the same bits.

``floats`` and ``ints`` are the kinds of as many fp32 and int32 lanes (``vectors.F32X8`` and ``I32X8``, or 16 of each).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernelmap_providers import elementary as scalar
from kernelmap_providers.jit.compile import inlined
from kernelmap_providers.simd import ops
from kernelmap_providers.simd.vectors import F32X8

SIGN = np.int32(-0x80000000)
MAGNITUDE = np.int32(0x7FFFFFFF)
BIAS = np.int32(127)
HIGH, LOW, LOG2_E = scalar.EXP_HIGH, scalar.EXP_LOW, scalar.LOG2_E
LN2_HIGH, LN2_LOW, ROUNDER = scalar.LN2_HIGH, scalar.LN2_LOW, scalar.ROUNDER
P0, P1, P2, P3, P4, P5 = scalar.P0, scalar.P1, scalar.P2, scalar.P3, scalar.P4, scalar.P5
T0, T1, T2, T3, T4 = scalar.T0, scalar.T1, scalar.T2, scalar.T3, scalar.T4
ZERO, ONE, TWO, TANH_SMALL = scalar.ZERO, scalar.ONE, scalar.TWO, scalar.TANH_SMALL


@inlined
def power_of_two(floats: Any, ints: Any, exponent: Any) -> Any:
    """2**exponent for -126 <= exponent <= 127."""
    return ops.reinterpret(floats, ops.shift_left(ops.add(exponent, ops.fill(ints, BIAS)), 23))


@inlined
def step(floats: Any, p: Any, r: Any, coefficient: Any) -> Any:
    """p * r + coefficient, each rounded."""
    return ops.add(ops.mul(p, r), ops.fill(floats, coefficient))


@inlined
def negated(floats: Any, ints: Any, x: Any) -> Any:
    """-x, also of zeros and NaN."""
    return ops.reinterpret(floats, ops.bit_xor(ops.reinterpret(ints, x), ops.fill(ints, SIGN)))


@inlined
def exp(floats: Any, ints: Any, x: Any) -> Any:
    """``elementary.exp32``; NaN stays NaN."""
    high, low = ops.fill(floats, HIGH), ops.fill(floats, LOW)
    x = ops.select(ops.less(high, x), high, x)
    x = ops.select(ops.less(x, low), low, x)
    return exp_within(floats, ints, x, ops.select(ops.equal(x, x), x, ops.fill(floats, ZERO)))


@inlined
def exp_not_positive(floats: Any, ints: Any, x: Any) -> Any:
    """`exp` of lanes that are neither positive nor NaN."""
    x = ops.maximum(x, ops.fill(floats, LOW))
    return exp_within(floats, ints, x, x)


@inlined
def exp_within(floats: Any, ints: Any, x: Any, known: Any) -> Any:
    """exp of lanes within its limits or NaN; ``known`` are the same lanes with a number in the place of a NaN."""
    rounder = ops.fill(floats, ROUNDER)
    n = ops.sub(ops.add(ops.mul(known, ops.fill(floats, LOG2_E)), rounder), rounder)
    r = ops.sub(x, ops.mul(n, ops.fill(floats, LN2_HIGH)))
    r = ops.sub(r, ops.mul(n, ops.fill(floats, LN2_LOW)))
    p = step(floats, ops.fill(floats, P0), r, P1)
    p = step(floats, step(floats, p, r, P2), r, P3)
    p = step(floats, step(floats, p, r, P4), r, P5)
    y = ops.add(ops.add(ops.mul(p, ops.mul(r, r)), r), ops.fill(floats, ONE))
    power = ops.convert(ints, n)
    first = ops.shift_right_signed(power, 1)
    y = ops.mul(y, power_of_two(floats, ints, first))
    return ops.mul(y, power_of_two(floats, ints, ops.sub(power, first)))


@inlined
def sigmoid(floats: Any, ints: Any, x: Any) -> Any:
    """``elementary.sigmoid32``."""
    one = ops.fill(floats, ONE)
    return ops.div(one, ops.add(one, exp(floats, ints, negated(floats, ints, x))))


@inlined
def tanh(floats: Any, ints: Any, x: Any) -> Any:
    """``reference.elementary.tanh32``: both of its branches, then the one that the magnitude asks for."""
    magnitude = ops.reinterpret(floats, ops.bit_and(ops.reinterpret(ints, x), ops.fill(ints, MAGNITUDE)))
    z = ops.mul(x, x)
    p = step(floats, ops.fill(floats, T0), z, T1)
    p = step(floats, step(floats, step(floats, p, z, T2), z, T3), z, T4)
    small = ops.add(ops.mul(ops.mul(p, z), x), x)
    one = ops.fill(floats, ONE)
    grown = ops.add(exp(floats, ints, ops.add(magnitude, magnitude)), one)
    y = ops.sub(one, ops.div(ops.fill(floats, TWO), grown))
    large = ops.select(ops.less(x, ops.fill(floats, ZERO)), negated(floats, ints, y), y)
    return ops.select(ops.less(magnitude, ops.fill(floats, TANH_SMALL)), small, large)


@inlined
def load_within(row: int, first: int, count: int, spare: int) -> Any:
    """Values ``first`` to ``first + 7`` of a row of ``count`` fp32; nothing behind the row is read.

    ``spare`` is room for eight values, whose stale ones fill the lanes behind the row.
    """
    if first + 8 <= count:
        return ops.load(F32X8, row + 4 * first)
    for i in range(count - first):
        ops.store(spare + 4 * i, ops.load_f32(row + 4 * (first + i)))
    return ops.load(F32X8, spare)


@inlined
def store_within(row: int, first: int, count: int, spare: int, value: Any) -> None:
    """Store eight lanes as values ``first`` to ``first + 7`` of a row; nothing behind it is written."""
    if first + 8 <= count:
        ops.store(row + 4 * first, value)
        return
    ops.store(spare, value)
    for i in range(count - first):
        ops.store(row + 4 * (first + i), ops.load_f32(spare + 4 * i))
