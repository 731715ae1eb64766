"""Writing the fields of q4_k and q5_k: the inverse of ``k_scales.unpack`` and ``q4_k.nibbles``."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernelmap_providers.formats.bits import Bytes, as_bytes, join
from kernelmap_providers.formats.encode.affine import Fit


def head(fit: Fit) -> Bytes:
    """Bytes 0-15 of the blocks ``[n, 16]``: d, dmin, scales and minima."""
    scales: Any = fit.scales
    minima: Any = fit.minima
    first = scales[:, :4] | ((scales[:, 4:] >> 4) << 6)
    second = minima[:, :4] | ((minima[:, 4:] >> 4) << 6)
    third = (scales[:, 4:] & 15) | ((minima[:, 4:] & 15) << 4)
    return join(as_bytes(np.stack([fit.d, fit.dmin], axis=-1), "f2"), first, second, third)


def nibbles(codes: Bytes) -> Bytes:
    """The 128 bytes ``[n, 128]`` of the low four bits of codes ``[n, 8, 32]``."""
    pairs: Any = (codes & 15).reshape(-1, 4, 2, 32)
    packed: Bytes = (pairs[:, :, 0] | (pairs[:, :, 1] << 4)).reshape(-1, 128)
    return packed
