"""Activation legs and merges on vectors: the oracles' bits for floats of every exponent, any length, with biases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kernelmap_providers import lanes
from kernelmap_providers.experts import gating
from kernelmap_providers.experts import words as at
from kernelmap_providers.jit.compile import jit
from kernelmap_providers.reference import elementary, experts
from kernelmap_providers.simd import ops
from kernelmap_providers.simd.static import Static
from kernelmap_providers.simd.vectors import F32X8, F32X16, I32X8, I32X16

Array = np.ndarray[Any, Any]
F32 = np.float32
PARAMETERS = {"ggml": (0, 0), "clamped": (1.702, 7.0), "situ": (4.0, 25.0), "relu_squared": (0, 0)}
ORACLES: dict[str, Callable[..., Array]] = {
    "ggml": lambda g, u: elementary.swiglu(g, u),
    "clamped": lambda g, u: experts.clamped_swiglu(g, u, F32(1.702), F32(7.0)),
    "situ": lambda g, u: experts.situ_glu(g, u, F32(4.0), F32(25.0)),
    "relu_squared": lambda g, u: experts.relu_squared(u),
}
SPECIAL = np.array([0.0, -0.0, 0.625, -0.625, 7.0, -7.0, 1e-45, -1e-45, 3e38, -3e38, np.inf, -np.inf], F32)


def every_exponent() -> Array:
    """Floats all over the range, and the places where formulas change."""
    bits = np.arange(0, 2**32, 1_048_573, np.uint64).astype(np.uint32)
    values = np.concatenate([bits.view(F32), SPECIAL, np.linspace(-100, 100, 4001, dtype=F32)])
    return values[: len(values) // 8 * 8]


def activated(kind: str, gate: Array, up: Array, gate_bias: Array | None, up_bias: Array | None) -> Array:
    """The leg's output row, with canaries behind biases; rows may be used up to a multiple of 16."""
    values = len(up)
    words = np.zeros(at.LEG_BYTES // 8, np.int64)
    rows = [np.pad(row, (0, 16), constant_values=F32(1)) for row in (gate, up)]
    params = np.array(PARAMETERS[kind], F32)
    biases = [
        bias if bias is None else np.append(bias, np.full(8, np.nan, F32))[:values] for bias in (gate_bias, up_bias)
    ]
    places = (at.LEG_GATE, rows[0]), (at.LEG_UP, rows[1]), (at.LEG_OUT, rows[0]), (at.LEG_PARAMETERS, params)
    for place, array in (*places, (at.LEG_GATE_BIAS, biases[0]), (at.LEG_UP_BIAS, biases[1])):
        words[place // 8] = 0 if array is None else array.ctypes.data
    assert gating.activate_entry(Static(kind), words.ctypes.data, 0, values, 0) == 0
    return rows[0][:values]


def same_bits(made: Array, expected: Array) -> bool:
    """Equal bytes, where any NaN is as good as another."""
    both = np.isnan(made) & np.isnan(expected)
    return bool((both | (made.view(np.uint32) == np.asarray(expected, F32).view(np.uint32))).all())


@pytest.mark.parametrize("kind", gating.PARAMETERS)
def test_legs_have_the_oracles_bits(kind: str) -> None:
    gate = every_exponent()
    up = np.random.default_rng(0).permutation(gate)
    with np.errstate(all="ignore"):
        expected = ORACLES[kind](gate, up)
    assert same_bits(activated(kind, gate, up, None, None), expected)


@pytest.mark.parametrize("kind", ["clamped", "situ", "relu_squared"])
@pytest.mark.parametrize("values", [1, 7, 8, 9, 31, 32, 45])
def test_biases_join_whole_vectors_and_tails(kind: str, values: int) -> None:
    gate, up, gate_bias, up_bias = np.random.default_rng(values).standard_normal((4, values)).astype(F32) * F32(9)
    for first, second in ((gate_bias, up_bias), (None, up_bias), (gate_bias, None), (None, None)):
        g = gate if first is None else gate + first
        u = up if second is None else up + second
        assert same_bits(activated(kind, gate, up, first, second), ORACLES[kind](g, u))


@jit
def _each(floats: Any, ints: Any, x: int, out: int, values: int, width: int) -> None:
    for i in range(0, values, width):
        ops.store(out + 4 * i, lanes.exp(floats, ints, ops.load(floats, x + 4 * i)))


@jit
def _each_not_positive(floats: Any, ints: Any, x: int, out: int, values: int, width: int) -> None:
    for i in range(0, values, width):
        ops.store(out + 4 * i, lanes.exp_not_positive(floats, ints, ops.load(floats, x + 4 * i)))


@pytest.mark.parametrize(("floats", "ints", "width"), [(F32X8, I32X8, 8), (F32X16, I32X16, 16)])
def test_exp_of_either_width_has_the_oracles_bits(floats: Static, ints: Static, width: int) -> None:
    x = np.append(every_exponent(), np.full(8, -104.5, F32))
    x = x[: len(x) // 16 * 16]
    out = np.empty_like(x)
    _each(floats, ints, x.ctypes.data, out.ctypes.data, len(x), width)
    with np.errstate(all="ignore"):
        assert same_bits(out, elementary.exp32(x))
        x = -abs(np.where(np.isnan(x), F32(0), x))
        _each_not_positive(floats, ints, x.ctypes.data, out.ctypes.data, len(x), width)
        assert same_bits(out, elementary.exp32(x))
    assert (out[x < -104] == 0).all()
