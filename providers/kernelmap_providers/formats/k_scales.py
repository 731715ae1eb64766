"""The 12 bytes of 6-bit scales and minima that q4_k and q5_k share.

    bytes 0-3    low 6 bits: scale of sub-blocks 0-3     high 2 bits: bits 4-5 of the scale of sub-blocks 4-7
    bytes 4-7    low 6 bits: minimum of sub-blocks 0-3   high 2 bits: bits 4-5 of the minimum of sub-blocks 4-7
    bytes 8-11   low nibble: bits 0-3 of the scale of sub-blocks 4-7, high nibble: of their minimum

Source: ggml-quants.c, get_scale_min_k4.
"""

from __future__ import annotations

import numpy as np

from kernelmap_providers.formats.bits import Bytes


def unpack(packed: Bytes) -> tuple[Bytes, Bytes]:
    """(scales, minima), each uint8 ``[..., 8]`` below 64, of the 12 bytes ``[..., 12]``."""
    first, second, third = packed[..., 0:4], packed[..., 4:8], packed[..., 8:12]
    scales = np.concatenate([first & 63, (third & 15) | ((first >> 6) << 4)], axis=-1)
    minima = np.concatenate([second & 63, (third >> 4) | ((second >> 6) << 4)], axis=-1)
    return scales, minima
