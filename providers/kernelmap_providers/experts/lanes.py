"""``elementary.exp32`` and the SwiGLU on eight lanes: the same operations in the same order, so the same bits."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernelmap_providers import elementary as scalar
from kernelmap_providers.jit.compile import inlined
from kernelmap_providers.simd import ops
from kernelmap_providers.simd.vectors import F32X8, I32X8

SIGN = np.int32(-0x80000000)
BIAS = np.int32(127)
HIGH, LOW, LOG2_E = scalar.EXP_HIGH, scalar.EXP_LOW, scalar.LOG2_E
LN2_HIGH, LN2_LOW, ROUNDER = scalar.LN2_HIGH, scalar.LN2_LOW, scalar.ROUNDER
P0, P1, P2, P3, P4, P5 = scalar.P0, scalar.P1, scalar.P2, scalar.P3, scalar.P4, scalar.P5
ZERO, ONE = scalar.ZERO, scalar.ONE


@inlined
def power_of_two(exponent: Any) -> Any:
    """2**exponent for -126 <= exponent <= 127."""
    return ops.reinterpret(F32X8, ops.shift_left(ops.add(exponent, ops.fill(I32X8, BIAS)), 23))


@inlined
def step(p: Any, r: Any, coefficient: Any) -> Any:
    """p * r + coefficient, each rounded."""
    return ops.add(ops.mul(p, r), ops.fill(F32X8, coefficient))


@inlined
def exp8(x: Any) -> Any:
    """exp of eight values; NaN stays NaN."""
    high, low = ops.fill(F32X8, HIGH), ops.fill(F32X8, LOW)
    x = ops.select(ops.less(high, x), high, x)
    x = ops.select(ops.less(x, low), low, x)
    rounder = ops.fill(F32X8, ROUNDER)
    known = ops.select(ops.equal(x, x), x, ops.fill(F32X8, ZERO))
    n = ops.sub(ops.add(ops.mul(known, ops.fill(F32X8, LOG2_E)), rounder), rounder)
    r = ops.sub(x, ops.mul(n, ops.fill(F32X8, LN2_HIGH)))
    r = ops.sub(r, ops.mul(n, ops.fill(F32X8, LN2_LOW)))
    p = step(ops.fill(F32X8, P0), r, P1)
    p = step(step(step(step(p, r, P2), r, P3), r, P4), r, P5)
    y = ops.add(ops.add(ops.mul(p, ops.mul(r, r)), r), ops.fill(F32X8, ONE))
    power = ops.convert(I32X8, n)
    first = ops.shift_right_signed(power, 1)
    return ops.mul(ops.mul(y, power_of_two(first)), power_of_two(ops.sub(power, first)))


@inlined
def swiglu8(gate: int, up: int, out: int) -> None:
    """``out = silu(gate) * up`` for eight values at each address."""
    g, u = ops.load(F32X8, gate), ops.load(F32X8, up)
    negative = ops.reinterpret(F32X8, ops.bit_xor(ops.reinterpret(I32X8, g), ops.fill(I32X8, SIGN)))
    ops.store(out, ops.mul(ops.div(g, ops.add(ops.fill(F32X8, ONE), exp8(negative))), u))
