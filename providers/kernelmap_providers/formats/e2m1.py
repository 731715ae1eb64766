"""The numbers of MXFP4: E2M1 codes under a shared E8M0 exponent (OCP Microscaling Formats 1.0, 5.3.3 and 5.4.1)."""

from __future__ import annotations

import numpy as np

from kernelmap_providers.formats.bits import Bytes, Floats

CODES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
"""E2M1 values by code."""


def exponents(scales: Bytes) -> Floats:
    """E8M0 bytes as fp32: 2**(s - 127), NaN for 255. 2**-127 is an fp32 subnormal, and exact."""
    powers = np.ldexp(np.float32(1), scales.astype(np.int32) - 127)
    return np.where(scales == 255, np.float32(np.nan), powers)
