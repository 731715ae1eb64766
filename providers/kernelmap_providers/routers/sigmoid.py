"""The group-limited sigmoid router: the bias steers which experts are selected, weights come from the raw scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types

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
from kernelmap_providers.elementary import sigmoid32
from kernelmap_providers.jit.compile import compiled, entry, jit
from kernelmap_providers.routers.selection import CLAMP, chain_sum, largest_or_nan, run_rows, take_largest

RULES = ("none", "clamp", "eps")
EPS = np.float32(1e-20)


@jit
def two_largest_sum(values: Any) -> Any:
    """Sum of the two largest of at least two values."""
    first, second = max(values[0], values[1]), min(values[0], values[1])
    for i in range(2, len(values)):
        if values[i] > first:
            first, second = values[i], first
        elif values[i] > second:
            second = values[i]
    return first + second


@jit
def allow_best_groups(choice: Any, groups: int, keep: int, score: Any, dropped: Any, taken: Any) -> None:
    """Mark the experts of all but the ``keep`` best groups as taken. ``score`` and ``dropped`` hold a value a group."""
    size = len(choice) // groups
    for group in range(groups):
        score[group] = two_largest_sum(choice[group * size : (group + 1) * size])
        dropped[group] = 0
    for _ in range(keep):
        take_largest(score, dropped)
    for i in range(len(choice)):
        taken[i] = 1 - dropped[i // size]


@jit
def renormalize(weights: Any, rule: int, scale: Any) -> None:
    """Divide by the sum in slot order as ``RULES[rule]`` says, then scale."""
    if rule == 0:
        for slot in range(len(weights)):
            weights[slot] = weights[slot] * scale
        return
    total = chain_sum(weights)
    total = max(total, CLAMP) if rule == 1 else total + EPS
    for slot in range(len(weights)):
        weights[slot] = weights[slot] / total * scale


@entry
def rows_range(
    begin: int, end: int, worker: int, indices: Any, weights: Any, logits: Any, bias: Any, groups: int, keep: int,
    rule: int, scale: Any, scratch: Any,
) -> int:  # fmt: skip
    """Rows ``begin`` to ``end - 1``. Returns 0, or 1 + the first row with a NaN."""
    experts = logits.shape[1]
    mine = scratch[worker]
    raw = mine[: 4 * experts].view(np.float32)
    choice = mine[4 * experts : 8 * experts].view(np.float32)
    group_score = mine[8 * experts : 8 * experts + 4 * groups].view(np.float32)
    taken = mine[12 * experts : 13 * experts]
    dropped = mine[13 * experts : 13 * experts + groups]
    for row in range(begin, end):
        largest = largest_or_nan(logits[row])
        if largest != largest:
            return row + 1
        for i in range(experts):
            raw[i] = sigmoid32(logits[row, i])
            choice[i] = raw[i] + bias[i]
        taken[:] = 0
        if groups > 1:
            allow_best_groups(choice, groups, keep, group_score, dropped, taken)
        for slot in range(indices.shape[1]):
            chosen = take_largest(choice, taken)
            indices[row, slot] = chosen
            weights[row, slot] = raw[chosen]
        renormalize(weights[row], rule, scale)
    return 0


def group_limited_topk_router_sigmoid_f32(spec: BuildSpec) -> Callable[..., int]:
    """Builds the router; threads own ranges of rows (variant ``serial``: one thread).

    Without a bias zeros are added: raw scores are not negative, so that changes no bit.
    """
    ints = (types.int64, types.int64, types.int64)
    compiled(
        rows_range, *RANGE, INTS_2_OUT, FLOATS_2_OUT, FLOATS_2, FLOATS_1, *ints, types.float32, SCRATCH
    )  # fmt: skip
    groups, keep = int(spec.params["n_group"]), int(spec.params["topk_group"])
    rule = RULES.index(str(spec.params["renormalize"]))
    scale = np.float32(spec.params["scale"])
    no_bias = np.zeros(spec.dims["E"], np.float32)
    serial = spec.variant == "serial"

    def run(
        logits: Array, correction_bias: Array | None, indices: Array, weights: Array, scores: Array, threads: int
    ) -> int:
        bias = given(no_bias if correction_bias is None else correction_bias)
        scratch = rows_of_workers(scores, threads)
        options = groups, keep, rule, scale, scratch
        return run_rows(rows_range, 1 if serial else threads, indices, weights, given(logits), bias, *options)

    return run
