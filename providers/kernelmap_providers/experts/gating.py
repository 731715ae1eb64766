"""Legs: from the gate and up rows to the intermediate. Formulas: NUMERICS, the contract's ``swiglu``."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernelmap_providers.elementary import F32, ONE, ZERO, sigmoid32, tanh32
from kernelmap_providers.experts import words as at
from kernelmap_providers.experts.lanes import swiglu8
from kernelmap_providers.experts.legs import LEG_ARGUMENTS
from kernelmap_providers.experts.words import word
from kernelmap_providers.jit.compile import entry, jit, native_address
from kernelmap_providers.jit.generic import generic
from kernelmap_providers.simd import ops
from kernelmap_providers.simd.static import StaticType

PARAMETERS = {"ggml": (), "clamped": ("alpha", "limit"), "situ": ("beta", "linear_beta"), "relu_squared": ()}
"""Contract parameters of each function, in the order of its words."""


def activation_leg(kind: str) -> int:
    """Address of ``(words, _, values)``: ``out[i] = f(gate[i] + its bias, up[i] + its bias)``.

    Raises ValueError for an unknown function.
    """
    if kind not in PARAMETERS:
        raise ValueError(f"unknown activation {kind!r}")
    return native_address(activate_entry, StaticType((kind,)), *LEG_ARGUMENTS)


def parameter_words(kind: str, params: Any) -> Any:
    """The four fp32 words of a contract's parameters."""
    values = np.zeros(4, np.float32)
    for place, name in enumerate(PARAMETERS[kind]):
        values[place] = params[name]
    return values.view(np.int64)


@entry
def activate_entry(kind: Any, words: int, _first: int, values: int, _: int) -> int:
    """``values`` values of one row; a row may be read and written up to a multiple of 16."""
    activate_row(kind, words, values)
    return 0


def activate_row(kind: Any, words: Any, values: Any) -> None:
    """One row by the function that ``kind`` names."""
    raise NotImplementedError


@generic(activate_row)
def _activate_row(kind: Any, words: Any, values: Any) -> Any:
    if kind.parts[0] == "ggml":
        return lambda kind, words, values: swiglu_row(words, values)
    return lambda kind, words, values: plain_row(kind, words, values)


@jit
def swiglu_row(words: int, values: int) -> None:
    """silu(gate) * up, eight lanes: value by value it took 6 ns each, a fifth of a small expert's time."""
    gate, up, out = word(words + at.LEG_GATE), word(words + at.LEG_UP), word(words + at.LEG_OUT)
    for i in range(0, values, 8):
        swiglu8(gate + 4 * i, up + 4 * i, out + 4 * i)


@jit
def plain_row(kind: Any, words: int, values: int) -> None:
    """Value by value; a gate or bias that does not exist counts as zero and is not read."""
    gate, up, out = word(words + at.LEG_GATE), word(words + at.LEG_UP), word(words + at.LEG_OUT)
    gate_bias, up_bias = word(words + at.LEG_GATE_BIAS), word(words + at.LEG_UP_BIAS)
    params = word(words + at.LEG_PARAMETERS)
    first, second = ops.load_f32(params), ops.load_f32(params + 4)
    for i in range(values):
        g = ops.load_f32(gate + 4 * i) if gate else ZERO
        u = ops.load_f32(up + 4 * i)
        if gate_bias:
            g = g + ops.load_f32(gate_bias + 4 * i)
        if up_bias:
            u = u + ops.load_f32(up_bias + 4 * i)
        ops.store(out + 4 * i, activation(kind, g, u, first, second))


@jit
def clamped(g: Any, u: Any, alpha: Any, limit: Any) -> Any:
    """g * sigmoid(alpha g) * (u + 1) with g at most ``limit`` and u within it. A NaN stays one."""
    g = limit if g > limit else g
    u = limit if u > limit else u
    u = -limit if u < -limit else u
    return (g * sigmoid32(alpha * g)) * (u + ONE)


@jit
def situ(g: Any, u: Any, beta: Any, linear_beta: Any) -> Any:
    """beta tanh(g / beta) sigmoid(g) * linear_beta tanh(u / linear_beta)."""
    return ((beta * tanh32(g / beta)) * sigmoid32(g)) * (linear_beta * tanh32(u / linear_beta))


@jit
def relu_squared(_g: Any, u: Any, _first: Any, _second: Any) -> Any:
    """max(u, 0) squared; no gate. A NaN stays one."""
    u = ZERO if u < ZERO else u
    return F32(u * u)


FUNCTIONS = {"clamped": clamped, "situ": situ, "relu_squared": relu_squared}


def activation(kind: Any, g: Any, u: Any, first: Any, second: Any) -> Any:
    """The function that ``kind`` names, of one value."""
    raise NotImplementedError


@generic(activation)
def _activation(kind: Any, g: Any, u: Any, first: Any, second: Any) -> Any:
    function = FUNCTIONS[kind.parts[0]]
    return lambda kind, g, u, first, second: function(g, u, first, second)
