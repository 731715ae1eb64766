"""bf16: the upper half of an fp32, one value in 2 bytes, little endian."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernelmap_providers.formats.bits import Bytes, Floats, as_bytes, numbers

VALUES, BYTES = 1, 2
SCALES = ((0, "bf16"),)


def decode(rows: Bytes) -> Floats:
    """fp32 values ``[..., K]`` of rows ``uint8 [..., 2 K]``, widened exactly."""
    return widen(numbers(rows, 0, rows.shape[-1], "u2"))


def widen(patterns: np.ndarray[Any, np.dtype[np.uint16]]) -> Floats:
    """fp32 values of bf16 bit patterns, any shape."""
    return (patterns.astype(np.uint32) << 16).view(np.float32)


def random_blocks(rng: np.random.Generator, blocks: tuple[int, ...]) -> Bytes:
    """Random normal values as bytes ``[*blocks, 2]``."""
    values = (0.1 * rng.standard_normal((*blocks, 1))).astype(np.float32)
    return as_bytes(values.view(np.uint32) >> 16, "u2")
