"""Softmax routers: probabilities of all experts, the K largest, with each way to renormalise them a contract.

A quotient by the sum is monotone in the dividend but not strictly: different exponentials may round to the same
probability, which then belongs to the lower id. So only exponentials clearly below a bound of the K-th are left out,
and the others are divided and compared as probabilities.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from kernelmap.spec import BuildSpec
from kernelmap_providers import lanes
from kernelmap_providers.arguments import Array
from kernelmap_providers.elementary import merge_lanes
from kernelmap_providers.jit.compile import entry, inlined, jit, native_address
from kernelmap_providers.memory import word
from kernelmap_providers.routers import topk
from kernelmap_providers.routers import words as at
from kernelmap_providers.routers.rows import (
    CLAMPED,
    PLAIN,
    RAW,
    gather,
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
from kernelmap_providers.simd.vectors import F32X8, F32X16, I32X16

LEFT_OUT: Final = np.float32(1 - 2.0**-21)
"""Exponentials below this times a bound round to probabilities below the bound's, where that is a normal number."""
SURE: Final = np.float32(2.0**-100)
"""Least probability of the bound for that rule."""
MINUS_INFINITY: Final = np.float32(-np.inf)


@inlined
def sum_of(acc: Any) -> Any:
    """The sum of eight lanes in the contract's order."""
    return merge_lanes(
        ops.lane(acc, 0), ops.lane(acc, 1), ops.lane(acc, 2), ops.lane(acc, 3), ops.lane(acc, 4), ops.lane(acc, 5),
        ops.lane(acc, 6), ops.lane(acc, 7),
    )  # fmt: skip


@jit
def exponentials(logits: int, size: int, largest: Any, count: int, e: int, work: int) -> Any:
    """exp(logits - largest) to ``e``. Returns their sum by the 8-lane rule and a bound of the ``count``-th largest."""
    acc = ops.fill(F32X8, np.float32(0.0))
    even = odd = ops.fill(I32X16, np.int32(0))
    most = ops.fill(F32X16, largest)
    for i in range(0, size, 2 * topk.LANES):
        at_logits, at_e = logits + 4 * i, e + 4 * i
        first = lanes.exp_not_positive(F32X16, I32X16, ops.sub(ops.load(F32X16, at_logits), most))
        second = lanes.exp_not_positive(F32X16, I32X16, ops.sub(ops.load(F32X16, at_logits + 4 * topk.LANES), most))
        ops.store(at_e, first)
        ops.store(at_e + 4 * topk.LANES, second)
        acc = ops.add(ops.add(acc, ops.low_half(first)), ops.high_half(first))
        acc = ops.add(ops.add(acc, ops.low_half(second)), ops.high_half(second))
        even = ops.maximum(even, ops.reinterpret(I32X16, first))
        odd = ops.maximum(odd, ops.reinterpret(I32X16, second))
    least = topk.bound(even, odd, count, work) if count <= topk.SOME else np.int32(0)
    return sum_of(acc), ops.float_of_bits(np.int32(least))


@inlined
def divide(values: int, count: int, divisor: Any) -> None:
    """``values[i] /= divisor``, up to a multiple of 16."""
    by = ops.fill(F32X16, divisor)
    for i in range(0, count, topk.LANES):
        ops.store(values + 4 * i, ops.div(ops.load(F32X16, values + 4 * i), by))


@jit
def select_among_few(e: int, size: int, total: Any, least: Any, count: int, mine: int, p: int, out: int) -> bool:
    """The ``count`` most probable to ``out`` if the bound ``least`` leaves few; else False. ``p`` is scratch."""
    if count > topk.SOME or least / total < SURE:
        return False
    found = topk.collect(e, size, np.float32(least * LEFT_OUT).view(np.int32), mine)
    if found > topk.CANDIDATES:
        return False
    gather(e, mine, found, p)
    divide(p, found, total)
    for place in range(found):
        topk.put_ranked(mine, place, ops.load_i32(p + 4 * place), ops.load_i32(mine + 4 * place))
    topk.rank(mine, found, count, out)
    return True


@jit
def softmax_row(call: int, mine: int, row: int) -> bool:
    """One row. False for one with a NaN, or whose largest logit is infinite."""
    experts, count = word(call + at.EXPERTS), word(call + at.SLOTS)
    size = padded(experts)
    logits, indices, weights = row_of(call, row)
    e, picked, keys = row_at(mine, experts, 0), row_at(mine, experts, 1), row_at(mine, experts, 2)
    logits = padded_row(logits, experts, e, MINUS_INFINITY)
    largest = largest_or_nan(logits, size)
    if not is_finite(largest):
        return False
    total, least = exponentials(logits, size, largest, count, e, mine)
    if select_among_few(e, size, total, least, count, mine, picked, indices):
        gather(e, indices, count, picked)
        divide(picked, count, total)
    else:
        divide(e, size, total)
        for i in range(0, size, topk.LANES):
            ops.store(keys + 4 * i, ops.load(I32X16, e + 4 * i))
        topk.largest(keys, size, count, mine, indices)
        gather(e, indices, count, picked)
    renormalize(picked, count, word(call + at.RULE), ops.load_f32(call + at.SCALE), weights)
    return True


@entry
def softmax_task(_: Any, call: int, index: int, count: int, control: int) -> int:
    """Thread ``index``'s range of rows, up to its first refused one."""
    mine, total = part_of(call, index), word(call + at.ROWS)
    for row in range(total * index // count, total * (index + 1) // count):
        if not softmax_row(call, mine, row):
            native.atomic_min(call + at.BAD_ROW, row)
            break
    return 0


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
    task = native_address(softmax_task, StaticType(()), *TASK_ARGUMENTS)
    route = caller(task, (rule, float(spec.params["scale"]), 1, 1), spec.variant == "serial")
    no_bias = np.zeros(0, np.float32)

    def run(logits: Array, indices: Array, weights: Array, scores: Array, threads: int) -> int:
        return route(logits, no_bias, indices, weights, scores, threads)

    return run
