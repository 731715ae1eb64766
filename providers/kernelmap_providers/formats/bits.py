"""Reading and writing the fields of blocks: little-endian numbers inside uint8 arrays, and random valid scales."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Floats = np.ndarray[Any, np.dtype[np.float32]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]


def blocks_of(rows: Bytes, block_bytes: int) -> Bytes:
    """Rows ``[..., row_bytes]`` as ``[..., blocks, block_bytes]``."""
    return rows.reshape(*rows.shape[:-1], -1, block_bytes)


def numbers(block: Bytes, start: int, stop: int, dtype: str) -> Array:
    """Bytes ``start`` to ``stop`` of every block as little-endian numbers: ``[..., count]``."""
    return np.ascontiguousarray(block[..., start:stop]).view(np.dtype(dtype).newbyteorder("<"))


def half(block: Bytes, start: int) -> Floats:
    """The fp16 number at byte ``start`` of every block, widened exactly: ``[...]``."""
    return numbers(block, start, start + 2, "f2")[..., 0].astype(np.float32)


def as_bytes(values: Array, dtype: str) -> Bytes:
    """Numbers ``[..., count]`` as little-endian bytes ``[..., count * size]``, ties to even where fp16 narrows.

    A value beyond fp16 becomes infinite, as in the C conversion; the quantizers report such rows.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        narrowed = np.ascontiguousarray(values.astype(np.dtype(dtype).newbyteorder("<")))
    return narrowed.view(np.uint8)


def join(*parts: Bytes) -> Bytes:
    """Fields side by side in every block."""
    return np.concatenate(parts, axis=-1)


def random_bytes(rng: np.random.Generator, blocks: tuple[int, ...], count: int) -> Bytes:
    """Random bytes ``[*blocks, count]``."""
    return rng.integers(0, 256, (*blocks, count), dtype=np.uint8)


def random_halves(rng: np.random.Generator, blocks: tuple[int, ...], low: int, high: int) -> Bytes:
    """Random fp16 scales as bytes ``[*blocks, 2]``: 2**low to 2**high, either sign, 1/16 zero, 1/16 subnormal."""
    magnitude = np.exp2(rng.uniform(low, high, blocks))
    kind = rng.integers(0, 16, blocks)
    magnitude = np.where(kind == 0, 0.0, np.where(kind == 1, rng.integers(1, 1024, blocks) * 2.0**-24, magnitude))
    signed = magnitude * rng.choice([-1.0, 1.0], blocks)
    return as_bytes(signed[..., None], "f2")


Scale = tuple[int, str]
"""Offset of a scale in its block, and its type: numpy's name, ``bf16``, or ``e8m0`` for a shared exponent."""


def finite_scales(rows: Bytes, block_bytes: int, scales: tuple[Scale, ...]) -> Flags:
    """Whether all scales of each row are finite: ``[...]``."""
    block = blocks_of(rows, block_bytes)
    fine = np.ones(rows.shape[:-1], np.bool_)
    for offset, kind in scales:
        if kind == "e8m0":
            good = block[..., offset] != 255
        elif kind == "bf16":
            good = numbers(block, offset, offset + 2, "u2")[..., 0] & 0x7F80 != 0x7F80
        else:
            size = np.dtype(kind).itemsize
            good = np.isfinite(numbers(block, offset, offset + size, kind)[..., 0])
        fine &= good.all(axis=-1)
    return fine
