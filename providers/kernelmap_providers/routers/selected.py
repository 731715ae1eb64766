"""gpt-oss's router: the K largest of the biased logits, then a softmax over the selected alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kernelmap.spec import BuildSpec
from kernelmap_providers.arguments import (
    FLOATS_1,
    FLOATS_2,
    FLOATS_2_OUT,
    INTS_2_OUT,
    RANGE,
    SCRATCH,
    Array,
    given,
    rows_of_workers,
)
from kernelmap_providers.elementary import exp32
from kernelmap_providers.jit.compile import compiled, entry
from kernelmap_providers.routers.selection import chain_sum, largest_or_nan, run_rows, take_largest


@entry
def rows_range(
    begin: int, end: int, worker: int, indices: Any, weights: Any, logits: Any, bias: Any, scratch: Any
) -> int:
    """Rows ``begin`` to ``end - 1``. Returns 0, or 1 + the first row with a NaN or whose largest logit is infinite."""
    experts = logits.shape[1]
    mine = scratch[worker]
    choice = mine[: 4 * experts].view(np.float32)
    taken = mine[4 * experts : 5 * experts]
    for row in range(begin, end):
        for i in range(experts):
            choice[i] = logits[row, i] + bias[i]
        largest = largest_or_nan(choice)
        if not np.isfinite(largest):
            return row + 1
        taken[:] = 0
        for slot in range(indices.shape[1]):
            chosen = take_largest(choice, taken)
            indices[row, slot] = chosen
            weights[row, slot] = exp32(choice[chosen] - largest)
        total = chain_sum(weights[row])
        for slot in range(indices.shape[1]):
            weights[row, slot] = weights[row, slot] / total
    return 0


def moe_topk_softmax_of_selected_router_f32(spec: BuildSpec) -> Callable[..., int]:
    """Builds the router; threads own ranges of rows (variant ``serial``: one thread).

    Without a bias -0 is added: that changes no bit.
    """
    compiled(rows_range, *RANGE, INTS_2_OUT, FLOATS_2_OUT, FLOATS_2, FLOATS_1, SCRATCH)
    no_bias = np.full(spec.dims["E"], -0.0, np.float32)
    serial = spec.variant == "serial"

    def run(
        logits: Array, router_bias: Array | None, indices: Array, weights: Array, scores: Array, threads: int
    ) -> int:
        bias = given(no_bias if router_bias is None else router_bias)
        scratch = rows_of_workers(scores, threads)
        return run_rows(rows_range, 1 if serial else threads, indices, weights, given(logits), bias, scratch)

    return run
