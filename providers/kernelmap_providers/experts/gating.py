"""Legs: from the gate and up rows to the intermediate. Formulas: NUMERICS, the contract's ``swiglu``."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernelmap_providers import lanes
from kernelmap_providers.elementary import ONE, ZERO
from kernelmap_providers.experts import words as at
from kernelmap_providers.experts.legs import LEG_ARGUMENTS
from kernelmap_providers.jit.compile import entry, inlined, jit, native_address
from kernelmap_providers.jit.generic import generic
from kernelmap_providers.memory import word
from kernelmap_providers.simd import ops
from kernelmap_providers.simd.static import StaticType
from kernelmap_providers.simd.vectors import F32X8, I32X8

LANES = 8

PARAMETERS = {"ggml": (), "clamped": ("alpha", "limit"), "situ": ("beta", "linear_beta"), "relu_squared": ()}
"""Contract parameters of each function, in the order of its words."""

GATELESS = ("relu_squared",)
"""Functions of up alone: blocks without a gate matrix may have them."""


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
    raise NotImplementedError("called from jitted code only")


@generic(activate_row)
def _activate_row(kind: Any, words: Any, values: Any) -> Any:
    if kind.parts[0] == "ggml":
        return lambda kind, words, values: swiglu_row(words, values)
    if kind.parts[0] == "relu_squared":
        return lambda kind, words, values: relu_squared_row(words, values)
    return lambda kind, words, values: gated_row(kind, words, values)


@jit
def swiglu_row(words: int, values: int) -> None:
    """silu(gate) * up."""
    gate, up, out = word(words + at.LEG_GATE), word(words + at.LEG_UP), word(words + at.LEG_OUT)
    one = ops.fill(F32X8, ONE)
    for i in range(0, values, LANES):
        g, u = ops.load(F32X8, gate + 4 * i), ops.load(F32X8, up + 4 * i)
        grown = ops.add(one, lanes.exp(F32X8, I32X8, lanes.negated(F32X8, I32X8, g)))
        ops.store(out + 4 * i, ops.mul(ops.div(g, grown), u))


@jit
def relu_squared_row(words: int, values: int) -> None:
    """`relu_squared` of up and its bias; a gate is not read."""
    up, up_bias, out = word(words + at.LEG_UP), word(words + at.LEG_UP_BIAS), word(words + at.LEG_OUT)
    for i in range(0, values, LANES):
        u = biased(ops.load(F32X8, up + 4 * i), up_bias, i, values, words + at.TAIL)
        ops.store(out + 4 * i, relu_squared(u))


@jit
def gated_row(kind: Any, words: int, values: int) -> None:
    """The function that ``kind`` names of gate and up, each with its bias."""
    gate, up, out = word(words + at.LEG_GATE), word(words + at.LEG_UP), word(words + at.LEG_OUT)
    gate_bias, up_bias = word(words + at.LEG_GATE_BIAS), word(words + at.LEG_UP_BIAS)
    params, tail = word(words + at.LEG_PARAMETERS), words + at.TAIL
    first, second = ops.load_f32(params), ops.load_f32(params + 4)
    for i in range(0, values, LANES):
        g = biased(ops.load(F32X8, gate + 4 * i), gate_bias, i, values, tail)
        u = biased(ops.load(F32X8, up + 4 * i), up_bias, i, values, tail)
        ops.store(out + 4 * i, activation(kind, g, u, ops.fill(F32X8, first), ops.fill(F32X8, second)))


@inlined
def biased(x: Any, bias: int, first: int, values: int, tail: int) -> Any:
    """``x`` plus biases from ``first`` on; ``x`` itself if there are none (address 0)."""
    return ops.add(x, lanes.load_within(bias, first, values, tail)) if bias else x


@inlined
def clamped(g: Any, u: Any, alpha: Any, limit: Any) -> Any:
    """g * sigmoid(alpha g) * (u + 1) with g at most ``limit`` and u within it. A NaN stays one."""
    lower = lanes.negated(F32X8, I32X8, limit)
    g = ops.select(ops.less(limit, g), limit, g)
    u = ops.select(ops.less(limit, u), limit, u)
    u = ops.select(ops.less(u, lower), lower, u)
    shifted = ops.add(u, ops.fill(F32X8, ONE))
    return ops.mul(ops.mul(g, lanes.sigmoid(F32X8, I32X8, ops.mul(alpha, g))), shifted)


@inlined
def situ(g: Any, u: Any, beta: Any, linear_beta: Any) -> Any:
    """beta tanh(g / beta) sigmoid(g) * linear_beta tanh(u / linear_beta)."""
    bent = ops.mul(beta, lanes.tanh(F32X8, I32X8, ops.div(g, beta)))
    straight = ops.mul(linear_beta, lanes.tanh(F32X8, I32X8, ops.div(u, linear_beta)))
    return ops.mul(ops.mul(bent, lanes.sigmoid(F32X8, I32X8, g)), straight)


@inlined
def relu_squared(u: Any) -> Any:
    """max(u, 0) squared. A NaN stays one."""
    zero = ops.fill(F32X8, ZERO)
    u = ops.select(ops.less(u, zero), zero, u)
    return ops.mul(u, u)


FUNCTIONS = {"clamped": clamped, "situ": situ}


def activation(kind: Any, g: Any, u: Any, first: Any, second: Any) -> Any:
    """The function of two parameters that ``kind`` names, on eight lanes."""
    raise NotImplementedError("called from jitted code only")


@generic(activation)
def _activation(kind: Any, g: Any, u: Any, first: Any, second: Any) -> Any:
    function = FUNCTIONS[kind.parts[0]]
    return lambda kind, g, u, first, second: function(g, u, first, second)
