"""q8_0 blocks by the gguf package (ggml's reference rounding: half away from zero)."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernelmap_providers.formats.bits import Bytes, Flags, Floats, numbers
from kernelmap_providers.formats.encode.halves import SMALLEST


def encode_blocks(blocks: Floats) -> tuple[Bytes, Flags]:
    """(bytes ``[n, 34]``, refused ``[n]``) of finite fp32 blocks ``[n, 32]``; refused: a scale beyond fp16.

    A block whose scale rounds to zero is a zero block: gguf would divide by it, and overflow for the smallest.
    """
    from gguf import GGMLQuantizationType, quants

    vanishing = np.abs(blocks).max(axis=-1) / np.float32(127) <= SMALLEST / 2
    with np.errstate(over="ignore"):
        made: Bytes = quants.quantize(np.where(vanishing[:, None], np.float32(0), blocks), GGMLQuantizationType.Q8_0)
    refused: Any = ~np.isfinite(numbers(made, 0, 2, "f2")[:, 0])
    return made, refused
