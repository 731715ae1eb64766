"""mxfp4, ggml's layout: 32 values in 17 bytes.

    0   e     E8M0      value = E2M1[code] * 2**(e - 127); e = 255 is NaN
    1   codes 16 bytes  low nibble of byte j is value j, high nibble value 16 + j

Not the layout of safetensors files: that is ``mxfp4_interleaved``. Source: ggml-common.h, block_mxfp4.
"""

from __future__ import annotations

import numpy as np

from kernelmap_providers.formats.bits import Bytes, Floats, blocks_of, join, random_bytes
from kernelmap_providers.formats.e2m1 import CODES, exponents

VALUES, BYTES = 32, 17
SCALES = ((0, "e8m0"),)


def fields(rows: Bytes) -> tuple[Bytes, Bytes]:
    """Of rows ``[..., row_bytes]``: E8M0 bytes ``[..., B]`` and codes below 16 ``[..., B, 32]``."""
    block = blocks_of(rows, BYTES)
    return block[..., 0], np.concatenate([block[..., 1:17] & 15, block[..., 1:17] >> 4], axis=-1)


def decode(rows: Bytes) -> Floats:
    """fp32 values ``[..., K]`` of rows ``uint8 [..., row_bytes]``; beyond fp32 is infinite."""
    scales, codes = fields(rows)
    with np.errstate(over="ignore", invalid="ignore"):
        values: Floats = CODES[codes] * exponents(scales)[..., None]
    return values.reshape(*rows.shape[:-1], -1)


def random_blocks(rng: np.random.Generator, blocks: tuple[int, ...]) -> Bytes:
    """Valid random blocks ``[*blocks, 17]``."""
    return join(rng.integers(112, 123, (*blocks, 1), dtype=np.uint8), random_bytes(rng, blocks, 16))
