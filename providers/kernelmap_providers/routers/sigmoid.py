"""The group-limited sigmoid router: the bias steers which experts are selected, weights come from the raw scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from kernelmap.spec import BuildSpec
from kernelmap_providers import lanes
from kernelmap_providers.arguments import Array
from kernelmap_providers.jit.compile import entry, inlined, jit, native_address
from kernelmap_providers.memory import word
from kernelmap_providers.routers import topk
from kernelmap_providers.routers import words as at
from kernelmap_providers.routers.rows import (
    CLAMPED,
    EPSILON,
    RAW,
    gather,
    hide_padding,
    largest_or_nan,
    padded_row,
    part_of,
    renormalize,
    row_of,
)
from kernelmap_providers.routers.words import TASK_ARGUMENTS, caller, padded, row_at
from kernelmap_providers.simd import native, ops
from kernelmap_providers.simd.static import Static, StaticType
from kernelmap_providers.simd.vectors import F32X16, I32X16

RULES = {"none": RAW, "clamp": CLAMPED, "eps": EPSILON}
MINUS_INFINITY: Final = np.float32(-np.inf)
ZERO: Final = np.float32(0.0)
TURNS: Final = (
    Static(*range(8, 16), *range(8)), Static(*range(4, 16), *range(4)), Static(*range(2, 16), *range(2)),
    Static(*range(1, 16), 0),
)  # fmt: skip
HALF, QUARTER, EIGHTH, SIXTEENTH = TURNS
"""Lane orders that bring every lane together with every other one."""


@jit
def scores(logits: int, bias: int, experts: int, raw: int, choice: int) -> None:
    """``raw = sigmoid(logits)`` and ``choice = raw + bias`` of whole units; ``bias`` 0: there is none."""
    for i in range(0, padded(experts), topk.LANES):
        value = lanes.sigmoid(F32X16, I32X16, ops.load(F32X16, logits + 4 * i))
        ops.store(raw + 4 * i, value)
        if bias:
            value = ops.add(value, ops.load(F32X16, bias + 4 * i))
        ops.store(choice + 4 * i, value)


@inlined
def joined(first: Any, second: Any, order: Any) -> Any:
    """The two largest of every lane's pair and of the pair that ``order`` brings to it."""
    other_first, other_second = ops.shuffle(first, order), ops.shuffle(second, order)
    smaller = ops.minimum(first, other_first)
    return ops.maximum(first, other_first), ops.maximum(smaller, ops.maximum(second, other_second))


@jit
def two_largest_sum(values: int, count: int) -> Any:
    """Sum of the two largest of at least two fp32 values in memory."""
    if count % topk.LANES:
        first, second = MINUS_INFINITY, MINUS_INFINITY
        for i in range(count):
            value = ops.load_f32(values + 4 * i)
            second = max(second, min(first, value))
            first = max(first, value)
        return first + second
    most = next_most = ops.fill(F32X16, MINUS_INFINITY)
    for i in range(0, count, topk.LANES):
        value = ops.load(F32X16, values + 4 * i)
        next_most = ops.maximum(next_most, ops.minimum(most, value))
        most = ops.maximum(most, value)
    # Halves first: each turn joins pairs of disjoint sets of lanes, so no value meets itself.
    most, next_most = joined(most, next_most, HALF)
    most, next_most = joined(most, next_most, QUARTER)
    most, next_most = joined(most, next_most, EIGHTH)
    most, next_most = joined(most, next_most, SIXTEENTH)
    return ops.lane(most, 0) + ops.lane(next_most, 0)


@jit
def drop_groups(choice: int, experts: int, groups: int, keep: int, keys: int, group_scores: int) -> None:
    """The lowest key for the experts of all but the ``keep`` best groups."""
    size = experts // groups
    for group in range(groups):
        ops.store(group_scores + 4 * group, two_largest_sum(choice + 4 * group * size, size))
    for group in range(groups):
        score, better = ops.load_f32(group_scores + 4 * group), 0
        for other in range(groups):
            theirs = ops.load_f32(group_scores + 4 * other)
            better += theirs > score or (theirs == score and other < group)
        if better >= keep:
            for i in range(group * size, (group + 1) * size):
                ops.store(keys + 4 * i, topk.LOWEST)


@jit
def sigmoid_row(call: int, mine: int, row: int) -> bool:
    """One row. False for one with a NaN."""
    experts, count, groups = word(call + at.EXPERTS), word(call + at.SLOTS), word(call + at.GROUPS)
    size = padded(experts)
    logits, indices, weights = row_of(call, row)
    raw, choice = row_at(mine, experts, 0), row_at(mine, experts, 1)
    keys, spare = row_at(mine, experts, 2), row_at(mine, experts, 3)
    logits = padded_row(logits, experts, raw, MINUS_INFINITY)
    largest = largest_or_nan(logits, size)
    if largest != largest:
        return False
    bias = word(call + at.BIAS)
    if bias:
        bias = padded_row(bias, experts, spare, ZERO)
    scores(logits, bias, experts, raw, choice)
    for i in range(0, size, topk.LANES):
        ops.store(keys + 4 * i, topk.key_of(ops.load(F32X16, choice + 4 * i)))
    hide_padding(keys, experts)
    if groups > 1:
        drop_groups(choice, experts, groups, word(call + at.KEEP), keys, spare)
    topk.largest(keys, size, count, mine, indices)
    gather(raw, indices, count, choice)
    renormalize(choice, count, word(call + at.RULE), ops.load_f32(call + at.SCALE), weights)
    return True


@entry
def sigmoid_task(_: Any, call: int, index: int, count: int, control: int) -> int:
    """Thread ``index``'s range of rows, up to its first refused one."""
    mine, total = part_of(call, index), word(call + at.ROWS)
    for row in range(total * index // count, total * (index + 1) // count):
        if not sigmoid_row(call, mine, row):
            native.atomic_min(call + at.BAD_ROW, row)
            break
    return 0


def group_limited_topk_router_sigmoid_f32(spec: BuildSpec) -> Callable[..., int]:
    """Builds the router; threads own ranges of rows (variant ``serial``: one thread)."""
    task = native_address(sigmoid_task, StaticType(()), *TASK_ARGUMENTS)
    rule = RULES[str(spec.params["renormalize"])]
    groups, keep = int(spec.params["n_group"]), int(spec.params["topk_group"])
    route = caller(task, (rule, float(spec.params["scale"]), groups, keep), spec.variant == "serial")
    no_bias = np.zeros(0, np.float32)

    def run(
        logits: Array, correction_bias: Array | None, indices: Array, weights: Array, scores: Array, threads: int
    ) -> int:
        return route(logits, no_bias if correction_bias is None else correction_bias, indices, weights, scores, threads)

    return run
