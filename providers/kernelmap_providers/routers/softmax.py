"""Softmax routers: probabilities of all experts, the K largest, with each way to renormalise them a contract."""

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
from kernelmap_providers.elementary import exp32, sum_lanes
from kernelmap_providers.jit.compile import compiled, entry, jit
from kernelmap_providers.routers.selection import CLAMP, chain_sum, largest_or_nan, run_rows, take_largest

RAW, CLAMPED, PLAIN = 0, 1, 2
"""Weights as they are; divided by their sum, at least 2**-14; divided by their sum."""


@jit
def softmax(logits: Any, largest: Any, p: Any) -> None:
    """p = exp(logits - largest) / sum, the sum by the 8-lane rule."""
    for i in range(len(logits)):
        p[i] = exp32(logits[i] - largest)
    total = sum_lanes(p)
    for i in range(len(p)):
        p[i] = p[i] / total


@entry
def rows_range(
    begin: int, end: int, worker: int, indices: Any, weights: Any, logits: Any, rule: int, scale: Any, scratch: Any
) -> int:
    """Rows ``begin`` to ``end - 1``. Returns 0, or 1 + the first row with a NaN or whose largest logit is infinite."""
    experts = logits.shape[1]
    mine = scratch[worker]
    p = mine[: 4 * experts].view(np.float32)
    taken = mine[4 * experts : 5 * experts]
    for row in range(begin, end):
        largest = largest_or_nan(logits[row])
        if not np.isfinite(largest):
            return row + 1
        softmax(logits[row], largest, p)
        taken[:] = 0
        for slot in range(indices.shape[1]):
            chosen = take_largest(p, taken)
            indices[row, slot] = chosen
            weights[row, slot] = p[chosen]
        renormalize(weights[row], rule, scale)
    return 0


@jit
def renormalize(weights: Any, rule: int, scale: Any) -> None:
    """Divide by the sum in slot order as the rule says, then scale."""
    if rule == RAW:
        for slot in range(len(weights)):
            weights[slot] = weights[slot] * scale
        return
    total = chain_sum(weights)
    if rule == CLAMPED:
        total = max(total, CLAMP)
    for slot in range(len(weights)):
        weights[slot] = weights[slot] / total * scale


def moe_softmax_topk_router_llama_f32(spec: BuildSpec) -> Callable[..., int]:
    """Builds llama.cpp's router: weights p / max(sum p, 2**-14). Threads own ranges of rows (``serial``: one)."""
    return _build(spec, CLAMPED)


def moe_softmax_topk_router_raw_f32(spec: BuildSpec) -> Callable[..., int]:
    """Builds the router without renormalisation: weights are the probabilities. Threads as in the others."""
    return _build(spec, RAW)


def moe_softmax_topk_router_renorm_f32(spec: BuildSpec) -> Callable[..., int]:
    """Builds the router that divides by the plain sum, without a clamp. Threads as in the others."""
    return _build(spec, PLAIN)


def _build(spec: BuildSpec, rule: int) -> Callable[..., int]:
    compiled(rows_range, *RANGE, INTS_2_OUT, FLOATS_2_OUT, FLOATS_2, types.int64, types.float32, SCRATCH)
    scale = np.float32(spec.params["scale"])
    serial = spec.variant == "serial"

    def run(logits: Array, indices: Array, weights: Array, scores: Array, threads: int) -> int:
        scratch = rows_of_workers(scores, threads)
        return run_rows(rows_range, 1 if serial else threads, indices, weights, given(logits), rule, scale, scratch)

    return run
