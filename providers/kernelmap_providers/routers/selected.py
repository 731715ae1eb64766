"""gpt-oss's router: the K largest of the biased logits, then a softmax over the selected alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from kernelmap.spec import BuildSpec
from kernelmap_providers import lanes
from kernelmap_providers.arguments import Array
from kernelmap_providers.jit.compile import entry, jit, native_address
from kernelmap_providers.memory import word
from kernelmap_providers.routers import topk
from kernelmap_providers.routers import words as at
from kernelmap_providers.routers.rows import (
    PLAIN,
    gather,
    hide_padding,
    is_finite,
    largest_or_nan,
    padded_row,
    part_of,
    renormalize,
    row_of,
)
from kernelmap_providers.routers.words import TASK_ARGUMENTS, caller, padded, row_at
from kernelmap_providers.simd import native, ops
from kernelmap_providers.simd.static import StaticType
from kernelmap_providers.simd.vectors import F32X16, I32X16

MINUS_INFINITY: Final = np.float32(-np.inf)
ZERO: Final = np.float32(0.0)


@jit
def add_bias(logits: int, bias: int, experts: int, choice: int, keys: int) -> None:
    """``choice = logits + bias`` and its keys, of whole units; ``bias`` 0: there is none. Padding is never chosen."""
    for i in range(0, padded(experts), topk.LANES):
        value = ops.load(F32X16, logits + 4 * i)
        if bias:
            value = ops.add(value, ops.load(F32X16, bias + 4 * i))
        ops.store(choice + 4 * i, value)
        ops.store(keys + 4 * i, topk.key_of(value))
    hide_padding(keys, experts)


@jit
def selected_row(call: int, mine: int, row: int) -> bool:
    """One row. False for one with a NaN, or whose largest biased logit is infinite."""
    experts, count = word(call + at.EXPERTS), word(call + at.SLOTS)
    size = padded(experts)
    logits, indices, weights = row_of(call, row)
    choice, keys = row_at(mine, experts, 0), row_at(mine, experts, 1)
    picked, spare = row_at(mine, experts, 2), row_at(mine, experts, 3)
    bias = word(call + at.BIAS)
    if bias:
        bias = padded_row(bias, experts, spare, ZERO)
    add_bias(padded_row(logits, experts, choice, MINUS_INFINITY), bias, experts, choice, keys)
    largest = largest_or_nan(choice, size)
    if not is_finite(largest):
        return False
    topk.largest(keys, size, count, mine, indices)
    gather(choice, indices, count, picked)
    most = ops.fill(F32X16, largest)
    for i in range(0, count, topk.LANES):
        above = ops.sub(ops.load(F32X16, picked + 4 * i), most)
        ops.store(picked + 4 * i, lanes.exp(F32X16, I32X16, above))
    renormalize(picked, count, PLAIN, np.float32(1.0), weights)
    return True


@entry
def selected_task(_: Any, call: int, index: int, count: int, control: int) -> int:
    """Thread ``index``'s range of rows, up to its first refused one."""
    mine, total = part_of(call, index), word(call + at.ROWS)
    for row in range(total * index // count, total * (index + 1) // count):
        if not selected_row(call, mine, row):
            native.atomic_min(call + at.BAD_ROW, row)
            break
    return 0


def moe_topk_softmax_of_selected_router_f32(spec: BuildSpec) -> Callable[..., int]:
    """Builds the router; threads own ranges of rows (variant ``serial``: one thread)."""
    task = native_address(selected_task, StaticType(()), *TASK_ARGUMENTS)
    route = caller(task, (PLAIN, 1.0, 1, 1), spec.variant == "serial")
    no_bias = np.zeros(0, np.float32)

    def run(
        logits: Array, router_bias: Array | None, indices: Array, weights: Array, scores: Array, threads: int
    ) -> int:
        return route(logits, no_bias if router_bias is None else router_bias, indices, weights, scores, threads)

    return run
