"""Weight bytes for a corpus: any storage format, from its block's size and the places of its factors alone."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import numpy as np

from kernelmap.vocabulary import FORMATS

Array = np.ndarray[Any, Any]


class Style(StrEnum):
    """What bytes a corpus uses."""

    PLAIN = "plain"
    """Random codes, factors around 2^-9 of both signs."""
    EXTREME = "extreme"
    """Random codes; zero, subnormal, small and large factors beside one another."""
    SATURATING = "saturating"
    """All bits of every code set or, row by row, none: sums as large as the format allows."""
    EQUAL = "equal"
    """One code byte in a whole row."""


def random_weight(storage: str, rng: np.random.Generator, shape: tuple[int, ...], style: Style) -> Array:
    """uint8 rows ``[..., row_bytes]`` (or numbers, for a number type) that hold finite values of ``shape``."""
    known = FORMATS[storage]
    if storage in ("fp32", "fp16"):
        return numbers(rng, shape, style).astype(np.float32 if storage == "fp32" else np.float16)
    if storage == "bf16":
        return (numbers(rng, shape, style).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    blocks = (*shape[:-1], shape[-1] // known.block_values, known.block_bytes)
    raw = _codes(rng, blocks, style)
    for offset in known.halves:
        raw[..., offset : offset + 2] = _factors(rng, blocks[:-1], style)[..., None].view(np.uint8)
    if known.exponent is not None:
        spread = (0, 255) if style is Style.EXTREME else (112, 126)
        exponents = rng.integers(*spread, blocks[:-1], dtype=np.uint8)
        raw[..., known.exponent] = np.minimum(exponents, 160)  # beyond, sums overflow to infinity in every kernel
    return raw.reshape(*shape[:-1], -1)


def numbers(rng: np.random.Generator, shape: tuple[int, ...], style: Style) -> Array:
    """fp64 values: normal, with zeros, tiny and large ones among them for the extreme style."""
    values = rng.standard_normal(shape) * 0.5
    if style is Style.EXTREME:
        values *= rng.choice([0.0, 1e-6, 1.0, 64.0], shape, p=[0.1, 0.1, 0.7, 0.1])
    elif style is Style.EQUAL:
        values = np.broadcast_to(values[..., :1], shape).copy()
    elif style is Style.SATURATING:
        values = np.sign(values) * 4.0
    return values


def _codes(rng: np.random.Generator, blocks: tuple[int, ...], style: Style) -> Array:
    if style is Style.SATURATING:
        rows = rng.choice(np.array([0x00, 0xFF, 0x80, 0x7F], np.uint8), (*blocks[:-2], 1, 1))
        return np.broadcast_to(rows, blocks).copy()
    if style is Style.EQUAL:
        return np.broadcast_to(rng.integers(0, 256, (*blocks[:-2], 1, 1), dtype=np.uint8), blocks).copy()
    return rng.integers(0, 256, blocks, dtype=np.uint8)


def _factors(rng: np.random.Generator, shape: tuple[int, ...], style: Style) -> Array:
    values = rng.standard_normal(shape) * 2.0**-9
    if style is Style.EXTREME:
        values = rng.choice([0.0, -0.0, 6e-8, 2.0**-14, 2.0**-9, 2.0**-5, 0.25], shape) * rng.choice([-1, 1], shape)
    return values.astype(np.float16)
