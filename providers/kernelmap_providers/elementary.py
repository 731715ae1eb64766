"""fp32 elementary functions and fixed-order sums for plain kernels: the jitted statement of what the oracles compute.

The arithmetic is that of ``reference.elementary`` operation by operation; tests compare the bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernelmap_providers.jit.compile import jit

F32, I32 = np.float32, np.int32
EXP_HIGH, EXP_LOW = F32(89.0), F32(-104.0)
LOG2_E = F32(1.44269504088896341)
LN2_HIGH, LN2_LOW = F32(0.693359375), F32(-2.12194440e-4)
P0, P1, P2 = F32(1.9875691500e-4), F32(1.3981999507e-3), F32(8.3334519073e-3)
P3, P4, P5 = F32(4.1665795894e-2), F32(1.6666665459e-1), F32(5.0000001201e-1)
ZERO, ONE = F32(0.0), F32(1.0)
TANH_SMALL, TWO = F32(0.625), F32(2.0)
T0, T1, T2 = F32(-5.70498872745e-3), F32(2.06390887954e-2), F32(-5.37397155531e-2)
T3, T4 = F32(1.33314422036e-1), F32(-3.33332819422e-1)
ROUNDER = F32(12582912.0)
"""1.5 * 2**23: adding and subtracting it rounds a magnitude below 2**22 to a whole number, ties to even."""


@jit
def rint32(x: Any) -> Any:
    """A magnitude below 2**22 rounded to a whole number, ties to even. Vectorises; a call of ``rint`` does not."""
    return (x + ROUNDER) - ROUNDER


@jit
def power_of_two(exponent: Any) -> Any:
    """2**exponent for -126 <= exponent <= 127."""
    return I32((exponent + I32(127)) << I32(23)).view(F32)


@jit
def exp32(x: Any) -> Any:
    """exp(x); see ``reference.elementary.exp32`` for source and error."""
    x = EXP_HIGH if x > EXP_HIGH else x
    x = EXP_LOW if x < EXP_LOW else x
    # A NaN must not reach the conversion to an integer, whose result LLVM leaves undefined; it stays in r.
    n = rint32((x if x == x else ZERO) * LOG2_E)
    r = x - n * LN2_HIGH
    r = r - n * LN2_LOW
    p = P0 * r + P1
    p = p * r + P2
    p = p * r + P3
    p = p * r + P4
    p = p * r + P5
    y = p * (r * r)
    y = y + r
    y = y + ONE
    power = I32(n)
    first = I32(power >> I32(1))
    return y * power_of_two(first) * power_of_two(I32(power - first))


@jit
def sigmoid32(x: Any) -> Any:
    """1 / (1 + exp(-x))."""
    return ONE / (ONE + exp32(-x))


@jit
def merge_lanes(a0: Any, a1: Any, a2: Any, a3: Any, a4: Any, a5: Any, a6: Any, a7: Any) -> Any:
    """((0+4)+(2+6)) + ((1+5)+(3+7))."""
    return ((a0 + a4) + (a2 + a6)) + ((a1 + a5) + (a3 + a7))
