"""fp16: IEEE binary16, one value in 2 bytes, little endian."""

from __future__ import annotations

import numpy as np

from kernelmap_providers.formats.bits import Bytes, Floats, as_bytes, numbers

VALUES, BYTES = 1, 2
SCALES = ((0, "f2"),)


def decode(rows: Bytes) -> Floats:
    """fp32 values ``[..., K]`` of rows ``uint8 [..., 2 K]``, widened exactly."""
    return numbers(rows, 0, rows.shape[-1], "f2").astype(np.float32)


def random_blocks(rng: np.random.Generator, blocks: tuple[int, ...]) -> Bytes:
    """Random normal values as bytes ``[*blocks, 2]``."""
    return as_bytes(0.1 * rng.standard_normal((*blocks, 1)), "f2")
