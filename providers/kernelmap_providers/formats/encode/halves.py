"""Scales as fp16: super-blocks brought to unit size for the search, and their scales rounded back."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernelmap_providers.formats.bits import Array, Floats

SMALLEST = 2.0**-24
"""The smallest positive fp16, a subnormal."""

NORMAL = 2.0**-14
"""The smallest normal fp16."""


def unit(blocks: Floats) -> tuple[Floats, Array]:
    """(blocks ``[n, values]`` divided by 2**e so that the largest magnitude is in [1/2, 1), e int ``[n]``), exactly.

    Squares of the search then neither overflow nor vanish. A block below half the smallest fp16 scale becomes zero,
    which is its nearest decodable block.
    """
    largest = np.abs(blocks).max(axis=-1)
    largest = np.where(largest < SMALLEST / 2, np.float32(0), largest)
    _, exponent = np.frexp(largest)
    scaled = np.ldexp(blocks, -exponent[:, None])
    return np.where(largest[:, None] == 0, np.float32(0), scaled), exponent


def rounded(scale: Array, exponent: Array, *, up: bool) -> Array:
    """fp64 ``[n]``: ``scale`` such that ``scale * 2**exponent`` is an fp16 number; infinite beyond fp16.

    To nearest, ties to even. With ``up``, a subnormal is rounded away from zero: a subnormal scale that is rounded
    down can lose a third of itself, and with it the largest values.
    """
    true = np.ldexp(scale.astype(np.float64), exponent)
    with np.errstate(over="ignore"):
        stored = true.astype(np.float16)
    if up:
        low = (np.abs(true) < NORMAL) & (np.abs(stored) < np.abs(true))
        away = np.nextafter(stored, np.copysign(np.float16(np.inf), true.astype(np.float32)).astype(np.float16))
        stored = np.where(low, away, stored)
    return np.ldexp(stored.astype(np.float64), -exponent)


def ratio(above: Array, below: Array) -> Any:
    """``above / below``, and 0 where ``below`` is 0 or infinite."""
    fine = (below != 0) & np.isfinite(below)
    return np.divide(above, np.where(fine, below, 1)) * fine
