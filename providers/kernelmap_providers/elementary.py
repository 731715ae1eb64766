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


@jit
def sum_lanes(x: Any) -> Any:
    """Sum of fp32 values ``[K]``: lane ``k % 8`` takes value k, ascending, then `merge_lanes`."""
    a0 = a1 = a2 = a3 = a4 = a5 = a6 = a7 = ZERO
    whole = len(x) // 8 * 8
    for k in range(0, whole, 8):
        a0, a1, a2, a3 = a0 + x[k], a1 + x[k + 1], a2 + x[k + 2], a3 + x[k + 3]
        a4, a5, a6, a7 = a4 + x[k + 4], a5 + x[k + 5], a6 + x[k + 6], a7 + x[k + 7]
    rest = len(x) - whole
    a0 = a0 + x[whole] if rest > 0 else a0
    a1 = a1 + x[whole + 1] if rest > 1 else a1
    a2 = a2 + x[whole + 2] if rest > 2 else a2
    a3 = a3 + x[whole + 3] if rest > 3 else a3
    a4 = a4 + x[whole + 4] if rest > 4 else a4
    a5 = a5 + x[whole + 5] if rest > 5 else a5
    a6 = a6 + x[whole + 6] if rest > 6 else a6
    return merge_lanes(a0, a1, a2, a3, a4, a5, a6, a7)


@jit
def dot_lanes(w: Any, x: Any) -> Any:
    """Dot of two fp32 rows ``[K]``: products rounded, summed as in `sum_lanes`."""
    a0 = a1 = a2 = a3 = a4 = a5 = a6 = a7 = ZERO
    whole = len(x) // 8 * 8
    for k in range(0, whole, 8):
        a0, a1 = a0 + w[k] * x[k], a1 + w[k + 1] * x[k + 1]
        a2, a3 = a2 + w[k + 2] * x[k + 2], a3 + w[k + 3] * x[k + 3]
        a4, a5 = a4 + w[k + 4] * x[k + 4], a5 + w[k + 5] * x[k + 5]
        a6, a7 = a6 + w[k + 6] * x[k + 6], a7 + w[k + 7] * x[k + 7]
    rest = len(x) - whole
    a0 = a0 + w[whole] * x[whole] if rest > 0 else a0
    a1 = a1 + w[whole + 1] * x[whole + 1] if rest > 1 else a1
    a2 = a2 + w[whole + 2] * x[whole + 2] if rest > 2 else a2
    a3 = a3 + w[whole + 3] * x[whole + 3] if rest > 3 else a3
    a4 = a4 + w[whole + 4] * x[whole + 4] if rest > 4 else a4
    a5 = a5 + w[whole + 5] * x[whole + 5] if rest > 5 else a5
    a6 = a6 + w[whole + 6] * x[whole + 6] if rest > 6 else a6
    return merge_lanes(a0, a1, a2, a3, a4, a5, a6, a7)


@jit
def tanh32(x: Any) -> Any:
    """tanh(x); see ``reference.elementary.tanh32`` for source and error."""
    magnitude = abs(x)
    if magnitude < TANH_SMALL:
        z = x * x
        p = T0 * z + T1
        p = p * z + T2
        p = p * z + T3
        p = p * z + T4
        return (p * z) * x + x
    y = ONE - TWO / (exp32(magnitude + magnitude) + ONE)
    return -y if x < ZERO else y
