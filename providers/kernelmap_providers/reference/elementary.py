"""Elementary functions and fixed-order sums in fp32, every operation rounded by itself."""

from __future__ import annotations

from typing import Any

import numpy as np

Floats = np.ndarray[Any, np.dtype[np.float32]]
F32 = np.float32

EXP_HIGH, EXP_LOW = F32(89.0), F32(-104.0)
"""Beyond these the result is infinite, or rounds to zero."""
LOG2_E = F32(1.44269504088896341)
LN2_HIGH, LN2_LOW = F32(0.693359375), F32(-2.12194440e-4)
"""ln 2 in two parts; the first has nine bits, so that n * LN2_HIGH is exact."""
EXP_POLYNOMIAL = tuple(
    F32(c)
    for c in (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
)
"""(exp(r) - 1 - r) / r**2 on |r| <= ln(2) / 2, highest power first. Source: Cephes, single/expf.c (S. L. Moshier)."""


def exp32(x: Floats) -> Floats:
    """exp of fp32 values; error below 1 ulp (0.97 measured over the whole range, subnormal results included).

    exp(-inf) = 0, exp(inf) = inf, NaN stays NaN.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # inf, and the quiet NaN that a signalling one becomes
        x = np.where(x > EXP_HIGH, EXP_HIGH, x)
        x = np.where(x < EXP_LOW, EXP_LOW, x)
        n = np.rint(np.where(np.isnan(x), F32(0), x) * LOG2_E)
        r = x - n * LN2_HIGH
        r = r - n * LN2_LOW
        p: Any = EXP_POLYNOMIAL[0]
        for coefficient in EXP_POLYNOMIAL[1:]:
            p = p * r + coefficient
        y: Any = p * (r * r)
        y = y + r
        y = y + F32(1)
        power = n.astype(np.int32)
        first = power >> 1
        result: Floats = y * _power_of_two(first) * _power_of_two(power - first)
    return result


def _power_of_two(exponent: np.ndarray[Any, np.dtype[np.int32]]) -> Floats:
    return ((exponent + 127) << 23).view(np.float32)


def sigmoid(x: Floats) -> Floats:
    """1 / (1 + exp(-x))."""
    return F32(1) / (F32(1) + exp32(-x))


TANH_POLYNOMIAL = tuple(
    F32(c) for c in (-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1)
)
"""(tanh(x) - x) / x**3 in x**2 on |x| < 0.625, highest power first. Source: Cephes, single/tanhf.c (S. L. Moshier)."""


def tanh32(x: Floats) -> Floats:
    """tanh of fp32 values, NaN stays NaN: a polynomial below 0.625, above it sign(x) * (1 - 2 / (exp(2 |x|) + 1))."""
    with np.errstate(over="ignore", invalid="ignore"):
        magnitude = np.abs(x)
        z = x * x
        p: Any = TANH_POLYNOMIAL[0]
        for coefficient in TANH_POLYNOMIAL[1:]:
            p = p * z + coefficient
        small = (p * z) * x + x
        y = F32(1) - F32(2) / (exp32(magnitude + magnitude) + F32(1))
        result: Floats = np.where(magnitude < F32(0.625), small, np.where(x < 0, -y, y))
    return result


def swiglu(gate: Floats, up: Floats) -> Floats:
    """silu(gate) * up with silu(g) = g / (1 + exp(-g)); an infinite gate may give NaN."""
    with np.errstate(invalid="ignore", over="ignore"):
        return gate / (F32(1) + exp32(-gate)) * up


def merge_lanes(lanes: Floats) -> Floats:
    """((0+4)+(2+6)) + ((1+5)+(3+7)) of lanes ``[..., 8]``."""
    a = [lanes[..., i] for i in range(8)]
    merged: Floats = ((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7]))
    return merged


def sum_lanes(values: Floats) -> Floats:
    """Sum over the last axis: lane ``k % 8`` takes value k, ascending; then `merge_lanes`."""
    lanes = np.zeros((*values.shape[:-1], 8), np.float32)
    for k in range(values.shape[-1]):
        lanes[..., k % 8] = lanes[..., k % 8] + values[..., k]
    return merge_lanes(lanes)


def dot_lanes(weights: Floats, x: Floats) -> Floats:
    """Dots of weight rows ``[N, K]`` with one row ``[K]``: products rounded, then `sum_lanes`."""
    with np.errstate(over="ignore", invalid="ignore"):
        return sum_lanes(weights * x)
