"""llama.cpp's softmax router: probabilities of all experts, the K largest, renormalised and scaled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types

from kernelmap.spec import BuildSpec
from kernelmap_providers.arguments import (
    FLOATS_2,
    FLOATS_2_OUT,
    INTS_2_OUT,
    RANGE,
    SCRATCH,
    Array,
    given,
    rows_of_workers,
)
from kernelmap_providers.elementary import all_finite, exp32, sum_lanes
from kernelmap_providers.jit.compile import compiled, entry, jit
from kernelmap_providers.routers.selection import CLAMP, chain_sum, run_rows, take_largest


@jit
def softmax(logits: Any, p: Any) -> None:
    """p = exp(logits - max) / sum, the sum by the 8-lane rule."""
    largest = logits[0]
    for i in range(len(logits)):
        largest = max(largest, logits[i])
    for i in range(len(logits)):
        p[i] = exp32(logits[i] - largest)
    total = sum_lanes(p)
    for i in range(len(p)):
        p[i] = p[i] / total


@entry
def rows_range(
    begin: int, end: int, worker: int, indices: Any, weights: Any, logits: Any, scale: Any, scratch: Any
) -> int:
    """Rows ``begin`` to ``end - 1``. Returns 0, or 1 + the first row whose logits are not finite."""
    experts = logits.shape[1]
    mine = scratch[worker]
    p = mine[: 4 * experts].view(np.float32)
    taken = mine[4 * experts : 5 * experts]
    for row in range(begin, end):
        if not all_finite(logits[row]):
            return row + 1
        softmax(logits[row], p)
        taken[:] = 0
        for slot in range(indices.shape[1]):
            chosen = take_largest(p, taken)
            indices[row, slot] = chosen
            weights[row, slot] = p[chosen]
        total = max(chain_sum(weights[row]), CLAMP)
        for slot in range(indices.shape[1]):
            weights[row, slot] = weights[row, slot] / total * scale
    return 0


def moe_softmax_topk_router_llama_f32(spec: BuildSpec) -> Callable[..., int]:
    """Builds the router; threads own ranges of rows (variant ``serial``: one thread)."""
    compiled(rows_range, *RANGE, INTS_2_OUT, FLOATS_2_OUT, FLOATS_2, types.float32, SCRATCH)
    scale = np.float32(spec.params["scale"])
    serial = spec.variant == "serial"

    def run(logits: Array, indices: Array, weights: Array, scores: Array, threads: int) -> int:
        scratch = rows_of_workers(scores, threads)
        return run_rows(rows_range, 1 if serial else threads, indices, weights, given(logits), scale, scratch)

    return run
