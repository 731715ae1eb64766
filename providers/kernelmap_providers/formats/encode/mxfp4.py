"""mxfp4 blocks: the exponent of the largest value, then the nearest E2M1 code (OCP Microscaling Formats 1.0, 6.3).

The bytes are those of the gguf package wherever it is right, which the tests show. Our own because its exponents of
blocks below 2**-125 wrap around, and its logarithm rounds values just below a power of two up to it.
"""

from __future__ import annotations

import numpy as np

from kernelmap_providers.formats.bits import Bytes, Flags, Floats, join

STEPS = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0], np.float32)
"""Half-way between neighbouring E2M1 magnitudes; a tie takes the smaller."""


def encode_blocks(blocks: Floats) -> tuple[Bytes, Flags]:
    """(bytes ``[n, 17]``, refused ``[n]``: none) of finite fp32 blocks ``[n, 32]``.

    Above 6 in the block's exponent a value saturates at 6. Exponents end at 2**-127, where small values become zero.
    """
    largest = np.abs(blocks).max(axis=-1)
    _, power = np.frexp(largest)
    # frexp's mantissa is in [1/2, 1), and E2M1's largest binade begins at 4 = 2**2.
    scale = np.where(largest == 0, 0, np.maximum(power - 1 - 2 + 127, 0))
    scaled = np.ldexp(blocks, 127 - scale[:, None])
    codes = np.searchsorted(STEPS, np.abs(scaled)).astype(np.uint8)
    # A negative value that rounds to zero is code 0, as in gguf, not -0.
    codes |= ((scaled < 0) & (codes > 0)).astype(np.uint8) << 3
    packed = codes[:, :16] | (codes[:, 16:] << 4)
    return join(scale[:, None].astype(np.uint8), packed), np.zeros(len(blocks), np.bool_)
