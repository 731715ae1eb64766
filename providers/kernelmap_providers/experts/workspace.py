"""Carving a worker's row of scratch bytes into typed views, and the sizes that maps declare for it."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernelmap_providers.jit.compile import jit


@jit
def align64(size: int) -> int:
    """``size`` rounded up to a multiple of 64."""
    return (size + 63) // 64 * 64


@jit
def floats_at(mine: Any, at: int, count: int) -> Any:
    """``count`` fp32 values at byte ``at``."""
    return mine[at : at + 4 * count].view(np.float32)


@jit
def shorts_at(mine: Any, at: int, count: int) -> Any:
    """``count`` int16 values at byte ``at``."""
    return mine[at : at + 2 * count].view(np.int16)


@jit
def codes_at(mine: Any, at: int, count: int) -> Any:
    """``count`` int8 values at byte ``at``."""
    return mine[at : at + count].view(np.int8)
