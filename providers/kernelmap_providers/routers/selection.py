"""What all routers do: picking the largest scores, refusing, and running ranges of rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kernelmap_providers.arguments import Array
from kernelmap_providers.elementary import ZERO
from kernelmap_providers.jit.compile import jit
from kernelmap_providers.threads import run_ranges

CLAMP = np.float32(6.103515625e-5)
"""2**-14, the least sum that llama.cpp divides by: the smallest normal fp16."""


@jit
def take_largest(score: Any, taken: Any) -> int:
    """Index of the largest score that is not taken, the lowest of equals; marks it taken. -1 if all are taken."""
    best = -1
    for i in range(len(score)):
        if taken[i] == 0 and (best < 0 or score[i] > score[best]):
            best = i
    if best >= 0:
        taken[best] = 1
    return best


@jit
def largest_or_nan(values: Any) -> Any:
    """The largest value, or NaN if there is one."""
    largest = values[0]
    poisoned = False
    for value in values:
        poisoned |= value != value
        largest = max(largest, value)
    return np.float32(np.nan) if poisoned else largest


@jit
def chain_sum(values: Any) -> Any:
    """Sum from the first value on."""
    total = ZERO
    for value in values:
        total = total + value
    return total


def run_rows(kernel: Callable[..., int], threads: int, indices: Array, weights: Array, *args: Any) -> int:
    """Runs a router's range kernel over all rows; a refusal leaves indices at -1 and weights at NaN."""
    status = run_ranges(kernel, len(indices), threads, indices, weights, *args)
    if status:
        indices.fill(-1)
        weights.fill(np.nan)
    return status
