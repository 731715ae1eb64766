"""Wrong kernels, each with one classic mistake. A certificate must be refused to all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kernelmap.spec import BuildSpec
from kernelmap_providers.formats import q4_k, q8_k
from kernelmap_providers.reference import experts, routers
from kernelmap_providers.reference.refusal import RefusedRow

Array = np.ndarray[Any, Any]
F = np.float32


def _gemm(
    dot: Callable[[Array, Array], Array], after: Callable[[Array, Array, int], None] | None = None
) -> Callable[[BuildSpec], Callable[..., int]]:
    """A q4_k GEMM with another dot, or with something done to its output."""

    def build(spec: BuildSpec) -> Callable[..., int]:
        def run(x: Array, weight: Array, y: Array, workspace: Array, threads: int) -> int:
            act, refused = q8_k.quantize_rows(x)
            if refused.any():
                return 1 + int(np.argmax(refused))
            result = np.stack([dot(weight, row) for row in act])
            if after is None:
                y[...] = result
            else:
                after(result, y, threads)
            return 0

        return run

    return build


def _dot(
    weight: Array, act: Array, *, minima: bool = True, fused: bool = False, clip: bool = False, roll: int = 0
) -> Array:
    d, dmin, scales, mins, codes = q4_k.fields(weight)
    d = np.roll(d, roll, axis=0)
    d_x, q, _ = q8_k.fields(act)
    q = q.astype(np.int64).reshape(len(d_x), 8, 32)
    acc = np.zeros(len(weight), F)
    for b in range(d.shape[1]):
        sums = (codes[:, b].astype(np.int64) * q[b]).sum(axis=-1)
        if clip:  # two sub-blocks added in one saturating int16 before they are widened
            sums = np.clip(sums, -16384, 16383)
        whole = (scales[:, b].astype(np.int64) * sums).sum(axis=-1).astype(F)
        offset = (mins[:, b].astype(np.int64) * q[b].sum(axis=-1)).sum(axis=-1).astype(F)
        term = d[:, b] * whole - (dmin[:, b] * offset if minima else F(0))
        exact = acc.astype(np.float64) + d_x[b].astype(np.float64) * term.astype(np.float64)
        acc = exact.astype(F) if fused else acc + d_x[b] * term
    return acc


def _copy(result: Array, y: Array, _threads: int) -> None:
    y[...] = result


def _skip_tail(result: Array, y: Array, _threads: int) -> None:
    y[...] = 0
    whole = result.shape[1] // 8 * 8
    y[:, :whole] = result[:, :whole]


def _leave_last(result: Array, y: Array, _threads: int) -> None:
    y[:, :-1] = result[:, :-1]


def _one_beyond(result: Array, y: Array, _threads: int) -> None:
    longer = np.lib.stride_tricks.as_strided(y, (y.size + 1,), (4,))
    longer[-1] = 0
    y[...] = result


def _by_threads(result: Array, y: Array, threads: int) -> None:
    """As if each thread had summed its part of the row: the last bit moves with the number of threads."""
    y[...] = result if threads == 1 else np.nextafter(result, F(np.inf))


dropped_mins = _gemm(lambda w, a: _dot(w, a, minima=False))
fused_multiply_add = _gemm(lambda w, a: _dot(w, a, fused=True))
saturating_pairs = _gemm(lambda w, a: _dot(w, a, clip=True))
scale_off_by_one_row = _gemm(lambda w, a: _dot(w, a, roll=1))
skipped_tail = _gemm(_dot, _skip_tail)
uninitialised_output = _gemm(_dot, _leave_last)
out_of_bounds_write = _gemm(_dot, _one_beyond)
thread_dependent_sum = _gemm(_dot, _by_threads)
right = _gemm(_dot, _copy)


def stale_scratch(spec: BuildSpec) -> Callable[..., int]:
    """Adds into its workspace without clearing it first."""
    base = right(spec)

    def run(x: Array, weight: Array, y: Array, workspace: Array, threads: int) -> int:
        status = base(x, weight, y, workspace, threads)
        y += F(1e-3) * workspace[:4].view(np.int8).astype(F).sum()
        return status

    return run


def _experts(change: Callable[[dict[str, Array]], dict[str, Array]]) -> Callable[[BuildSpec], Callable[..., int]]:
    def build(spec: BuildSpec) -> Callable[..., int]:
        def run(hidden: Array, indices: Array, routing_weights: Array, expert_gate: Array, expert_up: Array,
                expert_down: Array, output: Array, workspace: Array, threads: int) -> int:  # fmt: skip
            given = change({"indices": indices, "routing_weights": routing_weights})
            try:
                made = experts.moe_swiglu_expert_mlp(
                    spec, hidden=hidden, expert_gate=expert_gate, expert_up=expert_up, expert_down=expert_down, **given
                )
            except RefusedRow as error:
                return 1 + error.row
            output[...] = made["output"]
            return 0

        return run

    return build


right_experts = _experts(lambda given: given)
merge_order = _experts(lambda given: {name: np.ascontiguousarray(array[:, ::-1]) for name, array in given.items()})
slot_weight_swapped = _experts(
    lambda given: {**given, "routing_weights": np.ascontiguousarray(given["routing_weights"][:, ::-1])}
)


def wrong_tie_rule(spec: BuildSpec) -> Callable[..., int]:
    """Equal scores by the higher id: the experts are numbered backwards."""

    def run(logits: Array, indices: Array, weights: Array, workspace: Array, threads: int) -> int:
        try:
            made = routers.llama_softmax_topk(spec, logits=np.ascontiguousarray(logits[:, ::-1]))
        except RefusedRow as error:
            return 1 + error.row
        indices[...] = spec.dims["E"] - 1 - made["indices"]
        weights[...] = made["weights"]
        return 0

    return run
