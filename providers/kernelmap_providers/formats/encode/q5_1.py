"""q5_1 blocks by the gguf package."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernelmap_providers.formats.bits import Bytes, Flags, Floats, numbers
from kernelmap_providers.formats.encode.halves import SMALLEST


def encode_blocks(blocks: Floats) -> tuple[Bytes, Flags]:
    """(bytes ``[n, 24]``, refused ``[n]``) of finite fp32 blocks ``[n, 32]``; refused: d or m beyond fp16.

    A block whose d rounds to zero is all at its middle: gguf would put it at its minimum, and divide by d.
    """
    from gguf import GGMLQuantizationType, quants

    low, high = blocks.min(axis=-1, keepdims=True), blocks.max(axis=-1, keepdims=True)
    with np.errstate(over="ignore", invalid="ignore"):
        vanishing = (high - low) / np.float32(31) <= SMALLEST / 2
        middle = low + (high - low) / np.float32(2)
        made: Bytes = quants.quantize(np.where(vanishing, middle, blocks), GGMLQuantizationType.Q5_1)
    refused: Any = ~np.isfinite(numbers(made, 0, 4, "f2")).all(axis=-1)
    return made, refused
