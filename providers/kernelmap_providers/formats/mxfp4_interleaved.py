"""mxfp4_interleaved, the layout of safetensors files (OCP Microscaling): 32 values in 16 bytes and a scale elsewhere.

    tensor 1, 16 bytes a block   low nibble of byte i is value 2 i, high nibble value 2 i + 1
    tensor 2, one byte a block   E8M0: value = E2M1[code] * 2**(s - 127); s = 255 is NaN

Not ggml's layout, which is ``mxfp4``: the same numbers lie in other places.
"""

from __future__ import annotations

import numpy as np

from kernelmap_providers.formats.bits import Bytes, Floats, random_bytes
from kernelmap_providers.formats.e2m1 import CODES, exponents

VALUES, BYTES = 32, 16
SCALES = ()
"""None inside the block: the scales are a tensor of their own."""


def decode(rows: Bytes, scales: Bytes) -> Floats:
    """fp32 values ``[..., K]`` of packed rows ``uint8 [..., K / 2]`` and scales ``uint8 [..., K / 32]``.

    Raises ValueError if the two do not fit one another.
    """
    if rows.shape[:-1] != scales.shape[:-1] or rows.shape[-1] != BYTES * scales.shape[-1]:
        raise ValueError(f"packed bytes {rows.shape} need one scale for each 16 of them, not {scales.shape}")
    codes = np.stack([rows & 15, rows >> 4], axis=-1).reshape(*scales.shape, VALUES)
    with np.errstate(over="ignore", invalid="ignore"):
        values: Floats = CODES[codes] * exponents(scales)[..., None]
    return values.reshape(*rows.shape[:-1], -1)


def random_blocks(rng: np.random.Generator, blocks: tuple[int, ...]) -> Bytes:
    """Random packed codes ``[*blocks, 16]``: every byte is valid."""
    return random_bytes(rng, blocks, BYTES)
